"""After a job: what it asked for, was predicted to need, took, and what would have sufficed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memgate.client.errors import NotDoneError, RefusedError
from memgate.gpus import find_gpu
from memgate.units import GIB
from memgate_service.admission.kubernetes.cluster import ClusterError, ObjectEvent
from memgate_service.admission.kubernetes.ends import End, Used
from memgate_service.admission.kubernetes.finished import (
    FinishedJobs,
    PredictedUse,
    describe_use,
    read_prediction,
)
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from tests.admission import T4, make_job, make_pod
from tests.unit.service.admission.test_background import FakeCluster, RecordingMemgate


class OnceCluster(FakeCluster):
    """Records an event with a name of its own once."""

    refuses_events = False

    def record_event(self, event: ObjectEvent) -> Any:
        """Say whether it is new."""
        if self.refuses_events:
            raise ClusterError("not allowed", 403)
        if event.name in {one.name for one in self.events}:
            return False
        self.events.append(event)
        return True


class CountingMemgate(RecordingMemgate):
    """A server that takes outcomes."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.outcomes: list[Any] = []

    def report_outcome(self, job_id: str, measured: int, **more: Any) -> None:
        """Keep one."""
        if self.refuses:
            raise RefusedError("no", code="FORBIDDEN", status=403)
        self.outcomes.append((job_id, measured, more))


