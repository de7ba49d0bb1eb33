// libcudart, memory: allocation by the books, pinned host memory, copies and sets.
//
// Copies between host and device, and sets, go to contents.h. Peer copies, pools and inter-process
// handles are not here: they are refused by name (see ../symbols.py).
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "contents.h"
#include "cudart.h"
#include "device.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Pinned ranges by first address, to answer "is this pinned?".
std::mutex pinned_mutex;
std::map<uint64_t, size_t> pinned;

bool is_pinned(const void* pointer) {
  const std::lock_guard<std::mutex> lock(pinned_mutex);
  auto found = pinned.upper_bound(address_of(pointer));
  if (found == pinned.begin()) return false;
  --found;
  return address_of(pointer) < found->first + found->second;
}

void pin(const void* pointer, size_t bytes) {
  const std::lock_guard<std::mutex> lock(pinned_mutex);
  pinned[address_of(pointer)] = bytes;
}

bool unpin(const void* pointer) {
  const std::lock_guard<std::mutex> lock(pinned_mutex);
  return pinned.erase(address_of(pointer)) != 0;
}

// The kind a caller names adds nothing: the addresses tell which side is the device.
void copy(void* destination, const void* source, size_t bytes) {
  const bool to_device = is_device_address(destination);
  const bool from_device = is_device_address(source);
  if (to_device && from_device) copy_within_device(address_of(destination), address_of(source), bytes);
  if (to_device && !from_device) remember_upload(address_of(destination), source, bytes);
  if (!to_device && from_device) read_back(destination, address_of(source), bytes);
  if (!to_device && !from_device) std::memmove(destination, source, bytes);
}

void copy_rows(void* destination, size_t destination_pitch, const void* source, size_t source_pitch, size_t width,
               size_t height) {
  for (size_t row = 0; row < height; ++row) {
    copy(reinterpret_cast<void*>(address_of(destination) + row * destination_pitch),
         reinterpret_cast<const void*>(address_of(source) + row * source_pitch), width);
  }
}

cudaError_t set(void* pointer, size_t bytes, int value) {
  if (is_device_address(pointer)) {
    const auto byte = static_cast<unsigned char>(value);
    fill_contents(address_of(pointer), bytes, &byte, 1, kKnown);
  } else {
    std::memset(pointer, value, bytes);
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const auto address = books().allocate(bytes);
  if (!address) return failed(cudaErrorMemoryAllocation);
  *pointer = reinterpret_cast<void*>(*address);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  forget(address_of(pointer), books().allocation_bytes(address_of(pointer)));
  return books().free(address_of(pointer)) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = books().free_bytes();
  *total_bytes = resolved_spec().shown_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  if (posix_memalign(pointer, 4096, bytes) != 0) return failed(cudaErrorMemoryAllocation);
  pin(*pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (!unpin(pointer)) return failed(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
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
  attributes->device = 0;
  if (is_device_address(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
  } else if (is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
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

cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  copy_rows(destination, destination_pitch, source, source_pitch, width, height);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* destination, int, const void* source, int, size_t bytes, cudaStream_t) {
  copy(destination, source, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) { return set(pointer, bytes, value); }

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) { return set(pointer, bytes, value); }

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
