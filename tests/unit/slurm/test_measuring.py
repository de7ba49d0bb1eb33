"""What a job took of its GPUs: by the driver's accounting, by looking, and when neither is sure."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memgate.client.errors import AnswerError, ClientError
from memgate.units import GIB
from memgate_service.admission.slurm.measuring import epilog, prolog
from memgate_service.admission.slurm.measuring.epilog import EndedJob, Outbox, Waiting
from memgate_service.admission.slurm.measuring.nvml import NvmlError, open_nvml
from memgate_service.admission.slurm.measuring.peaks import Measured, Places, begin, end, watch
from memgate_service.admission.slurm.records import Record
from tests.integration.slurm.played_nvml import PlayedNvml

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")

ESTIMATE = "0123456789abcdef0123456789abcdef"
RECORD = Record(
    decision="admit", gpu="a100-40", needs=2 * GIB, capacity=39 * GIB, id=ESTIMATE, cards="t4"
)


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedNvml:
    """Play NVIDIA's driver in this process."""
    played = PlayedNvml(tmp_path / "nvml")
    monkeypatch.setenv("PLAYED_NVML", str(played.home))
    return played


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Make the directory of what is being measured."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def _measure(nvml: PlayedNvml, files: Path, use: Callable[[], None], job: int = 7) -> Measured:
    """Measure a job on the GPU with the minor number 1."""
    with open_nvml(str(nvml.home / "libnvidia-ml.so.1")) as devices:
        begin(Places(files, job), job, [1], devices)
        use()
        return end(Places(files, job), devices)


def test_the_driver_keeps_count(nvml: PlayedNvml, files: Path) -> None:
    """The largest process counts; those of earlier jobs and of other GPUs do not."""

    def use() -> None:
        nvml.add_process(1, 10, GIB, started=time.time() - 60)
        nvml.add_process(0, 11, 9 * GIB)
        nvml.add_process(1, 12, 2 * GIB)
        nvml.add_process(1, 13, 3 * GIB)
        nvml.add_process(1, 14, (1 << 64) - 1)  # not known

    assert _measure(nvml, files, use) == Measured(peak_bytes=3 * GIB)
    assert list(files.iterdir()) == []


def test_a_job_that_left_its_gpu_alone_took_nothing_known(nvml: PlayedNvml, files: Path) -> None:
    """Rather than nothing at all: the driver may have been unloaded in the meantime."""
    said = _measure(nvml, files, lambda: None)

    assert said.peak_bytes == 0
    assert said.problem == "no process used its GPUs, as far as the driver knows"


def test_jobs_on_the_same_gpu_are_not_measured(nvml: PlayedNvml, files: Path) -> None:
    """A figure would be of both."""
    with open_nvml(str(nvml.home / "libnvidia-ml.so.1")) as devices:
        for job in (7, 8):
            begin(Places(files, job), job, [1], devices)
        nvml.add_process(1, 12, 2 * GIB)
        said = [end(Places(files, job), devices) for job in (7, 8)]

    assert [one.problem for one in said] == ["it shared a GPU with another job"] * 2


@pytest.mark.parametrize(
    ("name", "gpus", "want"),
    [("mig", [1], "MIG is on"), ("none", [5], "the driver has no GPU 5")],
)
def test_what_slurm_and_the_driver_number_differently_is_not_measured(
    nvml: PlayedNvml, files: Path, name: str, gpus: list[int], want: str
) -> None:
    """Another GPU's figure would be taken for the job's."""
    (nvml.home / name).touch()
    with open_nvml(str(nvml.home / "libnvidia-ml.so.1")) as devices:
        begin(Places(files, 7), 7, gpus, devices)
        assert end(Places(files, 7), devices).problem == want


