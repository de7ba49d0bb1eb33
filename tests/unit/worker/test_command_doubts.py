"""What was not seen of a command's job takes the plain admit away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from memgate_worker.engines.phantom.recorded import Description, Raised
from memgate_worker.recorder.doubts import doubt_what_was_seen, note_what_was_seen
from memgate_worker.recorder.failures import tell_failure
from memgate_worker.recorder.listening import Heard
from memgate_worker.recorder.processes import doubt_processes, note_processes


def seen(count: int, *calls: list[list[int]]) -> Any:
    """Make the shapes of a step with some calls, seen some times."""
    return [[[["x", "float32", shape] for shape in call] for call in calls], count]


SAME = seen(5, [[8, 3, 32, 32]])


def describe(**fields: Any) -> Description:
    """Make a description of a job that was stopped after five equal steps and an evaluation."""
    usual = {
        **{name: [] for name in ("phases", "layers", "tensors", "workspaces", "fractions")},
        **{name: [] for name in ("stages", "unmodelled", "architectures")},
        "memory_stats": {},
        "versions": {},
        "alloc_conf": "",
        "seconds": 1.0,
        "num_parameters": 1,
        "num_data_sized_results": 0,
        "cudnn_benchmark": False,
        "num_steps": 5,
        "steps": [[position, 100] for position in range(5)],
        "shapes": [SAME],
        "has_evaluated": True,
        "why": "evaluation",
    }
    return msgspec.convert(usual | fields, type=Description)


def codes(
    described: Description, failure: Raised | None = None, *, has_no_evaluation: bool = False
) -> list[str]:
    """Return the codes of all doubts."""
    doubts = doubt_what_was_seen(described, failure, has_no_evaluation=has_no_evaluation)
    return [doubt.code for doubt in doubts]


def test_a_job_that_has_shown_everything_is_not_doubted() -> None:
    """Equal steps, and an evaluation."""
    assert codes(describe()) == []


@pytest.mark.parametrize(
    ("fields", "has_no_evaluation", "want"),
    [
        ({"has_evaluated": False, "why": "time"}, False, ["EVALUATION_NOT_REACHED"]),
        ({"has_evaluated": False, "why": "time"}, True, []),
        ({"has_evaluated": False, "why": "end"}, False, []),
        ({"notes": ["compile_ignored"]}, False, ["COMPILE_IGNORED"]),
        ({"notes": ["kernels_timed"]}, False, ["KERNELS_NOT_TIMED"]),
        ({"unmodelled": ["cufftCreate"]}, False, ["CALLS_REFUSED"]),
        ({"notes": ["pools"]}, False, []),
        ({"notes": ["pools"], "knows_pools": False}, False, ["MEMORY_POOLS"]),
        ({"notes": ["special_pools"], "why": "end"}, False, ["MEMORY_POOLS"]),
        ({"larger_loader": 512}, False, ["LOADER_NOT_SEEN"]),
        ({"larger_loader": 512, "why": "end"}, False, []),
        ({"has_idle_optimizer": True}, False, ["OPTIMIZER_NOT_REACHED"]),
        ({"has_idle_optimizer": True, "why": "end"}, False, []),
        ({"training_loop": "sweep.py:7"}, False, ["TRAINS_AGAIN"]),
        ({"training_loop": "sweep.py:7", "why": "end"}, False, []),
        ({"why": "end", "exit_status": 3}, False, ["FAILED_LATER"]),
    ],
)
def test_what_a_job_did_not_show_is_told(
    fields: dict[str, Any], has_no_evaluation: bool, want: list[str]
) -> None:
    """Of an evaluation only if there may be one: the job went on, and the caller says nothing."""
    assert codes(describe(**fields), has_no_evaluation=has_no_evaluation) == want


@pytest.mark.parametrize(
    ("shapes", "want"),
    [
        ([SAME, seen(1, [[3, 3, 32, 32]])], []),
        ([seen(3, [[8, 128]]), seen(2, [[8, 77]])], ["INPUT_SHAPES_VARY"]),
        ([seen(2, [[8, 128]]), seen(9, [[5, 128]])], ["INPUT_SHAPES_VARY"]),
        ([seen(5, [[8, 3, 224, 224]], [[64, 3, 96, 96]])], []),
        ([seen(4, [[]]), seen(1)], []),
        (
            [
                SAME,
                seen(5, [[8, 3, 32, 32]], [[8, 9]]),
                seen(1, [[8, 9]], [[8, 9]], *[[[8, 3, 32, 32]]] * 2),
            ],
            [],
        ),
        ([seen(6, [[40]]), seen(2, [[70]])], ["INPUT_SHAPES_VARY"]),
        ([seen(1, [[900]]), seen(1, [[700]]), seen(1, [[800]])], ["INPUT_SHAPES_VARY"]),
    ],
    ids=[
        *("a last batch", "lengths", "batches of tokens", "two calls a step", "no tensor"),
        *("a call that is rare", "rows of tokens", "packed"),
    ],
)
def test_batches_of_different_shapes_are_told(shapes: list[Any], want: list[str]) -> None:
    """But not a last batch that is smaller, nor several calls in every step."""
    assert codes(describe(shapes=shapes)) == want
    assert codes(describe(shapes=shapes, why="end")) == []


def test_the_largest_batch_is_named() -> None:
    """As its shape."""
    shapes = [seen(3, [[8, 128], []]), seen(1, [[8, 512]])]

    (doubt,) = doubt_what_was_seen(describe(shapes=shapes), None, has_no_evaluation=False)

    assert "the largest in 5 steps: 8 x 512." in doubt.message


VARY = [seen(3, [[8, 128]]), seen(2, [[8, 512]])]


@pytest.mark.parametrize(
    ("longest", "shapes", "want"),
    [
        ({"is_run": True}, VARY, []),
        ({"is_run": True, "in_proportion": True}, VARY, ["INPUT_SHAPES_VARY"]),
        ({}, VARY, ["LONGEST_NOT_RUN", "INPUT_SHAPES_VARY"]),
        ({"problem": "they are packed"}, VARY, ["LONGEST_NOT_RUN", "INPUT_SHAPES_VARY"]),
        ({}, [seen(5, [[8, 512]])], []),
        ({}, [seen(5, [[8, 256]])], ["LONGEST_NOT_RUN"]),
        ({}, [seen(5, [[8, 100, 512]])], ["LONGEST_NOT_RUN"]),
        ({"is_run": True, "longer": 600}, VARY, ["LONGEST_NOT_RUN", "INPUT_SHAPES_VARY"]),
        ({"length": None, "is_run": True}, VARY, []),
        ({"length": None, "problem": "it streams"}, [SAME], ["LONGEST_NOT_RUN"]),
    ],
    ids=[
        "run",
        "in proportion",
        "not run",
        "a problem",
        "all",
        "all shorter",
        "features",
        "longer",
        "data",
        "no data",
    ],
)
def test_the_longest_batch_must_have_been_run(
    longest: dict[str, Any], shapes: list[Any], want: list[str]
) -> None:
    """Otherwise the answer is for shorter ones; whether it was is told in either case."""
    usual = {"length": 512, "is_run": False, "in_proportion": False, "problem": "", "longer": None}
    described = describe(shapes=shapes, longest=usual | longest)

    assert codes(described) == want
    *notes, last = [note.code for note in note_what_was_seen(described)]
    assert last == "LATER_NOT_SEEN"
    assert notes == ([] if "LONGEST_NOT_RUN" in want else ["LONGEST_BATCH"])


def test_without_a_question_about_the_longest_nothing_is_said_of_it() -> None:
    """There is no note."""
    assert [*note_what_was_seen(describe(shapes=VARY, why="end"))] == []


@pytest.mark.parametrize(
    ("peaks", "want"),
    [
        ([100, 110, 120, 130, 140], ["STILL_GROWING"]),
        ([100, 130, 130, 130, 130], []),
        ([100, 110, 120, 130, 130], []),
        ([100, 110, 120], []),
        ([100, 200, 110, 120, 130], []),
    ],
)
def test_steps_that_still_grow_are_told(peaks: list[int], want: list[str]) -> None:
    """Three in a row that take more than all before them."""
    steps = [[position, peak << 20] for position, peak in enumerate(peaks)]

    assert codes(describe(steps=steps)) == want


@pytest.mark.parametrize(
    ("growth_bytes", "want"), [(256 << 10, ["STILL_GROWING"]), (512, []), (0, [])]
)
def test_a_job_that_keeps_more_with_every_step_is_told(growth_bytes: int, want: list[str]) -> None:
    """However little that is beside its peak; a list of losses is nothing."""
    seen_whole = describe(why="end")

    for described, doubted in ((describe(), want), (seen_whole, [])):
        found = doubt_what_was_seen(
            described, None, growth_bytes=growth_bytes, has_no_evaluation=False
        )
        assert [doubt.code for doubt in found] == doubted


def test_little_that_is_kept_is_noted() -> None:
    """By how much."""
    (note,) = note_what_was_seen(describe(), growth_bytes=512)
    (other,) = note_what_was_seen(describe())

    assert "and kept 512 bytes more with every step;" in note.message
    assert "kept" not in other.message


@pytest.mark.parametrize(
    ("stages", "want"),
    [
        (["load", "train"], "before any evaluation"),
        (["load", "evaluate", "train"], "too little, or too early"),
        (["load", "train", "evaluate"], "in the middle of an evaluation"),
    ],
)
def test_how_much_of_an_evaluation_was_seen_is_told(stages: list[str], want: str) -> None:
    """What is said goes with the phases of the answer."""
    marks = [[0, stage] for stage in stages]
    described = describe(stages=marks, has_evaluated=False, why="time")

    (doubt,) = doubt_what_was_seen(described, None, has_no_evaluation=False)

    assert want in doubt.message


def test_a_failure_after_enough_steps_is_told() -> None:
    """What came before it was seen; what comes after it was not."""
    failure = Raised(kind="ValueError", message="no", last_line="ValueError: no")

    assert codes(describe(why="end"), failure) == ["FAILED_LATER"]


LATER = {7: Raised(kind="OSError", message="", last_line="OSError: no file\nof that name")}


@pytest.mark.parametrize(
    ("heard", "want"),
    [
        (Heard(devices={1}, recordings={1: "a"}), []),
        (Heard(devices={1, 2}, recordings={1: "a", 2: "b"}), []),
        (
            Heard(devices={1, 2}, recordings={1: "a", 2: "b"}, at_once={1, 2}),
            ["SEVERAL_PROCESSES"],
        ),
        (Heard(devices={1, 3}, recordings={1: "a", 3: "c"}, at_once={1, 3}), []),
        (Heard(devices={1, 2}, recordings={1: "a"}), ["PROCESS_NOT_RECORDED"]),
        (Heard(problems=["python -I: it was stopped"]), ["PROCESS_NOT_RECORDED"]),
        (Heard(ended=["busybox"]), ["PROGRAM_ENDED"]),
        (Heard(later_failures=LATER), ["COMMANDS_NOT_SEEN"]),
    ],
    ids=[
        *("one", "one after the other", "at once", "one took nothing", "one is lost"),
        *("one was stopped", "a program was ended", "a later one failed"),
    ],
)
def test_processes_beside_the_one_that_is_answered_for_are_told(
    heard: Heard, want: list[str]
) -> None:
    """If they hold memory at the same time, or what they take is not known."""
    assert [doubt.code for doubt in doubt_processes(heard, {1: 100, 2: 50}, "")] == want


def test_the_failure_of_a_later_command_is_told_in_a_line() -> None:
    """It says more than the status of the script."""
    (doubt,) = doubt_processes(Heard(later_failures=LATER), {1: 100}, "it ended")

    assert "a later command of it failed (OSError: no file)," in doubt.message


def test_a_failure_that_quotes_another_one_is_told_by_both() -> None:
    """A traceback in an exception's text is not repeated; the frame is."""
    quoted = "Original Traceback (most recent call last):\n  File 'a.py'\nKeyError: 'x'\n"
    failure = Raised(
        kind="RuntimeError",
        message="",
        last_line=f"RuntimeError: Caught KeyError in DataLoader worker process 0.\n{quoted}",
        frames=[("/home/a/train.py", 7, "main", "for batch in loader:")],
    )

    assert tell_failure(failure) == (
        "RuntimeError: Caught KeyError in DataLoader worker process 0. ... KeyError: 'x'"
        " in train.py, line 7, in main (for batch in loader:)"
    )


