"""Jobs without a description at a real API server; the test plays what runs the shadow pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kube

from memgate_service.admission.core.rehearsal import RehearsalResult
from tests.integration.kube_gate import (
    NAMESPACE,
    controlling,
    create,
    find_events,
    forget_webhooks,
    gating,
    read_audit,
)
from tests.integration.kube_lab import Lab
from tests.integration.kube_shadows import RAN, Shadows, make_plain_jobset
from tests.record_reviews import KINDS
from tests.running import wait_until
from tests.valkey import running_valkey

pytestmark = pytest.mark.kubernetes

_REJECT = RehearsalResult(decision="reject", gpu="t4", why="needs 21 GiB")
_ADMIT = RehearsalResult(decision="admit", gpu="t4", why="needs 2 GiB")
_UNKNOWN = RehearsalResult(why="no step was seen")
_NAMES = {_REJECT.why: "refused", _ADMIT.why: "fits", _UNKNOWN.why: "unknown", "": "failed"}


@pytest.fixture(scope="module")
def valkey() -> Iterator[str]:
    """Start a Valkey server; nobody needs to work: the shadows say what is known."""
    with running_valkey() as url:
        yield url


@pytest.fixture
def shadows(lab: Lab) -> Iterator[Shadows]:
    """Have a namespace that takes part, with nothing in it."""
    for kind in KINDS:
        lab.install_kind(*kind)
    lab.make_namespace(NAMESPACE, webhook="yes")
    _empty(lab)
    made = Shadows(lab, NAMESPACE)
    yield made
    _empty(lab)
    made.clean()


def _empty(lab: Lab) -> None:
    """Remove what others' tests left: it may have no description either."""
    kinds = "jobsets,jobs,deployments,pods"
    words = ("--all", "--force", "--cascade=background", f"--namespace={NAMESPACE}")
    lab.kubectl("delete", kinds, *words)


class Gate:
    """The webhooks and the controller, where the policy says that jobs are rehearsed."""

    def __init__(self, lab: Lab, valkey: str, directory: Path, stack: ExitStack) -> None:
        self._lab = lab
        self._valkey = valkey
        self._directory = directory
        self._stack = stack

    def start(self, mode: str = "enforce", **more: str) -> None:
        """Start both."""
        policy = self._directory / "policy.json"
        policy.write_text(json.dumps({"mode": mode, "on": {"undescribed": "rehearse"}}))
        settings: dict[str, Any] = {
            "admission_policy": str(policy),
            "rehearsal_image": "memgate-worker:1",
            **more,
        }
        self._stack.enter_context(gating(self._lab, self._valkey, self._directory, **settings))
        self._stack.enter_context(controlling(self._lab, self._valkey, self._directory, **settings))


@pytest.fixture
def gate(lab: Lab, valkey: str, tmp_path: Path) -> Iterator[Gate]:
    """The gate, not started yet."""
    with ExitStack() as stack:
        yield Gate(lab, valkey, tmp_path, stack)
    forget_webhooks(lab)


def _state(lab: Lab, name: str) -> tuple[bool, str | None]:
    """Return whether a JobSet is suspended, and our label on it."""
    found = lab.get("jobset", name, NAMESPACE)
    label = found["metadata"].get("labels", {}).get("memgate.dev/held")
    return bool(found["spec"].get("suspend")), label


