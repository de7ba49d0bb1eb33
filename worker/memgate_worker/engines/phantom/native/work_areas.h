// How large the work areas were that cuFFT and cuSOLVER asked PyTorch for. PyTorch allocates them, so they are in the
// timeline; what is kept here is the largest, to be told wherever its size was assumed.
#pragma once

#include <cstdint>

namespace memgate::phantom {

// Read by worker/memgate_worker/hook/memgate_hook/phantom.py: keep the two alike.
enum WorkArea { kFftAsked = 0, kFftAssumed = 1, kLinalgAssumed = 2, kNumWorkAreas = 3 };

void note_work_area(WorkArea kind, uint64_t bytes);
int64_t largest_work_area(WorkArea kind);  // -1: there was none

}  // namespace memgate::phantom
