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
#include <utility>

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

// Private pools (torch.cuda.MemPool) hold their memory apart, stream by stream. Each pair of a pool and a stream gets a
// number, and rows have it below zero in the place of the stream: the simulator knows private pools as such streams.
struct PoolStream {
  std::uint64_t pool_first;
  std::uint64_t pool_second;
  void* stream;
};

PoolStream* pool_streams = nullptr;
std::int64_t num_pool_streams = 0;

std::int64_t number_pool_stream(const PoolStream& wanted) {
  for (std::int64_t at = 0; at < num_pool_streams; ++at) {
    const PoolStream& known = pool_streams[at];
    if (known.pool_first == wanted.pool_first && known.pool_second == wanted.pool_second &&
        known.stream == wanted.stream)
      return -1 - at;
  }
  const auto room = static_cast<std::size_t>(num_pool_streams + 1) * sizeof(PoolStream);
  pool_streams = static_cast<PoolStream*>(std::realloc(pool_streams, room));
  if (pool_streams == nullptr) std::abort();
  pool_streams[num_pool_streams] = wanted;
  return -1 - num_pool_streams++;
}

// Entries say which pool they are of in later versions of torch only.
template <typename E>
auto stream_of(const E& entry, int) -> decltype(entry.mempool_, std::int64_t()) {
  const auto& pool = entry.mempool_;
  if (pool.first == 0 && pool.second == 0) return reinterpret_cast<std::int64_t>(entry.stream_);
  return number_pool_stream({pool.first, pool.second, static_cast<void*>(entry.stream_)});
}

template <typename E>
std::int64_t stream_of(const E& entry, long) {
  return reinterpret_cast<std::int64_t>(entry.stream_);
}

template <typename E>
constexpr auto knows_pools(int) -> decltype(std::declval<E>().mempool_, bool()) {
  return true;
}

template <typename E>
constexpr bool knows_pools(long) {
  return false;
}

// What is allocated now on each device, the most of it since somebody last asked, and the most ever.
constexpr int kMostDevices = 128;
struct Counts {
  std::int64_t allocated_bytes;
  std::int64_t peak_bytes;
  std::int64_t most_bytes;
};
Counts counts[kMostDevices] = {};

// The device that this process works on: where it has most.
int own_device() {
  int own = 0;
  for (int device = 1; device < kMostDevices; ++device) {
    if (counts[device].most_bytes > counts[own].most_bytes) own = device;
  }
  return own;
}

void count(const c10::cuda::CUDACachingAllocator::TraceEntry& entry) {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  Counts& device = counts[std::clamp<int>(entry.device_, 0, kMostDevices - 1)];
  if (entry.action_ == Entry::ALLOC) {
    device.allocated_bytes += static_cast<std::int64_t>(entry.size_);
    device.peak_bytes = std::max(device.peak_bytes, device.allocated_bytes);
    device.most_bytes = std::max(device.most_bytes, device.allocated_bytes);
  } else if (entry.action_ == Entry::FREE_REQUESTED) {
    device.allocated_bytes -= static_cast<std::int64_t>(entry.size_);
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
                        static_cast<std::int64_t>(entry.size_), stream_of(entry, 0)};
  });
}

// Whether rows tell private pools apart.
int memgate_tracker_knows_pools() { return knows_pools<c10::cuda::CUDACachingAllocator::TraceEntry>(0) ? 1 : 0; }

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

// The most bytes that were allocated at once since the last call, on the device that this process works on.
std::int64_t memgate_tracker_take_peak() {
  const Guard guard;
  const std::int64_t taken = counts[own_device()].peak_bytes;
  for (Counts& device : counts) device.peak_bytes = device.allocated_bytes;
  return taken;
}

int memgate_tracker_own_device() {
  const Guard guard;
  return own_device();
}

// The most bytes that were ever allocated at once on a device.
std::int64_t memgate_tracker_most_bytes(int device) {
  const Guard guard;
  return counts[std::clamp(device, 0, kMostDevices - 1)].most_bytes;
}

}  // extern "C"
