// libcuda.so.1: virtual memory for expandable segments, and the few questions PyTorch asks the driver directly.
//
// torch 2.6 finds these by dlsym, torch 2.14 through cudaGetDriverEntryPointByVersion. Linking, multicast, green
// contexts and shared handles are not modelled: worker/memgate_worker/standins generates a refusal for each.
#include <string>

#include "attributes.h"
#include "contents.h"
#include "cuda_api.h"
#include "device.h"
#include "refusals.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

// The one context: callers only compare it with null and pass it back.
CUcontext the_context() { return reinterpret_cast<CUcontext>(0x10); }

bool is_whole_pages(size_t bytes) { return bytes != 0 && bytes % kPageBytes == 0; }

}  // namespace

extern "C" {

CUresult cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  if (device_attribute(attribute, value)) return CUDA_SUCCESS;
  const std::string call = "cuDeviceGetAttribute(" + std::to_string(attribute) + ")";
  return static_cast<CUresult>(refuse(call.c_str(), CUDA_ERROR_NOT_SUPPORTED));
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = the_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = the_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult error, const char** text) {
  switch (error) {
    case CUDA_SUCCESS: *text = "no error"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "invalid argument"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *text = last_refusal(); break;
    default: *text = "unknown error"; break;
  }
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }

// Kernels compiled while running (nvrtc.cpp): nothing is in the module, and a launch is only counted.
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = reinterpret_cast<CUmodule>(next_handle());
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  *function = reinterpret_cast<CUfunction>(next_handle());
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, int, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, CUstream, void**, void**) {
  count_launch();
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (!is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  *address = books().reserve_addresses(bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

CUresult cuMemCreate(unsigned long long* handle, size_t bytes, const void*,
                     unsigned long long) {
  if (!is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto created = books().create_physical(bytes);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = *created;
  return CUDA_SUCCESS;
}

// On a GPU the memory also lives until it is unmapped; PyTorch always unmaps first, so releasing is enough here.
CUresult cuMemRelease(unsigned long long handle) {
  return books().release_physical(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, unsigned long long, unsigned long long) {
  return address % kPageBytes == 0 && is_whole_pages(bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  forget(address, bytes);
  return CUDA_SUCCESS;
}

#if MEMGATE_CUDA_VERSION >= 13000
// The driver never has anything to tell here, so the callback is never called.
CUresult cuLogsRegisterCallback(void*, void*, void** handle) {
  *handle = reinterpret_cast<void*>(next_handle());
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(void*) { return CUDA_SUCCESS; }
#endif

CUresult cuMemSetAccess(CUdeviceptr, size_t, const void*, size_t) { return CUDA_SUCCESS; }

}
