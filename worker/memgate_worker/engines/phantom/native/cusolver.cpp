// libcusolver: handles, settings, and how large the work areas of its dense routines are; the routines themselves are in
// cusolver_solve.cpp.
//
// PyTorch asks for the size of a work area and allocates it itself. Only cuSOLVER knows it, and NVIDIA documents none,
// so a bound is assumed, in copies of the matrix (each side counted as at least so many that blocks of it fit):
// - factorisations and what follows from them (LU, Cholesky, QR, LDL): one;
// - eigenvalues and singular values of many small matrices, by the routines that are named for Jacobi: two for each;
// - eigenvalues and singular values: four. Where people met the limit of 32 bits, eigenvalues took about 3.4
//   (github.com/NVIDIA/CUDALibrarySamples/issues/246, github.com/jax-ml/jax/issues/23410).
// Routines that are not here are refused by name.
#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "streams.h"
#include "work_areas.h"

using namespace memgate::phantom;

namespace {

constexpr int kSuccess = 0;

constexpr int64_t kBlockOfFactors = 64;
constexpr int64_t kBlockOfJacobi = 32;
constexpr int64_t kFactorCopies = 1;
constexpr int64_t kBatchedCopies = 2;
constexpr int64_t kSpectrumCopies = 4;

int create_opaque(void** out) {
  *out = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

// By the published numbers of CUDA's data types: single and double, as real and as complex numbers.
int64_t element_bytes(int type) {
  constexpr int64_t kBytes[] = {4, 8, 2, 1, 8, 16};
  return kBytes[std::min(std::max(type, 0), 5)];
}

int64_t factor_elements(int64_t rows, int64_t columns) {
  return kFactorCopies * std::max(rows, kBlockOfFactors) * std::max(columns, kBlockOfFactors);
}

int64_t spectrum_elements(int64_t rows, int64_t columns) {
  return kSpectrumCopies * std::max(rows, kBlockOfJacobi) * std::max(columns, kBlockOfJacobi);
}

int64_t batched_elements(int64_t rows, int64_t columns, int64_t batch) {
  return batch * kBatchedCopies * std::max(rows, kBlockOfJacobi) * std::max(columns, kBlockOfJacobi);
}

// The older interface counts elements, in 32 bits. Where the bound is beyond that, the real size may still be within.
int answer(int* lwork, int64_t elements, int64_t bytes_of_one) {
  *lwork = static_cast<int>(std::min<int64_t>(elements, INT_MAX));
  note_work_area(kLinalgAssumed, static_cast<uint64_t>(*lwork * bytes_of_one));
  return kSuccess;
}

// The newer one counts bytes, on the device and on the host.
int answer(size_t* on_device, size_t* on_host, int64_t elements, int data_type) {
  *on_device = static_cast<size_t>(elements * element_bytes(data_type));
  *on_host = 0;
  note_work_area(kLinalgAssumed, *on_device);
  return kSuccess;
}

}  // namespace

extern "C" {

int cusolverDnCreate(void** handle) { return create_opaque(handle); }
int cusolverDnDestroy(void*) { return kSuccess; }
int cusolverDnSetStream(void*, void*) { return kSuccess; }
int cusolverDnCreateParams(void** parameters) { return create_opaque(parameters); }
int cusolverDnDestroyParams(void*) { return kSuccess; }
int cusolverDnSetDeterministicMode(void*, int) { return kSuccess; }
int cusolverDnCreateGesvdjInfo(void** info) { return create_opaque(info); }
int cusolverDnDestroyGesvdjInfo(void*) { return kSuccess; }
int cusolverDnXgesvdjSetMaxSweeps(void*, int) { return kSuccess; }
int cusolverDnXgesvdjSetSortEig(void*, int) { return kSuccess; }
int cusolverDnXgesvdjSetTolerance(void*, double) { return kSuccess; }
int cusolverDnCreateSyevjInfo(void** info) { return create_opaque(info); }
int cusolverDnDestroySyevjInfo(void*) { return kSuccess; }
int cusolverDnXsyevjSetMaxSweeps(void*, int) { return kSuccess; }
int cusolverDnXsyevjSetSortEig(void*, int) { return kSuccess; }
int cusolverDnXsyevjSetTolerance(void*, double) { return kSuccess; }
int cusolverSpCreate(void** handle) { return create_opaque(handle); }
int cusolverSpDestroy(void*) { return kSuccess; }
int cusolverSpSetStream(void*, void*) { return kSuccess; }

// The older interface, for each of its four types.
#define SIZES(T, bytes)                                                                                              \
  int cusolverDn##T##potrf_bufferSize(void*, int, int n, void*, int, int* lwork) {                                   \
    return answer(lwork, factor_elements(n, n), bytes);                                                              \
  }                                                                                                                  \
  int cusolverDn##T##getrf_bufferSize(void*, int m, int n, void*, int, int* lwork) {                                 \
    return answer(lwork, factor_elements(m, n), bytes);                                                              \
  }                                                                                                                  \
  int cusolverDn##T##geqrf_bufferSize(void*, int m, int n, void*, int, int* lwork) {                                 \
    return answer(lwork, factor_elements(m, n), bytes);                                                              \
  }                                                                                                                  \
  int cusolverDn##T##sytrf_bufferSize(void*, int n, void*, int, int* lwork) {                                        \
    return answer(lwork, factor_elements(n, n), bytes);                                                              \
  }                                                                                                                  \
  int cusolverDn##T##gesvd_bufferSize(void*, int m, int n, int* lwork) {                                             \
    return answer(lwork, spectrum_elements(m, n), bytes);                                                            \
  }                                                                                                                  \
  int cusolverDn##T##gesvdj_bufferSize(void*, int, int, int m, int n, void*, int, void*, void*, int, void*, int,     \
                                       int* lwork, void*) {                                                          \
    return answer(lwork, spectrum_elements(m, n), bytes);                                                            \
  }                                                                                                                  \
  int cusolverDn##T##gesvdjBatched_bufferSize(void*, int, int m, int n, void*, int, void*, void*, int, void*, int,   \
                                              int* lwork, void*, int batch) {                                        \
    return answer(lwork, batched_elements(m, n, batch), bytes);                                                      \
  }                                                                                                                  \
  int cusolverDn##T##gesvdaStridedBatched_bufferSize(void*, int, int, int m, int n, void*, int, long long, void*,    \
                                                     long long, void*, int, long long, void*, int, long long,        \
                                                     int* lwork, int batch) {                                        \
    return answer(lwork, batch * spectrum_elements(m, n), bytes);                                                    \
  }
