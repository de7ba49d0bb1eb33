"""New jobs that do not fit, submitted once to a real API server, with the chart's own timeouts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.queues import Speed
from memgate_worker.queue.settings import QueueSettings
from tests.chart import ROOT
from tests.integration.kube_gate import (
    NAMESPACE,
    create,
    forget_webhooks,
    make_job,
    serving_webhooks,
    wait_until_asked,
)
from tests.integration.kube_lab import Lab
from tests.record_reviews import RULES
from tests.running import running, wait_until
from tests.valkey import running_valkey

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

_VALUES = ROOT / "deploy/kubernetes/chart/values.yaml"

#: models of about a ResNet's size; none fits on a Tesla T4 at this batch size
_NAMES = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "wide_resnet50_2"),
    *("vgg11", "vgg13", "vgg16", "vgg16_bn", "densenet121", "densenet161", "densenet169"),
    *("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "regnet_y_400mf", "googlenet"),
    *("vit_b_16", "convnext_tiny"),
)
_BATCH_SIZE = 2048


def _spec(name: str) -> dict[str, Any]:
    model = {"source": "torchvision", "name": name}
    return {"model": model, "input": {"shape": [3, 224, 224]}, "batch_size": _BATCH_SIZE}


def test_new_jobs_are_refused_at_their_first_submission(lab: Lab, tmp_path: Path) -> None:
    """Of 20 jobs that nobody has asked about before, 19 are refused; for a quiet machine."""
    admission = yaml.safe_load(_VALUES.read_text())["admission"]
    lab.make_namespace(NAMESPACE, webhook="yes")
    seconds, passed = {}, {}
    with (
        running_valkey() as url,
        running("memgate_worker", tmp_path / "worker-0.log", redis_url=url),
        running("memgate_worker", tmp_path / "worker-1.log", redis_url=url),
        serving_webhooks(lab, url, tmp_path) as webhooks,
    ):
        queue = QueueClient(QueueSettings(redis_url=url))
        wait_until(lambda: queue.num_workers(Speed.SLOW) == 2, "both workers are warm", 120)
        for kind, field in (("Mutating", "mutateTimeoutSeconds"), ("Validating", "timeoutSeconds")):
            lab.install_webhook(
                webhooks.url,
                lab.certificate.authority,
                kind=kind,
                failure_policy="Fail",
                timeout=admission[field],
                rules=RULES,
            )
        wait_until_asked(lab, webhooks)
        for name in _NAMES:
            wait_until(lambda: queue.num_open() == 0, "the workers are idle", 120)
            begun = time.monotonic()
            created = create(lab, make_job(name.replace("_", "-"), spec=_spec(name)))
            seconds[name] = time.monotonic() - begun
            if created.returncode == 0:
                passed[name] = created.stderr
            else:
                assert "does not fit on t4" in created.stderr, created.stderr
        queue.close()
    forget_webhooks(lab)
    took = ", ".join(f"{name} {one:.2f}" for name, one in seconds.items())
    print(f"refused {len(_NAMES) - len(passed)} of {len(_NAMES)}; load {os.getloadavg()}; {took}")  # noqa: T201
    assert len(passed) <= 1, passed
