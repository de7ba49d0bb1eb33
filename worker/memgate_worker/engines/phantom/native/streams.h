// Streams and events as far as they exist here: distinct handles, and whether events count as complete.
#pragma once

#include <cstdint>

namespace memgate::phantom {

// A new handle for anything the caller only passes back: never null, never the same twice.
uint64_t next_handle();

void set_events_pending(bool pending);
bool events_pending();

}  // namespace memgate::phantom
