"""What the Lua of Slurm's plugins makes of an answer: the same as Python's doors do."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.errors import Fault
from memgate.explanation import explain_fault
from memgate.report import Reason
from memgate.units import GIB
from memgate_service.admission.core.answers import MissingAnswer
from memgate_service.admission.core.sequence import AskEstimates
from memgate_service.admission.core.server_asker import ServerAsker
from memgate_service.admission.slurm.settling import read_question
from tests.admission import make_estimate
from tests.unit.service.canned_server import JOB, JOB_ID
from tests.unit.slurm.test_lua import SETTINGS, pytestmark, run_lua

__all__ = ["pytestmark"]

_ASK = """
local given = cjson.decode(io.read("*a"))
local sent
package.loaded["memgate.http"] = {
  post = function(_, _, _, headers) sent = headers; return given.answer end,
}
local answer = require("memgate.ask")({}, "{}", "", given.seconds or 2)
local words = require("memgate.words")
print(cjson.encode({
  answer = answer, headers = sent, lines = words.about(given.settings, answer, given.gpu),
}))
"""


def ask(
    status: int, document: object, *, seconds: float = 2, gpu: object = None, **settings: Any
) -> Any:
    """Have Lua read an answer; return it, what was asked with, and the lines to print."""
    given = {
        "answer": {"status": status, "body": json.dumps(document), "job": JOB_ID},
        "settings": SETTINGS | {"public_url": ""} | settings,
        "seconds": seconds,
    } | ({} if gpu is None else {"gpu": gpu})
    return json.loads(run_lua(_ASK, given))


def _problem(status: int, fault: str, **more: Any) -> tuple[int, dict[str, Any]]:
    document = {"type": "t", "title": "t", "status": status, "code": "ANY", "detail": "why not"}
    return status, document | {"fault": fault} | more


def _wrong(field: str) -> dict[str, Any]:
    return {"errors": [{"field": field, "rule": "is wrong", "value": "0"}]}


PROBLEMS = [
    pytest.param(*_problem(422, "caller", **_wrong("job.batch_size")), "caller", id="a field"),
    pytest.param(*_problem(422, "caller", **_wrong("job")), "caller", id="the job"),
    pytest.param(*_problem(422, "caller", **_wrong("")), "caller", id="not JSON"),
    pytest.param(*_problem(422, "caller", job=JOB_ID), "caller", id="found out by a worker"),
    pytest.param(*_problem(422, "caller"), "operator", id="no field"),
    pytest.param(*_problem(422, "caller", **_wrong("gpu")), "operator", id="GPU"),
    pytest.param(*_problem(422, "caller", **_wrong("gpu.count")), "operator", id="count"),
    pytest.param(*_problem(401, "caller"), "operator", id="key"),
    pytest.param(*_problem(413, "caller"), "caller", id="too long"),
    pytest.param(*_problem(422, "job", job=JOB_ID), "job", id="job"),
    pytest.param(*_problem(422, "unsupported", job=JOB_ID), "unsupported", id="unsupported"),
    pytest.param(*_problem(503, "operator", job=JOB_ID), "operator", id="operator"),
    pytest.param(*_problem(503, "passing"), "passing", id="passing"),
    pytest.param(*_problem(409, "passing", job=JOB_ID), "passing", id="canceled"),
    pytest.param(202, {"id": JOB_ID, "state": "running"}, "passing", id="being made"),
]


@pytest.mark.parametrize(("status", "document", "want"), PROBLEMS)
def test_lua_and_python_blame_the_same(status: int, document: dict[str, Any], want: str) -> None:
    """By the fault that the server names, and by who wrote the part that is wrong; by no code."""
    said = ask(status, document)["answer"]

    def serve(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json=document, headers={"Location": f"/jobs/{JOB_ID}"})

    question = read_question(json.dumps({"job": JOB, "gpu": {"name": "t4", "count": 1}}))
    with Client("http://memgate", transport=httpx2.MockTransport(serve), num_tries=1) as client:
        (answer,) = ServerAsker(client).do(AskEstimates(question.questions())).values()

    assert isinstance(answer, MissingAnswer)
    assert (said["fault"], answer.fault) == (want, Fault(want))
    assert said["why"] == answer.why


@pytest.mark.parametrize("fault", list(Fault))
def test_lua_and_python_say_the_same_of_a_fault(fault: Fault) -> None:
    """One explanation: Lua cannot import it, so it is compared."""
    document = _problem(422, fault, job=JOB_ID)[1]
    assert ask(422, document)["lines"] == [explain_fault(fault, "why not").headline]


@pytest.mark.parametrize(
    "document", [{"code": "NO_KEY", "detail": "no key"}, {"detail": "no key", "fault": "nobody's"}]
)
def test_a_problem_that_is_not_memgates_passes(document: dict[str, Any]) -> None:
    """A proxy may answer, or another version."""
    said = ask(401, document)["answer"]
    assert (said["fault"], said["why"]) == ("passing", "HTTP 401 no key")


def test_an_estimate_is_printed_in_its_own_words() -> None:
    """Headline, reasons and help come with the answer; the GPU is translated to the cluster's."""
    note = Reason(code="A_NOTE", message="something is worth knowing")
    estimate = make_estimate(20 * GIB)
    estimate = estimate.model_copy(
        update={"largest_batch_size": 12, "reasons": [*estimate.reasons, note], "id": JOB_ID}
    )
    said = ask(200, estimate.model_dump(mode="json"))

    assert said["lines"] == [
        f"this job {estimate.explanation.headline}",
        "something is worth knowing",
        *estimate.explanation.helps,
        "the smallest GPU here on which it fits: --gres=gpu:a100:1",
        f"see /ui/jobs/{JOB_ID}",
    ]
    assert said["lines"][0] == "this job does not fit on t4: needs 20.91 GiB, t4 has 14.56 GiB"
    assert said["lines"][2] == "batch size 12 fits, the largest that does"
    assert said["answer"]["estimate"]["needs_bytes"] == estimate.needs_bytes