SIZES(S, 4)
SIZES(D, 8)
SIZES(C, 8)
SIZES(Z, 16)
#undef SIZES

// Those whose names tell real matrices from complex ones.
#define NAMED_SIZES(T, bytes, orgqr, ormqr, syevd, syevj)                                                            \
  int cusolverDn##T##orgqr##_bufferSize(void*, int m, int n, int, void*, int, void*, int* lwork) {                   \
    return answer(lwork, factor_elements(m, n), bytes);                                                              \
  }                                                                                                                  \
  int cusolverDn##T##ormqr##_bufferSize(void*, int, int, int m, int n, int, void*, int, void*, void*, int,           \
                                        int* lwork) {                                                                \
    return answer(lwork, factor_elements(m, n), bytes);                                                              \
  }                                                                                                                  \
  int cusolverDn##T##syevd##_bufferSize(void*, int, int, int n, void*, int, void*, int* lwork) {                     \
    return answer(lwork, spectrum_elements(n, n), bytes);                                                            \
  }                                                                                                                  \
  int cusolverDn##T##syevj##_bufferSize(void*, int, int, int n, void*, int, void*, int* lwork, void*) {              \
    return answer(lwork, spectrum_elements(n, n), bytes);                                                            \
  }                                                                                                                  \
  int cusolverDn##T##syevj##Batched_bufferSize(void*, int, int, int n, void*, int, void*, int* lwork, void*,         \
                                               int batch) {                                                          \
    return answer(lwork, batched_elements(n, n, batch), bytes);                                                      \
  }
NAMED_SIZES(S, 4, orgqr, ormqr, syevd, syevj)
NAMED_SIZES(D, 8, orgqr, ormqr, syevd, syevj)
NAMED_SIZES(C, 8, ungqr, unmqr, heevd, heevj)
NAMED_SIZES(Z, 16, ungqr, unmqr, heevd, heevj)
#undef NAMED_SIZES

// The newer interface, one function for all types.
int cusolverDnXpotrf_bufferSize(void*, void*, int, int64_t n, int type, void*, int64_t, int, size_t* on_device,
                                size_t* on_host) {
  return answer(on_device, on_host, factor_elements(n, n), type);
}

int cusolverDnXgeqrf_bufferSize(void*, void*, int64_t m, int64_t n, int type, void*, int64_t, int, void*, int,
                                size_t* on_device, size_t* on_host) {
  return answer(on_device, on_host, factor_elements(m, n), type);
}

int cusolverDnXsytrs_bufferSize(void*, int, int64_t n, int64_t columns, int type, void*, int64_t, int64_t*, int, void*,
                                int64_t, size_t* on_device, size_t* on_host) {
  return answer(on_device, on_host, factor_elements(n, columns), type);
}

int cusolverDnXsyevd_bufferSize(void*, void*, int, int, int64_t n, int type, void*, int64_t, int, void*, int,
                                size_t* on_device, size_t* on_host) {
  return answer(on_device, on_host, spectrum_elements(n, n), type);
}

int cusolverDnXsyevBatched_bufferSize(void*, void*, int, int, int64_t n, int type, void*, int64_t, int, void*, int,
                                      size_t* on_device, size_t* on_host, int64_t batch) {
  return answer(on_device, on_host, batch * spectrum_elements(n, n), type);
}

int cusolverDnXgeev_bufferSize(void*, void*, int, int, int64_t n, int type, void*, int64_t, int, void*, int, void*,
                               int64_t, int, void*, int64_t, int, size_t* on_device, size_t* on_host) {
  return answer(on_device, on_host, spectrum_elements(n, n), type);
}

}
