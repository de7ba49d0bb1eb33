// Feeds a timeline to an allocator: the native twin of player.py.

#pragma once

#include <cstdint>
#include <vector>

#include "caching_allocator.h"
#include "timeline.h"

namespace memgate {

struct Question {
  AllocatorConfig config;
  int64_t capacity = 0;
  int64_t context = 0;
  AddressPolicy address_policy = AddressPolicy::kUp;
  bool stops_at_oom = true;
  // with the series and the final segments; without, to the first out-of-memory at most
  bool is_recorded = true;
};

enum class Problem : int { kNone = 0, kIsAllocated = 1, kIsNotAllocated = 2 };

struct Answer {
  // the events contradict each other, at the event that would have been next
  Problem problem = Problem::kNone;
  int64_t num_events = 0;
  int64_t lowest_bytes = 0, below_bytes = 0;
  DeviceStats stats;
  std::vector<OutOfMemory> ooms;
  std::vector<SegmentEvent> segment_events;
  std::vector<int64_t> allocated_series, active_series;
  std::vector<SegmentInfo> final_segments;
};

Answer replay(const Timeline& timeline, const Question& question);

}  // namespace memgate
