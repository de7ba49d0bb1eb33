// libcufft: plans and the size of their work areas. Executing one does nothing.
//
// PyTorch makes a plan for each shape, keeps it, and allocates its work area itself whenever it executes it. How large
// that is, only cuFFT knows: the real one is asked where it is installed (cufft_real.h). Otherwise a bound is assumed,
// in copies of the data as complex numbers:
// - transforms of complex numbers: one copy, the least that NVIDIA documents;
// - transforms of real numbers: two, since what is complex then has another layout. Half a spectrum has two numbers more
//   than the signal, so each row is counted with them;
// - any length with a prime factor beyond 127: eight, the most that NVIDIA documents. Bluestein's algorithm pads such a
//   length to more than twice its size, and keeps that several times over.
// The real library stayed below in all of 45,000 plans (three versions, five compute capabilities), often far below: most
// short lengths need next to nothing.
//
// A plan that allocates its work area by itself is refused: that memory would be in nobody's books.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "cufft_real.h"
#include "refusals.h"
#include "streams.h"
#include "work_areas.h"

using namespace memgate::phantom;

namespace {

enum Result { kSuccess = 0, kInvalidPlan = 1, kInvalidSize = 8, kNotSupported = 16 };

// By the published numbers of CUDA's data types: half, single, double and bfloat16, as real and as complex numbers.
enum DataType { kReal32 = 0, kReal64 = 1, kReal16 = 2, kComplex32 = 4, kComplex64 = 5, kComplex16 = 6, kRealB16 = 14 };

constexpr long long kLargestRadix = 127;
constexpr uint64_t kLeastBytes = 4096;  // tables of short transforms

struct Plan {
  bool allocates = true;
  std::optional<int> real;
};

std::mutex mutex;  // backward runs on a thread of its own
std::map<int, Plan> plans;

bool is_real(int type) { return type == kReal16 || type == kReal32 || type == kReal64 || type == kRealB16; }

uint64_t complex_bytes(int type) {
  if (type == kReal64 || type == kComplex64) return 16;
  return type == kReal32 || type == kComplex32 ? 8 : 4;
}

bool needs_bluestein(long long length) {
  for (long long radix = 2; radix <= kLargestRadix; ++radix) {
    while (length % radix == 0) length /= radix;
  }
  return length > 1;
}

uint64_t assume_work_area(const FftPlan& plan) {
  const bool has_real = is_real(plan.input_type) || is_real(plan.output_type);
  uint64_t copies = has_real ? 2 : 1;
  uint64_t elements = static_cast<uint64_t>(plan.batch);
  for (int i = 0; i < plan.rank; ++i) {
    const bool is_row = i == plan.rank - 1;
    elements *= static_cast<uint64_t>(plan.sizes[i]) + (has_real && is_row ? 2 : 0);
    if (needs_bluestein(plan.sizes[i])) copies = 8;
  }
  return copies * elements * complex_bytes(plan.execution_type) + kLeastBytes;
}

}  // namespace

extern "C" {

int cufftCreate(int* handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  *handle = static_cast<int>(next_handle());
  plans[*handle] = Plan{};
  return kSuccess;
}

int cufftDestroy(int handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = plans.find(handle);
  if (found == plans.end()) return kInvalidPlan;
  if (found->second.real) destroy_real_plan(*found->second.real);
  plans.erase(found);
  return kSuccess;
}

int cufftSetAutoAllocation(int handle, int automatic) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = plans.find(handle);
  if (found == plans.end()) return kInvalidPlan;
  found->second.allocates = automatic != 0;
  return kSuccess;
}

int cufftXtMakePlanMany(int handle, int rank, long long* sizes, long long* input_embed, long long input_stride,
                        long long input_distance, int input_type, long long* output_embed, long long output_stride,
                        long long output_distance, int output_type, long long batch, size_t* work_area_bytes,
                        int execution_type) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = plans.find(handle);
  if (found == plans.end()) return kInvalidPlan;
  if (found->second.allocates)
    return static_cast<int>(refuse("cufftXtMakePlanMany with a work area of its own", kNotSupported));
  const FftPlan plan{rank,         sizes,         input_embed,     input_stride, input_distance, input_type,
                     output_embed, output_stride, output_distance, output_type,  batch,          execution_type};
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] < 1 || batch < 1) return kInvalidSize;
  }
  if (const auto real = make_real_plan(plan)) {
    found->second.real = real->handle;
    *work_area_bytes = real->work_area_bytes;
    note_work_area(kFftAsked, *work_area_bytes);
  } else {
    *work_area_bytes = assume_work_area(plan);
    note_work_area(kFftAssumed, *work_area_bytes);
  }
  return kSuccess;
}

int cufftSetStream(int, void*) { return kSuccess; }
int cufftSetWorkArea(int, void*) { return kSuccess; }

int cufftXtExec(int, void*, void*, int) {
  memgate_phantom_count_launch();
  return kSuccess;
}

}
