// libcudart, memory: allocation by the books, pinned and managed host memory, copies and sets.
//
// The work is in transfers.h, which the driver shares. Pools that are asked for by handle, and inter-process handles,
// are not here: they are refused by name (see standins/symbols.py).
#include <map>
#include <mutex>

#include "cudart.h"
#include "device.h"
#include "transfers.h"

using namespace memgate::phantom;

namespace {

cudaError_t set_bytes(void* pointer, size_t bytes, int value) {
  const auto byte = static_cast<unsigned char>(value);
  set(pointer, &byte, 1, bytes);
  return cudaSuccess;
}

cudaError_t given(void** pointer, void* memory, size_t bytes) {
  *pointer = memory;
  return memory == nullptr && bytes != 0 ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return given(pointer, allocate_on_device(bytes), bytes); }

// Of a pool, in the order of a stream: nothing here waits, so it is the same.
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned int) {
  return given(pointer, bytes == 0 ? nullptr : allocate_managed(bytes), bytes);
}

// Rows are aligned as on a GPU.
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  constexpr size_t kRowBytes = 512;
  *pitch = (width + kRowBytes - 1) / kRowBytes * kRowBytes;
  return cudaMalloc(pointer, *pitch * height);
}

cudaError_t cudaFree(void* pointer) {
  return pointer == nullptr || release(pointer) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = books().free_bytes();
  *total_bytes = resolved_spec().shown_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  *pointer = allocate_pinned(bytes);
  return *pointer == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void* pointer) {
  return pointer == nullptr || free_pinned(pointer) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int) {
  pin(pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  return unpin(pointer) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned int) {
  *device_pointer = pointer;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = cudaPointerAttributes{};
  attributes->device = current_device();
  if (is_device_address(pointer)) {
    attributes->device = device_of(address_of(pointer));
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
  } else if (is_pinned(pointer) || is_managed(pointer)) {
    attributes->type = is_managed(pointer) ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
    attributes->devicePointer = const_cast<void*>(pointer);
    attributes->hostPointer = const_cast<void*>(pointer);
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -1;
    attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind) {
  copy(destination, source, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  copy(destination, source, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                         size_t width, size_t height, cudaMemcpyKind) {
  copy_rows(destination, destination_pitch, source, source_pitch, width, height);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  copy_rows(destination, destination_pitch, source, source_pitch, width, height);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* destination, int, const void* source, int, size_t bytes, cudaStream_t) {
  copy(destination, source, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) { return set_bytes(pointer, bytes, value); }

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) {
  return set_bytes(pointer, bytes, value);
}

// Variables of a module live outside the books, and nothing reads them back.
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  static std::mutex mutex;
  static std::map<const void*, uint64_t> addresses;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = addresses.find(symbol);
  if (found == addresses.end()) found = addresses.emplace(symbol, books().reserve_addresses(kPageBytes)).first;
  *pointer = reinterpret_cast<void*>(found->second);
  return cudaSuccess;
}

}
