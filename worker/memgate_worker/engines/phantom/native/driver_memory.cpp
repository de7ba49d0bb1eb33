// libcuda.so.1, memory: the driver's own names for what libcudart does, for programs that do without the runtime.
#include <cstring>

#include "cuda_api.h"
#include "device.h"
#include "refusals.h"
#include "transfers.h"

using namespace memgate::phantom;

namespace {

enum PointerAttribute {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
};
enum MemoryType : unsigned int { kHostMemory = 1, kDeviceMemory = 2 };

void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult given(void** pointer, void* memory) {
  *pointer = memory;
  return memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult copied(void* destination, const void* source, size_t bytes) {
  copy(destination, source, bytes);
  return CUDA_SUCCESS;
}

template <typename Unit>
CUresult filled(CUdeviceptr address, Unit value, size_t count) {
  set(pointer_to(address), &value, sizeof value, count * sizeof value);
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult answer(void* data, Value value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = books().free_bytes();
  *total_bytes = resolved_spec().shown_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(void** address, size_t bytes) {
  return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : given(address, allocate_on_device(bytes));
}

CUresult cuMemAllocManaged(void** address, size_t bytes, unsigned int) {
  return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : given(address, allocate_managed(bytes));
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return address == 0 || release(pointer_to(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) { return given(pointer, allocate_pinned(bytes)); }
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int) { return given(pointer, allocate_pinned(bytes)); }
CUresult cuMemFreeHost(void* pointer) { return free_pinned(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copied(pointer_to(to), pointer_to(from), bytes);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  return copied(pointer_to(to), pointer_to(from), bytes);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) { return copied(pointer_to(to), from, bytes); }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  return copied(pointer_to(to), from, bytes);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return copied(to, pointer_to(from), bytes); }
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  return copied(to, pointer_to(from), bytes);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copied(pointer_to(to), pointer_to(from), bytes);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  return copied(pointer_to(to), pointer_to(from), bytes);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return filled(to, value, count); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream) {
  return filled(to, value, count);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return filled(to, value, count); }
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream) {
  return filled(to, value, count);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) { return filled(to, value, count); }
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream) {
  return filled(to, value, count);
}

// Triton asks this of every tensor it passes on: a pointer that is not the device's must be an error.
CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr address) {
  void* const pointer = pointer_to(address);
  const bool on_device = is_device_address(pointer);
  const int device = on_device ? device_of(address) : current_device();
  if (!on_device && !is_pinned(pointer) && !is_managed(pointer)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case kContext: return answer(data, reinterpret_cast<void*>(uintptr_t{0x10} + static_cast<uintptr_t>(device)));
    case kMemoryType: return answer(data, on_device ? kDeviceMemory : kHostMemory);
    case kDevicePointer: return answer(data, address);
    case kHostPointer: return on_device ? CUDA_ERROR_INVALID_VALUE : answer(data, pointer);
    case kIsManaged: return answer(data, static_cast<unsigned int>(is_managed(pointer)));
    case kDeviceOrdinal: return answer(data, device);
    default: return static_cast<CUresult>(refuse("cuPointerGetAttribute", CUDA_ERROR_NOT_SUPPORTED));
  }
}

}
