"""What accounting measured: which of it is an outcome, and that it is told once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.client.errors import AnswerError, UnreachableError
from memgate.errors import InputError
from memgate_service.admission.slurm.outcomes import (
    Finished,
    Ledger,
    Reporter,
    read_sacct,
    read_tres,
)
from tests.conftest import DATA
from tests.unit.service.canned_server import JOB_ID, Server

RECORD = json.dumps({"memgate": {"decision": "admit", "id": JOB_ID}})


def _lines(*rows: tuple[object, ...]) -> str:
    return "".join("\x1f".join(map(str, row)) + "\n" for row in rows)


def _job(
    number: int = 7,
    *,
    gpus: int = 1,
    tasks: int = 1,
    peak: str = "3900702720",
    comment: str = RECORD,
) -> str:
    tres = f"billing=1,gres/gpu={gpus}"
    used = f"cpu=00:01:00,gres/gpumem={peak},mem=1"
    return _lines(
        (number, "COMPLETED", 600, "", tres, "", comment),
        (f"{number}.batch", "COMPLETED", 600, 1, tres, "", ""),
        (f"{number}.0", "COMPLETED", 600, tasks, tres, used, ""),
    )


def test_sacct_of_a_real_cluster_is_read() -> None:
    """Slurm 22.05 with a database; jobs with steps, an array, another's comment, none."""
    found = list(read_sacct((DATA / "slurm" / "sacct-22.05.txt").read_text()))

    assert [(job.job_id, job.peak_bytes) for job in found] == [
        (1, 3900702720),
        (6, None),
        (2, None),
    ]


def test_the_peak_is_that_of_the_largest_step() -> None:
    """In bytes, or with a unit."""
    assert list(read_sacct(_job(peak="3720M"))) == [
        Finished(job_id=7, estimate=JOB_ID, elapsed_seconds=600, peak_bytes=3720 << 20)
    ]


@pytest.mark.parametrize(
    ("gpus", "tasks", "is_clear"), [(1, 1, True), (4, 4, True), (4, 1, False), (4, 2, False)]
)
def test_a_sum_over_gpus_is_no_peak(gpus: int, tasks: int, is_clear: bool) -> None:
    """A task with several GPUs is counted as one: what one of them held is not known."""
    (job,) = read_sacct(_job(gpus=gpus, tasks=tasks))

    assert (job.peak_bytes is not None) == is_clear


@pytest.mark.parametrize(
    "comment", ["", "a|b", '{"memgate": {}}', '{"memgate": {"id": "../etc"}}', '{"memgate": 1}']
)
def test_jobs_that_were_not_judged_are_left_out(comment: str) -> None:
    """There is nothing to compare."""
    assert list(read_sacct(_job(comment=comment))) == []


def test_lines_that_are_none_are_passed_over() -> None:
    """A comment with a line feed breaks its own line, not the next."""
    assert [
        job.job_id for job in read_sacct("\nwarning: slow\n" + _job(comment="a\nb") + _job(8))
    ] == [8]


def test_amounts_are_read() -> None:
    """Times are none."""
    assert read_tres("cpu=00:00:01,gres/gpumem=1.5G,node=1,x=") == {
        "gres/gpumem": 3 << 29,
        "node": 1,
    }


CREATED: tuple[int, dict[str, str]] = (201, {})


def _look(tmp_path: Path, text: str, *answers: Any, now: float = 1e9) -> tuple[int, list[str], Any]:
    told: list[str] = []
    since: list[float] = []
    server = Server(*answers)

    def ask(moment: float) -> str:
        since.append(moment)
        return text

    transport = httpx2.MockTransport(server)
    with Client("http://memgate", transport=transport, num_tries=1) as client:
        memory = Ledger(tmp_path / "memory.json")
        reporter = Reporter(
            client, memory, told.append, shortest_seconds=120, ask=ask, clock=lambda: now
        )
        num_reported = reporter.look()
    assert server.is_done
    return num_reported, told, (since[0], server.asked)


