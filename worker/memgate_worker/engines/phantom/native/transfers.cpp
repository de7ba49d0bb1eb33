// Copies, sets and host memory; see transfers.h.
#include "transfers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "contents.h"
#include "device.h"

namespace memgate::phantom {
namespace {

// Ranges of host memory by first address, to answer "is this one of them?".
class Ranges {
 public:
  void add(const void* pointer, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_[address_of(pointer)] = bytes;
  }

  // Gives back how long the range was, if one begins here.
  std::optional<size_t> remove(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(address_of(pointer));
    if (found == sizes_.end()) return std::nullopt;
    const size_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

  bool contain(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = sizes_.upper_bound(address_of(pointer));
    if (found == sizes_.begin()) return false;
    --found;
    return address_of(pointer) < found->first + found->second;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, size_t> sizes_;
};

Ranges pinned;
Ranges managed;

}  // namespace

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

void set(void* pointer, const void* pattern, size_t unit, size_t bytes) {
  if (is_device_address(pointer)) {
    fill_contents(address_of(pointer), bytes, pattern, unit, kKnown);
    return;
  }
  for (size_t done = 0; done + unit <= bytes; done += unit) std::memcpy(static_cast<char*>(pointer) + done, pattern, unit);
}

void* allocate_on_device(size_t bytes) {
  touch_device(current_device());
  const auto address = bytes == 0 ? std::nullopt : books().allocate(bytes);
  return address ? reinterpret_cast<void*>(*address) : nullptr;
}

void* allocate_pinned(size_t bytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, 4096, bytes) != 0) return nullptr;
  pinned.add(pointer, bytes);
  return pointer;
}

bool free_pinned(void* pointer) {
  if (!unpin(pointer)) return false;
  std::free(pointer);
  return true;
}

void pin(const void* pointer, size_t bytes) { pinned.add(pointer, bytes); }
bool unpin(const void* pointer) { return pinned.remove(pointer).has_value(); }
bool is_pinned(const void* pointer) { return pinned.contain(pointer); }

void* allocate_managed(size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (pointer == MAP_FAILED) return nullptr;
  managed.add(pointer, bytes);
  return pointer;
}

bool is_managed(const void* pointer) { return managed.contain(pointer); }

bool release(void* pointer) {
  if (const auto bytes = managed.remove(pointer)) return munmap(pointer, *bytes) == 0;
  if (!is_device_address(pointer)) return false;
  MemoryBooks& of_device = books(device_of(address_of(pointer)));
  forget(address_of(pointer), of_device.allocation_bytes(address_of(pointer)));
  return of_device.free(address_of(pointer));
}

}  // namespace memgate::phantom
