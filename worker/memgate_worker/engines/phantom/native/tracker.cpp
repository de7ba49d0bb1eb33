// Turns what PyTorch's caching allocator does into a plain array of rows, as it happens.
//
// PyTorch has an allocation history of its own, but it cannot say how far it has come while the
// program runs, and that is what labels need: "rows 812 to 907 were layer4.2.conv1". So this listens
// to the same events and counts. It decides nothing and changes nothing.
//
// Built for each torch against its own headers, since the allocator's classes differ between versions; read from Python
// through ctypes. Uses as little of the C++ library as it can (no vector, no thrown exceptions), so that it asks for no
// newer libstdc++ than torch itself.

#include <c10/cuda/CUDACachingAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

// Read by worker/memgate_worker/engines/phantom/tracker.py: keep the two alike.
struct Row {
  std::int64_t action;
  std::int64_t address;
  std::int64_t size_bytes;
  std::int64_t stream;
};

pthread_mutex_t rows_mutex = PTHREAD_MUTEX_INITIALIZER;  // backward runs on a thread of its own
Row* rows = nullptr;
std::int64_t num_rows = 0;
std::int64_t num_rows_with_room = 0;

struct Guard {
  Guard() { pthread_mutex_lock(&rows_mutex); }
  ~Guard() { pthread_mutex_unlock(&rows_mutex); }
};

void make_room() {
  if (num_rows < num_rows_with_room) return;
  num_rows_with_room = num_rows_with_room == 0 ? 4096 : num_rows_with_room * 2;
  rows = static_cast<Row*>(std::realloc(rows, static_cast<std::size_t>(num_rows_with_room) * sizeof(Row)));
  if (rows == nullptr) std::abort();  // a row that is lost would be a wrong answer
}

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
    const Guard guard;
    make_room();
    count(entry);
    rows[num_rows++] = {static_cast<std::int64_t>(entry.action_), static_cast<std::int64_t>(entry.addr_),
                        static_cast<std::int64_t>(entry.size_), reinterpret_cast<std::int64_t>(entry.stream_)};
  });
}

// How many rows there are: the position that the next event will have.
std::int64_t memgate_tracker_position() {
  const Guard guard;
  return num_rows;
}

// Copies the first rows; other threads may add some meanwhile.
void memgate_tracker_copy_rows(void* to, std::int64_t count) {
  const Guard guard;
  if (count > 0) std::memcpy(to, rows, static_cast<std::size_t>(count) * sizeof(Row));
}

// The most bytes that were allocated at once since the last call.
std::int64_t memgate_tracker_take_peak() {
  const Guard guard;
  const std::int64_t taken = peak_bytes;
  peak_bytes = allocated_bytes;
  return taken;
}

}  // extern "C"
