"""The command line, as a person or a script meets it."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import SimulationError
from memgate_service.cli.commands import replay as replay_command
from tests.builders import make_record, mib, to_lines
from tests.conftest import DATA


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a vector file."""

    def write_records(*records: dict[str, Any]) -> Path:
        path = tmp_path / "vectors.jsonl"
        path.write_bytes(to_lines(records))
        return path

    return write_records


WRONG = {"expect": {"peak_reserved": 7}}


class TestReplay:
    """``memgate replay``."""

    def test_all_matching_is_success(self, run: Any, write: Any) -> None:
        """Exit 0 and the contract's words."""
        ran = run("replay", write(make_record(id="a"), make_record(id="b")))

        assert ran.status == 0
        assert "matched 2 of 2" in ran.out

    def test_a_mismatch_is_failure_and_named(self, run: Any, write: Any) -> None:
        """Exit 1, and a table says where."""
        ran = run("replay", write(make_record(id="a"), make_record(id="b", **WRONG)))

        assert ran.status == 1
        assert "matched 1 of 2" in ran.out
        assert "peak_reserved" in ran.out
        assert str(mib(2)) in ran.out

    def test_many_mismatches_are_cut(self, run: Any, write: Any) -> None:
        """A person is shown some; the rest is a flag away."""
        ran = run("replay", write(*[make_record(id=f"r{n}", **WRONG) for n in range(30)]))

        assert "and 10 more; --json names all" in ran.out

    def test_json_is_the_contracts(self, run: Any, write: Any) -> None:
        """One object with the fixed names, and nothing else on standard output."""
        ran = run("replay", write(make_record(), make_record(id="b", **WRONG)), "--json")

        document = json.loads(ran.out)
        assert (document["matched"], document["total"]) == (1, 2)
        assert document["events_per_second"] > 0
        assert document["mismatches"] == [
            {"id": "b", "field": "peak_reserved", "want": 7, "got": mib(2), "event": None}
        ]
        assert ran.status == 1

    def test_an_unknown_expectation_is_mentioned(self, run: Any, write: Any) -> None:
        """A match of what nobody compared is not claimed in silence."""
        record = make_record(expect={"colour": 1, "peak_allocated": 512})

        assert "not compared, unknown fields: colour" in run("replay", write(record)).out
        assert json.loads(run("replay", write(record), "--json").out)["not_compared"] == ["colour"]

    def test_one_record_shows_its_figures(self, run: Any) -> None:
        """A real training run that was refused memory tells what PyTorch would say."""
        ran = run(
            "replay",
            DATA / "training_dev.jsonl.gz",
            "--record",
            "nanogpt-batch=8-opt=adamw-amp=bf16-cc80-capt0.6",
        )

        assert ran.status == 0
        text = re.sub(r"[\s│]+", " ", ran.out)
        assert "Of the allocated memory 2.19 GiB is allocated by PyTorch, and 1.23 GiB is" in text
        assert "matched 1 of 1" in ran.out

    def test_a_picture_is_drawn(self, run: Any, tmp_path: Path) -> None:
        """The file is a PNG that shows something."""
        path = tmp_path / "picture.png"
        record = "random_small-default-tight-1012"

        ran = run("replay", DATA / "allocator_dev.jsonl.gz", "--record", record, "--plot", path)

        assert f"picture: {path}" in ran.out
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000

    def test_a_picture_of_the_first_record_of_many(
        self, run: Any, write: Any, tmp_path: Path
    ) -> None:
        """Without --record the first is drawn."""
        path = tmp_path / "picture.svg"

        run("replay", write(make_record(id="a"), make_record(id="b")), "--plot", path)

        assert "<svg" in path.read_text()

    def test_another_allocator_can_be_chosen(self, run: Any, write: Any) -> None:
        """The second allocator reserves what it allocates, which the recording contradicts."""
        ran = run("replay", write(make_record()), "--allocator", "direct", "--json")

        assert json.loads(ran.out)["mismatches"][0]["got"] == 512

    def test_standard_input_is_a_dash(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Vectors can be piped in, gzip or not."""
        data = io.BufferedReader(io.BytesIO(gzip.compress(to_lines([make_record()]))))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))

        assert "matched 1 of 1" in run("replay", "-").out

    def test_names_are_shown_as_they_are(self, run: Any, write: Any) -> None:
        """What looks like markup or an emoji to a terminal library is somebody's name."""
        record = make_record(id="[/b] run[small] :warning:", expect={"[/x]": 1, "peak_reserved": 7})

        ran = run("replay", write(record))

        assert "[/b] run[small] :warning:" in ran.out
        assert "unknown fields: [/x]" in ran.out

    def test_a_picture_without_an_ending_is_a_png(
        self, run: Any, write: Any, tmp_path: Path
    ) -> None:
        """And the name that is printed is the file's."""
        ran = run("replay", write(make_record(id="$x^{$")), "--plot", tmp_path / "picture")

        assert f"picture: {tmp_path / 'picture.png'}" in ran.out
        assert (tmp_path / "picture.png").exists()

    def test_without_standard_input_it_says_so(
        self, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A closed descriptor is no traceback."""
        monkeypatch.setattr(sys, "stdin", None)

        assert "there is no standard input" in run("replay", "-").err

    def test_an_answer_that_cannot_be_written_is_a_failure(
        self, run: Any, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full disk exits 1 with a sentence."""

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("typer.echo", full)

        ran = run("replay", write(make_record()), "--json")

        assert ran.status == 1
        assert "cannot write the answer: No space left on device" in ran.err

    def test_progress_is_shown_on_a_terminal(
        self, run: Any, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Long work shows how far it is, on standard error."""
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")

        assert "replaying vectors.jsonl" in run("replay", write(make_record())).err


class TestBadInput:
    """One sentence on standard error and exit 2; never a traceback."""

    @pytest.mark.parametrize(
        ("record", "want_message"),
        [
            (
                make_record(events=[["free", 9]]),
                "record 'tiny': event 0, Free(block_id=9): id 9 is not allocated",
            ),
            (make_record(events=[["alloc", 1, -1, 0]]), "events[0][2] is -1: Expected `int` >= 0"),
            (make_record(events=[["fly"]]), "events[0][0] is 'fly': Invalid value 'fly'"),
            (
                make_record(config="max_split_size_mb:1"),
                "record 'tiny': allocator setting 'max_split_size_mb:1', max_split_size_mb:",
            ),
        ],
        ids=["free of an unknown id", "negative size", "unknown event", "bad setting"],
    )
    def test_a_bad_record(
        self, run: Any, write: Any, record: dict[str, Any], want_message: str
    ) -> None:
        """The file, the record, the field, the value, the rule."""
        path = write(record)

        ran = run("replay", path)

        assert ran.status == 2
        assert ran.err.startswith(f"memgate: {path}: ")
        assert want_message in ran.err
        assert ran.err.count("\n") == 1
        assert ran.out == ""

    @pytest.mark.parametrize(
        ("data", "want_message"),
        [
            (b"not JSON", "line 1 is not JSON"),
            (gzip.compress(to_lines([make_record()]))[:-12], "the gzip data ends early"),
            (b"", "there is no record in it"),
        ],
        ids=["not JSON", "truncated gzip", "empty"],
    )
    def test_a_bad_file(self, run: Any, tmp_path: Path, data: bytes, want_message: str) -> None:
        """What is wrong with it, and what to do."""
        path = tmp_path / "vectors"
        path.write_bytes(data)

        ran = run("replay", path)

        assert ran.status == 2
        assert want_message in ran.err

    def test_a_line_of_two_gigabytes(self, run: Any, tmp_path: Path) -> None:
        """It is refused after the first part of it, not read."""
        path = tmp_path / "huge"
        with path.open("wb") as stream:
            stream.truncate(2 * 1024**3)  # a sparse file: takes no space

        ran = run("replay", path)

        assert ran.status == 2
        assert "line 1 is longer than 256.00 MiB" in ran.err

    @pytest.mark.parametrize(
        ("arguments", "want_message"),
        [
            (["replay", "nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
            (["replay", "."], ".: Is a directory"),
            (["replay", DATA / "settings.jsonl.gz", "--record", "x"], "no record has the id 'x'"),
            (["replay", DATA / "settings.jsonl.gz", "--allocator", "x"], "'x': there is no such"),
            (["replay", DATA / "settings.jsonl.gz", "--plot", "a.xyz"], "--plot a.xyz: Format"),
            (["replay", DATA / "settings.jsonl.gz", "--plot", "no/a.png"], "--plot no/a.png: "),
            (["replay"], "Missing argument 'VECTORS'"),
            (["rerun"], "No such command 'rerun'"),
        ],
        ids=lambda value: str(value[-1]) if isinstance(value, list) else "",
    )
    def test_bad_usage(self, run: Any, arguments: list[Any], want_message: str) -> None:
        """What was given, and what is wrong with it."""
        ran = run(*arguments)

        assert ran.status == 2
        assert want_message in ran.err

    def test_a_picture_overwrites_nothing(self, run: Any, write: Any, tmp_path: Path) -> None:
        """A file of the user's stays as it is, whichever command would draw."""
        kept = tmp_path / "mine.png"
        kept.write_text("mine")

        for command in (["replay", write(make_record())], ["analyze", "t.json", "--gpu", "t4"]):
            ran = run(*command, "--plot", kept)
            assert (ran.status, kept.read_text()) == (2, "mine")
            assert f"--plot {kept}: the file exists" in ran.err

    def test_a_picture_needs_matplotlib(
        self, run: Any, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The extra to install is named."""
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

        ran = run("replay", write(make_record()), "--plot", tmp_path / "a.png")

        assert ran.status == 1
        assert "pip install 'memgate[plot]'" in ran.err

    def test_our_own_fault_is_not_the_callers(
        self, run: Any, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A contradiction inside the simulator exits 1."""

        def broken(*_: Any, **__: Any) -> Any:
            raise SimulationError("books do not agree")

        monkeypatch.setattr(replay_command, "replay_vector", broken)

        ran = run("replay", write(make_record()))

        assert ran.status == 1
        assert "memgate: books do not agree" in ran.err


def test_the_installed_command_works() -> None:
    """``memgate`` is on the path of the environment it is installed in."""
    command = Path(sys.executable).with_name("memgate")

    ran = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)

    assert ran.stdout.startswith("memgate 0.")


def test_help_shows_an_example(run: Any) -> None:
    """Help is worth reading: what it does, what it prints, how it is called."""
    ran = run("replay", "--help")

    assert "Example: memgate replay" in ran.out
    assert ran.status == 0
