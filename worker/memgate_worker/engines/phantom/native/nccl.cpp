// libnccl for one rank on behalf of all: every collective is done at once, as if each rank had sent the same.
//
// What is delivered is in delivery.h, what is counted in communicators.h. What NCCL takes of the device for itself
// (channels, buffers) is not in the books; memory that it is asked for (ncclMemAlloc) is.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "communicators.h"
#include "contents.h"
#include "delivery.h"
#include "device.h"
#include "streams.h"
#include "transfers.h"

using namespace memgate::phantom;

namespace {

enum Result { kSuccess = 0, kUnhandledCudaError = 1, kInvalidArgument = 4 };

constexpr int kNoColor = -1;
constexpr size_t kIdBytes = 128;

struct UniqueId {
  char bytes[kIdBytes];
};

int join(Communicator** made, int num_ranks, int rank) {
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) return kInvalidArgument;
  *made = make_communicator(num_ranks, rank, current_device());
  return kSuccess;
}

// One message of a group.
struct Message {
  const Communicator* communicator;
  int peer;
  void* buffer;
  size_t count;
  int data_type;

  size_t bytes() const { return count * element_bytes(data_type); }
};

// A group of a thread: what is sent and received in it is matched when it ends.
struct Group {
  int depth = 0;
  std::vector<Message> sent;
  std::vector<Message> wanted;
};

thread_local Group group;

// What a peer would send that does the same as this rank. What it sends to this rank is what this one sends to itself,
// if it does (all-to-all); otherwise what this one sends to others, if it is as long.
const Message* find_sent(const Message& wanted) {
  const Message* found = nullptr;
  for (const Message& message : group.sent) {
    if (message.communicator != wanted.communicator || message.bytes() != wanted.bytes()) continue;
    if (message.peer == message.communicator->rank) return &message;
    if (found == nullptr) found = &message;
  }
  return found;
}

// Everybody sends to everybody: a collective, whatever it is made of.
bool is_all_to_all(const Communicator* communicator) {
  if (communicator->num_ranks < 2) return false;
  int num_sent = 0;
  int num_wanted = 0;
  for (const Message& message : group.sent) num_sent += message.communicator == communicator ? 1 : 0;
  for (const Message& message : group.wanted) num_wanted += message.communicator == communicator ? 1 : 0;
  return num_sent >= communicator->num_ranks && num_wanted >= communicator->num_ranks;
}

void count_messages() {
  const Communicator* exchanging = nullptr;
  if (!group.sent.empty() && is_all_to_all(group.sent.front().communicator))
    exchanging = group.sent.front().communicator;
  size_t exchanged_bytes = 0;
  bool has_sizes = false;
  for (const Message& message : group.sent) {
    note_peer(message.communicator, message.peer);
    if (message.communicator == exchanging) {
      exchanged_bytes += message.bytes();
      has_sizes = has_sizes || is_integer(message.data_type);
    } else {
      note_traffic(message.communicator, kSend, message.bytes());
    }
  }
  for (const Message& message : group.wanted) {
    note_peer(message.communicator, message.peer);
    if (message.communicator != exchanging) note_traffic(message.communicator, kReceive, message.bytes());
  }
  if (exchanging != nullptr) note_traffic(exchanging, kAllToAll, exchanged_bytes);
  if (has_sizes)
    for (const Message& message : group.wanted) note_from_other_ranks(address_of(message.buffer), message.bytes());
}

int end_group() {
  for (const Message& wanted : group.wanted) {
    const Message* sent = find_sent(wanted);
    if (sent == nullptr) {
      make_up(wanted.buffer, wanted.count, wanted.data_type);
    } else if (sent->buffer != wanted.buffer) {
      copy(wanted.buffer, sent->buffer, wanted.bytes());
    }
  }
  count_messages();
  group.sent.clear();
  group.wanted.clear();
  return kSuccess;
}

int add_message(std::vector<Message>& messages, const Message& message) {
  messages.push_back(message);
  return group.depth == 0 ? end_group() : kSuccess;
}

char* part_of(const void* buffer, const Communicator* communicator, size_t count, int data_type) {
  const size_t bytes = count * element_bytes(data_type);
  return const_cast<char*>(static_cast<const char*>(buffer)) + static_cast<size_t>(communicator->rank) * bytes;
}

void note(const Communicator* communicator, Traffic kind, size_t count, int data_type, bool is_whole = true) {
  const size_t times = is_whole ? 1 : static_cast<size_t>(communicator->num_ranks);
  note_traffic(communicator, kind, count * element_bytes(data_type) * times);
}

void give(void* target, const void* source, size_t count, int data_type) {
  if (target != source) copy(target, source, count * element_bytes(data_type));
}

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

int ncclCommInitRank(Communicator** made, int num_ranks, UniqueId, int rank) { return join(made, num_ranks, rank); }

int ncclCommInitRankConfig(Communicator** made, int num_ranks, UniqueId, int rank, void*) {
  return join(made, num_ranks, rank);
}

int ncclCommInitRankScalable(Communicator** made, int num_ranks, int rank, int, UniqueId*, void*) {
  return join(made, num_ranks, rank);
}

// Several devices of one process, each a rank.
int ncclCommInitAll(Communicator** made, int num_devices, const int* devices) {
  for (int rank = 0; rank < num_devices; ++rank)
    made[rank] = make_communicator(num_devices, rank, devices == nullptr ? rank : devices[rank]);
  return kSuccess;
}

