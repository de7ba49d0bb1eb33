// The caching allocator's arithmetic and settings: the counterparts of sizes.py, config.py and
// stats.py, under upstream's names.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace memgate {

constexpr int64_t kMiB = int64_t{1} << 20;
// every block is a multiple of this
constexpr int64_t kMinBlockSize = 512;
// the largest request that the small pool serves
constexpr int64_t kSmallSize = kMiB;
// small requests are packed into segments of this size
constexpr int64_t kSmallBuffer = 2 * kMiB;
// requests from here on get a segment of their own size
constexpr int64_t kMinLargeAlloc = 10 * kMiB;
// and those are a multiple of this
constexpr int64_t kRoundLarge = 2 * kMiB;

constexpr int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// one entry per power of two from 1 MiB to 32 GiB
constexpr int kPower2Intervals = 16;

struct AllocatorConfig {
  // unsigned: "unlimited" is the largest size_t
  uint64_t max_split_size = UINT64_MAX;
  uint64_t max_non_split_rounding_size = 20 * kMiB;
  double garbage_collection_threshold = 0.0;
  std::array<int64_t, kPower2Intervals> roundup_power2_divisions{};
  bool expandable_segments = false;
  int64_t large_segment_size = 20 * kMiB;
  double per_process_memory_fraction = 1.0;
  bool throw_on_cudamalloc_oom = false;

  bool limits_splits() const { return max_split_size != UINT64_MAX; }
  bool is_oversize(int64_t size) const { return static_cast<uint64_t>(size) >= max_split_size; }
};

inline int bit_length(int64_t size) { return 64 - __builtin_clzll(static_cast<uint64_t>(size)); }

// 1200 with 4 divisions lies between 1024 and 2048, steps are 256 wide, and the answer is 1280.
inline int64_t roundup_power2_next_division(int64_t size, int64_t divisions) {
  if ((size & (size - 1)) == 0) return size;
  const int64_t power2_floor = int64_t{1} << (bit_length(size) - 1);
  return round_up(size, power2_floor / divisions);
}

inline int64_t round_size(int64_t size, const AllocatorConfig& config) {
  if (size < kMinBlockSize) return kMinBlockSize;
  const int interval = bit_length(size) - bit_length(kMiB);
  const int64_t divisions =
      config.roundup_power2_divisions[std::clamp(interval, 0, kPower2Intervals - 1)];
  if (divisions > 1 && size > kMinBlockSize * divisions) {
    return roundup_power2_next_division(size, divisions);
  }
  return round_up(size, kMinBlockSize);
}

inline int64_t get_allocation_size(int64_t size, const AllocatorConfig& config) {
  if (size <= kSmallSize) return kSmallBuffer;
  if (size < kMinLargeAlloc) return config.large_segment_size;
  return round_up(size, kRoundLarge);
}

inline bool should_split(int64_t remaining, int64_t size, bool is_small,
                         const AllocatorConfig& config) {
  if (is_small || config.expandable_segments) return remaining >= kMinBlockSize;
  return !config.is_oversize(size) && remaining > kSmallSize;
}

// A counter and its peak.
struct Stat {
  int64_t current = 0;
  int64_t peak = 0;

  void change(int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
  }
};

// Counters of one pool, or of both together. Only `Stat`s: the binding hands them over as one row.
struct PoolStats {
  Stat allocation, segment, active, inactive_split;
  Stat allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;

  void block_allocated(int64_t size, int64_t requested) {
    allocation.change(1);
    active.change(1);
    allocated_bytes.change(size);
    active_bytes.change(size);
    requested_bytes.change(requested);
  }
  void block_freed(int64_t size, int64_t requested) {
    block_waits(size);
    block_waited(size, requested);
  }
  // the program gave a block back, but a stream still uses it
  void block_waits(int64_t size) {
    allocation.current -= 1;
    allocated_bytes.current -= size;
  }
  void block_waited(int64_t size, int64_t requested) {
    active.current -= 1;
    active_bytes.current -= size;
    requested_bytes.current -= requested;
  }
  void change_inactive_split(int64_t blocks, int64_t size) {
    inactive_split.change(blocks);
    inactive_split_bytes.change(size);
  }
  void change_reserved(int64_t segments, int64_t size) {
    segment.change(segments);
    reserved_bytes.change(size);
  }
};

struct DeviceStats {
  PoolStats all, small_pool, large_pool;
  Stat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
  int64_t num_oom_rejections = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;
  int64_t num_device_free = 0;
};

}  // namespace memgate
