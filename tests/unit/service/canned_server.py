"""A server that gives the answers of a test, one by one, and what they are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx2

JOB = {
    "model": {"source": "torchvision", "name": "vgg16"},
    "input": {"shape": [3, 8, 8]},
    "batch_size": 1,
}
JOB_ID = "0123456789abcdef" * 2
ESTIMATE: dict[str, Any] = {
    "decision": "admit",
    "engine": "phantom",
    "gpu": "t4",
    **{f"peak{part}_bytes": 1 for part in ("", "_reserved", "_allocated")},
    **{f"peak{part}_on_gpu_bytes": 1 for part in ("", "_reserved")},
    **{f"{part}_bytes": 1 for part in ("needs", "least", "available", "capacity")},
    **{f"{part}_bytes": 1 for part in ("context", "required", "upper_bound")},
    "headroom_bytes": 0,
    "breakdown": {},
    "reasons": [{"code": "FITS", "message": "it fits"}],
    "oom": None,
    "fits_on": [],
    "timings_ms": {},
    "runtime": "torch-2.14",
    "versions": {},
}
WORK = {"kind": "estimate", "job": JOB, "gpu": {"name": "t4"}}

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | Exception


class Server:
    """Gives the answers of a test one by one, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Answer."""
        request.read()
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body, *headers = answer
        location = {"Location": f"/jobs/{JOB_ID}"}
        return httpx2.Response(status, json=body, headers=headers[0] if headers else location)

    @property
    def is_done(self) -> bool:
        """All answers were given."""
        return not self._answers


#: of the codes that tests use, where the status does not tell
FAULTS = {"JOB_FAILED": "job", "RUNTIME_MISSING": "operator"}


def problem(status: int, code: str, detail: str = "no", **headers: str) -> Answer:
    """Make a refusal."""
    fault = FAULTS.get(code, "passing" if status >= 500 or status == 429 else "caller")
    body = {"type": "t", "title": "t", "status": status, "code": code, "detail": detail}
    body["fault"] = fault
    return status, body, {name.replace("_", "-"): text for name, text in headers.items()}


def record(state: str, **more: Any) -> tuple[int, Any]:
    """Make a job."""
    now = datetime.now(UTC).isoformat()
    fields = {"id": JOB_ID, "kind": "estimate", "state": state, "priority": "normal"}
    return 200, fields | {"created_at": now, "work": WORK} | more
