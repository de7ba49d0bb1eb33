// What the files of the runtime stand-in share: the last error of the thread.
#pragma once

#include "cuda_api.h"

namespace memgate::phantom {

// Remembers an error for cudaGetLastError and returns it, as every runtime call does.
cudaError_t failed(cudaError_t error);

}  // namespace memgate::phantom
