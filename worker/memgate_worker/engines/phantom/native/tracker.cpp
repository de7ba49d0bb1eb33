// Turns what PyTorch's caching allocator does into a plain array of rows, as it happens.
//
// PyTorch has an allocation history of its own, but it cannot say how far it has come while the
// program runs, and that is what labels need: "rows 812 to 907 were layer4.2.conv1". So this listens
// to the same events and counts. It decides nothing and changes nothing.
//
// Built once per runtime against that torch's own headers; read from Python through ctypes.

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace {

// Read by worker/memgate_worker/engines/phantom/tracker.py: keep the two alike.
struct Row {
  std::int64_t action;
  std::int64_t address;
  std::int64_t size_bytes;
  std::int64_t stream;
};

std::mutex rows_mutex;  // backward runs on a thread of its own
std::vector<Row> rows;

// What is allocated now, and the most of it since somebody last asked.
std::int64_t allocated_bytes = 0;
std::int64_t peak_bytes = 0;

void count(const c10::cuda::CUDACachingAllocator::TraceEntry& entry) {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  if (entry.action_ == Entry::ALLOC) {
    allocated_bytes += static_cast<std::int64_t>(entry.size_);
    peak_bytes = std::max(peak_bytes, allocated_bytes);
  } else if (entry.action_ == Entry::FREE_REQUESTED) {
    allocated_bytes -= static_cast<std::int64_t>(entry.size_);
  }
}

}  // namespace

extern "C" {

// Starts listening. The allocator must exist: call torch.cuda.init() first.
void memgate_tracker_attach() {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const Entry& entry) {
    std::lock_guard<std::mutex> guard(rows_mutex);
    count(entry);
    rows.push_back({static_cast<std::int64_t>(entry.action_),
                    static_cast<std::int64_t>(entry.addr_),
                    static_cast<std::int64_t>(entry.size_),
                    reinterpret_cast<std::int64_t>(entry.stream_)});
  });
}

// How many rows there are: the position that the next event will have.
std::int64_t memgate_tracker_position() {
  std::lock_guard<std::mutex> guard(rows_mutex);
  return static_cast<std::int64_t>(rows.size());
}

// The rows so far; valid until the next event.
const void* memgate_tracker_rows() { return rows.data(); }

// The most bytes that were allocated at once since the last call.
std::int64_t memgate_tracker_take_peak() {
  std::lock_guard<std::mutex> guard(rows_mutex);
  const std::int64_t taken = peak_bytes;
  peak_bytes = allocated_bytes;
  return taken;
}

}  // extern "C"
