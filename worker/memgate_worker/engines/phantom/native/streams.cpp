// Handle numbers and the state of events; see streams.h.
#include "streams.h"

#include <atomic>

namespace memgate::phantom {
namespace {
// Starts above the small values that CUDA gives a meaning (the legacy and the per-thread default stream).
std::atomic<uint64_t> handle{0x1000};
std::atomic<bool> pending_flag{false};
}  // namespace

uint64_t next_handle() { return handle += 0x10; }
void set_events_pending(bool pending) { pending_flag = pending; }
bool events_pending() { return pending_flag; }

}  // namespace memgate::phantom
