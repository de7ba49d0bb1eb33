"""``memgate certificates`` and ``keys create --secret`` where there is no cluster to talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running import free_port

ARGUMENTS = (
    *("certificates", "--secret=tls", "--namespace=memgate"),
    *("--host=memgate-webhook.memgate.svc", "--webhook=memgate"),
)


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command looks for a cluster; nothing is there."""
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return path


@pytest.mark.usefixtures("kubeconfig")
def test_without_a_cluster_it_says_so(run: Any) -> None:
    """Neither in a pod nor with a kubeconfig: one sentence, and the status of bad input."""
    ran = run(*ARGUMENTS)

    assert ran.status == 2
    assert ran.err.startswith("memgate: there is no cluster to talk to: ")
    assert ran.out == ""


def test_a_pod_without_a_token_is_told_apart(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod nothing else is tried: a kubeconfig there would be somebody else's."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    ran = run(*ARGUMENTS)

    assert ran.status == 2
    assert "Service token file does not exist" in ran.err


def test_a_cluster_that_is_away_is_no_bad_input(run: Any, kubeconfig: Path) -> None:
    """The job that runs it tries again."""
    url = f"https://127.0.0.1:{free_port()}"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {
        "current-context": "c",
        "contexts": [context],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(document))

    ran = run(*ARGUMENTS)

    assert ran.status == 1
    assert "the Kubernetes API cannot be reached" in ran.err


def test_a_life_is_one_day_to_ten_years(run: Any) -> None:
    """More is a slip of the finger."""
    ran = run(*ARGUMENTS, "--days=0")

    assert ran.status == 2
    assert "--days" in ran.err
