"""Traces as people record them, against what the phantom said of the very same jobs.

``tests/bench/trace_styles.py`` does the same with more jobs and more styles, and runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.blocks import pair_blocks
from memgate.capacity import AMPLE_BYTES
from memgate.iterations import find_iterations
from memgate.links import link_blocks
from memgate.pipeline import analyze
from memgate.plan import DeviceTraits
from memgate.trace import Annotation, OpEvent, read_trace

STYLES = Path(__file__).parents[2] / "data" / "styles"
AMPERE = DeviceTraits(compute_capability=(8, 0))

#: what the phantom reserved and allocated at most, in bytes
PHANTOM = {
    "attention_weights": (161_480_704, 116_930_560),
    "cached_batch": (88_080_384, 62_446_080),
    "evaluation": (48_234_496, 30_743_552),
    "ema": (125_829_120, 118_788_096),
    "feature_extractor": (65_011_712, 43_445_248),
    "frozen": (46_137_344, 35_737_600),
    "gan": (109_051_904, 85_046_784),
    "masters": (115_343_360, 110_374_912),
    "mixed_batches": (106_954_752, 80_904_192),
    "mlp": (132_120_576, 106_157_056),
    "mlp_adam_decay": (130_023_424, 101_961_216),
    "mlp_adamax": (130_023_424, 101_961_216),
    "mlp_adagrad": (127_926_272, 106_157_056),
    "mlp_amsgrad": (130_023_424, 118_788_096),
    "mlp_kept_gradients": (96_468_992, 81_157_120),
    "mlp_long_batch": (144_703_488, 105_233_408),
    "mlp_rmsprop": (130_023_424, 118_788_096),
    "mlp_rprop": (130_023_424, 118_607_872),
    "mlp_two_groups": (167_772_160, 142_971_904),
    "teacher": (125_829_120, 118_792_704),
}


@pytest.mark.parametrize(
    ("job", "style", "want_doubts"),
    [
        ("mlp", "two", []),
        ("mlp", "tutorial", []),
        ("mlp", "memory", []),
        ("mlp", "one", []),
        ("mlp", "inside", []),
        ("mlp", "first", ["FIRST_STEP_ONLY"]),
        ("mlp_adagrad", "tutorial", []),
        ("mlp_adagrad", "inside", []),
        ("mlp_amsgrad", "one", []),
        ("mlp_rmsprop", "one", []),
        ("mlp_kept_gradients", "tutorial", []),
        ("mlp_kept_gradients", "memory", []),
    ],
)
def test_a_plain_loop_is_understood_in_every_style(
    job: str, style: str, want_doubts: Sequence[str]
) -> None:
    """What is older is added, what is made inside is counted once, iterations are repeated."""
    _compare(job, style, want_doubts)


@pytest.mark.parametrize(
    ("job", "style"),
    [
        ("gan", "one"),
        ("gan", "tutorial"),
        ("ema", "tutorial"),
        ("ema", "memory"),
        ("frozen", "one"),
        ("feature_extractor", "tutorial"),
        ("cached_batch", "one"),
        ("teacher", "cycles"),
        ("mixed_batches", "cycles"),
    ],
)
def test_other_jobs_are_understood_too(job: str, style: str) -> None:
    """Two optimizers, a copy of the weights, weights that are not trained, a batch from before."""
    _compare(job, style, [])


@pytest.mark.parametrize(
    ("job", "style"),
    [
        ("mlp_long_batch", "cycles"),
        ("mlp_long_batch", "memory"),
        ("mlp_adam_decay", "cycles"),
        ("mlp_adamax", "cycles"),
        ("mlp_rprop", "cycles"),
        ("mlp_two_groups", "cycles"),
        ("attention_weights", "cycles"),
    ],
)
def test_what_a_gpu_makes_for_a_moment_is_there(job: str, style: str) -> None:
    """Sums in parts, masks, a list for each group; and a cache that takes five steps to settle."""
    _compare(job, style, [])


def test_copies_that_are_stepped_count_beside_the_weights() -> None:
    """With the state that is kept for them; how they came about is not known."""
    with (STYLES / "masters.cycles.json.gz").open("rb") as stream:
        found = analyze(read_trace(stream), AMPERE)
    run = replay(found.timeline, parse_alloc_conf(""), AMPLE_BYTES)

    assert run.peak_allocated_bytes == pytest.approx(PHANTOM["masters"][1], rel=0.01)
    assert [doubt.code for doubt in found.doubts] == ["OTHER_PARAMETERS"]


@pytest.mark.parametrize("when", ["steps", "epoch"])
def test_an_evaluation_counts(when: str) -> None:
    """Between two steps and after the last one; iterations without it are not smaller for it."""
    _compare("evaluation", when, [])


def test_an_evaluation_that_is_tried_out_before_training_comes_again() -> None:
    """When the model has its optimizer's state, and gradients: trainers do so."""
    with (STYLES / "evaluation.before.json.gz").open("rb") as stream:
        trace = read_trace(stream)
    found = analyze(trace, AMPERE)
    run = replay(found.timeline, parse_alloc_conf(""), AMPLE_BYTES)

    assert not found.doubts
    assert run.peak_reserved_bytes == PHANTOM["evaluation"][0]
    assert run.peak_allocated_bytes == pytest.approx(PHANTOM["evaluation"][1], rel=0.03)


