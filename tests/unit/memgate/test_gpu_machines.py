"""Machines of clouds, and the GPUs that they have."""

from __future__ import annotations

import pytest

from memgate.errors import UnknownGpuError
from memgate.gpus import CATALOGUE, GpuRequest, describe_machine, find_gpu, find_machine
from memgate.gpus.instances import _MACHINES, list_machines


@pytest.mark.parametrize(
    ("text", "want", "note"),
    [
        ("p4d.24xlarge", "a100-40", "p4d.24xlarge has 8 of a100-40; the answer is for each of"),
        ("ml.g5.xlarge", "a10g", "g5.xlarge has one a10g"),
        ("p5en.48xlarge", "h200", "has 8 of h200"),
        ("p6-b200.48xlarge", "b200", "has 8 of b200"),
        ("a2-ultragpu-4g", "a100-80", "has 4 of a100-80"),
        ("a3-megagpu-8g", "h100-80", "has 8 of h100-80"),
        ("g2-standard-24", "l4", "has 2 of l4"),
        ("Standard_ND96isr_H100_v5", "h100-80", "ND96isr_H100_v5 has 8 of h100-80"),
        ("standard_nc4as_t4_v3", "t4", "NC4as_T4_v3 has one t4"),
        ("NC40ads_H100_v5", "h100-94", "has one h100-94"),
        ("BM.GPU4.8", "a100-40", "has 8 of a100-40"),
        ("VM.GPU.A10.1", "a10", "has one a10"),
        ("gpu_1x_gh200", "gh200-96", "has one gh200-96"),
    ],
)
def test_a_machine_means_the_gpu_that_it_has(text: str, want: str, note: str) -> None:
    """And says how many; a question about it has the id of one about the GPU."""
    assert find_gpu(text) is CATALOGUE[want]
    assert note in describe_machine(text)
    assert GpuRequest(name=text) == GpuRequest(name=want)


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [("Standard_NV6ads_A10_v5", "a10", 6), ("NV18ads_A10_v5", "a10", 2), ("g6f.xlarge", "l4", 8)],
)
def test_a_machine_with_a_part_of_a_gpu_has_its_share_of_the_memory(
    text: str, whole: str, parts: int
) -> None:
    """The kernels are those of the whole; its name is one that can be asked again."""
    gpu = find_gpu(text)

    assert gpu.memory_bytes == CATALOGUE[whole].memory_bytes // parts
    assert gpu.multiprocessors == CATALOGUE[whole].multiprocessors
    assert find_gpu(gpu.name) == gpu
    assert GpuRequest(name=text).name == gpu.name
    assert f"has 1/{parts} of the memory of one {whole}" in describe_machine(text)


def test_a_machine_that_has_what_is_attached_to_it_does_not_say_which() -> None:
    """Google's N1."""
    with pytest.raises(UnknownGpuError, match="whatever GPU is attached to it; name the GPU: t4"):
        find_gpu("n1-standard-8")


def test_other_names_are_not_machines() -> None:
    """A GPU's own name neither."""
    assert find_machine("m5.large") is None
    assert describe_machine("t4") == ""


def test_every_machine_has_a_gpu_of_the_catalogue() -> None:
    """And no name is there twice."""
    names = [name for entries in _MACHINES.values() for name in entries.split()]
    listed = [name for gpu in CATALOGUE for name in list_machines(gpu)]

    assert set(_MACHINES) <= set(CATALOGUE)
    assert len(listed) == len(set(map(str.lower, listed))) == len(names)
