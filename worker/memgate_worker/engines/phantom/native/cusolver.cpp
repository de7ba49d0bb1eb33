// libcusolver: handles and settings. How large its work areas are, only the real library knows: refused by name.
#include "streams.h"

using namespace memgate::phantom;

namespace {

constexpr int kSuccess = 0;

int create_opaque(void** out) {
  *out = reinterpret_cast<void*>(next_handle());
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
int cusolverDnCreateSyevjInfo(void** info) { return create_opaque(info); }
int cusolverDnDestroySyevjInfo(void*) { return kSuccess; }
int cusolverSpCreate(void** handle) { return create_opaque(handle); }
int cusolverSpDestroy(void*) { return kSuccess; }
int cusolverSpSetStream(void*, void*) { return kSuccess; }

}
