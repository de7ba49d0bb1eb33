"""Whether an object has ended, what it took, and whether a pod of it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from memgate_service.admission.kubernetes.ends import (
    End,
    Used,
    find_end,
    find_pods_of,
    find_used,
    has_started,
)

_AT = "2026-05-01T10:00:00Z"
_WHEN = datetime(2026, 5, 1, 10, tzinfo=UTC)


def _condition(kind: str, status: str = "True") -> Any:
    return {"conditions": [{"type": kind, "status": status, "lastTransitionTime": _AT}]}


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, None),
        (_condition("Complete", "False"), None),
        (_condition("Suspended"), None),
        (_condition("Complete"), End(is_failed=False, at=_WHEN)),
        (_condition("Completed"), End(is_failed=False, at=_WHEN)),
        (_condition("Failed"), End(is_failed=True, at=_WHEN)),
        ({"phase": "Running"}, None),
        ({"phase": "Succeeded"}, End(is_failed=False, at=None)),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"finishedAt": _AT}}}],
            },
            End(is_failed=True, at=_WHEN),
        ),
        ({"jobStatus": "RUNNING"}, None),
        ({"jobStatus": "SUCCEEDED", "endTime": _AT}, End(is_failed=False, at=_WHEN)),
        (
            {"state": {"phase": "Aborted", "lastTransitionTime": _AT}},
            End(is_failed=True, at=_WHEN),
        ),
        ({"state": "ready"}, None),
        ({"jobStatus": "STOPPED", "endTime": "2026-05-01"}, End(is_failed=True, at=None)),
    ],
)
def test_each_kind_says_in_its_own_way_that_it_has_ended(status: Any, want: End | None) -> None:
    """Jobs, JobSets, Kubeflow's, pods, Ray's, Volcano's."""
    assert find_end({"status": status}) == want


def _annotated(**annotations: str) -> Any:
    return {"metadata": {"annotations": {f"memgate.dev/{k}": v for k, v in annotations.items()}}}


def _left(message: str) -> Any:
    return {"status": {"containerStatuses": [{"state": {"terminated": {"message": message}}}]}}


@pytest.mark.parametrize(
    ("documents", "want"),
    [
        ([{}], None),
        ([_annotated(**{"used-bytes": "123"})], Used(123, is_reserved_only=False)),
        ([_annotated(**{"used-bytes": "12 GiB"})], None),
        ([_annotated(**{"used-bytes": "-5"})], None),
        ([_annotated(**{"reserved-bytes": "99"})], Used(99, is_reserved_only=True)),
        (
            [_annotated(**{"reserved-bytes": "99"}), _left("done\nmemgate.dev/used-bytes=70\n")],
            Used(70, is_reserved_only=False),
        ),
        ([_left("memgate.dev/reserved-bytes: 5"), _left("x")], Used(5, is_reserved_only=True)),
        ([_left("memgate.dev/used-bytes=1e9")], None),
    ],
)
def test_what_was_used_is_what_somebody_measured(documents: Any, want: Used | None) -> None:
    """By an annotation or by a container's last words; anything else is no measurement."""
    assert find_used(documents) == want


def _made(kind: str, uid: str, owner: str = "", phase: str = "") -> Any:
    owners = [{"uid": owner}] if owner else []
    status = {"phase": phase} if phase else {}
    return {
        "kind": kind,
        "metadata": {"uid": uid, "ownerReferences": owners},
        "status": status,
    }


def test_pods_are_found_through_what_makes_them() -> None:
    """A JobSet makes Jobs, which make pods; it has started once one of them has."""
    objects = [
        _made("Pod", "3", owner="2", phase="Pending"),
        _made("Job", "2", owner="1"),
        _made("JobSet", "1"),
        _made("Pod", "4", phase="Running"),
    ]
    assert [one["metadata"]["uid"] for one in find_pods_of("1", objects)] == ["3"]
    assert not has_started("1", objects)
    objects[0]["status"]["phase"] = "Running"
    assert has_started("1", objects)
