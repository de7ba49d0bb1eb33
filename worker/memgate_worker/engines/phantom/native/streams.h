// Streams and events as far as they exist here: distinct handles, and whether events count as complete.
#pragma once

#include <cstdint>

namespace memgate::phantom {

// A new handle for anything the caller only passes back: never null, never the same twice.
uint64_t next_handle();

// Between any two events. Always the same, so that of several ways to do something the first one is taken, whatever
// this machine is doing. Long enough for benchmarks (Triton's, inductor's, cuDNN's) to repeat little: they divide the
// time that they want to spend by it.
inline constexpr float kElapsedMilliseconds = 10.0F;

void set_events_pending(bool pending);
bool events_pending();

}  // namespace memgate::phantom
