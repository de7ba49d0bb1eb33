"""Plain environments with torch and all of NVIDIA's packages, which know nothing of memgate.

They take 25 GB and are made by ``make test-environments``, below `build/environments` or in
`MEMGATE_TEST_ENVIRONMENTS`; without them these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memgate.gpus import find_gpu
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.standins.build import CORE_NAME, NATIVE_DIR, TRACKER_NAME
from memgate_worker.standins.compiler import compile_cxx, find_compiler
from memgate_worker.standins.finding import Standins, find_standins
from memgate_worker.standins.torch_build import read_torch_build
from tests.integration.test_standins import TRAINING, run_program

pytestmark = pytest.mark.environments

HOME = Path(os.environ.get("MEMGATE_TEST_ENVIRONMENTS", "build/environments")).resolve()

#: torch, the runtime with the same one, and the cuDNN that it brings if that can be asked for plans
VERSIONS = [
    ("2.4.1", None, False),
    ("2.6.0", "torch-2.6", False),
    ("2.9.1", None, True),
    ("2.14.1", "torch-2.14", True),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build into a cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMGATE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def _find(version: str) -> tuple[Path, Standins]:
    environment = HOME / f"torch-{version}"
    packages = sorted(environment.glob("lib/python3.*/site-packages"))
    if not packages:
        pytest.skip(f"there is no {environment}: make test-environments")
    return environment / "bin" / "python", find_standins(packages[0] / "torch")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("model", ["cnn", "gpt"])
@pytest.mark.parametrize(("version", "runtime", "has_cudnn"), VERSIONS)
def test_a_plain_environment_trains_on_the_phantom(
    version: str, runtime: str | None, has_cudnn: bool, model: str
) -> None:
    """As in our runtime with the same torch, both without cuDNN; nothing of NVIDIA's is opened."""
    python, standins = _find(version)
    assert (standins.cudnn is not None) == has_cudnn

    got = run_program(python, TRAINING, replace(standins, cudnn_dir=None), model)

    assert got["torch"].startswith(version)
    assert got["refused"] == []
    assert [path for path in got["mapped"] if "/nvidia/" in path] == []
    if runtime is None:
        return
    ours = read_runtimes()[runtime]
    loaded = (ours.stubs / CORE_NAME, *sorted(ours.stubs.glob("lib*.so.*")))
    same = replace(standins, libraries=loaded, tracker=ours.stubs / TRACKER_NAME, cudnn_dir=None)
    assert got["rows"] == run_program(ours.python, TRAINING, same, model)["rows"]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("version", [version for version, _, has_cudnn in VERSIONS if has_cudnn])
def test_the_jobs_own_cudnn_plans_its_convolutions(version: str) -> None:
    """Its workspaces are allocated on top; the language model has none."""
    python, standins = _find(version)

    planned = run_program(python, TRAINING, standins, "cnn")
    plain = run_program(python, TRAINING, replace(standins, cudnn_dir=None), "cnn")

    assert any("libcudnn_graph.so.9" in path for path in planned["mapped"])
    assert planned["refused"] == []
    assert len(planned["rows"]) > len(plain["rows"])


TRANSFORM = """
import torch
from torch import nn
optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1, device="cuda"))], lr=1)
for _ in range(6):
    wave = nn.Parameter(torch.zeros(16, 65536, dtype=torch.complex64, device="cuda"))
    torch.fft.fft(wave).abs().sum().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("version", "want"),
    [
        ("2.4.1", ["FFT_WORK_AREAS"]),
        ("2.6.0", ["CUFFT_ASKED"]),
        ("2.9.1", ["CUFFT_ASKED"]),
        ("2.14.1", ["CUFFT_ASKED"]),
    ],
)
def test_the_jobs_own_cufft_says_how_large_its_work_areas_are(
    tmp_path: Path, version: str, want: list[str]
) -> None:
    """A copy of the data for this length; older versions want more of a driver than there is."""
    python, _ = _find(version)
    path = tmp_path / "train.py"
    path.write_text(TRANSFORM)
    question = CommandQuestion(
        command=(str(python), str(path)),
        directory=tmp_path,
        environment={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        gpu=find_gpu("a100-40"),
    )

    run = record_command(question)

    reasons = [*run.traced.notes, *run.traced.doubts]
    assert [reason.code for reason in reasons] == want
    assert "8.00 MiB" in reasons[0].message


#: sizes, and places of fields, that must be those of NVIDIA's own headers
_LAYOUT = """
#include <cstddef>
#include <cstdio>
#include HEADER
#define SIZE(type) std::printf(#type " %zu\\n", sizeof(type));
#define AT(type, field) std::printf(#type "." #field " %zu\\n", offsetof(type, field));
int main() {
  SIZE(cudaDeviceProp) SIZE(cudaFuncAttributes) SIZE(cudaPointerAttributes)
  AT(cudaFuncAttributes, binaryVersion) AT(cudaFuncAttributes, maxDynamicSharedSizeBytes)
  AT(cudaPointerAttributes, devicePointer) AT(cudaPointerAttributes, hostPointer)
FIELDS
}
"""
_PROPERTIES = """
    uuid totalGlobalMem sharedMemPerBlock regsPerBlock warpSize memPitch maxThreadsPerBlock
    maxThreadsDim maxGridSize totalConstMem major minor textureAlignment texturePitchAlignment
    multiProcessorCount canMapHostMemory concurrentKernels pciBusID asyncEngineCount
    unifiedAddressing memoryBusWidth l2CacheSize maxThreadsPerMultiProcessor
    streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported
    sharedMemPerMultiprocessor regsPerMultiprocessor cooperativeLaunch sharedMemPerBlockOptin
    maxBlocksPerMultiProcessor reservedSharedMemPerBlock clusterLaunch
"""
#: what NVIDIA's headers take from its compiler's, which is not installed with torch
_HOST_DEFINES = """
#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define CUDARTAPI
#define CUDART_CB
#define __CUDA_DEPRECATED
"""


def _layout(folder: Path, header: str, *options: str) -> str:
    fields = "\n".join(f"  AT(cudaDeviceProp, {field})" for field in _PROPERTIES.split())
    source = folder / "layout.cpp"
    source.write_text(_LAYOUT.replace("HEADER", f'"{header}"').replace("FIELDS", fields))
    program = folder / "layout"
    compile_cxx(find_compiler(), "-w", *options, str(source), "-o", str(program))
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("version", [version for version, _, _ in VERSIONS])
def test_our_types_are_those_of_the_real_headers(version: str, tmp_path: Path) -> None:
    """What crosses the boundary has the same size, and its fields the same places."""
    packages = sorted((HOME / f"torch-{version}").glob("lib/python3.*/site-packages"))
    headers = [path for place in packages for path in place.glob("nvidia/*/include/driver_types.h")]
    if not headers:
        pytest.skip(f"there are no headers in {HOME / f'torch-{version}'}: make test-environments")
    (tmp_path / "crt").mkdir()
    (tmp_path / "crt" / "host_defines.h").write_text(_HOST_DEFINES)
    cuda = read_torch_build(packages[0] / "torch").cuda_version

    theirs = _layout(tmp_path, str(headers[0]), f"-I{tmp_path}", f"-I{headers[0].parent}")
    ours = _layout(tmp_path, str(NATIVE_DIR / "cuda_api.h"), f"-DMEMGATE_CUDA_VERSION={cuda}")

    assert ours == theirs
