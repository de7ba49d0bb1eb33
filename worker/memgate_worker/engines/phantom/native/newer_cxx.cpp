// What newer compilers expect of the C++ library and older ones of torch's time lack, for libraries that share torch's.
//
// Built into each of them and hidden there, so that they ask for no newer library than torch itself.
#include <cstdio>
#include <cstdlib>

extern "C" {

// PyTorch's headers include <iostream>; from GCC 13 on that asks the C++ library for this, which older ones do by
// themselves.
void _ZSt21ios_base_library_initv() {}

// The C library has this from 2.32 on, to spare atomic operations. Never: there may be other threads.
char __libc_single_threaded = 0;
}

namespace std {
// From GCC 11 on: new of an array beyond all bounds.
[[noreturn]] void __throw_bad_array_new_length() {
  std::fprintf(stderr, "memgate phantom: an array beyond all bounds\n");
  std::abort();
}
}  // namespace std
