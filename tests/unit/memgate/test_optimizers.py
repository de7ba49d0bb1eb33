"""What optimizers keep for each parameter."""

from __future__ import annotations

from collections import Counter

import pytest

from memgate.optimizers import count_kept


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
        ("Lion", "mul_", None),
    ],
)
def test_options_show_in_what_a_step_calls(name: str, called: str, want: int | None) -> None:
    """Momentum, amsgrad, centered; of others' optimizers nothing is known."""
    assert count_kept(name, Counter(f"aten::{op}" for op in called.split())) == want
