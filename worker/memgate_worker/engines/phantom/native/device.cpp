// The device description and the memory books; see device.h.
#include "device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace memgate::phantom {
namespace {

// Numbers that come with a compute capability, from the technical table of the CUDA C programming guide.
struct CapabilityLimits {
  int capability;  // major * 10 + minor; a row holds from here up to the next row
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int shared_kib_per_multiprocessor;
  int shared_kib_per_block_optin;
};

constexpr CapabilityLimits kLimits[] = {
    {60, 2048, 32, 64, 48},   {61, 2048, 32, 96, 48},    {70, 2048, 32, 96, 96},    {75, 1024, 16, 64, 64},
    {80, 2048, 32, 164, 163}, {86, 1536, 16, 100, 99},   {87, 1536, 16, 164, 163},  {89, 1536, 24, 100, 99},
    {90, 2048, 32, 228, 227}, {100, 2048, 32, 228, 227}, {120, 1536, 24, 100, 99},
};

const CapabilityLimits& limits_of(int capability) {
  const CapabilityLimits* found = &kLimits[0];
  for (const CapabilityLimits& row : kLimits) {
    if (row.capability <= capability) found = &row;
  }
  return *found;
}

// By hand: the C library's own function is another one in every other version of it.
std::optional<unsigned long long> parse_number(const std::string& text) {
  unsigned long long value = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    if (__builtin_mul_overflow(value, 10ULL, &value)) return std::nullopt;
    if (__builtin_add_overflow(value, static_cast<unsigned long long>(digit - '0'), &value)) return std::nullopt;
  }
  return text.empty() ? std::nullopt : std::optional<unsigned long long>(value);
}

struct NumericField {
  const char* name;
  size_t DeviceSpec::*bytes;
  int DeviceSpec::*number;
};

const std::vector<NumericField>& numeric_fields() {
  static const std::vector<NumericField> fields = {
      {"total_bytes", &DeviceSpec::total_bytes, nullptr},
      {"shown_bytes", &DeviceSpec::shown_bytes, nullptr},
      {"context_bytes", &DeviceSpec::context_bytes, nullptr},
      {"compute_major", nullptr, &DeviceSpec::compute_major},
      {"compute_minor", nullptr, &DeviceSpec::compute_minor},
      {"multiprocessors", nullptr, &DeviceSpec::multiprocessors},
      {"warp_size", nullptr, &DeviceSpec::warp_size},
      {"threads_per_multiprocessor", nullptr, &DeviceSpec::threads_per_multiprocessor},
      {"blocks_per_multiprocessor", nullptr, &DeviceSpec::blocks_per_multiprocessor},
      {"shared_bytes_per_multiprocessor", &DeviceSpec::shared_bytes_per_multiprocessor, nullptr},
      {"shared_bytes_per_block_optin", &DeviceSpec::shared_bytes_per_block_optin, nullptr},
      {"l2_bytes", &DeviceSpec::l2_bytes, nullptr},
      {"clock_khz", nullptr, &DeviceSpec::clock_khz},
      {"memory_clock_khz", nullptr, &DeviceSpec::memory_clock_khz},
      {"memory_bus_bits", nullptr, &DeviceSpec::memory_bus_bits},
      {"devices", nullptr, &DeviceSpec::devices},
  };
  return fields;
}

bool set_field(DeviceSpec& spec, const std::string& field, const std::string& value) {
  if (field == "name") {
    spec.name = value;
    return true;
  }
  const auto number = parse_number(value);
  if (!number) return false;
  for (const NumericField& entry : numeric_fields()) {
    if (field != entry.name) continue;
    if (entry.bytes != nullptr) spec.*entry.bytes = *number;
    if (entry.number != nullptr) spec.*entry.number = static_cast<int>(*number);
    return true;
  }
  return false;
}

std::string variable_name(const std::string& field) {
  std::string name = "MEMGATE_PHANTOM_";
  for (const char letter : field) name += static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 32 : letter);
  return name;
}

void set_from_environment(DeviceSpec& spec, const std::string& field) {
  const char* value = std::getenv(variable_name(field).c_str());
  if (value == nullptr || set_field(spec, field, value)) return;
  // A device other than the one asked for would give wrong figures without a trace.
  std::fprintf(stderr, "memgate phantom: %s=%s is not a number\n", variable_name(field).c_str(), value);
  std::abort();
}

std::mutex spec_mutex;

thread_local int device_of_thread = 0;
std::atomic<bool> touched[kMostDevices];

std::atomic<uint64_t> next_physical{1};

