// A timeline as columns of numbers, made once and replayed often.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "caching_allocator.h"

namespace memgate {

enum class EventKind : uint8_t {
  kAlloc,
  kFree,
  kRecordStream,
  kEventsPending,
  kStreamsDone,
  kEmptyCache,
  kSetFraction,
};

struct Timeline {
  // a column each, one entry per event
  std::vector<EventKind> kinds;
  // the ids of blocks are numbered
  std::vector<int32_t> ids;
  // streams are numbered in ascending order; -1: none
  std::vector<int32_t> streams;
  // bytes; or 0 or 1 for kEventsPending; or where the fraction is in `fractions`
  std::vector<int64_t> values;
  std::vector<double> fractions;

  std::vector<int64_t> stream_names;
  std::vector<bool> is_private;
  size_t num_ids = 0;
  // by id: the program can do without it; a kStreamsDone will name it
  std::vector<bool> is_dispensable, will_be_done;
  std::vector<ResidentSegment> residents;

  // From MessagePack: [events, dispensable, private_streams, residents], as native.py writes it.
  // Throws std::invalid_argument if it is anything else, BeyondNative for what 64 bits cannot hold.
  static Timeline read(std::string_view packed);
};

}  // namespace memgate
