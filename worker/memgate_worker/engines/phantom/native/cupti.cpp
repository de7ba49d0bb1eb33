// libcupti: answers like a machine on which this user may not profile the GPU.
//
// torch.profiler asks first whether it may; told no, it warns and records the CPU alone, as on many clusters.
namespace {
constexpr int kSuccess = 0;
constexpr int kInsufficientPrivileges = 35;
}  // namespace

extern "C" {

int cuptiSubscribe(void**, void*, void*) { return kInsufficientPrivileges; }

int cuptiGetResultString(int status, const char** text) {
  *text = status == kInsufficientPrivileges ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN";
  return kSuccess;
}

int cuptiGetVersion(unsigned int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return kSuccess;
}

}