def test_a_gpu_that_cannot_count_is_looked_at_until_the_end(nvml: PlayedNvml, files: Path) -> None:
    """What was in use before is not the job's."""
    (nvml.home / "no_accounting").touch()
    used, places = nvml.home / "used1", Places(files, 7)
    used.write_text(str(GIB))
    amounts = iter([3 * GIB, 2 * GIB])
    measured: list[Measured] = []
    with open_nvml(str(nvml.home / "libnvidia-ml.so.1")) as devices:
        begin(places, 7, [1], devices)

        def pause(_: float) -> None:
            if (amount := next(amounts, None)) is None:
                measured.append(end(places, devices))
            else:
                used.write_text(str(amount))

        watch(places, devices, pause)

    assert measured == [Measured(peak_bytes=2 * GIB, num_looks=3)]
    assert list(files.iterdir()) == []


def test_without_a_prolog_there_is_nothing_to_measure(nvml: PlayedNvml, files: Path) -> None:
    """Nor with a file that cannot be read."""
    (files / "7.json").write_text("{")
    with open_nvml(str(nvml.home / "libnvidia-ml.so.1")) as devices:
        assert "is the prolog set up?" in end(Places(files, 7), devices).problem


def test_without_a_driver_the_prolog_still_succeeds(files: Path) -> None:
    """A prolog that fails would drain the node; the epilog says why there is no figure."""
    said: list[str] = []
    prolog.begin_job({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}, files, said.append)

    assert said == ["job 7: its GPU memory is not measured: libnvidia-ml.so.1 is not there"]
    assert end(Places(files, 7), {}).problem == "libnvidia-ml.so.1 is not there"
    prolog.begin_job({"SLURM_JOB_ID": "7"}, files, said.append)
    prolog.begin_job({"SLURM_JOB_GPUS": "0"}, files, said.append)
    assert len(said) == 2
    prolog.watch_job(7, files)
    with pytest.raises(NvmlError, match="nowhere is not there"), open_nvml("nowhere"):
        pass


def _job(**fields: Any) -> EndedJob:
    usual: dict[str, Any] = {
        "job_id": 7,
        "uid": os.geteuid(),
        "is_first_node": True,
        "is_success": True,
        "record": RECORD,
        "output": "",
    }
    return EndedJob(**usual | fields)


@pytest.mark.parametrize(
    ("measured", "want"),
    [
        (Measured(peak_bytes=3 * GIB), "predicted 2.00 GiB, used 3.00 GiB; t4 would have sufficed"),
        (
            Measured(peak_bytes=3 * GIB, num_looks=4),
            "predicted 2.00 GiB, used at least 3.00 GiB; t4 would have sufficed, by what was seen",
        ),
        (
            Measured(problem="MIG is on"),
            "predicted 2.00 GiB, used not measured; t4 would have sufficed, by the prediction"
            " (MIG is on)",
        ),
    ],
    ids=["counted", "looked at", "not measured"],
)
def test_the_line_says_what_is_known(measured: Measured, want: str) -> None:
    """Asked, predicted, used, and what would have sufficed."""
    line = epilog.describe(_job(), measured)

    assert line == f"job 7: asked for a100-40 (39.00 GiB), {want}"
    assert epilog.describe(_job(record=None), measured) == ""


@pytest.mark.parametrize(
    ("job", "measured", "is_reported"),
    [
        ({}, Measured(peak_bytes=GIB), True),
        ({}, Measured(peak_bytes=GIB, num_looks=29), False),
        ({}, Measured(peak_bytes=GIB, num_looks=30), True),
        ({}, Measured(problem="MIG is on"), False),
        ({"is_success": False}, Measured(peak_bytes=GIB), False),
        ({"is_first_node": False}, Measured(peak_bytes=GIB), False),
        ({"record": None}, Measured(peak_bytes=GIB), False),
    ],
)
def test_only_what_is_surely_a_jobs_peak_is_an_outcome(
    job: dict[str, Any], measured: Measured, *, is_reported: bool
) -> None:
    """Neither of a job that failed halfway, nor of one that was too short to be looked at."""
    want = Waiting(job=7, estimate=ESTIMATE, peak_bytes=GIB) if is_reported else None

    assert epilog.find_outcome(_job(**job), measured) == want


