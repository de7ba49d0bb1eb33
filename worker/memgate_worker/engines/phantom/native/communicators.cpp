// Communicators and their traffic; see communicators.h.
#include "communicators.h"

#include <array>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace memgate::phantom {
namespace {

struct Record {
  Communicator communicator;
  std::array<uint64_t, kNumTraffic> calls;
  std::array<uint64_t, kNumTraffic> bytes;
  std::unordered_set<int> peers;
};

std::mutex mutex;
std::vector<std::unique_ptr<Record>> records;  // kept after a communicator is destroyed: it has been there

thread_local int split_ranks = 0;

}  // namespace

Communicator* make_communicator(int num_ranks, int rank, int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Record> record(new Record{});
  record->communicator = {static_cast<int>(records.size()), num_ranks, rank, device};
  records.push_back(std::move(record));
  return &records.back()->communicator;
}

void note_traffic(const Communicator* communicator, Traffic kind, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  Record& record = *records[static_cast<size_t>(communicator->number)];
  ++record.calls[kind];
  record.bytes[kind] += bytes;
}

void note_peer(const Communicator* communicator, int peer) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (peer != communicator->rank) records[static_cast<size_t>(communicator->number)]->peers.insert(peer);
}

int num_communicators() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int>(records.size());
}

void expect_split(int num_ranks) { split_ranks = num_ranks; }
int expected_split() { return split_ranks; }

}  // namespace memgate::phantom

using namespace memgate::phantom;

extern "C" {

// For Python. Fills four numbers: ranks, this one's rank, device, peers; then calls and bytes for each kind of traffic.
void memgate_phantom_communicator(int number, int64_t* numbers) {
  const std::lock_guard<std::mutex> lock(mutex);
  const Record& record = *records[static_cast<size_t>(number)];
  *numbers++ = record.communicator.num_ranks;
  *numbers++ = record.communicator.rank;
  *numbers++ = record.communicator.device;
  *numbers++ = static_cast<int64_t>(record.peers.size());
  for (int kind = 0; kind < kNumTraffic; ++kind) {
    *numbers++ = static_cast<int64_t>(record.calls[static_cast<size_t>(kind)]);
    *numbers++ = static_cast<int64_t>(record.bytes[static_cast<size_t>(kind)]);
  }
}

int memgate_phantom_communicators() { return num_communicators(); }
void memgate_phantom_expect_split(int num_ranks) { expect_split(num_ranks); }

}
