// The kernels that the process's libraries register, and which compiled image of each the device would run.
//
// Turns the registration calls that nvcc puts into every CUDA library into answers about a kernel. One is needed:
// its architecture (CUB chooses tuning, and so the size of its temporary storage, by it). It does not read registers or
// shared memory out of the images.
#pragma once

#include <cstdint>

namespace memgate::phantom {

void* register_image(const void* wrapper);
void register_kernel(void* image, const void* host_function);
void unregister_image(void* image);

// The architecture (major * 10 + minor) of the image that a device of `capability` would run for this kernel: the
// newest compiled one of the same major version, else PTX for it or older. 0: none, the launch would fail on a GPU.
// A kernel that was never registered counts as compiled for the device itself.
int kernel_architecture(const void* host_function, int capability);

}  // namespace memgate::phantom
