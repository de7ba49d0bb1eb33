// The largest work areas; see work_areas.h.
#include "work_areas.h"

#include <algorithm>
#include <mutex>

namespace memgate::phantom {
namespace {
std::mutex mutex;  // backward runs on a thread of its own
int64_t largest[kNumWorkAreas] = {-1, -1, -1};
}  // namespace

void note_work_area(WorkArea kind, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  largest[kind] = std::max(largest[kind], static_cast<int64_t>(bytes));
}

int64_t largest_work_area(WorkArea kind) {
  const std::lock_guard<std::mutex> lock(mutex);
  return kind < 0 || kind >= kNumWorkAreas ? -1 : largest[kind];
}

}  // namespace memgate::phantom