def test_what_the_first_iteration_makes_for_later_is_not_an_evaluation() -> None:
    """A scaler makes its scale when it first scales a loss: one more call in the forward pass."""
    with (STYLES / "evaluation.epoch.json.gz").open("rb") as stream:
        trace = read_trace(stream)
    first_us = min(op.begin_us for op in trace.ops if op.name.startswith("autograd::"))
    scale = OpEvent(
        first_us - 2, first_us - 1, trace.ops[0].thread, "aten::full", None, None, (), ()
    )
    scaled = replace(trace, ops=(*trace.ops, scale))

    iterations = find_iterations(link_blocks(pair_blocks(scaled), scaled))

    assert [one.has_evaluation for one in iterations] == [False, False, False]
    assert len({one.size_bytes for one in iterations}) == 1


def test_a_step_that_only_begins_is_not_one() -> None:
    """The trace ends with it, as one does that is stopped by the model's next call."""
    with (STYLES / "mlp.two.json.gz").open("rb") as stream:
        trace = read_trace(stream)
    end_us = max(op.end_us for op in trace.ops)
    begun = Annotation(end_us + 1, end_us + 2, "Optimizer.step#Adam.step")
    late = replace(trace, annotations=(*trace.annotations, begun))

    assert analyze(late, AMPERE) == analyze(trace, AMPERE)


@pytest.mark.parametrize(
    ("name", "want_doubts"),
    [
        ("cached_batch.memory", ["BATCH_UNSEEN"]),
        ("feature_extractor.memory", ["FROZEN_WEIGHTS_UNSEEN"]),
        ("lstm.one", ["LENGTHS_UNSEEN", "RECURRENT_LAYERS"]),
        ("data_on_device.memory", ["OLDER_DATA_READ"]),
        ("masters.memory", ["OTHER_PARAMETERS"]),
        ("stepped_by_hooks.cycles", ["STEPS_IN_BACKWARD"]),
        ("target_network.memory", ["FROZEN_WEIGHTS_UNSEEN", "OLDER_DATA_READ"]),
        ("teacher.memory", ["FROZEN_WEIGHTS_UNSEEN"]),
    ],
)
def test_what_a_trace_does_not_tell_is_doubted(name: str, want_doubts: Sequence[str]) -> None:
    """With a code for each reason."""
    with (STYLES / f"{name}.json.gz").open("rb") as stream:
        doubts = analyze(read_trace(stream), AMPERE).doubts

    assert [doubt.code for doubt in doubts] == want_doubts


def _compare(job: str, style: str, want_doubts: Sequence[str]) -> None:
    with (STYLES / f"{job}.{style}.json.gz").open("rb") as stream:
        found = analyze(read_trace(stream), AMPERE)
    run = replay(found.timeline, parse_alloc_conf(""), AMPLE_BYTES)

    want_reserved, want_allocated = PHANTOM[job]
    assert run.peak_reserved_bytes == want_reserved
    assert run.peak_allocated_bytes == pytest.approx(want_allocated, rel=0.01)
    assert [doubt.code for doubt in found.doubts] == want_doubts