def test_slurms_words_about_a_job_are_read() -> None:
    """As Slurm 22.05 writes them."""
    comment = '{"memgate":{"decision":"admit","gpu":"t4","id":"' + ESTIMATE + '"}} '
    shown = f"JobId=7 JobName=a=b\n   BatchHost=n1\n   AdminComment={comment}\n   StdOut=/a b/c \n"
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "5", "SLURMD_NODENAME": "n2"}

    job = epilog.read_ended(variables, shown)

    assert job.record == Record(decision="admit", gpu="t4", id=ESTIMATE)
    assert (job.output, job.is_first_node, job.is_success) == ("/a b/c", False, True)
    assert epilog.read_ended(variables, "").record is None


def test_a_line_is_added_only_to_a_file(tmp_path: Path) -> None:
    """That is there; nothing is made, and no device is written to."""
    output = tmp_path / "out.txt"
    output.write_text("begun\n")

    assert epilog.tell_owner(_job(output=str(output)), "a line") == ""
    assert output.read_text() == "begun\nmemgate: a line\n"
    for name in (str(tmp_path / "none"), "/dev/null", ""):
        assert "could not be written" in epilog.tell_owner(_job(output=name), "a line")
    assert not (tmp_path / "none").exists()
    uid = max(one.pw_uid for one in pwd.getpwall()) + 1
    assert "uid not found" in epilog.tell_owner(_job(output=str(output), uid=uid), "a line")


class _Server:
    """Takes outcomes, or not."""

    def __init__(self, *errors: ClientError | None) -> None:
        self.errors = list(errors)
        self.got: list[int] = []

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report_outcome(self, _: str, peak_bytes: int) -> None:
        """Take one."""
        if error := (self.errors.pop(0) if self.errors else None):
            raise error
        self.got.append(peak_bytes)


def _refusal(status: int) -> AnswerError:
    return AnswerError(f"HTTP {status}", code="ANY", status=status)


def test_outcomes_wait_while_memgate_is_away(files: Path) -> None:
    """A later epilog sends them; what memgate does not want is dropped, and said."""
    said: list[str] = []
    outbox = Outbox(files, said.append)
    (files / "1.outcome").write_text("{")
    for job in (7, 8):
        outbox.add(Waiting(job=job, estimate=ESTIMATE, peak_bytes=job))

    away = _Server(ClientError("nobody there"))
    full = _Server(_refusal(429))
    strict = _Server(_refusal(404))
    num_sent = [outbox.send(one) for one in (away, full, strict, _Server())]  # type: ignore[arg-type]

    assert num_sent == [0, 0, 1, 0]
    assert strict.got == [8]
    assert list(files.iterdir()) == []
    assert said[-1].startswith("job 7: not accepted: ")


def test_an_epilog_never_fails(files: Path, tmp_path: Path) -> None:
    """Without a driver, without Slurm, without memgate: each is said, and the line is written."""
    output = tmp_path / "out.txt"
    output.touch()
    comment = msgspec.json.encode({"memgate": msgspec.to_builtins(RECORD)}).decode()
    shown = f"   AdminComment={comment}\n   StdOut={output}\n"
    uid = str(os.geteuid())
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": uid, "SLURM_JOB_GPUS": "0"}
    said: list[str] = []

    def finish(ask: Callable[[int], str], **more: str) -> str:
        return epilog.end_job(variables | more, files, _no_client, said.append, ask=ask)

    line = finish(lambda _: shown)
    assert "used not measured" in line
    assert output.read_text() == f"memgate: {line}\n"
    assert finish(lambda _: shown, SLURM_JOB_GPUS="") == ""
    assert finish(lambda _: "") == ""
    assert finish(lambda _: shown.replace(str(output), "/dev/null"))
    assert "its owner could not be told" in said[-1]
    assert finish(epilog.ask_slurm, SLURM_JOB_ID="x") == ""
    assert "what the job took is not known" in said[-1]


def _no_client() -> Any:
    raise AssertionError("nothing is to be sent")
