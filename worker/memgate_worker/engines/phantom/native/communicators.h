// NCCL's communicators of this process, and what went through them: counted here so that it can be told.
//
// Only one rank of each is here. How many ranks there are is what the program says; nobody else is asked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memgate::phantom {

// Kinds of traffic; `memgate_hook.communication` names them in this order.
enum Traffic : int {
  kAllReduce = 0,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kReceive,
  kNumTraffic,
};

struct Communicator {
  int number;  // in the order in which they were made
  int num_ranks;
  int rank;
  int device;
};

Communicator* make_communicator(int num_ranks, int rank, int device);

// `bytes` is the whole message: of a gathering the result, of a scattering the source.
void note_traffic(const Communicator* communicator, Traffic kind, size_t bytes);
// Another rank that was sent to or received from directly.
void note_peer(const Communicator* communicator, int peer);

int num_communicators();

// How many ranks the next split on this thread has: NCCL finds out by asking all others. 0: not known.
void expect_split(int num_ranks);
int expected_split();

}  // namespace memgate::phantom
