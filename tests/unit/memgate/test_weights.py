"""Weights that are read and not trained, and copies that follow the weights."""

from __future__ import annotations

from memgate.links import Call, LinkedSet
from memgate.timeline import Phase
from memgate.trace import OpEvent
from memgate.weights import find_frozen, has_followers, input_bytes


def _call(
    at: float, name: str, *dims: tuple[int, ...], phase: Phase = Phase.FORWARD, layer: str = ""
) -> Call:
    op = OpEvent(at, at + 0.5, 1, name, None, None, dims, ("float",) * len(dims))
    return Call(op, phase, 0, layer, "", None)


def _linked(*calls: Call) -> LinkedSet:
    return LinkedSet(calls=calls, blocks=(), diagnostics={})


def test_an_embedding_and_a_layer_of_its_size_are_taken_to_share() -> None:
    """And it is said how much that may be wrong by."""
    linked = _linked(
        _call(1, "aten::embedding", (100, 8), (4,)),
        _call(2, "aten::linear", (4, 8), (8, 8)),
        _call(3, "aten::linear", (4, 8), (100, 8)),
    )

    frozen = find_frozen(linked, ())

    assert sorted(frozen.sizes) == [256, 3200]
    assert frozen.maybe_tied_bytes == 3200
    assert not frozen.is_unseen


def test_a_layer_that_is_called_twice_has_its_weights_once() -> None:
    """Where modules were recorded; otherwise nobody can tell."""
    calls = [_call(at, "aten::linear", (4, 8), (8, 8), layer="Net_0.Linear_0") for at in (1, 2)]

    assert find_frozen(_linked(*calls), ()).sizes == (256,)


def test_a_model_that_is_evaluated_has_its_weights_once() -> None:
    """Passes without a backward pass read what others train."""
    calls = (
        _call(1, "aten::linear", (4, 8), (8, 8)),
        _call(2, "aten::mm", phase=Phase.BACKWARD),
        _call(3, "aten::linear", (4, 8), (8, 8)),
    )

    assert find_frozen(_linked(*calls), (256,)).sizes == ()


def test_a_copy_on_lists_follows_the_weights() -> None:
    """One call for all of them."""
    step = _call(1, "aten::add_", phase=Phase.OPTIMIZER)
    follow = _call(2, "aten::_foreach_lerp_", phase=Phase.BETWEEN)

    assert has_followers(_linked(step, follow), (256,))


def test_what_is_written_before_a_step_or_in_part_is_no_copy() -> None:
    """Gradients are clipped before it; a few numbers are not a model."""
    clip = _call(1, "aten::mul_", (8, 8), phase=Phase.BETWEEN)
    step = _call(2, "aten::add_", phase=Phase.OPTIMIZER)
    few = _call(3, "aten::mul_", (2,), phase=Phase.BETWEEN)
    other = _call(4, "aten::zero_", (8, 8), phase=Phase.BETWEEN)
    next_pass = _call(5, "aten::linear", (4, 8), (8, 8))
    again = _call(6, "aten::mul_", (8, 8), phase=Phase.BETWEEN)

    assert not has_followers(_linked(clip, step, few, other, next_pass, again), (256, 64))


def test_an_input_that_the_trace_does_not_tell_has_no_size() -> None:
    """Neither its place nor its type need be there."""
    op = OpEvent(0, 1, 1, "aten::add", None, None, ((2, 2),), ("mystery",))

    assert (input_bytes(op, 0), input_bytes(op, 1)) == (0, 0)


def _pass(*, ties: tuple[int, ...], node: str = "AddmmBackward0") -> list[Call]:
    """Read two weights without shapes, and go back to some of them."""
    reads = [_call(at, "aten::linear") for at in (1, 2)]
    back = [
        _call(3, "aten::mm", phase=Phase.BACKWARD)._replace(node=node, forward_call=tie)
        for tie in ties
    ]
    return [*reads, *back]


def test_weights_that_get_no_gradient_in_any_pass_are_not_seen() -> None:
    """A teacher, or a target: it has the model's own size, so its layers are not too many."""
    trained = (256, 32, 256, 32)

    assert find_frozen(_linked(*_pass(ties=(1,))), trained).is_unseen
    assert not find_frozen(_linked(*_pass(ties=(0, 1))), trained).is_unseen
    assert not find_frozen(_linked(*_pass(ties=())), trained).is_unseen


def test_what_a_checkpoint_works_out_again_is_trained() -> None:
    """Its first time has no gradient."""
    calls = _pass(ties=(1,), node="CheckpointFunctionBackward")

    assert not find_frozen(_linked(*calls), (256, 32, 256, 32)).is_unseen
