"""Steps of optimizers, as a GPU makes them: on lists of all parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memgate.links import LinkedSet
from memgate.orchestration import orchestrate
from memgate.residents import Residents
from memgate.rules import RULES
from memgate.stepped import Stepped
from memgate.timeline import Alloc, Free, Phase
from tests.linked_calls import AMPERE, apply_rule, link, make_call, sizes_of


def _two_steps(*, optimizer: str = "Adam", name: str = "aten::sqrt") -> LinkedSet:
    """Two gradients, then two steps of a loop with a temporary for each parameter."""
    calls = [make_call(10, "aten::mm", phase=Phase.BACKWARD)]
    calls += [make_call(at, name, phase=Phase.OPTIMIZER) for at in (20, 30)]
    calls.append(make_call(40, "aten::mm", phase=Phase.BACKWARD, iteration=1))
    calls += [make_call(at, name, phase=Phase.OPTIMIZER, iteration=1) for at in (50, 60)]
    linked = link(
        calls,
        (100, 11, None, 0),
        (200, 12, None, 0),
        (100, 21, None, 1),
        (100, 22, 29, 1),
        (100, 51, 59, 4),
    )
    return replace(linked, optimizer=optimizer)


def test_a_step_works_on_lists_of_all_parameters() -> None:
    """A loop's temporaries go; a list as large as all gradients comes, when the state is there."""
    timeline = apply_rule(_two_steps(), only="listed_steps")

    assert sizes_of(timeline) == [100, 200, 100, 100, 200, 100, 200]
    assert timeline.events[3:7] == (Alloc(3, 100), Alloc(4, 200), Free(4), Free(3))


@pytest.mark.parametrize(
    "linked",
    [
        pytest.param(_two_steps(optimizer="Mine"), id="not PyTorch's own"),
        pytest.param(_two_steps(name="aten::_foreach_sqrt"), id="on lists already"),
    ],
)
def test_a_step_that_makes_no_lists_is_left_as_it_is(linked: LinkedSet) -> None:
    """Other people's optimizers are loops on a GPU too."""
    assert sizes_of(apply_rule(linked, only="listed_steps")) == [100, 200, 100, 100, 100]


@pytest.mark.parametrize(
    ("name", "want"),
    [("aten::mul_", [100, 200, 100]), ("aten::add", [100, 200, 100, 100, 200, 100, 200])],
)
def test_sgd_makes_a_list_to_decay_weights_with(name: str, want: list[int]) -> None:
    """Its loop then adds to each gradient before anything else."""
    linked = _two_steps(optimizer="SGD", name=name)

    assert sizes_of(apply_rule(linked, only="listed_steps")) == want


def _step_of(*blocks: tuple[int, float, float]) -> LinkedSet:
    """Make a step with a call for each of its temporaries, after gradients of 100 and 200 bytes."""
    calls = [make_call(10, "aten::mm", phase=Phase.BACKWARD)]
    calls += [make_call(alloc - 1, "aten::sqrt", phase=Phase.OPTIMIZER) for _, alloc, _ in blocks]
    made = [(*block, number) for number, block in enumerate(blocks, 1)]
    linked = link(
        calls, (100, 11, None, 0), (200, 12, None, 0), (200, 13, None, 0), (100, 14, None, 0), *made
    )
    return replace(linked, optimizer="NAdam")


def test_each_group_of_parameters_has_a_list_of_its_own() -> None:
    """Where a loop ended, nothing is held: what it held last goes before the next one begins."""
    linked = _step_of((100, 20, 41), (200, 40, 50), (200, 60, 81), (100, 80, 90))

    events = apply_rule(linked, only="listed_steps").events[4:]

    assert events == (
        *(Alloc(4, 100), Alloc(5, 200), Free(5), Free(4)),
        *(Alloc(6, 200), Alloc(7, 100), Free(7), Free(6)),
    )


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(
            [(100, 20, 30), (200, 40, 50), (200, 60, 70), (100, 80, 90)], id="nothing is held"
        ),
        pytest.param([(100, 20, 30), (300, 40, 90)], id="of other sizes"),
        pytest.param([], id="nothing is made"),
    ],
)
def test_groups_that_do_not_show_are_taken_together(blocks: Any) -> None:
    """The list is then as large as all gradients."""
    linked = _step_of(*blocks, (0, 100, 100.5))

    timeline = apply_rule(linked, only="listed_steps")

    assert sorted(sizes_of(timeline)) == sorted([100, 100, 200, 200] * 2)
    assert sum(isinstance(event, Alloc) for event in timeline.events[:8]) == 8


def test_copies_that_are_stepped_have_the_lists() -> None:
    """Not the gradients of the weights, which may be gone by then."""
    linked = replace(_two_steps(), trained=(100, 200))
    residents = Residents(trained=(100, 200), stepped=Stepped(copies=(400, 800)))
    left_out = [rule.__name__ for rule in RULES if rule.__name__ != "listed_steps"]

    timeline = orchestrate(linked, residents, AMPERE, without=left_out)

    assert sizes_of(timeline) == [100, 200, 100, 400, 800, 400, 800]
