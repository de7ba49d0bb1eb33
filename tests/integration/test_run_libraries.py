"""Fourier transforms and linear algebra under ``memgate run``: cuFFT's and cuSOLVER's part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Alloc
from memgate_worker.engines.registry import start_engine
from memgate_worker.recorder.reading import CommandRun
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from tests.integration.recording import RUNTIME, doubts, needs_runtime, record_script

pytestmark = needs_runtime

MIB = 1 << 20

BEGIN = """
import torch
from torch import fft, linalg, nn
def weights(*shape, dtype=torch.float32):
    return nn.Parameter(torch.randn(*shape, device="cuda", dtype=dtype))
def train(*results):
    loss = sum(one.abs().sum() for one in results)
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
optimizer = torch.optim.SGD([weights(1)], lr=1)
"""

#: over one dimension and several, of many shapes and layouts
TRANSFORMS = """
wave, image, block = weights(8, 1000), weights(4, 3, 32, 48), weights(2, 4, 8, 16, 32)
train(fft.fft(wave), fft.rfft(wave), fft.irfft(fft.rfft(wave)), fft.ifft(wave, n=1500))
train(fft.fft2(image), fft.rfft2(image), fft.irfft2(fft.rfft2(image)), fft.fft(image, dim=0))
train(fft.fftn(block), fft.rfftn(block), fft.irfftn(fft.rfftn(block), dim=(1, 2, 3, 4)))
train(fft.fft(wave.T), fft.fft(wave[:, ::3]), fft.fft(wave[:1].expand(5, 1000)))
train(fft.fft(weights(4, 4099)), fft.hfft(fft.ihfft(wave)), fft.fft(wave.double()))
window = torch.hann_window(400, device="cuda")
spectrum = torch.stft(weights(2, 16000), 400, 160, window=window, return_complex=True)
train(torch.istft(spectrum, 400, 160, window=window))
"""

#: of one matrix and of many, real and complex
DECOMPOSITIONS = """
tall, square, many = weights(64, 32), weights(64, 64), weights(9, 64, 64)
for matrix in (tall, many, weights(64, 32, dtype=torch.complex64)):
    train(*linalg.qr(matrix), *linalg.svd(matrix, full_matrices=False), linalg.pinv(matrix))
for matrix in (square, many):
    train(*linalg.eigh(matrix), linalg.cholesky(matrix), linalg.inv(matrix), linalg.det(matrix))
    train(linalg.solve(matrix, matrix), linalg.matrix_exp(matrix), linalg.slogdet(matrix)[1])
    train(linalg.lstsq(matrix, matrix).solution, linalg.lu_factor(matrix)[0])
train(linalg.eigvals(square), linalg.matrix_norm(tall, 2), torch.svd_lowrank(tall)[1])
train(torch.cholesky_solve(tall, square), linalg.solve_triangular(square, tall, upper=True))
nn.init.orthogonal_(tall)
assert linalg.inv_ex(square).info.item() == 0
"""


def record(tmp_path: Path, text: str, runtime: Runtime = RUNTIME) -> CommandRun:
    """Record a script that begins as all of them do."""
    path = tmp_path / "train.py"
    path.write_text(BEGIN + text)
    return record_script(runtime, path)


def count_sizes(run: CommandRun) -> Counter[int]:
    """Count what was allocated, by size."""
    events = run.traced.timeline.events
    return Counter(event.size_bytes for event in events if isinstance(event, Alloc))


@pytest.fixture(params=["torch-2.14", "torch-2.6"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each runtime that is there."""
    found = read_runtimes()[request.param]
    if not found.is_installed:
        pytest.skip(f"runtime {request.param} is not built")
    return found


@pytest.mark.parametrize(
    ("text", "want"),
    [(TRANSFORMS, "FFT_WORK_AREAS"), (DECOMPOSITIONS, "LINALG_WORK_AREAS")],
    ids=["fft", "linalg"],
)
def test_jobs_of_these_libraries_train_and_are_doubted(
    tmp_path: Path, runtime: Runtime, text: str, want: str
) -> None:
    """Forward and backward, none of it refused; the answer says which size was assumed."""
    run = record(tmp_path, text, runtime)

    assert (run.num_steps >= 6, doubts(run)) == (True, [want])


def test_a_transform_takes_a_work_area_of_so_many_copies(tmp_path: Path) -> None:
    """One of complex numbers, two of real ones, eight if the length has a large prime in it."""
    run = record(
        tmp_path,
        """
for _ in range(6):
    train(fft.fft(weights(64, 4096, dtype=torch.complex64)), fft.rfft(weights(64, 4096)))
    train(fft.fft(weights(64, 4099, dtype=torch.complex64)))
""",
    )

    copies = [64 * 4096 * 8, 2 * 64 * (4096 + 2) * 8, 8 * 64 * 4099 * 8]
    sizes = count_sizes(run)
    assert [sizes[size + 4096] >= 6 for size in copies] == [True] * 3
    assert f"{copies[-1] + 4096} bytes" in run.traced.doubts[0].message


def test_a_decomposition_takes_a_work_area_of_so_many_copies(tmp_path: Path) -> None:
    """One of the matrix for its factors, four for its eigenvalues."""
    run = record(
        tmp_path,
        """
for _ in range(6):
    train(linalg.cholesky(weights(1024, 1024)), *linalg.eigh(weights(512, 512)))
""",
    )

    assert count_sizes(run)[4 * MIB] >= 12
    assert f"assumed to be 4.00 MiB ({4 * MIB} bytes)" in run.traced.doubts[0].message


def test_fnet_is_answered_by_the_phantom() -> None:
    """A transformer whose layers mix by Fourier transforms, as a job spec."""
    config = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 99}
    spec = {
        "model": {"source": "transformers", "class": "FNetForMaskedLM", "config": config},
        "input": {"sequence_length": 64},
        "batch_size": 2,
        "optimizer": {"name": "AdamW"},
    }

    with start_engine("auto", RUNTIME) as engine:
        traced = engine.trace(parse_job_spec(spec), find_gpu("a100-40"))

    assert traced.engine == "phantom"
    assert [doubt.code for doubt in traced.doubts] == ["FFT_WORK_AREAS"]
