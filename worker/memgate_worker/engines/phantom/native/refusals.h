// Calls that are not modelled: said once on stderr, kept in a list, answered with an error.
#pragma once

namespace memgate::phantom {

// Notes that `call` was made although nothing here knows what it would do, and gives back `status` to be returned.
long refuse(const char* call, long status);

// The calls refused so far in this process, each once, one a line, in order. Valid until the next refusal.
const char* refused_calls();

// "memgate phantom: X is not modelled" for the latest refusal: what error-string functions answer, so that the
// exception a user sees names the call.
const char* last_refusal();

}  // namespace memgate::phantom

// The same for generated C code.
extern "C" long memgate_phantom_refuse(const char* call, long status);
extern "C" const char* memgate_phantom_last_refusal();
extern "C" void memgate_phantom_count_launch();
