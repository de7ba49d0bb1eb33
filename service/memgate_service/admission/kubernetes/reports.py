"""Judgements on what exists -> a PolicyReport for each namespace (wgpolicyk8s.io), pure.

The kind is somebody else's standard: dashboards and other policy engines know it. It is written
where the cluster has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object

KIND = "PolicyReport.wgpolicyk8s.io"
NAME = "memgate"

#: of the kind, that is not written: what is ``result`` now was called otherwise in it
OLD_VERSION = "wgpolicyk8s.io/v1alpha1"
LABELS = {"app.kubernetes.io/managed-by": "memgate"}

#: an object may have 1.5 MB, and a result is about a kilobyte
_MAX_RESULTS = 800

_RESULTS = {
    "admit": "pass",
    "reject": "fail",
    "bad_spec": "fail",
    "uncertain": "warn",
    "unanswered": "skip",
    "undescribed": "skip",
    "exempt": "skip",
}
_WORST_FIRST = ("fail", "warn", "error", "skip", "pass")


class JudgedObject(NamedTuple):
    """An object that exists, and the audit's record of it."""

    document: JsonObject
    record: Mapping[str, Any]

    @property
    def result(self) -> str:
        """In the words of the standard."""
        decision = str(self.record["decision"])
        if decision == "undescribed" and self.record.get("would"):
            return "fail"
        return _RESULTS.get(decision, "error")


def make_report(
    api_version: str, namespace: str, judged: Sequence[JudgedObject], seconds: int
) -> Any:
    """Return the report of a namespace; if it has too many objects, those that are fine are cut."""
    ordered = sorted(judged, key=lambda one: _WORST_FIRST.index(one.result))
    counts = Counter(one.result for one in judged)
    shown = ordered[:_MAX_RESULTS]
    return {
        "apiVersion": api_version,
        "kind": KIND.partition(".")[0],
        "metadata": {"name": NAME, "namespace": namespace, "labels": LABELS},
        "summary": {name: counts[name] for name in ("pass", "fail", "warn", "error", "skip")},
        "results": [_result(one, seconds) for one in shown],
    }


def _result(one: JudgedObject, seconds: int) -> dict[str, Any]:
    metadata = as_object(one.document.get("metadata"))
    record = one.record
    return {
        "source": "memgate",
        "policy": str(record.get("rule", "")),
        "rule": str(record["decision"]),
        "category": "GPU memory",
        "result": one.result,
        "scored": True,
        "message": str(record.get("why", ""))[:512],
        "timestamp": {"seconds": seconds, "nanos": 0},
        "properties": {
            name: str(record[name])
            for name in ("mode", "gpu", "page", "near_miss")
            if record.get(name)
        },
        "resources": [
            {
                "apiVersion": str(one.document.get("apiVersion", "")),
                "kind": str(one.document.get("kind", "")),
                "namespace": str(metadata.get("namespace", "")),
                "name": str(metadata.get("name", "")),
                "uid": str(metadata.get("uid", "")),
            }
        ],
    }
