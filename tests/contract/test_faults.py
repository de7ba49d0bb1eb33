"""Whose fault an error is decides, alone, what every door does about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from memgate.contract import Failure
from memgate.errors import Fault, MemgateError, NoKernelsError, RuntimeMissingError
from memgate_service.cli import main as cli
from memgate_service.dashboard.mistakes import next_step, whose_mistake
from memgate_service.http.errors import ProblemError, add_error_handlers, problem_of_job
from tests.error_classes import all_error_classes

ROOT = Path(__file__).parents[2]

#: by fault: the statuses there may be, whether Retry-After is there, the exit status
WANT = {
    Fault.CALLER: (range(400, 500), False, 2),
    Fault.JOB: (range(400, 500), False, 1),
    Fault.UNSUPPORTED: (range(400, 500), False, 1),
    Fault.OPERATOR: (range(503, 504), False, 1),
    Fault.PASSING: ((429, 503), True, 1),
}


KINDS = all_error_classes()


def _make(kind: type[MemgateError]) -> MemgateError:
    """Make an error, whatever its constructor wants."""
    error = kind.__new__(kind)
    MemgateError.__init__(error, "because")
    return error


def test_there_are_classes_to_look_at() -> None:
    """Those of the core, of the queue, of the client, of the command line and of the gates."""
    assert len(KINDS) > 30
    assert {kind.fault for kind in KINDS} == set(Fault)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_status_follows_from_the_fault(kind: type[MemgateError]) -> None:
    """Raised by a route or stored with a job: one status, and Retry-After only if it passes."""
    error = _make(kind)
    app = FastAPI()
    add_error_handlers(app)

    @app.get("/")
    def fail() -> None:
        raise error

    raised = TestClient(app).get("/")
    stored = problem_of_job("0" * 32, Failure.of(error))

    statuses, comes_back, _ = WANT[kind.fault]
    assert raised.status_code == stored.status_code
    assert raised.status_code in statuses
    assert ("retry-after" in raised.headers) == comes_back
    assert ("retry-after" in stored.headers) == comes_back
    assert raised.json()["fault"] == kind.fault


@pytest.mark.parametrize(("code", "want"), [("CANCELED", 409), ("INTERNAL", 500)])
def test_what_no_program_should_ask_again_by_itself_has_a_status_of_its_own(
    code: str, want: int
) -> None:
    """It passes, so no gate refuses anything for it; but there is no Retry-After."""
    failure = Failure(code=code, message="because", fault=Fault.PASSING)

    answer = problem_of_job("0" * 32, failure)

    assert answer.status_code == want
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_exit_status_follows_from_the_fault(
    kind: type[MemgateError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 asks for another question; 1 says that this one was right."""

    def fail() -> None:
        raise _make(kind)

    monkeypatch.setattr(cli, "app", fail)

    with pytest.raises(SystemExit) as exited:
        cli.main()

    assert exited.value.code == WANT[kind.fault][2]
    assert "memgate: because" in capsys.readouterr().err


@pytest.mark.parametrize("fault", Fault)
def test_the_page_of_a_failed_job_follows_from_the_fault(fault: Fault) -> None:
    """It has a name for each, and something to do."""
    assert whose_mistake(fault)
    assert next_step(fault)


def test_a_missing_runtime_is_the_operators() -> None:
    """It was the caller's: 422, exit 2, remembered for a week; and kernels are the job's affair."""
    assert RuntimeMissingError.fault is Fault.OPERATOR
    assert NoKernelsError.fault is Fault.JOB


def _literal_problems() -> Iterator[tuple[str, int, Fault | None]]:
    """Yield where a status is written down, the status, and the fault if it is."""
    for path in sorted((ROOT / "service").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("problem", "ProblemError") and node.args:
                status = node.args[0]
                if isinstance(status, ast.Constant) and isinstance(status.value, int):
                    given = {word.arg: word.value for word in node.keywords}.get("fault")
                    fault = Fault[given.attr] if isinstance(given, ast.Attribute) else None
                    yield f"{path.name}:{node.lineno}", status.value, fault


PROBLEMS = list(_literal_problems())


def test_refusals_are_found() -> None:
    """What is looked for is there."""
    assert len(PROBLEMS) > 20


@pytest.mark.parametrize(("where", "status", "fault"), PROBLEMS, ids=lambda value: str(value))
def test_a_refusal_of_its_own_keeps_the_rule(where: str, status: int, fault: Fault | None) -> None:
    """What has no class says a status itself; it fits its fault. 500 alone is a bug of ours."""
    error: Any = ProblemError(status, "because", code="X", fault=fault)

    assert status in WANT[error.fault][0] or status == 500, where