// NCCL asks all ranks how many of them have the same color. Here the caller of PyTorch has said it (expect_split);
// otherwise it is taken to be all, which is the most.
int ncclCommSplit(Communicator* parent, int color, int key, Communicator** made, void*) {
  *made = nullptr;
  if (color == kNoColor) return kSuccess;
  const int num_ranks = expected_split() > 0 ? expected_split() : parent->num_ranks;
  return join(made, num_ranks, key >= 0 && key < num_ranks ? key : 0);
}

int ncclCommShrink(Communicator* parent, int* excluded, int num_excluded, Communicator** made, void*, int) {
  int rank = parent->rank;
  for (int i = 0; i < num_excluded; ++i) rank -= excluded[i] < parent->rank ? 1 : 0;
  return join(made, parent->num_ranks - num_excluded, rank);
}

// Communicators are kept on record.
int ncclCommDestroy(Communicator*) { return kSuccess; }
int ncclCommAbort(Communicator*) { return kSuccess; }
int ncclCommFinalize(Communicator*) { return kSuccess; }
int ncclCommRevoke(Communicator*, int) { return kSuccess; }

int ncclCommCount(const Communicator* communicator, int* count) {
  *count = communicator->num_ranks;
  return kSuccess;
}

int ncclCommUserRank(const Communicator* communicator, int* rank) {
  *rank = communicator->rank;
  return kSuccess;
}

int ncclCommCuDevice(const Communicator* communicator, int* device) {
  *device = communicator->device;
  return kSuccess;
}

int ncclCommGetAsyncError(Communicator*, int* error) {
  *error = kSuccess;
  return kSuccess;
}

int ncclGroupStart() {
  ++group.depth;
  return kSuccess;
}

int ncclGroupEnd() { return --group.depth == 0 ? end_group() : kSuccess; }

// Buffers that are registered are used as they are. The handle is only passed back.
int ncclCommRegister(const Communicator*, void*, size_t, void** handle) {
  *handle = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

int ncclCommDeregister(const Communicator*, void*) { return kSuccess; }

int ncclCommWindowRegister(Communicator*, void*, size_t, void** window, int) {
  *window = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

int ncclCommWindowDeregister(Communicator*, void*) { return kSuccess; }

// Memory of the device, in whole pages as the driver maps them.
int ncclMemAlloc(void** pointer, size_t bytes) {
  *pointer = allocate_on_device((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  return *pointer == nullptr && bytes != 0 ? kUnhandledCudaError : kSuccess;
}

int ncclMemFree(void* pointer) { return pointer == nullptr || release(pointer) ? kSuccess : kInvalidArgument; }

// A sum of what is multiplied before: by the number of ranks, wherever PyTorch does it, so that it is an average.
int ncclRedOpCreatePreMulSum(int* operation, void*, int, int, Communicator*) {
  *operation = kAverage;
  return kSuccess;
}

int ncclRedOpDestroy(int, Communicator*) { return kSuccess; }

int ncclAllReduce(const void* source, void* target, size_t count, int type, int operation, Communicator* ranks, void*) {
  note(ranks, kAllReduce, count, type);
  reduce(target, source, count, type, operation, ranks->num_ranks);
  return kSuccess;
}

int ncclReduce(const void* source, void* target, size_t count, int type, int operation, int root, Communicator* ranks,
               void*) {
  note(ranks, kReduce, count, type);
  if (root == ranks->rank) reduce(target, source, count, type, operation, ranks->num_ranks);
  return kSuccess;
}

int ncclReduceScatter(const void* source, void* target, size_t count, int type, int operation, Communicator* ranks,
                      void*) {
  note(ranks, kReduceScatter, count, type, false);
  reduce(target, part_of(source, ranks, count, type), count, type, operation, ranks->num_ranks);
  return kSuccess;
}

int ncclBroadcast(const void* source, void* target, size_t count, int type, int root, Communicator* ranks, void*) {
  note(ranks, kBroadcast, count, type);
  if (root == ranks->rank) give(target, source, count, type);
  return kSuccess;
}

int ncclBcast(void*, size_t count, int type, int, Communicator* ranks, void*) {
  note(ranks, kBroadcast, count, type);
  return kSuccess;
}

int ncclAllGather(const void* source, void* target, size_t count, int type, Communicator* ranks, void*) {
  note(ranks, kAllGather, count, type, false);
  repeat(target, source, count, type, ranks->num_ranks);
  return kSuccess;
}

// Every rank sends this one the part that has its number.
int ncclAlltoAll(const void* source, void* target, size_t count, int type, Communicator* ranks, void*) {
  note(ranks, kAllToAll, count, type, false);
  repeat(target, part_of(source, ranks, count, type), count, type, ranks->num_ranks);
  const size_t bytes = count * element_bytes(type) * static_cast<size_t>(ranks->num_ranks);
  if (is_integer(type) && ranks->num_ranks > 1) note_from_other_ranks(address_of(target), bytes);
  return kSuccess;
}

int ncclGather(const void* source, void* target, size_t count, int type, int root, Communicator* ranks, void*) {
  note(ranks, kGather, count, type, false);
  if (root == ranks->rank) repeat(target, source, count, type, ranks->num_ranks);
  return kSuccess;
}

int ncclScatter(const void* source, void* target, size_t count, int type, int root, Communicator* ranks, void*) {
  note(ranks, kScatter, count, type, false);
  if (root == ranks->rank) {
    give(target, part_of(source, ranks, count, type), count, type);
  } else {
    make_up(target, count, type);
  }
  return kSuccess;
}

int ncclSend(const void* source, size_t count, int type, int peer, Communicator* ranks, void*) {
  return add_message(group.sent, {ranks, peer, const_cast<void*>(source), count, type});
}

int ncclRecv(void* target, size_t count, int type, int peer, Communicator* ranks, void*) {
  return add_message(group.wanted, {ranks, peer, target, count, type});
}

}
