"""Jobs of many GPUs, by a spec: what each rank holds is arithmetic, to the byte.

The arithmetic is written here on its own: shapes of a Llama from its configuration, and the rules
by which torch divides them. Nothing of it comes from the code under test.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest

from memgate.errors import MemgateError
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Alloc, Free
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.verdicts import estimate_run

RUNTIME = read_runtimes()["torch-2.14"]
GPU = find_gpu("h100-80")

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

FLOAT = 4
#: nothing of it divides evenly
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 48, 100, 2, 4, 2, 1003

Shape = tuple[int, ...]


def _job(divided: dict[str, Any], **config: int) -> dict[str, Any]:
    settings = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    } | config
    return {
        "model": {"source": "transformers", "class": "LlamaForCausalLM", "config": settings},
        "input": {"sequence_length": 16},
        "batch_size": 2,
        "optimizer": {"name": "AdamW"},
        "iterations": 3,
        "distributed": divided,
    }


def _layer_shapes(hidden: int, inner: int, key_rows: int) -> list[Shape]:
    """Return those of a layer, in the order in which it has them."""
    attention = [(hidden, hidden), (key_rows, hidden), (key_rows, hidden), (hidden, hidden)]
    return [*attention, (inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,)]


LAYER = _layer_shapes(HIDDEN, INNER, HIDDEN * KV_HEADS // HEADS)
TABLE: Shape = (VOCABULARY, HIDDEN)
#: what is divided together: each layer, and what is around them
UNITS: list[list[Shape]] = [[TABLE, (HIDDEN,), TABLE], *[LAYER] * LAYERS]
SHAPES = [shape for unit in UNITS for shape in unit]
ALL = sum(map(prod, SHAPES))
#: keeps tables of its own, which are not trained
POSITIONS = "rotary_emb"


def _most(traced: TracedJob) -> dict[str, int]:
    """Return the most bytes of each category that there were at once, without such tables."""
    labels = traced.timeline.labels
    assert labels is not None
    sizes: dict[int, int] = {}
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for event in traced.timeline.events:
        if isinstance(event, Alloc):
            category, layer = labels[event.block_id]
            sizes[event.block_id] = 0 if layer.endswith(POSITIONS) else event.size_bytes
            now[category] += sizes[event.block_id]
            most[category] = max(most[category], now[category])
        elif isinstance(event, Free):
            now[labels[event.block_id].category] -= sizes.pop(event.block_id)
    return most


def _held(engine: PhantomEngine, divided: dict[str, Any]) -> dict[int, tuple[int, int, int]]:
    """Return parameters, gradients and optimizer state of each rank that was run."""
    traced = engine.trace(parse_job_spec(_job(divided)), GPU)
    assert {one.num_parameters for one in traced.ranks} == {ALL}
    most = {one.rank: _most(one) for one in traced.ranks}
    names = ("parameters", "gradients", "optimizer_state")
    return {rank: tuple(found[name] for name in names) for rank, found in most.items()}  # type: ignore[misc]


def _by_chunks(world: int, rank: int) -> tuple[int, int, int]:
    """FSDP2: chunks of the first dimension; weights and gradients are padded to the largest."""
    padded = held = 0
    for first, *others in SHAPES:
        rows = -(-first // world)
        padded += rows * prod(others)
        held += max(0, min(rows, first - rank * rows)) * prod(others)
    return padded * FLOAT, padded * FLOAT, 2 * held * FLOAT


def _by_flat_parameters(world: int, rank: int) -> tuple[int, int, int]:
    """FSDP: all of a unit in one row, each weight at 16 bytes, padded to the number of ranks."""
    flat = held = 0
    for unit in UNITS:
        places, total = [], 0
        for shape in unit:
            total = -(-total // 4) * 4
            places.append((total, total + prod(shape)))
            total += prod(shape)
        part = -(-total // world)
        flat += part
        begin, end = rank * part, (rank + 1) * part
        held += sum(max(0, min(end, last) - max(begin, first)) for first, last in places)
    return flat * FLOAT, flat * FLOAT, 2 * held * FLOAT


def _by_greed(world: int, rank: int) -> tuple[int, int, int]:
    """ZeRO-1: weights, the largest first, each to the rank that has the least so far."""
    given = [0] * world
    for size in sorted(map(prod, SHAPES), reverse=True):
        given[given.index(min(given))] += size
    return ALL * FLOAT, ALL * FLOAT, 2 * given[rank] * FLOAT


def _by_nothing(_: int, __: int) -> tuple[int, int, int]:
    """DDP: everything is everywhere."""
    return ALL * FLOAT, ALL * FLOAT, 2 * ALL * FLOAT


RULES = {
    "ddp": _by_nothing,
    "zero1": _by_greed,
    "zero2": _by_flat_parameters,
    "zero3": _by_flat_parameters,
    "fsdp": _by_flat_parameters,
    "fsdp2": _by_chunks,
}


def _check(engine: PhantomEngine, strategy: str, world: int) -> None:
    held = _held(engine, {"strategy": strategy, "world_size": world})

    rule = RULES[strategy]
    is_alike = rule(world, 0) == rule(world, world - 1)
    assert held.keys() >= ({0} if is_alike else {0, world - 1})
    assert held == {rank: rule(world, rank) for rank in held}


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp", "fsdp2"])
def test_each_rank_holds_what_arithmetic_says(engine: PhantomEngine, strategy: str) -> None:
    """To the byte, with sizes that do not divide evenly."""
    _check(engine, strategy, 8)


@pytest.mark.parametrize("trainer", ["hf", pytest.param("trl-sft", marks=pytest.mark.slow)])
def test_a_trainer_divides_each_weight_on_its_own(engine: PhantomEngine, trainer: str) -> None:
    """accelerate divides weights on the CPU, which FSDP2 moves to the GPU one by one."""
    job = _job({"strategy": "fsdp2", "world_size": 4}) | {"trainer": trainer}
    traced = engine.trace(parse_job_spec(job), GPU)

    assert traced.num_parameters == ALL
    # Trainer's AdamW is fused, and counts its steps on the GPU
    steps = FLOAT * len(SHAPES)
    assert _most(traced)["optimizer_state"] == _by_chunks(4, 0)[2] + steps


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 8, 64, 512])
@pytest.mark.parametrize("strategy", RULES)
def test_each_rank_holds_what_arithmetic_says_in_any_world(
    engine: PhantomEngine, strategy: str, world: int
) -> None:
    """On two GPUs, and on more than a weight has rows."""
    _check(engine, strategy, world)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "replicas"), [(2, 2), (8, 2), (64, 8), (512, 4)])
@pytest.mark.parametrize("version", [1, 2])
def test_groups_are_copies_of_one_another(
    engine: PhantomEngine, world: int, replicas: int, version: int
) -> None:
    """HSDP: each group divides as FSDP would with as many GPUs."""
    divided = {"strategy": "hsdp", "world_size": world, "replicas": replicas}
    held = _held(engine, divided | {"fsdp_version": version})

    rule = _by_flat_parameters if version == 1 else _by_chunks
    group = world // replicas
    assert held == {rank: rule(group, rank % group) for rank in held}


@pytest.mark.parametrize(
    "world", [2, *(pytest.param(world, marks=pytest.mark.slow) for world in (8, 64, 512))]
)
def test_layers_are_divided_by_rows_and_columns(engine: PhantomEngine, world: int) -> None:
    """Tensor parallelism: linear layers and the last one, whose words do not divide evenly."""
    hidden, inner = world * 8, 512 * 3
    config = {"num_attention_heads": world, "num_key_value_heads": world, "num_hidden_layers": 1}
    divided = {"strategy": "tp", "world_size": world}
    job = _job(divided, hidden_size=hidden, intermediate_size=inner, **config)
    traced = engine.trace(parse_job_spec(job), GPU)

    layer = _layer_shapes(hidden, inner, hidden)
    whole = VOCABULARY * hidden + 3 * hidden
    divided_evenly = sum(prod(shape) for shape in layer if len(shape) == 2) // world
    rows = -(-VOCABULARY // world)
    for one in traced.ranks:
        words = max(0, min(rows, VOCABULARY - one.rank * rows)) * hidden
        trained = (whole + divided_evenly + words) * FLOAT
        most = _most(one)
        assert most["parameters"] == trained
        assert most["gradients"] == trained
        assert most["optimizer_state"] == 2 * trained


def _by_stages(world: int, num_layers: int, per_rank: int) -> dict[int, int]:
    """Return how many numbers each rank has: layers in turn, the first stages get one more."""
    count = world * per_rank
    usual, more = divmod(num_layers, count)
    layer = sum(map(prod, LAYER))
    found = {
        rank: sum(layer * (usual + (stage < more)) for stage in range(rank, count, world))
        for rank in range(world)
    }
    found[0] += prod(TABLE)
    found[world - 1] += prod(TABLE) + HIDDEN
    return found


@pytest.mark.parametrize(
    ("world", "schedule"),
    [
        (2, "1f1b"),
        pytest.param(4, "gpipe", marks=pytest.mark.slow),
        pytest.param(2, "interleaved-1f1b", marks=pytest.mark.slow),
    ],
)
def test_a_pipeline_s_stages_have_their_layers(
    engine: PhantomEngine, world: int, schedule: str
) -> None:
    """Every rank is run; words are in the first stage, and the last layer in the last."""
    divided = {"strategy": "pp", "world_size": world, "schedule": schedule}
    job = _job(divided, num_hidden_layers=5) | {"gradient_checkpointing": True}
    traced = engine.trace(parse_job_spec(job), GPU)

    want = _by_stages(world, 5, 2 if schedule.startswith("interleaved") else 1)
    assert {one.rank for one in traced.ranks} == set(range(world))
    for one in traced.ranks:
        most = _most(one)
        assert most["parameters"] == want[one.rank] * FLOAT
        assert most["gradients"] == want[one.rank] * FLOAT
        assert most["optimizer_state"] == 2 * want[one.rank] * FLOAT


@pytest.mark.slow
def test_a_schedule_decides_how_many_batches_are_kept(engine: PhantomEngine) -> None:
    """GPipe keeps all of a step in the first stage, 1F1B as many as there are stages."""
    kept = {}
    for schedule in ("gpipe", "1f1b"):
        divided = {"strategy": "pp", "world_size": 2, "schedule": schedule, "microbatches": 8}
        traced = engine.trace(parse_job_spec(_job(divided)), GPU)
        kept[schedule] = _most(traced.ranks[0])["activations"]

    assert kept["gpipe"] > 3 * kept["1f1b"]


@pytest.mark.parametrize(
    ("config", "world", "want"),
    [
        ({"tie_word_embeddings": True}, 2, "would share a weight"),
        ({}, 3, "the model has 2 layers, and there are 3 stages"),
    ],
)
def test_what_a_pipeline_cannot_be_made_of_is_said(
    engine: PhantomEngine, config: dict[str, int], world: int, want: str
) -> None:
    """Before anything is run in its place."""
    job = _job({"strategy": "pp", "world_size": world}, **config)

    with pytest.raises(MemgateError, match=want):
        engine.trace(parse_job_spec(job), GPU)


def test_the_rank_that_needs_the_most_decides(engine: PhantomEngine) -> None:
    """ZeRO-1 gives some rank more than the first and the last; it is run, and the answer."""
    traced = engine.trace(parse_job_spec(_job({"strategy": "zero1", "world_size": 8})), GPU)
    said = estimate_run(traced, GpuTarget(gpu=GPU))

    given = [_by_greed(8, rank)[2] for rank in range(8)]
    assert given.index(max(given)) in [one.rank for one in said.ranks]
    assert said.needs_bytes == max(one.needs_bytes for one in said.ranks)
    assert said.traffic["all_reduce"] == ALL * FLOAT
    assert said.decision == "admit"
