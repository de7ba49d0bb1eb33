// libcuda.so.1, work: modules, launches, streams and events, for what is compiled while running (NVRTC, Triton).
//
// Nothing is in a module, and a launch is only counted: whoever launches has allocated every buffer before.
#include <cstddef>

#include "contents.h"
#include "cuda_api.h"
#include "device.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

enum FunctionAttribute { kMaxThreads = 0, kRegisters = 4, kPtxVersion = 5, kBinaryVersion = 6, kDynamicSharedBytes = 8 };

CUresult give_handle(void** out) {
  *out = reinterpret_cast<void*>(next_handle());
  return CUDA_SUCCESS;
}

CUresult launched() {
  count_launch();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(void** module, const char*) { return give_handle(module); }
CUresult cuModuleLoadData(void** module, const void*) { return give_handle(module); }
CUresult cuModuleLoadDataEx(void** module, const void*, unsigned int, void*, void**) { return give_handle(module); }
CUresult cuModuleLoadFatBinary(void** module, const void*) { return give_handle(module); }
CUresult cuModuleUnload(void*) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(void** function, void*, const char*) { return give_handle(function); }
CUresult cuLibraryLoadData(void** library, const void*, void*, void**, unsigned int, void*, void**, unsigned int) {
  return give_handle(library);
}
CUresult cuLibraryUnload(void*) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(void** kernel, void*, const char*) { return give_handle(kernel); }
CUresult cuLibraryGetModule(void** module, void*) { return give_handle(module); }
CUresult cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(int, int, void*, CUdevice) { return CUDA_SUCCESS; }

// Registers, local and shared memory of a kernel are not known; callers only print them or check them against a limit.
CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction) {
  switch (attribute) {
    case kMaxThreads: *value = 1024; break;
    case kRegisters: *value = 32; break;
    case kPtxVersion:
    case kBinaryVersion: *value = compute_capability(); break;
    case kDynamicSharedBytes: *value = 48 << 10; break;
    default: *value = 0; break;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, int, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, CUstream, void**, void**) {
  return launched();
}

CUresult cuLaunchKernelEx(const void*, CUfunction, void**, void**) { return launched(); }

CUresult cuLaunchCooperativeKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                                   unsigned int, unsigned int, CUstream, void**) {
  return launched();
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  *blocks = 1;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const void*) {
  *clusters = resolved_spec().multiprocessors;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(void** stream, unsigned int) { return give_handle(stream); }
CUresult cuStreamCreateWithPriority(void** stream, unsigned int, int) { return give_handle(stream); }
CUresult cuStreamDestroy_v2(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamQuery(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int) { return CUDA_SUCCESS; }

CUresult cuStreamIsCapturing(CUstream, int* status) {
  *status = cudaStreamCaptureStatusNone;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(0x10);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(void** event, unsigned int) { return give_handle(event); }
CUresult cuEventDestroy_v2(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent) { return events_pending() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; }

CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  *milliseconds = kElapsedMilliseconds;
  return CUDA_SUCCESS;
}

}
