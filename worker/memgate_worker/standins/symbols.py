"""Which NVIDIA library a symbol belongs to, and how a call without own C++ code is answered.

Tables only, read by `build.py` and `generated.py`. A call is answered in one of four ways, looked
up in this order:

1. our C++ (`engines/phantom/native`) defines it: that definition;
2. `LAUNCHES`: it only starts work on the device; counted and successful;
3. `HARMLESS`: it changes nothing that is kept here and has no result; successful;
4. anything else: refused, with its name on stderr, in the list of refusals and in the error text.

So a table entry is a promise that ignoring the call cannot change a size or a decision. When in
doubt, leave it out.
"""

from __future__ import annotations

import re
from pathlib import Path

#: The beginning of a symbol's name -> the library that defines it (the longest beginning wins).
#: Needed because some libraries carry no symbol versions, and to give each library only its own
#: share of our definitions.
LIBRARY_OF_PREFIX = {
    "__cuda": "libcudart",
    "cu": "libcuda",
    "cuFile": "libcufile",
    "cublas": "libcublas",
    "cublasLt": "libcublasLt",
    "cuda": "libcudart",
    "cudnn": "libcudnn",
    "cufft": "libcufft",
    "cupti": "libcupti",
    "curand": "libcurand",
    "cusolver": "libcusolver",
    "cusparse": "libcusparse",
    "cusparseLt": "libcusparseLt",
    "nccl": "libnccl",
    "nvJitLink": "libnvJitLink",
    "nvjpeg": "libnvjpeg",
    "nvml": "libnvidia-ml",
    "nvrtc": "libnvrtc",
    "nvshmem": "libnvshmem_host",
    "nvtx": "libnvToolsExt",
    "pnccl": "libnccl",
}

#: Libraries that PyTorch opens by name while it runs, so that no NEEDED entry tells of them.
OPENED_BY_NAME = ("libcuda.so.1", "libnvidia-ml.so.1")

#: Our sources for each library; libraries that are not listed consist of generated code alone.
SOURCES = {
    "libcudart": (
        "cudart_device.cpp",
        "cudart_memory.cpp",
        "cudart_stream.cpp",
        "cudart_launch.cpp",
    ),
    "libcuda": ("driver.cpp", "driver_memory.cpp", "driver_work.cpp"),
    "libnvidia-ml": ("nvml.cpp",),
    "libcublas": ("cublas.cpp",),
    "libcublasLt": ("cublas.cpp",),
    "libcudnn": ("cudnn.cpp", "cudnn_graph.cpp", "cudnn_counterpart.cpp"),
    "libcufft": ("cufft.cpp",),
    "libcupti": ("cupti.cpp",),
    "libcusolver": ("cusolver.cpp", "cusolver_solve.cpp"),
    "libcusparse": ("cusparse.cpp",),
    "libnccl": ("nccl.cpp", "delivery.cpp"),
    "libnvrtc": ("nvrtc.cpp",),
}

#: Shared by all of them: the device, its books, the list of refusals, the control interface.
CORE_SOURCES = (
    "attributes.cpp",
    "communicators.cpp",
    "control.cpp",
    "contents.cpp",
    "cudnn_real.cpp",
    "cufft_real.cpp",
    "device.cpp",
    "driver_calls.cpp",
    "kernels.cpp",
    "link_namespace.cpp",
    "refusals.cpp",
    "streams.cpp",
    "transfers.cpp",
    "work_areas.cpp",
    "workspaces.cpp",
)

#: Libraries that are built against torch's own headers, and their sources.
TRACKER_NAME = "libmemgate_tracker.so"
VALUES_NAME = "libmemgate_values.so"
LISTENER_RUNTIME_SOURCE = "newer_cxx.cpp"
LISTENERS = {
    TRACKER_NAME: ("tracker.cpp", LISTENER_RUNTIME_SOURCE),
    VALUES_NAME: (
        "values/arguments.cpp",
        "values/observer.cpp",
        "values/operators.cpp",
        "values/place.cpp",
        "values/rules.cpp",
        LISTENER_RUNTIME_SOURCE,
    ),
}

#: What every library has of the C++ runtime.
RUNTIME_SOURCE = "cxx_runtime.cpp"

#: Files that are called otherwise than the library in them. torch looks whether a file of this name
#: is mapped, and if so opens NVIDIA's own libraries by their path, next to ours.
FILE_NAMES = {"libcudart": "libmemgate_cudart"}

#: Where libraries are that only give another one a second name.
ALIASES_DIR = "aliases"

#: Libraries that the real cuDNN finds beside it instead of NVIDIA's, all made of this one source.
INSTEAD_DIR = "instead"
INSTEAD_SOURCE = "cudnn_instead.cpp"
INSTEAD_OF = ("libcuda", "libcublasLt")

#: What the real cuFFT finds instead of a driver: another one, in a folder of its own.
CUFFT_INSTEAD_SOURCE = "cufft_instead.cpp"
CUFFT_INSTEAD = Path(INSTEAD_DIR, "cufft", "libcuda.so.1")

