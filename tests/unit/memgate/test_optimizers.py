"""What optimizers keep for each parameter."""

from __future__ import annotations

from collections import Counter

import pytest

from memgate.optimizers import count_kept, count_lists, find_largest_of_step, keep_alike
from memgate.phases import find_optimizers
from memgate.trace import Annotation


@pytest.mark.parametrize(
    ("name", "called", "want"),
    [
        ("SGD", "add_", 0),
        ("SGD", "mul_ add_ add_", 1),
        ("SGD", "_foreach_mul_ _foreach_add_", 1),
        ("SGD", "_fused_sgd_", 1),
        ("Adam", "lerp_ mul_ addcmul_ sqrt div add_ addcdiv_", 2),
        ("AdamW", "_foreach_lerp_ _foreach_maximum_", 3),
        ("Adam", "lerp_ maximum", 3),
        ("Adagrad", "addcmul_ sqrt add_ addcdiv_", 1),
        ("RMSprop", "mul_ addcmul_ sqrt add_ addcdiv_", 1),
        ("RMSprop", "mul_ addcmul_ sqrt add_ mul_ addcdiv_ add_", 2),
        ("RMSprop", "mul_ addcmul_ lerp_ addcmul sqrt_ add_ addcdiv_", 2),
        ("RMSprop", "mul_ addcmul_ lerp_ addcmul sqrt_ add_ mul_ addcdiv_ add_", 3),
        ("Adamax", "lerp_ mul_ abs add_ maximum addcdiv_", 2),
        ("Lion", "mul_", None),
    ],
)
def test_options_show_in_what_a_step_calls(name: str, called: str, want: int | None) -> None:
    """Momentum, amsgrad, centered; of others' optimizers nothing is known."""
    assert count_kept(name, Counter(f"aten::{op}" for op in called.split())) == want


@pytest.mark.parametrize(
    ("name", "called", "want"),
    [
        ("SGD", "add_", 0),
        ("SGD", "", 0),
        ("SGD", "add add_", 1),
        ("SGD", "neg add_", 1),
        ("SGD", "mul_ add_ add add_", 0),
        ("Adam", "add_ add lerp_ mul_ addcmul_ sqrt div add_ addcdiv_", 1),
        ("NAdam", "add_ lerp_ mul_ addcmul_ div sqrt add_ addcdiv_", 1),
        ("NAdam", "add_ add lerp_ mul_ addcmul_ div sqrt add_ addcdiv_", 2),
        ("RMSprop", "neg mul_ addcmul_ sqrt add_ addcdiv_", 2),
        ("Adadelta", "add_ mul_ addcmul_ add sqrt_ add sqrt_ div_ mul_", 2),
        ("Adadelta", "add_ add mul_ addcmul_ add sqrt_ add sqrt_ div_ mul_", 3),
        ("Lion", "mul_", None),
    ],
)
def test_what_changes_gradients_takes_a_list(name: str, called: str, want: int | None) -> None:
    """To decay weights, or to maximize; if the optimizer does not let go of it in time."""
    assert count_lists(name, [f"aten::{op}" for op in called.split()]) == want


def test_rprop_chooses_with_a_mask_for_one_parameter_after_the_other() -> None:
    """Of a byte for each number; others have nothing beside their lists."""
    assert find_largest_of_step("Rprop", [40, 400]) == (100, 400)
    assert find_largest_of_step("Rprop", []) == ()
    assert find_largest_of_step("Adam", [40, 400]) == ()


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (["Adam"], True),
        (["Adam", "AdamW"], True),
        (["Adam", "Adagrad"], False),
        (["SGD"], False),
        (["Adam", "Mine"], False),
    ],
)
def test_optimizers_that_keep_equally_much_are_alike(names: list[str], want: bool) -> None:
    """What SGD keeps depends on its options."""
    assert keep_alike(names) is want


def test_all_optimizers_are_found_and_wrappers_are_not() -> None:
    """One that wraps another begins before it, and ends after it."""
    notes = [
        Annotation(0, 9, "Optimizer.step#Wrapper.step"),
        Annotation(1, 8, "Optimizer.step#Adam.step"),
        Annotation(10, 12, "Optimizer.step#SGD.step"),
        Annotation(13, 14, "another"),
    ]

    assert find_optimizers(notes) == ["Adam", "SGD"]
