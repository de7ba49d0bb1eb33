"""Rules of jobs on many GPUs that no other test of a module comes to."""

from __future__ import annotations

import pytest

from memgate.errors import InputError
from memgate.gpus import GpuRequest
from memgate.jobspec import Strategy
from memgate.mistakes import RuleError
from memgate.nccl.parts import MemoryRange
from memgate.nccl.versions import nccl_version


def test_machines_are_full() -> None:
    """Seven GPUs do not fill machines of two; of one GPU nothing is said."""
    with pytest.raises((ValueError, InputError, RuleError), match="do not fill machines of 2"):
        GpuRequest(name="t4", count=7, per_node=2)

    assert GpuRequest(name="t4", count=1, per_node=1).per_node is None


def test_three_strategies_are_by_flat_parameters() -> None:
    """ZeRO's last two are FSDP's."""
    flat = {one for one in Strategy if one.is_by_flat_parameters}

    assert flat == {Strategy.FSDP, Strategy.ZERO2, Strategy.ZERO3}


def test_ranges_add_up_with_ranges_alone() -> None:
    """A number is not a range."""
    with pytest.raises(TypeError):
        MemoryRange(1, 2, 3) + 1


def test_an_old_torch_has_an_old_nccl() -> None:
    """Older than the table."""
    assert nccl_version("2.0.1") == (2, 14)
