// The phantom device: what it is (DeviceSpec) and how much of its memory is handed out (MemoryBooks).
//
// Turns allocation requests into plain numbers that look like device addresses and into byte counts. It does not
// hold memory: no address given out here may be dereferenced. What was copied up is in contents.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace memgate::phantom {

// Physical memory is handed out in pages of this size, and addresses are aligned to it, as on every GPU since Pascal.
inline constexpr size_t kPageBytes = size_t{2} << 20;

// Device addresses start here and only ever go up. The number lies outside what x86-64 can map, so a device address
// can never be mistaken for a host address and dereferencing one by accident always faults; 2^56 bytes of room for each
// device mean that counting up never has to wrap. `engines.phantom.tracker` knows devices by their addresses, too.
inline constexpr uint64_t kFirstAddress = uint64_t{1} << 56;

inline constexpr int kAddressBits = 56;
inline constexpr int kMostDevices = 126;

inline bool is_device_address(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer) >= kFirstAddress;
}

// Which device an address is of.
inline int device_of(uint64_t address) { return static_cast<int>(address >> kAddressBits) - 1; }

// A zero in a field that the compute capability determines means "as usual for that capability"; see resolved_spec().
struct DeviceSpec {
  std::string name = "memgate phantom";
  size_t total_bytes = size_t{80} << 30;  // how much is handed out before there is no more
  size_t shown_bytes = 0;  // what a program is told there is, which may be less; 0: total_bytes
  size_t context_bytes = 0;  // taken by the context and by others: never free, never ours
  int compute_major = 8;
  int compute_minor = 0;
  int multiprocessors = 108;
  int warp_size = 32;
  int threads_per_multiprocessor = 0;
  int blocks_per_multiprocessor = 0;
  size_t shared_bytes_per_multiprocessor = 0;
  size_t shared_bytes_per_block_optin = 0;
  size_t l2_bytes = size_t{40} << 20;
  int clock_khz = 1410000;
  int memory_clock_khz = 1215000;
  int memory_bus_bits = 5120;
  int devices = 1;  // how many there are, all alike
};

// The device as configured by MEMGATE_PHANTOM_<FIELD> variables, with no zeros left.
DeviceSpec resolved_spec();

// major * 10 + minor of the same; asked at every launch, so it is kept apart.
int compute_capability();

int num_devices();

// Of this thread, as CUDA counts it: 0 until it is set. False: there is no such device.
int current_device();
bool set_current_device(int device);
inline int pci_bus(int device) { return device + 1; }

// Something has used it: on a GPU, it has a context.
void touch_device(int device);
bool is_touched(int device);

class MemoryBooks {
 public:
  explicit MemoryBooks(int device) : next_address_(kFirstAddress + (static_cast<uint64_t>(device) << kAddressBits)) {}

  // One cudaMalloc: address space and memory together. Nothing if it does not fit.
  std::optional<uint64_t> allocate(size_t bytes);
  bool free(uint64_t address);  // false: not an address that allocate() gave
  size_t allocation_bytes(uint64_t address) const;  // 0: not an address that allocate() gave

  // Virtual memory management: address space and memory apart, as expandable segments ask for them.
  uint64_t reserve_addresses(size_t bytes);
  std::optional<uint64_t> create_physical(size_t bytes);
  bool release_physical(uint64_t handle);

  size_t used_bytes() const;
  size_t peak_bytes() const;
  size_t free_bytes() const;  // what a program is told: shown - context - used

 private:
  bool take(size_t bytes);
  uint64_t next_addresses(size_t bytes);

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, size_t> allocations_;
  std::unordered_map<uint64_t, size_t> physical_;
  uint64_t next_address_;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
};

// Of a device; nothing said: the current one of this thread.
MemoryBooks& books(int device);
MemoryBooks& books();

// Gives physical memory back, of whichever device it is.
bool release_physical(uint64_t handle);

}  // namespace memgate::phantom