def test_an_outcome_is_sent_once(tmp_path: Path) -> None:
    """However often sacct shows it, and whether or not the program was started anew."""
    num, told, (since, asked) = _look(tmp_path, _job(), (200, []), CREATED)
    assert (num, since) == (1, 1e9 - 3600)
    assert json.loads(asked[1].read()) == {
        "job": JOB_ID,
        "measured_peak_bytes": 3900702720,
        "is_reserved_only": False,
        "ran_out": False,
    }
    assert "job 7: reported 3900702720 bytes" in told[0]

    assert _look(tmp_path, _job(), now=1e9 + 60)[0] == 0


def test_short_and_unmeasured_jobs_are_left_out(tmp_path: Path) -> None:
    """Nobody is asked about them."""
    short = _job().replace("\x1f600\x1f", "\x1f60\x1f")

    assert _look(tmp_path, short + _job(8, peak="0"))[0] == 0


def test_a_server_that_is_away_loses_nothing(tmp_path: Path) -> None:
    """The same jobs are reported when it is back, and sacct is asked as far back as before."""
    with pytest.raises(UnreachableError):
        _look(tmp_path, _job(), httpx2.ConnectError("refused"))

    num, _, (since, _) = _look(tmp_path, _job(), (200, []), CREATED, now=1e9 + 7200)
    assert (num, since) == (1, 1e9 - 3600)


def _problem(status: int) -> tuple[int, dict[str, Any]]:
    fault = "caller" if status < 429 else "passing"
    document = {"type": "x", "title": "x", "status": status, "code": "X", "detail": "not so"}
    return status, document | {"fault": fault}


@pytest.mark.parametrize(
    "answers",
    [[_problem(404)], [httpx2.ReadTimeout("no answer"), (200, [])]],
    ids=["forgotten", "lost"],
)
def test_what_may_have_arrived_is_not_sent_again(tmp_path: Path, answers: list[Any]) -> None:
    """Each counts; nor is what was not taken. The next job is reported all the same."""
    num, told, _ = _look(tmp_path, _job(7) + _job(8), (200, []), *answers, CREATED)

    assert num == 1
    assert told[0].startswith("job 7: ")
    assert _look(tmp_path, _job(7) + _job(8), now=1e9 + 60)[0] == 0


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_what_was_not_taken_for_now_is_sent_again(tmp_path: Path, status: int) -> None:
    """After a long outage there are more than the server takes in a minute: none is lost."""
    with pytest.raises(AnswerError):
        _look(tmp_path, _job(7) + _job(8) + _job(9), (200, []), CREATED, _problem(status))

    num, told, _ = _look(tmp_path, _job(7) + _job(8) + _job(9), (200, []), CREATED, CREATED)
    assert num == 2
    assert [line.split(":")[0] for line in told] == ["job 8", "job 9"]


def test_a_server_that_goes_away_costs_one_outcome(tmp_path: Path) -> None:
    """That which it may have heard; the others wait until it is back."""
    lost = httpx2.ReadTimeout("no answer")
    with pytest.raises(UnreachableError):
        _look(tmp_path, _job(7) + _job(8), (200, []), lost, httpx2.ConnectError("refused"))

    assert _look(tmp_path, _job(7) + _job(8), (200, []), CREATED)[0] == 1


def test_a_memory_that_is_none_is_named(tmp_path: Path) -> None:
    """Rather than counting everything again."""
    (tmp_path / "memory.json").write_text("[]")

    with pytest.raises(InputError, match=r"memory.json: not a file of"):
        Ledger(tmp_path / "memory.json")


def test_the_memory_does_not_grow_for_ever(tmp_path: Path) -> None:
    """What sacct will not show again is forgotten."""
    memory = Ledger(tmp_path / "memory.json")
    memory.add(1, 1000.0)
    memory.advance(9000.0)

    assert 1 not in Ledger(tmp_path / "memory.json")
    assert Ledger(tmp_path / "memory.json").seen_until == 9000.0
