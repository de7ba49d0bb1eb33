// libcusparse: handles and settings. How large its work areas are, only the real library knows: refused by name.
#include "streams.h"

using namespace memgate::phantom;

namespace {
constexpr int kSuccess = 0;
}

extern "C" {

int cusparseCreate(void** handle) {
  *handle = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

int cusparseDestroy(void*) { return kSuccess; }
int cusparseSetStream(void*, void*) { return kSuccess; }
int cusparseSetPointerMode(void*, int) { return kSuccess; }

}