def _job(
    ended: str | None = "Complete", ago_seconds: float = 30, used: int = 0, reserved: int = 0
) -> Any:
    job = make_job(make_pod(nodeSelector=T4))
    job["metadata"] |= {"uid": "1"}
    said = {"memgate.dev/used-bytes": used, "memgate.dev/reserved-bytes": reserved}
    job["metadata"]["annotations"] |= {name: str(size) for name, size in said.items() if size}
    at = (datetime.now(UTC) - timedelta(seconds=ago_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    if ended is not None:
        one = {"type": ended, "status": "True", "lastTransitionTime": at}
        job["status"] = {"conditions": [one]}
    return job


def _rounds(
    cluster: OnceCluster, size_bytes: int = GIB, **settings: Any
) -> tuple[FinishedJobs, CountingMemgate]:
    memgate = CountingMemgate(size_bytes)
    made = AdmissionSettings(admission_audit_seconds=300, **settings)
    return FinishedJobs(cluster, memgate, made), memgate  # type: ignore[arg-type]


def test_an_owner_is_told_once_and_the_outcome_counts_once() -> None:
    """By however many programs, in however many rounds."""
    cluster = OnceCluster(jobs=[_job(used=2 * GIB)])
    for _ in range(2):
        rounds, memgate = _rounds(cluster)
        rounds.go_round()
        rounds.go_round()

    (event,) = cluster.events
    assert (event.reason, event.is_warning, event.about) == ("MemgateUsed", False, "train")
    assert event.message.startswith("asked for t4 (14.56 GiB), predicted ")
    assert event.message.endswith(", used 2.00 GiB; 2.00 GiB would have sufficed")
    assert memgate.outcomes == []  # of the second program
    assert rounds.every_seconds == 60


def test_what_was_measured_feeds_the_outcomes() -> None:
    """Unless the job failed, perhaps before its peak; or nobody takes it."""
    for ended, want in (("Complete", 1), ("Failed", 0)):
        cluster = OnceCluster(jobs=[_job(ended, reserved=GIB)])
        rounds, memgate = _rounds(cluster)
        rounds.go_round()
        assert len(memgate.outcomes) == want
        assert len(cluster.events) == 1
    rounds, memgate = _rounds(OnceCluster(jobs=[_job(reserved=GIB)]))
    rounds.go_round()
    assert memgate.outcomes == [("0" * 32, GIB, {"is_reserved_only": True})]
    rounds, memgate = _rounds(OnceCluster(jobs=[_job(used=5)]))
    memgate.refuses = True
    rounds.go_round()
    assert memgate.outcomes == []


def test_a_pod_of_the_job_may_say_what_it_took() -> None:
    """By its last words, through the Job that made it."""
    pod = make_pod(annotations={})
    ended = {"message": f"memgate.dev/used-bytes={3 * GIB}"}
    pod["metadata"] |= {"uid": "2", "ownerReferences": [{"kind": "Job", "uid": "1"}]}
    pod["status"] = {"containerStatuses": [{"state": {"terminated": ended}}]}
    cluster = OnceCluster(jobs=[_job()], pods=[pod])
    rounds, memgate = _rounds(cluster)
    rounds.go_round()
    assert "used 3.00 GiB" in cluster.events[0].message
    assert len(memgate.outcomes) == 1


def test_what_is_left_alone_is_not_told_of() -> None:
    """A namespace that the operator excluded, or that has the label."""
    cluster = OnceCluster(jobs=[_job()])
    _rounds(cluster, admission_excluded_namespaces="team")[0].go_round()
    cluster.objects["namespaces"] = [{"metadata": {"name": "team"}}]
    _rounds(cluster)[0].go_round()
    assert cluster.events == []


def test_a_job_of_a_cron_job_is_told_of() -> None:
    """That one never ends; what a Job makes is told of with the Job."""
    job = _job()
    job["metadata"]["ownerReferences"] = [{"kind": "CronJob", "uid": "9"}]
    cluster = OnceCluster(jobs=[job])
    _rounds(cluster)[0].go_round()
    assert len(cluster.events) == 1
    job["metadata"]["ownerReferences"] = [{"kind": "JobSet", "uid": "9"}]
    cluster = OnceCluster(jobs=[job])
    _rounds(cluster)[0].go_round()
    assert cluster.events == []


def test_what_was_not_measured_is_said_to_be() -> None:
    """And nothing is reported."""
    cluster = OnceCluster(jobs=[_job()])
    rounds, memgate = _rounds(cluster, admission_gpus="t4,rtx-3060")
    rounds.go_round()
    (event,) = cluster.events
    assert "used not measured; rtx-3060 would have sufficed, by the prediction" in event.message
    assert memgate.outcomes == []


def test_what_ended_long_ago_is_not_told_and_what_has_no_time_is_if_it_was_seen() -> None:
    """API servers forget events after an hour: it may have been told."""
    cluster = OnceCluster(jobs=[_job(ago_seconds=4000)])
    rounds, _ = _rounds(cluster)
    rounds.go_round()
    rounds.go_round()
    assert cluster.events == []

    cluster = OnceCluster(jobs=[_job(None)])
    rounds, _ = _rounds(cluster)
    rounds.go_round()
    cluster.objects["jobs"][0]["status"] = {"phase": "Succeeded"}
    rounds.go_round()
    assert len(cluster.events) == 1


def test_in_audit_nothing_is_said_and_what_was_seen_running_counts() -> None:
    """An exempt job is left alone."""
    cluster = OnceCluster(jobs=[_job(None, used=5)])
    rounds, memgate = _rounds(cluster, admission_mode="audit")
    rounds.go_round()
    cluster.objects["jobs"] = [_job(used=5)]
    rounds.go_round()
    assert cluster.events == []
    assert len(memgate.outcomes) == 1


def test_an_answer_that_has_expired_is_waited_for() -> None:
    """For a few rounds; then what is known is told."""
    cluster = OnceCluster(jobs=[_job()])
    rounds, memgate = _rounds(cluster)
    memgate.said = NotDoneError("0" * 32, 0)
    for _ in range(5):
        rounds.go_round()
    assert cluster.events == []
    rounds.go_round()
    assert "predicted nothing, used not measured" in cluster.events[0].message


def test_a_wrong_description_or_a_refused_event_breaks_nothing() -> None:
    """And what has no description is not told of."""
    wrong = _job()
    wrong["metadata"]["annotations"] = {"memgate.dev/job": "nonsense"}
    cluster = OnceCluster(jobs=[wrong])
    rounds, _ = _rounds(cluster)
    rounds.go_round()
    assert "asked for a GPU, predicted nothing" in cluster.events[0].message
    plain = _job()
    plain["metadata"]["annotations"] = {}
    cluster = OnceCluster(jobs=[plain])
    rounds, _ = _rounds(cluster)
    rounds.go_round()
    assert cluster.events == []
    cluster = OnceCluster(jobs=[_job(used=5)])
    cluster.refuses_events = True
    rounds, memgate = _rounds(cluster)
    rounds.go_round()
    assert memgate.outcomes == []


_WELL, _BADLY = End(is_failed=False, at=None), End(is_failed=True, at=None)
_KNOWN = PredictedUse("t4", find_gpu("t4").memory_bytes, 3 * GIB, "0" * 32)
_CARDS = tuple(sorted(map(find_gpu, ("t4", "rtx-3060")), key=lambda one: one.memory_bytes))


@pytest.mark.parametrize(
    ("end", "predicted", "used", "want"),
    [
        (
            _WELL,
            _KNOWN,
            Used(2 * GIB, is_reserved_only=False),
            "asked for t4 (14.56 GiB), predicted 3.00 GiB, used 2.00 GiB;"
            " rtx-3060 would have sufficed",
        ),
        (
            _WELL,
            _KNOWN,
            Used(2 * GIB, is_reserved_only=True),
            "asked for t4 (14.56 GiB), predicted 3.00 GiB, used 2.00 GiB by PyTorch's allocator;"
            " rtx-3060 would have sufficed, by the prediction",
        ),
        (
            _BADLY,
            _KNOWN,
            Used(2 * GIB, is_reserved_only=False),
            "it failed, perhaps before its peak; asked for t4 (14.56 GiB), predicted 3.00 GiB,"
            " used 2.00 GiB; rtx-3060 would have sufficed, by the prediction",
        ),
        (
            _WELL,
            _KNOWN,
            Used(13 * GIB, is_reserved_only=False),
            "asked for t4 (14.56 GiB), predicted 3.00 GiB, used 13.00 GiB",
        ),
        (
            _WELL,
            read_prediction(None),
            None,
            "asked for a GPU, predicted nothing, used not measured",
        ),
    ],
    ids=["measured", "by the allocator", "failed", "nothing smaller", "nothing known"],
)
def test_the_line_says_what_is_known(
    end: End, predicted: PredictedUse, used: Used | None, want: str
) -> None:
    """What would have sufficed is by the measurement, or says that it is not."""
    assert describe_use(end, predicted, used, _CARDS) == want
