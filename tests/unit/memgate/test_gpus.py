"""The catalogue of GPUs."""

from __future__ import annotations

import pytest

from memgate.errors import InputError
from memgate.gpus import CATALOGUE, find_gpu
from memgate.units import GIB


def test_a_gpu_is_found_by_name() -> None:
    """Names are those of the contract."""
    gpu = find_gpu("a100-40")

    assert gpu.compute_capability == (8, 0)
    assert gpu.memory_bytes == 42298834944


def test_an_unknown_gpu_is_answered_with_the_known_ones() -> None:
    """The next step is in the message."""
    with pytest.raises(InputError, match=r"gpu 'a100' is not in the catalogue; there are: p100-16"):
        find_gpu("a100")


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_is_plausible(name: str) -> None:
    """Slips of a digit do not survive."""
    gpu = CATALOGUE[name]

    assert 7 * GIB < gpu.memory_bytes < 200 * GIB
    assert (6, 0) <= gpu.compute_capability <= (12, 0)
    assert 20 <= gpu.multiprocessors <= 200
