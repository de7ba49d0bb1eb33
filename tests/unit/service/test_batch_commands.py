"""``memgate max-batch``, ``memgate fit`` and ``--server``, without an engine or a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import memgate
from memgate.errors import NoKernelsError
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec
from memgate.timeline import Alloc, Category, Label, Timeline
from memgate_worker import local
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import read_runtimes
from tests.builders import mib

SPEC = '{"model": {"source": "torchvision", "name": "vgg16"}, "input": {"shape": [3, 8, 8]}, '


class _Engine:
    """Takes some memory, and some more a sample; has no kernels for old GPUs."""

    def __init__(self, sizes: Any) -> None:
        self._sizes = sizes

    def __call__(self, *_: Any) -> _Engine:
        return self

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trace(self, spec: JobSpec, gpu: GpuSpec, **_: Any) -> TracedJob:
        if gpu.compute_capability < (7, 5):
            raise NoKernelsError("too old; take another")
        events = (Alloc(0, self._sizes(spec.batch_size)),)
        return TracedJob(
            timeline=Timeline(events=events, labels=(Label(Category.BATCH, ""),)),
            engine="phantom",
            runtime="torch-2.14",
            versions={},
            alloc_conf="",
            num_parameters=0,
            notes=(),
            seconds=0.0,
        )


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A job spec in a file."""
    path = tmp_path / "job.json"
    path.write_text(SPEC + '"batch_size": 8}')
    return path


@pytest.fixture
def use_engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let an engine be made up."""

    def use(sizes: Any) -> None:
        monkeypatch.setattr(local, "use_engine", _Engine(sizes))
        monkeypatch.setattr(local, "find_runtime", lambda _: read_runtimes()["torch-2.14"])

    return use


def test_the_largest_batch_is_printed_with_what_was_tried(
    run: Any, use_engine: Any, spec: Path
) -> None:
    """The answer on standard output, the way to it on standard error, as it goes."""
    use_engine(lambda batch_size: mib(100) * batch_size)

    ran = run("max-batch", spec, "--gpu", "rtx-3060")

    assert ran.status == 0
    assert ran.out.startswith("batch size 111 is the largest that fits on rtx-3060: needs ")
    assert "tried 8: admit, needs " in ran.err
    assert "tried 112: uncertain" in ran.err
    assert "note:" not in ran.out
    document = json.loads(run("max-batch", spec, "--gpu", "rtx-3060", "--json").out)
    assert (document["batch_size"], document["is_monotone"]) == (111, True)


def test_not_even_one_sample_is_an_answer(run: Any, use_engine: Any, spec: Path) -> None:
    """Exit 3, as a rejection."""
    use_engine(lambda _: mib(100_000))

    ran = run("max-batch", spec, "--gpu", "rtx-3060")

    assert ran.status == 3
    assert ran.out.startswith("even batch size 1 does not fit on rtx-3060: needs ")


def test_memory_that_does_not_grow_steadily_is_mentioned(
    run: Any, use_engine: Any, spec: Path
) -> None:
    """There may be an admitted batch above the one that was found."""
    use_engine(lambda size: mib(9_000 if size == 8 else 8_000 if size < 20 else 20_000))

    assert "may be admitted, too" in run("max-batch", spec, "--gpu", "rtx-3060").out


@pytest.mark.parametrize(
    ("size_mib", "want_status", "want_smallest"),
    [(9_000, 0, "h100-80-1g.10gb"), (200_000, 3, None)],
)
def test_every_gpu_is_in_the_table(
    run: Any, use_engine: Any, spec: Path, size_mib: int, want_status: int, want_smallest: str
) -> None:
    """With the smallest that fits, and why some are not known."""
    use_engine(lambda _: mib(size_mib))

    ran = run("fit", spec)

    assert ran.status == want_status
    want = f", the smallest is {want_smallest}\n" if want_smallest else "fits on none of "
    assert want in ran.out
    assert ran.out.count("unknown: too old; take another") == 1
    assert "tried p100-16\n" in ran.err
    assert json.loads(run("fit", spec, "--json").out)["smallest"] == want_smallest


@pytest.mark.parametrize(
    ("command", "want_words"),
    [
        (
            ["estimate", "SPEC", "--gpu", "t4", "--engine", "x"],
            "engine is 'x': there is no such engine",
        ),
        (["estimate", "train.py", "--gpu", "t4"], "a script works on this machine only"),
        (["estimate", "SPEC", "--gpu", "t4", "--plot", "x.png"], "--plot works on this machine"),
        (["analyze", "SPEC", "--gpu", "t4", "--without", "x"], "--without works on this machine"),
        (["analyze", "nowhere", "--gpu", "t4"], "nowhere: No such file"),
        (["fit", "SPEC", "--server", "memgate"], "begins with http"),
        (["fit", "SPEC", "--longest", "9"], "--longest 9: only a command can be run that way"),
        (["max-batch", "SPEC", "--gpu", "t4", "--longest", "9"], "only a command can be run"),
        (["run", "--gpu", "t4", "--longest", "0", "--", "x"], "--longest 0: it is a length"),
    ],
)
def test_what_a_server_cannot_be_asked_is_a_sentence(
    run: Any, spec: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], want_words: str
) -> None:
    """Exit 2, before anything is sent."""
    monkeypatch.setenv("MEMGATE_URL", "http://127.0.0.1:1")

    ran = run(*(str(spec) if word == "SPEC" else word for word in command))

    assert ran.status == 2
    assert want_words in ran.err


def test_without_a_server_it_is_a_failure(run: Any, spec: Path) -> None:
    """Exit 1, one sentence; the key is in none of it, nor in the help."""
    ran = run("fit", spec, "--server", "http://127.0.0.1:1", "--api-key", "mg_secret")

    assert ran.status == 1
    assert ran.err.startswith("memgate: the server does not answer (")
    assert "secret" not in ran.err + ran.out


def test_the_help_does_not_show_the_key(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it comes from the environment."""
    monkeypatch.setenv("MEMGATE_API_KEY", "mg_secret")

    told = run("estimate", "--help").out

    assert "MEMGATE_API_KEY" in told
    assert "mg_secret" not in told


def test_a_missing_extra_is_named(run: Any, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line does without httpx2 until a server is asked."""
    monkeypatch.delattr(memgate, "Client", raising=False)
    for name in [name for name in sys.modules if name.startswith("memgate.client.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)

    ran = run("fit", spec, "--server", "http://127.0.0.1:1")

    assert ran.status == 1
    assert "pip install 'memgate[client]'" in ran.err
