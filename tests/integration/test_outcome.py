"""The callback of training scripts on real CUDA PyTorch, on a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from memgate.gpus import find_gpu
from memgate.units import GIB, MIB
from memgate_worker.engines.host_client import host_environment
from memgate_worker.engines.phantom.engine import describe_device
from memgate_worker.runtimes.runtime import read_runtimes
from tests.outcomes import take_reports

ROOT = Path(__file__).parents[2]
RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

SCRIPT = """
import os
from pathlib import Path
from memgate_worker.hook.memgate_hook.phantom import Phantom
Phantom(Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"]))

import torch
from memgate import report_when_done
report_when_done("the-job")

x = torch.zeros({size}, dtype=torch.uint8, device="cuda")
del x
"""


@pytest.mark.parametrize(
    ("size_bytes", "want_peak", "want_ran_out"),
    [(100 * MIB, 100 * MIB, False), (9 * GIB, 1, True)],
    ids=["ends-well", "runs-out"],
)
def test_what_the_real_allocator_reserved_is_reported(
    tmp_path: Path, size_bytes: int, want_peak: int, want_ran_out: bool
) -> None:
    """On a device of 8 GiB: the peak, though it was freed; or that it was too much."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(size=size_bytes))
    gpu = find_gpu("rtx-4060")
    device = describe_device(gpu) | {"MEMGATE_PHANTOM_TOTAL_BYTES": str(8 * GIB)}
    with take_reports() as reports:
        environment = host_environment(RUNTIME) | device | {"MEMGATE_URL": reports.url}
        ran = subprocess.run(
            [RUNTIME.python, path],
            env=environment | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'worker'}"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert ran.returncode == want_ran_out, ran.stderr
    assert reports.told == [
        {
            "job": "the-job",
            "measured_peak_bytes": want_peak,
            "is_reserved_only": True,
            "ran_out": want_ran_out,
            "gpu_product": gpu.product,
        }
    ]