// Read at the first use and not when the library is loaded, and once more in a forked child, which may have set its own
// variables: a parent that only counted devices must not decide what its children see.
DeviceSpec& configured_spec() {
  static DeviceSpec spec;
  static bool is_read = false;
  static const bool is_told_of_forks = pthread_atfork(nullptr, nullptr, [] { is_read = false; }) == 0;
  if (is_read && is_told_of_forks) return spec;
  spec = DeviceSpec{};
  set_from_environment(spec, "name");
  for (const NumericField& entry : numeric_fields()) set_from_environment(spec, entry.name);
  is_read = true;
  return spec;
}

}  // namespace

DeviceSpec resolved_spec() {
  const std::lock_guard<std::mutex> lock(spec_mutex);
  DeviceSpec spec = configured_spec();
  const CapabilityLimits& limits = limits_of(spec.compute_major * 10 + spec.compute_minor);
  if (spec.shown_bytes == 0) spec.shown_bytes = spec.total_bytes;
  if (spec.threads_per_multiprocessor == 0) spec.threads_per_multiprocessor = limits.threads_per_multiprocessor;
  if (spec.blocks_per_multiprocessor == 0) spec.blocks_per_multiprocessor = limits.blocks_per_multiprocessor;
  if (spec.shared_bytes_per_multiprocessor == 0)
    spec.shared_bytes_per_multiprocessor = size_t(limits.shared_kib_per_multiprocessor) << 10;
  if (spec.shared_bytes_per_block_optin == 0)
    spec.shared_bytes_per_block_optin = size_t(limits.shared_kib_per_block_optin) << 10;
  return spec;
}

int compute_capability() {
  const std::lock_guard<std::mutex> lock(spec_mutex);
  const DeviceSpec& spec = configured_spec();
  return spec.compute_major * 10 + spec.compute_minor;
}

int num_devices() {
  const std::lock_guard<std::mutex> lock(spec_mutex);
  return std::clamp(configured_spec().devices, 1, kMostDevices);
}

int current_device() { return device_of_thread; }

bool set_current_device(int device) {
  if (device < 0 || device >= num_devices()) return false;
  device_of_thread = device;
  touch_device(device);
  return true;
}

void touch_device(int device) { touched[device] = true; }
bool is_touched(int device) { return touched[device]; }

std::optional<uint64_t> MemoryBooks::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!take(bytes)) return std::nullopt;
  const uint64_t address = next_addresses(bytes);
  allocations_[address] = bytes;
  return address;
}

bool MemoryBooks::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return false;
  used_bytes_ -= found->second;
  allocations_.erase(found);
  return true;
}

size_t MemoryBooks::allocation_bytes(uint64_t address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(address);
  return found == allocations_.end() ? 0 : found->second;
}

uint64_t MemoryBooks::reserve_addresses(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_addresses(bytes);
}

std::optional<uint64_t> MemoryBooks::create_physical(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!take(bytes)) return std::nullopt;
  const uint64_t handle = next_physical++;
  physical_[handle] = bytes;
  return handle;
}

bool MemoryBooks::release_physical(uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = physical_.find(handle);
  if (found == physical_.end()) return false;
  used_bytes_ -= found->second;
  physical_.erase(found);
  return true;
}

size_t MemoryBooks::used_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

size_t MemoryBooks::peak_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peak_bytes_;
}

size_t MemoryBooks::free_bytes() const {
  const DeviceSpec spec = resolved_spec();
  const size_t taken = spec.context_bytes + used_bytes();
  return spec.shown_bytes > taken ? spec.shown_bytes - taken : 0;
}

// Bytes are counted as asked, not rounded to pages: PyTorch asks for whole pages anyway.
bool MemoryBooks::take(size_t bytes) {
  const DeviceSpec spec = resolved_spec();
  const size_t taken = spec.context_bytes + used_bytes_;
  if (taken > spec.total_bytes || bytes > spec.total_bytes - taken) return false;
  used_bytes_ += bytes;
  if (used_bytes_ > peak_bytes_) peak_bytes_ = used_bytes_;
  return true;
}

uint64_t MemoryBooks::next_addresses(size_t bytes) {
  const uint64_t address = next_address_;
  next_address_ += (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return address;
}

MemoryBooks& books(int device) {
  static const std::vector<std::unique_ptr<MemoryBooks>> all = [] {
    std::vector<std::unique_ptr<MemoryBooks>> made;
    for (int number = 0; number < kMostDevices; ++number)
      made.push_back(std::unique_ptr<MemoryBooks>(new MemoryBooks(number)));
    return made;
  }();
  return *all[static_cast<size_t>(std::clamp(device, 0, kMostDevices - 1))];
}

MemoryBooks& books() { return books(current_device()); }

bool release_physical(uint64_t handle) {
  for (int device = 0; device < num_devices(); ++device)
    if (books(device).release_physical(handle)) return true;
  return false;
}

}  // namespace memgate::phantom
