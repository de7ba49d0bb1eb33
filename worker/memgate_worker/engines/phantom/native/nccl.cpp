// libnccl for a group of one process: what it would send to itself is copied. Several processes are refused by name.
//
// With one rank NCCL copies from the buffer that is sent to the one that receives, and does nothing if they are the
// same. What it takes for itself is not in the books; that there was a communicator is counted, so that it can be told.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "refusals.h"
#include "transfers.h"

using namespace memgate::phantom;

extern "C" void memgate_phantom_note_communicator();

namespace {

enum Result { kSuccess = 0, kInvalidUsage = 5 };

constexpr int kNoColor = -1;
constexpr size_t kIdBytes = 128;

struct UniqueId {
  char bytes[kIdBytes];
};

struct Communicator {};

// By the published numbers of its data types: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16,
// and two kinds of 8-bit floats.
size_t bytes_of(size_t count, int data_type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return count * kSizes[static_cast<size_t>(data_type) % (sizeof(kSizes) / sizeof(kSizes[0]))];
}

int give(void* target, const void* source, size_t count, int data_type) {
  if (target != source) copy(target, source, bytes_of(count, data_type));
  return kSuccess;
}

int join(const char* call, Communicator** communicator, int num_ranks) {
  if (num_ranks != 1) {
    const std::string named = std::string(call) + " with " + std::to_string(num_ranks) + " ranks";
    return static_cast<int>(refuse(named.c_str(), kInvalidUsage));
  }
  memgate_phantom_note_communicator();
  *communicator = new Communicator;
  return kSuccess;
}

// What is sent is received in the same order; within a group, either may come first.
class Mailbox {
 public:
  int send(const void* source) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sent_.push_back(source);
    return match();
  }

  int receive(void* target, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_.push_back({target, bytes});
    return match();
  }

 private:
  struct Wanted {
    void* target;
    size_t bytes;
  };

  int match() {
    while (!sent_.empty() && !wanted_.empty()) {
      if (wanted_.front().target != sent_.front()) copy(wanted_.front().target, sent_.front(), wanted_.front().bytes);
      sent_.erase(sent_.begin());
      wanted_.erase(wanted_.begin());
    }
    return kSuccess;
  }

  std::mutex mutex_;
  std::vector<const void*> sent_;
  std::vector<Wanted> wanted_;
};

Mailbox mailbox;

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = MEMGATE_NCCL_VERSION;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof(UniqueId));
  return kSuccess;
}

int ncclCommInitRank(Communicator** made, int num_ranks, UniqueId, int) {
  return join("ncclCommInitRank", made, num_ranks);
}

int ncclCommInitRankConfig(Communicator** made, int num_ranks, UniqueId, int, void*) {
  return join("ncclCommInitRankConfig", made, num_ranks);
}

int ncclCommInitRankScalable(Communicator** made, int num_ranks, int, int, UniqueId*, void*) {
  return join("ncclCommInitRankScalable", made, num_ranks);
}

int ncclCommInitAll(Communicator** made, int num_devices, const int*) {
  return join("ncclCommInitAll", made, num_devices);
}

int ncclCommSplit(Communicator*, int color, int, Communicator** made, void*) {
  *made = nullptr;
  return color == kNoColor ? kSuccess : join("ncclCommSplit", made, 1);
}

int ncclCommDestroy(Communicator* communicator) {
  delete communicator;
  return kSuccess;
}

int ncclCommAbort(Communicator* communicator) { return ncclCommDestroy(communicator); }
int ncclCommFinalize(Communicator*) { return kSuccess; }

int ncclCommCount(const Communicator*, int* count) {
  *count = 1;
  return kSuccess;
}

int ncclCommUserRank(const Communicator*, int* rank) {
  *rank = 0;
  return kSuccess;
}

int ncclCommCuDevice(const Communicator*, int* device) {
  *device = 0;
  return kSuccess;
}

int ncclCommGetAsyncError(Communicator*, int* error) {
  *error = kSuccess;
  return kSuccess;
}

int ncclGroupStart() { return kSuccess; }
int ncclGroupEnd() { return kSuccess; }

int ncclRedOpCreatePreMulSum(int* operation, void*, int, int, Communicator*) {
  *operation = 0;
  return kSuccess;
}

int ncclRedOpDestroy(int, Communicator*) { return kSuccess; }

int ncclAllReduce(const void* source, void* target, size_t count, int type, int, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclReduce(const void* source, void* target, size_t count, int type, int, int, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclReduceScatter(const void* source, void* target, size_t count, int type, int, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclBroadcast(const void* source, void* target, size_t count, int type, int, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclBcast(void*, size_t, int, int, Communicator*, void*) { return kSuccess; }

int ncclAllGather(const void* source, void* target, size_t count, int type, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclAlltoAll(const void* source, void* target, size_t count, int type, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclGather(const void* source, void* target, size_t count, int type, int, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclScatter(const void* source, void* target, size_t count, int type, int, Communicator*, void*) {
  return give(target, source, count, type);
}

int ncclSend(const void* source, size_t, int, int, Communicator*, void*) { return mailbox.send(source); }

int ncclRecv(void* target, size_t count, int type, int, Communicator*, void*) {
  return mailbox.receive(target, bytes_of(count, type));
}

}
