"""Webhooks that hang, at a real API server: how long a person waits in the worst case."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.admission import SPEC
from tests.chart import render
from tests.integration.kube_gate import NAMESPACE, create, make_job
from tests.integration.kube_lab import Lab
from tests.integration.refuser import changer
from tests.parts import find_part
from tests.running import wait_until

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts"),
]


@contextmanager
def _silence() -> Iterator[str]:
    """Listen, and never say a word; return where."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"


def _install(lab: Lab, url: str) -> None:
    """Install the chart's own webhooks, sent elsewhere."""
    objects = render({}, "--skip-tests", "--kube-version=1.27")
    bundle = base64.b64encode(lab.certificate.authority).decode()
    for one in objects:
        if one["kind"] not in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            continue
        kept = [hook for hook in one["webhooks"] if not hook["name"].startswith("policies")]
        for hook in kept:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": url + path, "caBundle": bundle}
            hook["namespaceSelector"] = {"matchLabels": {"webhook": "yes"}}
        lab.apply(one | {"webhooks": kept})


def _read_calls(lab: Lab) -> dict[str, tuple[int, float]]:
    """Return how often each of our webhooks was called, and how long that took in all."""
    text = lab.kubectl("get", "--raw=/metrics").stdout
    start = "apiserver_admission_webhook_admission_duration_seconds"
    found: dict[str, tuple[int, float]] = {}
    for name in ("mutate.memgate.dev", "validate.memgate.dev"):
        sums = [
            sum(float(one) for one in re.findall(_line(f"{start}_{kind}", name), text, re.M))
            for kind in ("count", "sum")
        ]
        found[name] = (int(sums[0]), sums[1])
    return found


def _line(metric: str, name: str) -> str:
    return rf'^{metric}{{[^}}]*name="{re.escape(name)}"[^}}]*}} (\S+)$'


def test_both_webhooks_together_take_less_than_five_seconds(lab: Lab, tmp_path: Path) -> None:
    """Also when another webhook changes the object, so that ours is called twice.

    By the API server's own clock; the object exists, and gets in as it was.
    """
    lab.make_namespace(NAMESPACE, webhook="yes")
    document = make_job("worst-case", spec=SPEC)
    assert create(lab, document).returncode == 0
    with _silence() as url, changer(lab.certificate, tmp_path) as other:
        _install(lab, url)
        lab.install_webhook(other, lab.certificate.authority, kind="Mutating")
        change: dict[str, Any] = {"metadata": {"labels": {"changed": "yes"}}}

        def patch(number: int) -> dict[str, tuple[int, float]]:
            change["metadata"]["labels"]["changed"] = str(number)
            before = _read_calls(lab)
            words = ("patch", "job", "worst-case", f"--namespace={NAMESPACE}", "--type=merge")
            lab.kubectl(*words, "--patch", json.dumps(change))
            after = _read_calls(lab)
            return {
                name: (after[name][0] - num, after[name][1] - seconds)
                for name, (num, seconds) in before.items()
            }

        wanted = {"mutate.memgate.dev": 2, "validate.memgate.dev": 1}
        taken: list[dict[str, tuple[int, float]]] = []

        def is_asked() -> bool:
            taken.append(patch(len(taken)))
            return {name: num for name, (num, _) in taken[-1].items()} == wanted

        wait_until(is_asked, "the API server asks all webhooks", 120)
    lab.remove_webhooks()
    seconds = sum(one for _, one in taken[-1].values())
    assert 3 < seconds < 5, taken[-1]
    labels = lab.get("job", "worst-case", NAMESPACE)["metadata"]["labels"]
    assert labels["changed"] == str(len(taken) - 1)
