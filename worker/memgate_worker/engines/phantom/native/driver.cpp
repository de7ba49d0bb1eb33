// libcuda.so.1: the device, its context, and virtual memory for expandable segments.
//
// torch 2.6 finds these by dlsym, torch 2.14 through cudaGetDriverEntryPointByVersion. Linking, multicast, green
// contexts and shared handles are not modelled: worker/memgate_worker/standins generates a refusal for each.
#include <cstdio>
#include <string>
#include <vector>

#include "attributes.h"
#include "contents.h"
#include "cuda_api.h"
#include "device.h"
#include "driver_calls.h"
#include "refusals.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

// One context for each device: callers only compare them and pass them back.
constexpr uintptr_t kFirstContext = 0x10;

CUresult give_context(CUcontext* context, int device) {
  *context = reinterpret_cast<CUcontext>(kFirstContext + static_cast<uintptr_t>(device));
  return CUDA_SUCCESS;
}

CUresult take_context(CUcontext context) {
  const auto number = reinterpret_cast<uintptr_t>(context);
  if (number >= kFirstContext) set_current_device(static_cast<int>(number - kFirstContext));
  return CUDA_SUCCESS;
}

// The device that memory is asked for: the fourth number of the description, after its type, its handles and what
// kind of place it is.
int device_named(const void* description) {
  return description == nullptr ? current_device() : static_cast<const int*>(description)[3];
}

bool is_whole_pages(size_t bytes) { return bytes != 0 && bytes % kPageBytes == 0; }

}  // namespace

extern "C" {

CUresult cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = num_devices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < num_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  if (attribute == kPciBusId) {
    *value = pci_bus(device);
    return CUDA_SUCCESS;
  }
  if (device_attribute(attribute, value)) return CUDA_SUCCESS;
  const std::string call = "cuDeviceGetAttribute(" + std::to_string(attribute) + ")";
  return static_cast<CUresult>(refuse(call.c_str(), CUDA_ERROR_NOT_SUPPORTED));
}

CUresult cuDeviceGetName(char* text, int length, CUdevice) {
  std::snprintf(text, static_cast<size_t>(length), "%s", resolved_spec().name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = resolved_spec().shown_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = resolved_spec().compute_major;
  *minor = resolved_spec().compute_minor;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  *can_access = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = num_devices() == 1 || is_touched(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) { return give_context(context, device); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned int) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) { return give_context(context, current_device()); }
CUresult cuCtxSetCurrent(CUcontext context) { return take_context(context); }

static thread_local std::vector<int> pushed_devices;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  pushed_devices.push_back(current_device());
  return take_context(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (context != nullptr) give_context(context, current_device());
  if (!pushed_devices.empty()) {
    set_current_device(pushed_devices.back());
    pushed_devices.pop_back();
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext, unsigned int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int, unsigned long long) {
  *function = find_driver_call(symbol);
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long long, int* result) {
  *function = find_driver_call(symbol);
  if (result != nullptr) *result = *function == nullptr ? 1 : 0;
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

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

CUresult cuMemCreate(unsigned long long* handle, size_t bytes, const void* description, unsigned long long) {
  if (!is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto created = books(device_named(description)).create_physical(bytes);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = *created;
  return CUDA_SUCCESS;
}

// On a GPU the memory also lives until it is unmapped; PyTorch always unmaps first, so releasing is enough here.
CUresult cuMemRelease(unsigned long long handle) {
  return release_physical(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