@pytest.mark.parametrize(
    ("result", "want", "reason"),
    [
        (_REJECT, (True, "rejected"), "MemgateRefused"),
        (_ADMIT, (False, None), "MemgateReleased"),
        (_UNKNOWN, (False, None), "MemgateReleased"),
        (None, (False, None), "MemgateReleased"),
    ],
    ids=["does not fit", "fits", "cannot tell", "failed"],
)
def test_a_job_without_a_description_is_rehearsed(
    lab: Lab, gate: Gate, shadows: Shadows, result: Any, want: Any, reason: str
) -> None:
    """Held, its shadow created behind a fence, its completion played, and then decided."""
    name = f"rehearsed-{_NAMES[result.why if result else '']}"
    gate.start()
    ran = create(lab, make_plain_jobset(name))
    assert "run once without a GPU first" in ran.stderr
    assert _state(lab, name) == (True, "rehearsal")

    shadow = shadows.wait()
    assert shadow.spec.priority == -1000000
    assert shadow.spec.containers[0].image == "team/train:1"  # it has not run here
    assert shadows.fences() == 2
    fence = lab.get("networkpolicy", "memgate-rehearsals", NAMESPACE)
    assert fence["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in fence["spec"]
    shadows.end(shadow, result)

    wait_until(lambda: _state(lab, name) == want, "the result has decided", 60)
    wait_until(lambda: shadows.find() == [], "the shadow is gone", 60)
    wait_until(lambda: reason in find_events(lab, name), "its owner is told")
    message = find_events(lab, name)[reason]["message"]
    if result in (_REJECT, _ADMIT):
        assert result.why in message
        assert f"team/train:1 was {RAN.rpartition('@')[2]} then" in message
    else:
        assert "a rehearsal cannot tell whether it fits" in message
    shadows.take_part("disabled")
    wait_until(lambda: shadows.fences() == 0, "nothing is left behind", 60)


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_where_nothing_is_enforced_it_runs_beside_the_job(
    lab: Lab, gate: Gate, shadows: Shadows, valkey: str, mode: str
) -> None:
    """The job is never held; its own pod says which image its tag means."""
    gate.start(
        mode, admission_audit_seconds="1", admission_events="true", kubeconfig=str(lab.kubeconfig)
    )
    name = f"beside-{mode}"
    ran = create(lab, make_plain_jobset(name))
    assert (ran.returncode, _state(lab, name)) == (0, (False, None))
    shadow = shadows.wait()
    assert _state(lab, name) == (False, None)
    shadows.end(shadow, _REJECT)

    def records() -> list[Any]:
        found = [one for one in read_audit(valkey, decision="reject") if one.name == name]
        return [(one.done, one.would, one.mode) for one in found]

    wait_until(lambda: records() == [("noted", "refused", mode)], "it is in the audit", 60)
    wait_until(lambda: shadows.find() == [], "the shadow is gone", 60)
    assert _state(lab, name) == (False, None)
    if mode == "warn":
        wait_until(lambda: "MemgateDoesNotFit" in find_events(lab, name), "its owner is told")
    else:
        assert find_events(lab, name) == {}


def test_an_image_that_has_run_here_is_rehearsed_by_its_digest(
    lab: Lab, gate: Gate, shadows: Shadows
) -> None:
    """As a pod's status says what its tag meant."""
    container = {"name": "train", "image": "team/train:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "earlier"},
        "spec": {"containers": [container]},
    }
    lab.kubectl("create", "-f-", f"--namespace={NAMESPACE}", given=[pod])
    status = container | {"imageID": RAN, "ready": True, "restartCount": 0}
    body = {"status": {"phase": "Running", "containerStatuses": [status]}}
    kube.CoreV1Api(lab.client).patch_namespaced_pod_status("earlier", NAMESPACE, body)
    gate.start()
    create(lab, make_plain_jobset("by-digest"))
    assert shadows.wait().spec.containers[0].image == RAN


def test_a_namespace_runs_one_at_a_time_and_a_known_program_not_again(
    lab: Lab, gate: Gate, shadows: Shadows
) -> None:
    """Two with the same program: one shadow decides both. A third one waits; a fourth opts out."""
    gate.start()
    skipped = make_plain_jobset("skipped")
    skipped["metadata"]["annotations"] = {"memgate.dev/rehearsal": "skip"}
    for document in (
        make_plain_jobset("first", "same"),
        make_plain_jobset("second", "same"),
        make_plain_jobset("third", "other"),
        skipped,
    ):
        create(lab, document)
    assert _state(lab, "skipped") == (False, None)
    first = shadows.wait()
    shadows.end(first, _ADMIT)
    names = ("first", "second", "third")

    def released() -> list[str]:
        shadows.count()
        return [name for name in names if _state(lab, name) == (False, None)]

    done = {
        "same": ["first", "second"],
        "other": ["third"],
    }[first.spec.containers[0].command[-1]]
    wait_until(lambda: released() == done, "one result decides all that it is about", 60)
    second = shadows.wait()
    assert second.metadata.name != first.metadata.name
    shadows.end(second, _ADMIT)
    wait_until(lambda: len(released()) == 3, "the others' turn has come", 60)
    wait_until(lambda: shadows.find() == [], "nothing is left behind", 60)


def test_nothing_waits_longer_than_its_deadline(lab: Lab, gate: Gate, shadows: Shadows) -> None:
    """A shadow that nobody runs: the job is released, and the shadow deleted."""
    gate.start(rehearsal_seconds="30")
    create(lab, make_plain_jobset("hanging"))
    shadows.wait()
    assert _state(lab, "hanging") == (True, "rehearsal")
    wait_until(lambda: _state(lab, "hanging") == (False, None), "it is released", 90)
    wait_until(lambda: shadows.find() == [], "nothing is left behind", 60)
    message = find_events(lab, "hanging")["MemgateReleased"]["message"]
    assert "there was no result in time" in message
