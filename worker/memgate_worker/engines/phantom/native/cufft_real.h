// The real cuFFT, where it is installed, asked how large the work area of a plan is. It executes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace memgate::phantom {

// The arguments of cufftXtMakePlanMany.
struct FftPlan {
  int rank;
  long long* sizes;
  long long* input_embed;
  long long input_stride;
  long long input_distance;
  int input_type;
  long long* output_embed;
  long long output_stride;
  long long output_distance;
  int output_type;
  long long batch;
  int execution_type;
};

// A plan of the real library.
struct RealFftPlan {
  int handle;
  size_t work_area_bytes;
};

// Opens the library `path`. Returns what went wrong, or nothing. To be called once, before any thread exists and before
// a fork: children then find it loaded.
std::string open_real_cufft(const std::string& path);

// Nothing if it was never opened, or makes no such plan here.
std::optional<RealFftPlan> make_real_plan(const FftPlan& plan);
void destroy_real_plan(int handle);

// What it has taken of the device for itself, for tables that all plans share and for those of each.
uint64_t real_cufft_bytes();

}  // namespace memgate::phantom
