// libcusolver, the dense routines: nothing is computed, and each says that it succeeded, where the caller looks for that.
//
// The arguments that matter are those at the end: `info`, a number on the device for each matrix that says 0 for success.
#include <cstddef>
#include <cstdint>

#include "contents.h"
#include "refusals.h"

using namespace memgate::phantom;

namespace {

constexpr int kSuccess = 0;

int succeed(void* info, int64_t num_matrices = 1) {
  constexpr int kNoError = 0;
  memgate_phantom_count_launch();
  if (info != nullptr)
    fill_contents(reinterpret_cast<uint64_t>(info), static_cast<size_t>(num_matrices) * sizeof kNoError, &kNoError,
                  sizeof kNoError, kKnown);
  return kSuccess;
}

}  // namespace

extern "C" {

// The older interface, for each of its four types.
#define ROUTINES(T)                                                                                                  \
  int cusolverDn##T##potrf(void*, int, int, void*, int, void*, int, void* info) { return succeed(info); }            \
  int cusolverDn##T##potrs(void*, int, int, int, void*, int, void*, int, void* info) { return succeed(info); }       \
  int cusolverDn##T##potrfBatched(void*, int, int, void*, int, void* info, int batch) {                              \
    return succeed(info, batch);                                                                                     \
  }                                                                                                                  \
  int cusolverDn##T##potrsBatched(void*, int, int, int, void*, int, void*, int, void* info, int) {                   \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##getrf(void*, int, int, void*, int, void*, void*, void* info) { return succeed(info); }          \
  int cusolverDn##T##getrs(void*, int, int, int, void*, int, void*, void*, int, void* info) {                        \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##geqrf(void*, int, int, void*, int, void*, void*, int, void* info) { return succeed(info); }     \
  int cusolverDn##T##sytrf(void*, int, int, void*, int, void*, void*, int, void* info) { return succeed(info); }     \
  int cusolverDn##T##gesvd(void*, signed char, signed char, int, int, void*, int, void*, void*, int, void*, int,     \
                           void*, int, void*, void* info) {                                                          \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##gesvdj(void*, int, int, int, int, void*, int, void*, void*, int, void*, int, void*, int,        \
                            void* info, void*) {                                                                     \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##gesvdjBatched(void*, int, int, int, void*, int, void*, void*, int, void*, int, void*, int,      \
                                   void* info, void*, int batch) {                                                   \
    return succeed(info, batch);                                                                                     \
  }                                                                                                                  \
  int cusolverDn##T##gesvdaStridedBatched(void*, int, int, int, int, void*, int, long long, void*, long long, void*, \
                                          int, long long, void*, int, long long, void*, int, void* info, void*,      \
                                          int batch) {                                                               \
    return succeed(info, batch);                                                                                     \
  }
ROUTINES(S)
ROUTINES(D)
ROUTINES(C)
ROUTINES(Z)
#undef ROUTINES

// Those whose names tell real matrices from complex ones.
#define NAMED_ROUTINES(T, orgqr, ormqr, syevd, syevj)                                                                \
  int cusolverDn##T##orgqr(void*, int, int, int, void*, int, void*, void*, int, void* info) {                        \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##ormqr(void*, int, int, int, int, int, void*, int, void*, void*, int, void*, int, void* info) {  \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##syevd(void*, int, int, int, void*, int, void*, void*, int, void* info) { return succeed(info); } \
  int cusolverDn##T##syevj(void*, int, int, int, void*, int, void*, void*, int, void* info, void*) {                 \
    return succeed(info);                                                                                            \
  }                                                                                                                  \
  int cusolverDn##T##syevj##Batched(void*, int, int, int, void*, int, void*, void*, int, void* info, void*,          \
                                    int batch) {                                                                     \
    return succeed(info, batch);                                                                                     \
  }
NAMED_ROUTINES(S, orgqr, ormqr, syevd, syevj)
NAMED_ROUTINES(D, orgqr, ormqr, syevd, syevj)
NAMED_ROUTINES(C, ungqr, unmqr, heevd, heevj)
NAMED_ROUTINES(Z, ungqr, unmqr, heevd, heevj)
#undef NAMED_ROUTINES

// The newer interface, one function for all types.
int cusolverDnXpotrf(void*, void*, int, int64_t, int, void*, int64_t, int, void*, size_t, void*, size_t, void* info) {
  return succeed(info);
}

int cusolverDnXpotrs(void*, void*, int, int64_t, int64_t, int, void*, int64_t, int, void*, int64_t, void* info) {
  return succeed(info);
}

int cusolverDnXgeqrf(void*, void*, int64_t, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*,
                     size_t, void* info) {
  return succeed(info);
}

int cusolverDnXsytrs(void*, int, int64_t, int64_t, int, void*, int64_t, void*, int, void*, int64_t, void*, size_t,
                     void*, size_t, void* info) {
  return succeed(info);
}

int cusolverDnXsyevd(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*,
                     size_t, void* info) {
  return succeed(info);
}

int cusolverDnXsyevBatched(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t,
                           void*, size_t, void* info, int64_t batch) {
  return succeed(info, batch);
}

int cusolverDnXgeev(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, int64_t, int, void*,
                    int64_t, int, void*, size_t, void*, size_t, void* info) {
  return succeed(info);
}

}
