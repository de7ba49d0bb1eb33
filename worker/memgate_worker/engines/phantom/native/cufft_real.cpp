// Opening the real cuFFT beside our own; see cufft_real.h.
#include "cufft_real.h"

#include "cufft_instead.h"
#include "device.h"
#include "link_namespace.h"

namespace memgate::phantom {
namespace {

constexpr int kSuccess = 0;

// As cufft.h and cufftXt.h declare them.
struct RealCufft {
  int (*create)(int* handle);
  int (*destroy)(int handle);
  int (*set_auto_allocation)(int handle, int automatic);
  int (*make_plan)(int handle, int rank, long long* sizes, long long* input_embed, long long input_stride,
                   long long input_distance, int input_type, long long* output_embed, long long output_stride,
                   long long output_distance, int output_type, long long batch, size_t* bytes, int execution_type);
  DescribeInstead* describe;
  CountInstead* used_bytes;
};

std::optional<RealCufft> opened;

void describe_once(const RealCufft& real) {
  static const bool done = [&real] {
    const DeviceSpec spec = resolved_spec();
    const InsteadDevice device{spec.compute_major,
                               spec.compute_minor,
                               spec.multiprocessors,
                               static_cast<int>(spec.shared_bytes_per_block_optin),
                               static_cast<int>(spec.l2_bytes),
                               spec.total_bytes};
    real.describe(&device);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

std::string open_real_cufft(const std::string& path) {
  LinkNamespace libraries;
  void* driver = libraries.open(own_directory() + "/instead/cufft/libcuda.so.1");
  if (driver == nullptr) return last_problem();
  void* library = libraries.open(path);
  if (library == nullptr) return last_problem();
  RealCufft real{};
  const bool complete = find_function(library, "cufftCreate", real.create) &&
                        find_function(library, "cufftDestroy", real.destroy) &&
                        find_function(library, "cufftSetAutoAllocation", real.set_auto_allocation) &&
                        find_function(library, "cufftXtMakePlanMany", real.make_plan) &&
                        find_function(driver, "memgate_instead_describe", real.describe) &&
                        find_function(driver, "memgate_instead_used_bytes", real.used_bytes);
  if (!complete) return last_problem();
  opened = real;
  return "";
}

std::optional<RealFftPlan> make_real_plan(const FftPlan& plan) {
  if (!opened) return std::nullopt;
  describe_once(*opened);
  RealFftPlan made{};
  if (opened->create(&made.handle) != kSuccess) return std::nullopt;
  const bool is_made =
      opened->set_auto_allocation(made.handle, 0) == kSuccess &&
      opened->make_plan(made.handle, plan.rank, plan.sizes, plan.input_embed, plan.input_stride, plan.input_distance,
                        plan.input_type, plan.output_embed, plan.output_stride, plan.output_distance,
                        plan.output_type, plan.batch, &made.work_area_bytes, plan.execution_type) == kSuccess;
  if (is_made) return made;
  opened->destroy(made.handle);
  return std::nullopt;
}

void destroy_real_plan(int handle) {
  if (opened) opened->destroy(handle);
}

uint64_t real_cufft_bytes() { return opened ? opened->used_bytes() : 0; }

}  // namespace memgate::phantom
