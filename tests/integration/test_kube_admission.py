"""The gate at a real Kubernetes API server, with real workers behind it: what people really see."""

from __future__ import annotations

import copy
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.admission import SPEC
from tests.integration.kube_gate import (
    LARGE,
    Webhooks,
    controlling,
    create,
    forget_webhooks,
    gating,
    let_edit,
    make_job,
)
from tests.integration.kube_lab import Lab
from tests.record_reviews import KINDS, read_example
from tests.running import running, wait_until
from tests.valkey import running_valkey

pytestmark = pytest.mark.kubernetes

_JOB = "memgate.dev/job"


@pytest.fixture(scope="module")
def valkey() -> Iterator[str]:
    """Start a Valkey server; return where it is."""
    with running_valkey() as url:
        yield url


@pytest.fixture
def idle() -> Iterator[str]:
    """Start one that nobody works for yet."""
    with running_valkey() as url:
        yield url


@pytest.fixture(scope="module")
def worker(valkey: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have somebody who runs jobs."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with running("memgate_worker", log, redis_url=valkey, advice_seconds="60"):
        yield


@pytest.fixture(scope="module")
def namespace(lab: Lab) -> str:
    """Make a namespace that the webhooks look at, and the kinds of others' controllers."""
    for kind in KINDS:
        lab.install_kind(*kind)
    return lab.make_namespace("gated", webhook="yes")


Start = Callable[..., Webhooks]


@pytest.fixture
def start(lab: Lab, valkey: str, tmp_path: Path) -> Iterator[Start]:
    """Start services for webhooks, each with the API server sent to it."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Webhooks:
            return stack.enter_context(gating(lab, valkey, tmp_path, **settings))

        yield make
    forget_webhooks(lab)


def _is_there(lab: Lab, kind: str, name: str) -> bool:
    ran = lab.kubectl("get", kind, name, "--namespace=gated", "--output=name", check=False)
    return ran.returncode == 0


@pytest.mark.usefixtures("namespace", "worker")
def test_what_fits_gets_in_and_what_does_not_is_refused(lab: Lab, start: Start) -> None:
    """With the estimate on the object, or with what would fit on the person's screen."""
    start()
    good = create(lab, make_job("fits"))
    assert good.returncode == 0, good.stderr
    annotations = lab.get("job", "fits", "gated")["metadata"]["annotations"]
    said = json.loads(annotations["memgate.dev/estimate"])
    assert (said["decision"], said["gpu"]) == ("admit", "t4")
    assert said["id"] == annotations["memgate.dev/estimate-id"]

    bad = create(lab, make_job("too-large", spec=LARGE))
    assert bad.returncode != 0
    assert 'admission webhook "validate.memgate.dev" denied the request: memgate:' in bad.stderr
    assert "does not fit on " in bad.stderr
    assert "t4 has 14.56 GiB" in bad.stderr
    assert " fits, the largest that does" in bad.stderr
    assert "as it is, it fits on " in bad.stderr
    assert not _is_there(lab, "job", "too-large")


@pytest.mark.usefixtures("namespace", "worker")
def test_a_person_is_warned(lab: Lab, start: Start) -> None:
    """kubectl shows it, and the object is made."""
    start()
    ran = create(lab, make_job("unknown-card", gpu="NVIDIA-B100"))
    assert ran.returncode == 0
    assert (
        "Warning: memgate: it is not known whether this fits: the GPU 'NVIDIA-B100'" in ran.stderr
    )
    assert _is_there(lab, "job", "unknown-card")


@pytest.mark.usefixtures("namespace", "worker")
def test_a_dry_run_leaves_no_trace(lab: Lab, start: Start) -> None:
    """Asked about a job that nobody knows, it says so; about one that is known, it answers."""
    start()
    spec = SPEC | {"batch_size": 33}
    ran = create(lab, make_job("tried", spec=spec), "--dry-run=server")
    assert ran.returncode == 0
    assert "a dry run does not" in ran.stderr
    assert create(lab, make_job("made", spec=spec)).returncode == 0
    again = create(lab, make_job("tried", spec=spec), "--dry-run=server")
    assert "Warning" not in again.stderr
    assert not _is_there(lab, "job", "tried")


@pytest.mark.usefixtures("namespace", "worker")
def test_a_new_answer_that_takes_too_long_is_the_operators_to_decide(
    lab: Lab, start: Start
) -> None:
    """Let in with a warning; or told to come back, which kubectl does until there is an answer."""
    start(admission_wait_seconds="0")
    warned = create(lab, make_job("warned", spec=SPEC | {"batch_size": 41}))
    assert warned.returncode == 0
    assert "Warning: memgate: no answer yet" in warned.stderr

    start(admission_wait_seconds="0", admission_on_timeout="reject")
    retried = create(lab, make_job("retried", spec=SPEC | {"batch_size": 42}))
    assert retried.returncode == 0, retried.stderr  # it came back by itself


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("is_hung", [True, False], ids=["hung", "gone"])
def test_without_webhooks_the_failure_policy_decides(lab: Lab, start: Start, is_hung: bool) -> None:
    """Ignore lets in what Fail keeps out, whether they hang or are gone."""
    for policy, is_let_in in (("Ignore", True), ("Fail", False)):
        webhooks = start(policy=policy, timeout=1)
        number = signal.SIGSTOP if is_hung else signal.SIGKILL
        webhooks.process.send_signal(number)
        begun = time.monotonic()
        name = f"without-{policy.lower()}-{'hung' if is_hung else 'gone'}"
        ran = create(lab, make_job(name))
        took = time.monotonic() - begun
        webhooks.process.send_signal(signal.SIGCONT)
        assert (ran.returncode == 0) is is_let_in, ran.stderr
        assert took < 20  # two webhooks, a second each, and kubectl


@pytest.mark.usefixtures("namespace", "worker")
def test_what_is_filled_in_is_filled_in_once(lab: Lab, start: Start) -> None:
    """A pod for HAMi gets its memory; applied again, it stays as it is."""
    start()
    (document,) = read_example("pod-hami.yaml")
    apply = ("apply", "--filename=-", "--namespace=gated")
    ran = lab.kubectl(*apply, given=[document])
    assert "Warning" not in ran.stderr
    first = lab.get("pod", "gpt2-shared", "gated")
    limits = first["spec"]["containers"][0]["resources"]["limits"]
    said = json.loads(first["metadata"]["annotations"]["memgate.dev/estimate"])
    assert int(limits["nvidia.com/gpumem"]) == -(-said["needs_bytes"] // (1 << 20))

    document["metadata"]["labels"] = {"team": "language"}
    lab.kubectl(*apply, given=[document])
    second = lab.get("pod", "gpt2-shared", "gated")
    assert second["spec"] == first["spec"]
    assert second["metadata"]["labels"] == {"team": "language"}


@pytest.mark.usefixtures("namespace", "worker")
def test_a_spec_may_stand_in_a_config_map(lab: Lab, start: Start) -> None:
    """Which is read with the rights of the webhooks; one that is missing is named."""
    start(kubeconfig=str(lab.kubeconfig))
    spec, job = read_example("job-configmap.yaml")
    missing = create(lab, job)
    assert "there is no ConfigMap 'vgg16-training' in 'gated'" in missing.stderr
    spec["data"] = {"other": "x"}
    lab.kubectl("apply", "--filename=-", "--namespace=gated", given=[spec])
    assert "has no 'job', it has: other" in create(lab, job).stderr
    spec["data"] = {"job": json.dumps(SPEC)}
    lab.kubectl("apply", "--filename=-", "--namespace=gated", given=[spec])
    good = create(lab, job)
    assert good.returncode == 0, good.stderr
    said = lab.get("job", "vgg16", "gated")["metadata"]["annotations"]["memgate.dev/estimate"]
    assert json.loads(said)["gpu"] == "a100-40-1g.10gb,a100-80-1g.10gb,h100-80-1g.10gb"


@pytest.mark.usefixtures("namespace")
def test_what_is_held_is_released_when_the_answer_is_there(
    lab: Lab, start: Start, idle: str, tmp_path: Path
) -> None:
    """Not before, and by nobody who may not: not its owner, and not by editing it."""
    start(admission_wait_seconds="0", admission_on_timeout="hold", redis_url=idle)
    document = copy.deepcopy(read_example("jobset.yaml")[0])
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["metadata"]["annotations"][_JOB] = json.dumps(SPEC | {"batch_size": 51})
    too_large = copy.deepcopy(document)
    too_large["metadata"]["name"] = "too-large"
    large = too_large["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    large["metadata"]["annotations"][_JOB] = json.dumps(LARGE | {"batch_size": 4096})

    for one in (document, too_large):
        ran = create(lab, one)
        assert "Warning: memgate: held until there is an answer" in ran.stderr
    assert lab.get("jobset", "sweep", "gated")["spec"]["suspend"] is True

    let_edit(lab, "owner")
    resume = ("patch", "jobset", "sweep", "--namespace=gated", "--type=merge", "--patch")
    with lab.as_account("owner", "gated") as owner:
        tried = owner.kubectl(*resume, '{"spec": {"suspend": false}}', check=False)
    assert "held until there is an answer" in tried.stderr
    assert lab.get("jobset", "sweep", "gated")["spec"]["suspend"] is True

    with (
        running("memgate_worker", tmp_path / "worker.log", redis_url=idle),
        controlling(lab, idle, tmp_path, admission_on_timeout="hold"),
    ):

        def is_released() -> bool:
            found = lab.get("jobset", "sweep", "gated")
            labels = found["metadata"].get("labels", {})
            return found["spec"]["suspend"] is False and "memgate.dev/held" not in labels

        def is_refused() -> bool:
            found = lab.get("jobset", "too-large", "gated")
            return bool(found["metadata"]["labels"]["memgate.dev/held"] == "rejected")

        wait_until(is_released, "the JobSet is released", 120)
        wait_until(is_refused, "the large one is refused", 120)
    assert lab.get("jobset", "too-large", "gated")["spec"]["suspend"] is True
    events = lab.kubectl("get", "events", "--namespace=gated", "--output=json").stdout
    by_reason = {event["reason"]: event["message"] for event in json.loads(events)["items"]}
    assert "fits" in by_reason["MemgateReleased"]
    assert "does not fit" in by_reason["MemgateRefused"]
