// The device under the allocator, and the capacities at which it would have answered the same: the
// counterparts of device.py and window.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <vector>

namespace memgate {

// numbers that 64 bits cannot hold: the caller takes the Python core instead
struct BeyondNative : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a capacity is compared as. Each grows with the capacity.
struct Limit {
  enum Kind : uint8_t { kWhole, kShare, kThreshold, kAddresses };

  Kind kind = kWhole;
  double fraction = 1.0;   // of the capacity: kShare, kThreshold
  double threshold = 1.0;  // of that share: kThreshold
  int64_t page_size = 1;   // kAddresses

  static Limit whole() { return {}; }
  static Limit share(double fraction) { return {kShare, fraction, 1.0, 1}; }
  static Limit gc_threshold(double fraction, double threshold) {
    return {kThreshold, fraction, threshold, 1};
  }
  static Limit addresses(int64_t page_size) { return {kAddresses, 1.0, 1.0, page_size}; }

  bool operator==(const Limit& other) const {
    return kind == other.kind && fraction == other.fraction && threshold == other.threshold &&
           page_size == other.page_size;
  }

  int64_t of(int64_t capacity) const {
    switch (kind) {
      case kWhole:
        return capacity;
      case kShare:
        return static_cast<int64_t>(fraction * static_cast<double>(capacity) + 0.5);
      case kThreshold:
        return static_cast<int64_t>(threshold * static_cast<double>(share(fraction).of(capacity)));
      case kAddresses:
        return (capacity + capacity / 8 + page_size - 1) / page_size * page_size;
    }
    return capacity;
  }
};

constexpr int64_t kMaxCapacity = int64_t{1} << 60;

// The capacities at which everything would have gone the same way.
class CapacityWindow {
 public:
  explicit CapacityWindow(int64_t capacity) : capacity_(capacity) {}

  // Say whether a limit is at least `value`, and remember the answer.
  bool reaches(const Limit& limit, int64_t value) {
    Compared& compared = find(limit);
    const bool is_reached = compared.at_capacity >= value;
    if (is_reached) {
      compared.most_reached = std::max(compared.most_reached, value);
    } else {
      compared.least_missed = std::min(compared.least_missed, value);
    }
    return is_reached;
  }

  int64_t lowest() const {
    int64_t lowest = 0;
    for (const Compared& compared : compared_) {
      if (compared.most_reached != INT64_MIN) {
        lowest = std::max(lowest, smallest_reaching(compared.limit, compared.most_reached));
      }
    }
    return lowest;
  }

  // the first capacity above that differs; kMaxCapacity if none does
  int64_t below() const {
    int64_t below = kMaxCapacity;
    for (const Compared& compared : compared_) {
      if (compared.least_missed != INT64_MAX) {
        below = std::min(below, smallest_reaching(compared.limit, compared.least_missed));
      }
    }
    return below;
  }

 private:
  struct Compared {
    Limit limit;
    int64_t at_capacity;
    int64_t most_reached = INT64_MIN;
    int64_t least_missed = INT64_MAX;
  };

  Compared& find(const Limit& limit) {
    for (Compared& compared : compared_) {
      if (compared.limit == limit) return compared;
    }
    compared_.push_back({limit, limit.of(capacity_)});
    return compared_.back();
  }

  static int64_t smallest_reaching(const Limit& limit, int64_t value) {
    if (limit.kind == Limit::kWhole) return std::min(std::max<int64_t>(value, 0), kMaxCapacity);
    int64_t low = -1, high = kMaxCapacity;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (limit.of(middle) >= value ? high : low) = middle;
    }
    return high;
  }

  int64_t capacity_;
  std::vector<Compared> compared_;
};

enum class AddressPolicy : int { kUp = 0, kDown = 1, kReuse = 2 };

// The memory accounts of one GPU.
class Device {
 public:
  Device(int64_t capacity, int64_t context, AddressPolicy policy)
      : capacity(capacity), free_bytes(capacity - context), window(capacity), policy_(policy) {}

  const int64_t capacity;
  int64_t free_bytes;
  CapacityWindow window;

  bool has_room(int64_t size) {
    return window.reaches(Limit::whole(), capacity - free_bytes + size);
  }
  bool create_pages(int64_t size) {
    if (!has_room(size)) return false;
    free_bytes -= size;
    return true;
  }
  void release_pages(int64_t size) { free_bytes += size; }

  // addresses in order of creation, whatever the driver does: Note [Where segments lie], device.py
  int64_t next_address(int64_t size) {
    top_ = within_range(top_ + size);
    return top_ - size;
  }

  int64_t place_range(int64_t size) {
    if (policy_ == AddressPolicy::kDown) return bottom_ = within_range(bottom_ - size);
    std::vector<int64_t>& released = released_[size];
    if (policy_ == AddressPolicy::kReuse && !released.empty()) {
      const int64_t address = released.front();
      released.erase(released.begin());
      return address;
    }
    highest_ = within_range(highest_ + size);
    return highest_ - size;
  }
  void release_range(int64_t address, int64_t size) {
    std::vector<int64_t>& released = released_[size];
    released.insert(std::upper_bound(released.begin(), released.end(), address), address);
  }

 private:
  static constexpr int64_t kBaseAddress = int64_t{1} << 58;
  static constexpr int64_t kMaxAddress = 4 * kMaxCapacity;

  static int64_t within_range(int64_t address) {
    if (address > kMaxAddress || address < -kMaxAddress) {
      throw BeyondNative("addresses beyond 64 bits");
    }
    return address;
  }

  AddressPolicy policy_;
  int64_t top_ = kBaseAddress, highest_ = kBaseAddress, bottom_ = kBaseAddress;
  std::map<int64_t, std::vector<int64_t>> released_;
};

}  // namespace memgate
