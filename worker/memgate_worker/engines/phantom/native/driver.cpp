// libcuda.so.1: virtual memory for expandable segments, and the few questions PyTorch asks the driver directly.
//
// torch 2.6 finds these by dlsym, torch 2.14 through cudaGetDriverEntryPointByVersion. Linking, multicast, green
// contexts and shared handles are not modelled: ../build.py generates a refusal for each.
#include <cuda.h>

#include <string>

#include "contents.h"
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
  *version = CUDA_VERSION;
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

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const DeviceSpec spec = resolved_spec();
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = spec.compute_major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = spec.compute_minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = spec.multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    // What a single card without NVLink answers.
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = 0; break;
    default: {
      const std::string call = "cuDeviceGetAttribute(" + std::to_string(attribute) + ")";
      return static_cast<CUresult>(refuse(call.c_str(), CUDA_ERROR_NOT_SUPPORTED));
    }
  }
  return CUDA_SUCCESS;
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

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, CUstream, void**, void**) {
  count_launch();
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (!is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  *address = books().reserve_addresses(bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
  if (!is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto created = books().create_physical(bytes);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = *created;
  return CUDA_SUCCESS;
}

// On a GPU the memory also lives until it is unmapped; PyTorch always unmaps first, so releasing is enough here.
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return books().release_physical(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return address % kPageBytes == 0 && is_whole_pages(bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  forget(address, bytes);
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
// The driver never has anything to tell here, so the callback is never called.
CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  *handle = reinterpret_cast<CUlogsCallbackHandle>(next_handle());
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }
#endif

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

}