#: What a refused call returns: each library's own "not supported", so that callers say just that.
REFUSAL_STATUS = {
    "libcudart": 801,
    "libcuda": 801,
    "libcufile": -1,
    "libcublas": 15,
    "libcublasLt": 15,
    "libcudnn": 3000,
    "libcufft": 16,
    "libcusolver": 7,  # "internal error": PyTorch has no text for "not supported"
    "libcusparse": 10,
    "libcusparseLt": 10,
    "libnccl": 5,
    "libnvidia-ml": 3,
}
OTHER_REFUSAL_STATUS = 1

#: Refused calls that return a pointer: null instead of a status, which a caller might follow.
RETURNS_POINTER = re.compile(r"nvshmem_(malloc|calloc|align|ptr)|nvshmemx_mc_ptr")

#: Calls that return a text about an error: they answer which call was refused last.
RETURNS_ERROR_TEXT = re.compile(
    r"(nccl|nvrtc|cusparse|cusparseLt|cufft)Get(Last)?Error(String|Name)?"
)

#: Work on the device whose every buffer the caller has allocated.
LAUNCHES = re.compile(
    "|".join(
        (
            # BLAS 1 to 3. Left out: the copies of vectors and matrices to the host.
            r"cublas[SDCZ](gemm|gemmBatched|gemmStridedBatched|gemv|ger[uc]?)(_v2)?",
            r"cublas[SDCZ](axpy|scal|copy|swap|dot[uc]?)(_v2)?",
            r"cublas[SDCZ](symm|syrk|syr2k|symv|hemm|herk|her2k|trmm|trmv|trsv|trsm|trsmBatched)(_v2)?",
            r"cublas(S|C)?gemmEx|cublasGemm(Batched|StridedBatched)?Ex|cublasDotEx",
            r"cublasLtMatmul",
            r"cudnnConvolution(Forward|BackwardData|BackwardFilter|BiasActivationForward)",
            r"cudnnBatchNormalization(ForwardTrainingEx|ForwardInference|BackwardEx)",
            r"cudnnPoolingForward",
            r"cudnnSpatialTf(GridGenerator|Sampler)(Forward|Backward)",
        )
    )
)

#: Setters and destroyers of things that are not kept, and marks for profilers.
HARMLESS = re.compile(
    "|".join(
        (
            r"cublasSet(Stream|Workspace)_v2|cublasSetSmCountTarget",
            r"cublasLt(Destroy|MatmulDesc(Destroy|SetAttribute)|MatmulPreference(Destroy|SetAttribute))",
            r"cublasLtMatrixLayout(Destroy|SetAttribute)",
            r"cudnnDestroy(Convolution|Activation|Pooling|Dropout|SpatialTransformer)Descriptor",
            r"cudnnSet(Convolution(NdDescriptor|GroupCount|MathType)|ActivationDescriptor)",
            # Fills the caller's state, whose size is refused (cudnnDropoutGetStatesSize).
            r"cudnnSetDropoutDescriptor",
            r"cudnnSet(Pooling2dDescriptor|SpatialTransformerNdDescriptor)",
            # Describes a tensor for a kernel's own loads; the kernel never runs.
            r"cuTensorMapEncode(Tiled|Im2col)",
            # Hints about where pages and caches should be, and limits of what kernels may use.
            r"(cuda|cu)Mem(PrefetchAsync|Advise)(_v2)?",
            r"cuda(Device|Func)Set(CacheConfig|SharedMemConfig)|cu(Ctx|Func)Set(Cache|SharedMem)Config",
            r"cuda(DeviceSetLimit|SetDeviceFlags|InitDevice|CtxResetPersistingL2Cache)|cuCtxSetLimit",
            # Variables of a module live outside the books, and nothing reads them back.
            r"__cudaRegister(ManagedVar|ManagedVariable|HostVar|Texture|Surface|Shared|SharedVar)",
            r"cudaMemcpyToSymbolAsync",
            r"cuProfiler(Start|Stop)",
            r"nvtx\w+",
        )
    )
)

#: Names of the same call for programs in which every thread has a default stream of its own.
PER_THREAD = re.compile(r"(\w+)_pt[ds][sz]")

#: Files in which names of driver and NVML calls stand as text, to be looked up while running.
FILES_WITH_LOOKUPS = ("libc10_cuda.so",)
LOOKED_UP_NAME = re.compile(rb"(?<=\0)((?:cu|nvml)[A-Z][A-Za-z0-9_]{4,})(?=\0)")


def library_of(symbol: str) -> str | None:
    """Return the library (without `.so`) that defines `symbol`, or None if it is not NVIDIA's."""
    for length in range(len(symbol), 1, -1):
        library = LIBRARY_OF_PREFIX.get(symbol[:length])
        if library is not None:
            # "cu" alone is not NVIDIA's: the driver's calls go on with a capital (not `curl_...`).
            return library if library != "libcuda" or symbol[2:3].isupper() else None
    return None
