"""From what a CPU did to what a GPU would have done, rule by rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from memgate.blocks import pair_blocks
from memgate.links import Call, LinkedSet, link_blocks
from memgate.orchestration import orchestrate
from memgate.plan import DeviceTraits
from memgate.residents import Residents
from memgate.timeline import Alloc, Category, Free, Phase, PhaseStart
from memgate.units import MIB
from tests.builders import TINY_TRACES, read_tiny_trace
from tests.linked_calls import AMPERE, HOPPER, apply_rule, link, make_call, sizes_of


def test_the_model_comes_first_and_the_rest_in_the_order_of_time() -> None:
    """A free at the moment of an allocation comes after it."""
    linked = link([make_call(10, "aten::relu")], (100, 11, 30, 0), (50, 30, None, 0))

    timeline = orchestrate(linked, Residents(model=(7, 8)), AMPERE)

    assert timeline.events == (Alloc(0, 7), Alloc(1, 8), Alloc(2, 100), Alloc(3, 50), Free(2))
    assert [label.category for label in timeline.labels[:2]] == [Category.PARAMETERS] * 2


def test_phases_begin_where_their_first_block_does() -> None:
    """The model comes before all; a phase that touches no memory has no place."""
    phases = (Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.BETWEEN, Phase.OPTIMIZER)
    calls = [make_call(10 * at, "aten::add", phase=phase) for at, phase in enumerate(phases, 1)]
    linked = link(calls, (100, 11, 39, 0), (50, 31, None, 2), (50, 51, None, 4))

    timeline = orchestrate(linked, Residents(model=(7, 8)), AMPERE)

    assert timeline.phases == (
        PhaseStart(0, Phase.BETWEEN),
        PhaseStart(2, Phase.FORWARD),
        PhaseStart(3, Phase.BACKWARD),
        PhaseStart(5, Phase.OPTIMIZER),
    )


def test_what_a_call_keeps_to_itself_is_the_cpus_own() -> None:
    """As the paper found; unless the rule is left out."""
    linked = link([make_call(10, "aten::conv2d")], (100, 11, 12, 0), (60, 13, 99, 0))

    assert sizes_of(orchestrate(linked, Residents(), AMPERE)) == [60]
    assert sizes_of(orchestrate(linked, Residents(), AMPERE, without=["without_internals"])) == [
        100,
        60,
    ]


def test_numbers_and_counters_stay_on_the_host() -> None:
    """What no operator made, and what an optimizer counts its steps with."""
    linked = link(
        [make_call(10, "aten::empty", phase=Phase.OPTIMIZER)], (8, 1, 99, None), (4, 11, None, 0)
    )

    assert sizes_of(orchestrate(linked, Residents(), AMPERE)) == []


@pytest.mark.parametrize(
    ("phase", "free", "want"),
    [
        (Phase.BETWEEN, 45, Category.BATCH),
        (Phase.FORWARD, 45, Category.ACTIVATIONS),
        (Phase.FORWARD, 25, Category.TEMPORARY),
        (Phase.BACKWARD, None, Category.GRADIENTS),
        (Phase.OPTIMIZER, None, Category.OPTIMIZER_STATE),
    ],
)
def test_a_block_is_what_its_phase_makes_unless_it_ends_with_it(
    phase: Phase, free: float | None, want: Category
) -> None:
    """Three calls of one phase, then another."""
    calls = [make_call(begin, "aten::add", phase=phase) for begin in (10, 20, 30)]
    calls.append(make_call(40, "aten::add", phase=phase, iteration=1))

    timeline = orchestrate(link(calls, (100, 11, free, 0)), Residents(), AMPERE)

    assert timeline.labels[0].category is want
    assert timeline.labels[0].layer == "layer"


def test_a_dropout_mask_takes_a_byte_an_element() -> None:
    """Where two blocks are left: without dropout there is one, or none."""
    dropout = make_call(10, "aten::dropout", (4, 10))
    linked = link([dropout], (160, 11, 99, 0), (160, 12, 99, 0))

    assert sizes_of(apply_rule(linked, only="dropout_masks")) == [40, 160]
    assert sizes_of(apply_rule(link([dropout], (160, 11, 99, 0)), only="dropout_masks")) == [160]
    unknown = link([make_call(10, "aten::dropout")], (160, 11, 99, 0), (160, 12, 99, 0))
    assert sizes_of(apply_rule(unknown, only="dropout_masks")) == [40, 160]


def test_batch_norm_makes_the_gradient_of_its_input_first() -> None:
    """The largest block of its backward pass comes at the moment of the first."""
    backward = make_call(10, "aten::native_batch_norm_backward", phase=Phase.BACKWARD)
    linked = link([backward], (8, 11, 99, 0), (500, 12, 99, 0), (9, 13, 99, 0))

    assert sizes_of(apply_rule(linked, only="batch_norm_order")) == [500, 9, 8]


def test_attention_keeps_whole_rows() -> None:
    """A number for each query, padded to 32 of them."""
    attention = make_call(10, "aten::scaled_dot_product_attention", (2, 3, 100, 64))
    linked = link([attention], (153_600, 11, 99, 0), (2_400, 12, 99, 0))

    assert sizes_of(apply_rule(linked, only="attention_rows")) == [153_600, 2 * 3 * 128 * 4]
    unknown = link([make_call(10, "aten::scaled_dot_product_attention")], (9, 11, 99, 0))
    assert sizes_of(apply_rule(unknown, only="attention_rows")) == [9]


def test_attention_keeps_no_matrix_of_all_with_all() -> None:
    """What a CPU keeps for lack of a fused kernel goes; the result and a number per query stay."""
    attention = make_call(10, "aten::scaled_dot_product_attention", (2, 3, 32, 8))
    calls = [attention, *(make_call(at, "aten::bmm", phase=Phase.BACKWARD) for at in (50, 60))]
    calls[1:] = [call._replace(forward_call=0) for call in calls[1:]]
    calls.append(make_call(80, "aten::add", phase=Phase.BACKWARD))
    linked = link(
        calls,
        (6144, 11, 70, 0),
        (24576, 12, 70, 0),
        (6144, 13, 70, 0),
        (24576, 51, 65, 1),
        (6144, 61, 99, 2),
        (100, 81, 99, 3),
    )

    timeline = apply_rule(linked, only="fused_attention")

    assert sorted(sizes_of(timeline)) == [100, 768, 6144, 6144]
    fused = [call._replace(node="ScaledDotProductX") for call in calls]
    kept = LinkedSet(calls=tuple(fused), blocks=linked.blocks, diagnostics={})
    assert len(sizes_of(apply_rule(kept, only="fused_attention"))) == 6
    alone = link([make_call(10, "aten::scaled_dot_product_attention")], *[(9, 11, 99, 0)] * 3)
    assert sizes_of(apply_rule(alone, only="fused_attention")) == [9, 0]


def test_the_backward_pass_of_a_softmax_makes_a_product_first() -> None:
    """As large as its result, gone with the call."""
    softmax = make_call(10, "aten::_softmax_backward_data", phase=Phase.BACKWARD)
    linked = link([softmax], (500, 11, 99, 0))

    timeline = apply_rule(linked, only="softmax_products")

    assert timeline.events == (Alloc(0, 500), Alloc(1, 500), Free(1), Free(0))
    assert sizes_of(apply_rule(link([softmax]), only="softmax_products")) == []


@pytest.mark.parametrize(("num_indices", "want"), [(3072, []), (4000, [32000] * 3 + [64000])])
def test_many_indices_are_sorted(num_indices: int, want: list[int]) -> None:
    """In the backward pass of an embedding; a few are not."""
    calls = [make_call(10, "aten::embedding_backward", (num_indices, 8), (num_indices,))]
    calls.append(make_call(20, "aten::embedding_backward"))

    assert sizes_of(apply_rule(link(calls), only="sorted_indices")) == want


@pytest.mark.parametrize(("device", "size"), [(AMPERE, 8_519_680), (HOPPER, 32 * MIB)])
def test_cublas_keeps_a_workspace_for_each_thread(device: DeviceTraits, size: int) -> None:
    """One for the forward pass, one for the backward pass, whatever comes after the first."""
    calls = [
        make_call(10, "aten::linear"),
        make_call(20, "aten::mm"),
        make_call(30, "aten::mm", phase=Phase.BACKWARD),
        make_call(40, "aten::mm", phase=Phase.BACKWARD),
    ]

    timeline = apply_rule(link(calls), only="cublas_workspaces", device=device)

    assert timeline.events == (Alloc(0, size), Alloc(1, size))
    assert {label.category for label in timeline.labels} == {Category.WORKSPACE}


@pytest.mark.parametrize(
    ("name", "dims", "want"),
    [
        ("aten::linear", ((2, 3), (4, 3), (4,)), [MIB]),
        ("aten::linear", ((2, 3), (4, 3), ()), []),
        ("aten::addmm", ((4,), (2, 3), (3, 4)), [MIB]),
        ("aten::addmm", ((2, 4), (2, 3), (3, 4)), []),
        ("aten::addmm", (), []),
    ],
)
def test_adding_a_bias_takes_a_workspace_for_the_call(name: str, dims: Any, want: Any) -> None:
    """cuBLASLt multiplies and adds at once."""
    linked = link([make_call(10, name, *dims)])
    older = DeviceTraits(compute_capability=(8, 6), torch_version=(2, 6))

    assert sizes_of(apply_rule(linked, only="lt_workspaces", device=older)) == want
    assert sizes_of(apply_rule(linked, only="lt_workspaces")) == []


@pytest.mark.parametrize("name", TINY_TRACES)
def test_a_real_trace_becomes_a_timeline(name: str) -> None:
    """Every block that is freed was there; each category has its share."""
    trace = read_tiny_trace(name)

    timeline = orchestrate(link_blocks(pair_blocks(trace), trace), Residents(model=(400,)), AMPERE)

    live = set()
    for event in timeline.events:
        if isinstance(event, Alloc):
            live.add(event.block_id)
        elif isinstance(event, Free):
            live.remove(event.block_id)
    assert {label.category for label in timeline.labels} == set(Category) - {Category.OTHER}


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (["aten::to", "aten::mul", "aten::linear"], [100]),
        (["aten::mul", "aten::to", "aten::linear"], []),
        (["aten::mul", "aten::add", "aten::linear"], []),
        (["aten::to", "aten::mul", "aten::add"], []),
    ],
)
def test_what_is_made_of_a_batch_on_the_device_is_there(names: list[str], want: list[int]) -> None:
    """After it was moved and before the model reads it; the host does the rest."""
    phases = [
        Phase.FORWARD if name == "aten::linear" else Phase.BETWEEN for name in (*names, "aten::add")
    ]
    calls = [
        make_call(10 * at, name, phase=phase)
        for at, (name, phase) in enumerate(zip((*names, "aten::add"), phases, strict=True), 1)
    ]
    made = names.index("aten::mul")
    begin = calls[made].op.begin_us
    ended = calls[made + 1].op.begin_us - 1 if made == 0 else begin + 8.5
    extra = make_call(begin + 9, "aten::view", phase=Phase.BETWEEN)
    ordered = [*calls[: made + 1], extra, *calls[made + 1 :]]
    linked = link(ordered, (100, begin + 1, ended, made))

    assert sizes_of(apply_rule(linked)) == want


def test_fused_attention_keeps_its_inputs_until_its_backward_pass() -> None:
    """What multiplies matrices keeps scaled ones instead; the newest blocks of their sizes are."""
    shapes = ((1, 1, 8, 8), (1, 1, 8, 8), (1, 1, 8, 8))
    attention = make_call(10, "aten::scaled_dot_product_attention", *shapes)
    op = msgspec.structs.replace(attention.op, input_types=("float",) * 3)
    attention = attention._replace(op=op)
    before = [make_call(at, "aten::linear") for at in (1, 2, 3)]
    after = make_call(50, "aten::bmm", phase=Phase.BACKWARD)._replace(forward_call=3)
    linked = link(
        [*before, attention, after],
        (256, 1, 40, 0),  # query: gone before the backward pass
        (256, 2, 99, 1),  # key: held by something else, for longer
        (999, 3, 40, 2),  # of another size
        (256, 4, 9.5, 0),  # gone before
        *((256, at, 55, 3) for at in (11, 12, 13)),
    )

    timeline = apply_rule(linked, only="fused_attention")

    freed = [event.block_id for event in timeline.events if isinstance(event, Free)]
    assert freed == [3, 2, 4, 5, 0, 1], "query and rows with the backward pass, key after it"


def test_fused_attention_keeps_the_block_that_its_inputs_are_parts_of() -> None:
    """One multiplication makes q, k and v together."""
    shapes = ((1, 1, 8, 8),) * 3
    attention = make_call(10, "aten::scaled_dot_product_attention", *shapes)
    op = msgspec.structs.replace(attention.op, input_types=("float",) * 3)
    after = make_call(50, "aten::bmm", phase=Phase.BACKWARD)._replace(forward_call=1)
    linked = link(
        [make_call(1, "aten::linear"), attention._replace(op=op), after],
        (3 * 256, 1, 40, 0),
        *((256, at, 55, 1) for at in (11, 12, 13)),
    )

    timeline = apply_rule(linked, only="fused_attention")

    freed = [event.block_id for event in timeline.events if isinstance(event, Free)]
    assert freed == [1, 2, 0], "with the backward pass, though the CPU freed it before"


def _first_calls(name: str, *dims: tuple[int, ...], types: tuple[str, ...]) -> list[Call]:
    """Two iterations, each with one call in its forward pass."""
    calls = [make_call(at, name, *dims, iteration=number) for number, at in enumerate((10, 30))]
    return [call._replace(op=msgspec.structs.replace(call.op, input_types=types)) for call in calls]


@pytest.mark.parametrize(
    ("name", "dims", "types", "want"),
    [
        ("aten::conv2d", ((2, 3, 4, 4), (8, 3, 1, 1)), ("float", "float"), [384, 384]),
        ("aten::embedding", ((1000, 16), (2, 5)), ("float", "long int"), [80, 80]),
        ("aten::conv2d", ((2, 3, 4, 4),), (), []),
    ],
    ids=["images", "tokens", "unknown"],
)
def test_a_batch_that_left_no_mark_is_what_the_first_call_reads(
    name: str, dims: tuple[tuple[int, ...], ...], types: tuple[str, ...], want: list[int]
) -> None:
    """The next one is there before it goes."""
    timeline = apply_rule(link(_first_calls(name, *dims, types=types)), only="missing_batches")

    assert sizes_of(timeline) == want
    if want:
        assert timeline.events == (Alloc(0, want[0]), Alloc(1, want[0]), Free(0))
        assert timeline.labels[0].category is Category.BATCH


def test_a_batch_that_the_trace_shows_is_not_added_again() -> None:
    """Made between two iterations, and still there in the forward pass."""
    first, second = _first_calls("aten::conv2d", (2, 3, 4, 4), types=("float",))
    made = make_call(1, "aten::stack", phase=Phase.BETWEEN)
    linked = link([made, first, second], (384, 2, None, 0))

    assert sizes_of(apply_rule(linked, only="missing_batches")) == [384]
