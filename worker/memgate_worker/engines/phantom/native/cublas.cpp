// libcublas and libcublasLt, the calls that answer something: handles, modes, and one algorithm for every product.
//
// Calls that only start work on the device (gemm and its kin) are generated as counted launches, see LAUNCHES in
// standins/symbols.py. The workspace that PyTorch gives cuBLAS is PyTorch's own allocation, so it needs nothing from here.
// The memory that the real library takes for itself is part of the context's bytes.
#include <cstddef>
#include <cstdint>

#include "contents.h"
#include "refusals.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

constexpr int kSuccess = 0;

struct Handle {
  int math_mode = 0;
  int pointer_mode = 0;
};

// Descriptors are never looked into: PyTorch only passes them back.
int create_opaque(void** out) {
  *out = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

int succeed(void* info, int batch) {
  constexpr int kNoError = 0;
  memgate_phantom_count_launch();
  if (info != nullptr)
    fill_contents(reinterpret_cast<uint64_t>(info), static_cast<size_t>(batch) * sizeof kNoError, &kNoError,
                  sizeof kNoError, kKnown);
  return kSuccess;
}

// The documented layout of one answer of the heuristics.
struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace

extern "C" {

int cublasCreate_v2(Handle** handle) {
  *handle = new Handle;
  return kSuccess;
}

int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return kSuccess;
}

int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return kSuccess;
}

int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return kSuccess;
}

int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointer_mode = mode;
  return kSuccess;
}

int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointer_mode;
  return kSuccess;
}

int cublasGetVersion_v2(Handle*, int* version) {
  *version = MEMGATE_CUBLAS_VERSION;
  return kSuccess;
}

// Factorisations of many matrices. `info` says 0 for each of them, on the device; `arguments` the same of the call itself,
// on the host.
#define BATCHED(T)                                                                                                   \
  int cublas##T##getrfBatched(void*, int, void*, int, void*, void* info, int batch) { return succeed(info, batch); } \
  int cublas##T##getriBatched(void*, int, void*, int, void*, void*, int, void* info, int batch) {                    \
    return succeed(info, batch);                                                                                     \
  }                                                                                                                  \
  int cublas##T##matinvBatched(void*, int, void*, int, void*, int, void* info, int batch) {                          \
    return succeed(info, batch);                                                                                     \
  }                                                                                                                  \
  int cublas##T##getrsBatched(void*, int, int, int, void*, int, void*, void*, int, int* arguments, int) {            \
    *arguments = 0;                                                                                                  \
    return succeed(nullptr, 0);                                                                                      \
  }                                                                                                                  \
  int cublas##T##geqrfBatched(void*, int, int, void*, int, void*, int* arguments, int) {                             \
    *arguments = 0;                                                                                                  \
    return succeed(nullptr, 0);                                                                                      \
  }                                                                                                                  \
  int cublas##T##gelsBatched(void*, int, int, int, int, void*, int, void*, int, int* arguments, void* info,          \
                             int batch) {                                                                            \
    *arguments = 0;                                                                                                  \
    return succeed(info, batch);                                                                                     \
  }
BATCHED(S)
BATCHED(D)
BATCHED(C)
BATCHED(Z)
#undef BATCHED

size_t cublasLtGetVersion() { return MEMGATE_CUBLAS_VERSION; }

int cublasLtCreate(void** handle) { return create_opaque(handle); }
int cublasLtMatmulDescCreate(void** descriptor, int, int) { return create_opaque(descriptor); }
int cublasLtMatmulPreferenceCreate(void** preference) { return create_opaque(preference); }
int cublasLtMatrixLayoutCreate(void** layout, int, uint64_t, uint64_t, int64_t) { return create_opaque(layout); }

// One algorithm that needs no workspace. PyTorch allocates the workspace it offers before it asks, whatever the answer.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int num_requested,
                                   HeuristicResult* results, int* num_returned) {
  *num_returned = num_requested > 0 ? 1 : 0;
  if (*num_returned == 1) results[0] = HeuristicResult{};
  return kSuccess;
}

}
