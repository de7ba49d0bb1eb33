"""``memgate certificates`` and ``keys create --secret`` where there is no cluster to talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running import silent_port

ARGUMENTS = (
    *("certificates", "--secret=tls", "--namespace=memgate"),
    *("--host=memgate-webhook.memgate.svc", "--webhook=memgate"),
)


def test_without_a_cluster_it_says_so(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a pod nor with a kubeconfig: one sentence that says what to do."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    ran = run(*ARGUMENTS)

    assert ran.status == 1
    assert "run it in a pod, or set MEMGATE_KUBECONFIG" in ran.err
    assert ran.out == ""


def test_a_cluster_that_is_away_is_told_of(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that runs it tries again."""
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("MEMGATE_KUBECONFIG", str(kubeconfig))
    with silent_port() as port:
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(document))

        ran = run(*ARGUMENTS)

    assert ran.status == 1
    assert "Kubernetes' API server cannot be reached" in ran.err


def test_a_life_is_one_day_to_ten_years(run: Any) -> None:
    """More is a slip of the finger."""
    ran = run(*ARGUMENTS, "--days=0")

    assert ran.status == 2
    assert "--days" in ran.err