def test_advice_is_for_as_many_gpus_as_were_asked_for() -> None:
    """Of a node: that is what --gres counts."""
    document = make_estimate(20 * GIB).model_dump(mode="json")
    said = ask(200, document, gpu={"count": 8, "per_node": 4})

    assert "the smallest GPU here on which it fits: --gres=gpu:a100:4" in said["lines"]


def test_a_job_that_fits_is_one_line() -> None:
    """There is nothing to do about it."""
    estimate = make_estimate(GIB)
    want = f"this job {estimate.explanation.headline}"
    assert ask(200, estimate.model_dump(mode="json"))["lines"] == [want]


@pytest.mark.parametrize(
    ("page", "public_url", "want"),
    [
        (None, "", f"see /ui/jobs/{JOB_ID}"),
        (None, "https://memgate.example/", f"see https://memgate.example/ui/jobs/{JOB_ID}"),
        ("/ui/jobs/1", "https://memgate.example", "see https://memgate.example/ui/jobs/1"),
        (
            "https://gpu.example/ui/jobs/1",
            "https://other.example",
            "see https://gpu.example/ui/jobs/1",
        ),
    ],
)
def test_the_last_line_says_where_to_look(page: str | None, public_url: str, want: str) -> None:
    """The page that the server names; a path goes behind the URL of the settings."""
    document = make_estimate(20 * GIB).model_dump(mode="json") | {"page": page}
    assert ask(200, document, public_url=public_url)["lines"][-1] == want


@pytest.mark.parametrize(("seconds", "want"), [(2, "wait=2.0"), (0.9, "wait=0.9")])
def test_memgate_may_wait_for_all_of_the_time(seconds: float, want: str) -> None:
    """Nothing is taken off: of two seconds it was given one."""
    assert ask(202, {"id": JOB_ID}, seconds=seconds)["headers"]["Prefer"] == want


@pytest.mark.parametrize(
    "without", ["decision", "explanation", "needs_bytes", "capacity_bytes", "fits_on"]
)
def test_half_an_estimate_is_none(without: str) -> None:
    """Nothing is let in, or refused, on it."""
    document = make_estimate(GIB).model_dump(mode="json")
    del document[without]
    said = ask(200, document)["answer"]
    assert (said["fault"], said["why"]) == ("passing", "HTTP 200, and not in memgate's form")
