// What the real cuFFT is told of the phantom device, across the border of its link namespace: plain numbers only.
#pragma once

#include <cstdint>

namespace memgate::phantom {

struct InsteadDevice {
  int compute_major;
  int compute_minor;
  int multiprocessors;
  int shared_bytes_per_block_optin;
  int l2_bytes;
  uint64_t total_bytes;
};

using DescribeInstead = void(const InsteadDevice* device);
using CountInstead = uint64_t();

}  // namespace memgate::phantom
