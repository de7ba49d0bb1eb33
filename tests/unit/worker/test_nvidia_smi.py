"""What stands in for NVIDIA's programs in scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from memgate_worker.recorder.nvidia_smi import answer
from memgate_worker.recorder.programs import with_programs

GPU = {
    "MEMGATE_PHANTOM_NAME": "NVIDIA L4",
    "MEMGATE_PHANTOM_SHOWN_BYTES": str(23 << 30),
    "MEMGATE_PHANTOM_COMPUTE_MAJOR": "8",
    "MEMGATE_PHANTOM_COMPUTE_MINOR": "9",
}


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("--query-gpu=memory.total --format=csv,noheader", "23552 MiB"),
        ("--query-gpu=memory.total --format=csv,noheader,nounits", "23552"),
        ("--query-gpu=name,power.draw --format=csv", "name, power.draw\nNVIDIA L4, [N/A]"),
        (
            "--query-gpu=memory.free,utilization.gpu --format=csv,nounits -i 0",
            "memory.free [MiB], utilization.gpu [%]\n23552, 0",
        ),
        ("--query-gpu compute_cap --format csv,noheader", "8.9"),
        ("--query-compute-apps=pid,used_memory --format=csv", "pid, used_memory"),
        ("--query-compute-apps=pid --format=csv,noheader", ""),
        ("-L", "GPU 0: NVIDIA L4 (UUID: GPU-00000000-0000-0000-0000-6d656d676174)"),
        ("-pm 1", "All done."),
    ],
)
def test_the_usual_questions_are_answered(arguments: str, want: str) -> None:
    """As NVIDIA's program writes it."""
    assert answer(arguments.split(), GPU) == (want, 0)


def test_the_table_says_that_no_gpu_is_there() -> None:
    """It has the name, the memory and one width."""
    said, status = answer([], GPU)

    assert status == 0
    assert {len(line) for line in said.splitlines() if line} == {91}
    assert "memgate" in said
    assert "NVIDIA L4" in said
    assert "0MiB /  23552MiB" in said


@pytest.mark.parametrize(("arguments", "want"), [("-i 1", 6), ("topo -m", 2), ("--what", 2)])
def test_what_is_not_there_or_not_known_fails(arguments: str, want: int) -> None:
    """With the statuses of NVIDIA's program."""
    assert answer(arguments.split(), GPU)[1] == want


def test_it_is_a_program_in_front_of_others(tmp_path: Path) -> None:
    """A real one would find no GPU."""
    environment = with_programs(GPU | {"PATH": "/usr/bin:/bin"}, tmp_path)

    said = subprocess.run(
        ["/bin/sh", "-c", "nvidia-smi -q | grep memory.total"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.split() == ["memory.total", ":", "23552", "MiB"]
    assert environment["PATH"].endswith(":/usr/bin:/bin")
