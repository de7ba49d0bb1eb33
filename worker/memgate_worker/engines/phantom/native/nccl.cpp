// libnccl for one process: its communicators, and collectives, which then only copy. Several ranks are refused by name.
//
// Launchers start single processes as they start many, and those exchange gradients with themselves. What NCCL itself
// takes for that is not PyTorch's, and not in the books.
#include <cstddef>
#include <cstring>

#include "refusals.h"
#include "streams.h"
#include "transfers.h"

using namespace memgate::phantom;

namespace {

enum Status { kSuccess = 0, kInvalidUsage = 5 };

// The documented layout; it is passed by value.
struct UniqueId {
  char internal[128];
};

using Communicator = void*;

int create(const char* call, int num_ranks, Communicator* communicator) {
  if (num_ranks != 1) return static_cast<int>(refuse(call, kInvalidUsage));
  *communicator = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

// The sizes of ncclDataType_t in their order: 8-bit integers, 32, 64, half, float, double, bfloat16, 8-bit floats.
int copy_elements(void* target, const void* source, size_t count, int type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (type < 0 || type >= static_cast<int>(sizeof(kSizes) / sizeof(*kSizes)))
    return static_cast<int>(refuse("ncclDataType_t", kInvalidUsage));
  if (target != source && target != nullptr) copy(target, source, count * kSizes[type]);
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = MEMGATE_NCCL_VERSION;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  memset(id->internal, 0, sizeof(id->internal));
  return kSuccess;
}

int ncclCommInitRank(Communicator* communicator, int num_ranks, UniqueId, int) {
  return create("ncclCommInitRank", num_ranks, communicator);
}

int ncclCommInitRankConfig(Communicator* communicator, int num_ranks, UniqueId, int, void*) {
  return create("ncclCommInitRankConfig", num_ranks, communicator);
}

int ncclCommInitRankScalable(Communicator* communicator, int num_ranks, int, int, UniqueId*, void*) {
  return create("ncclCommInitRankScalable", num_ranks, communicator);
}

// A process that takes part in no group has a negative color.
int ncclCommSplit(Communicator, int color, int, Communicator* communicator, void*) {
  *communicator = nullptr;
  return color < 0 ? kSuccess : create("ncclCommSplit", 1, communicator);
}

int ncclCommDestroy(Communicator) { return kSuccess; }
int ncclCommAbort(Communicator) { return kSuccess; }
int ncclCommFinalize(Communicator) { return kSuccess; }
int ncclGroupStart() { return kSuccess; }
int ncclGroupEnd() { return kSuccess; }

int ncclCommGetAsyncError(Communicator, int* status) {
  *status = kSuccess;
  return kSuccess;
}

int ncclCommCount(Communicator, int* count) {
  *count = 1;
  return kSuccess;
}

int ncclCommUserRank(Communicator, int* rank) {
  *rank = 0;
  return kSuccess;
}

int ncclCommCuDevice(Communicator, int* device) {
  *device = 0;
  return kSuccess;
}

int ncclAllReduce(const void* source, void* target, size_t count, int type, int, Communicator, void*) {
  return copy_elements(target, source, count, type);
}

int ncclReduce(const void* source, void* target, size_t count, int type, int, int, Communicator, void*) {
  return copy_elements(target, source, count, type);
}

int ncclBroadcast(const void* source, void* target, size_t count, int type, int, Communicator, void*) {
  return copy_elements(target, source, count, type);
}

int ncclBcast(void*, size_t, int, int, Communicator, void*) { return kSuccess; }

int ncclAllGather(const void* source, void* target, size_t count, int type, Communicator, void*) {
  return copy_elements(target, source, count, type);
}

int ncclReduceScatter(const void* source, void* target, size_t count, int type, int, Communicator, void*) {
  return copy_elements(target, source, count, type);
}

}