def test_a_line_that_raises_is_not_repeated() -> None:
    """What it raised is said already."""
    failure = Raised(
        kind="ValueError",
        message="no",
        last_line="ValueError: no",
        frames=[("/home/a/train.py", 7, "main", 'raise ValueError("no")')],
    )

    assert tell_failure(failure) == "ValueError: no in train.py, line 7, in main"


def test_processes_before_and_after_the_one_that_is_answered_for_are_noted() -> None:
    """Those that it shares the GPU with are a doubt, and not a note."""
    peaks = {1: 100 << 20, 2: 5 << 20, 3: 7 << 20, 4: 9 << 20}
    heard = Heard(at_once={1, 4})

    (note,) = note_processes(heard, peaks, 1)

    assert note.code == "OTHER_PROCESSES"
    assert note.message.startswith("2 other processes")
    assert "7.00 MiB" in note.message
    assert [*note_processes(heard, {1: 100, 4: 9}, 1)] == []


def test_a_cudnn_that_crashed_is_noted() -> None:
    """Workspaces are not known from then on, as where there is none."""
    notes = note_what_was_seen(describe(why="end", is_cudnn_lost=True))

    assert [note.code for note in notes] == ["CUDNN_LOST"]


def test_what_failed_before_it_trained_is_told() -> None:
    """It may be one of several processes."""
    failure = Raised(kind="ValueError", message="no", last_line="ValueError: no")

    (doubt,) = doubt_what_was_seen(
        describe(num_steps=0, shapes=[], why="end"), failure, has_no_evaluation=False
    )

    assert doubt.message.endswith("failed before it trained anything: ValueError: no")


@pytest.mark.parametrize(("taken", "want"), [(1 << 30, ["OUTSIDE_THE_ALLOCATOR"]), (40 << 20, [])])
def test_memory_that_pytorch_did_not_ask_for_is_told(taken: int, want: list[str]) -> None:
    """The driver knows of it; what libraries take for themselves is measured elsewhere."""
    reserved = 3 << 30
    described = msgspec.structs.replace(
        describe(why="end"),
        memory_stats={"reserved_bytes.all.peak": reserved},
        device_peak_bytes=reserved + taken,
    )

    assert codes(described, None) == want


@pytest.mark.parametrize(("why", "want"), [("time", ["END_NOT_REACHED"]), ("end", [])])
def test_an_end_that_was_asked_for_and_not_reached_is_told(why: str, want: list[str]) -> None:
    """The time was up."""
    found = doubt_what_was_seen(
        describe(why=why), None, has_no_evaluation=True, waits_for_the_end=True
    )

    assert [doubt.code for doubt in found] == want
