// The kernels that the process's libraries register, and which compiled image of each the device would run.
//
// Turns the registration calls that nvcc puts into every CUDA library into answers about a kernel. Two are needed:
// its architecture (CUB chooses tuning, and so the size of its temporary storage, by it), and whether it belongs to an
// algorithm whose output size depends on data. It does not read registers or shared memory out of the images.
#pragma once

#include <cstdint>

namespace memgate::phantom {

void* register_image(const void* wrapper);
void register_kernel(void* image, const void* host_function, const char* device_name);
void unregister_image(void* image);

// The architecture (major * 10 + minor) of the image that a device of `capability` would run for this kernel: the
// newest compiled one of the same major version, else PTX for it or older. 0: none, the launch would fail on a GPU.
// A kernel that was never registered counts as compiled for the device itself.
int kernel_architecture(const void* host_function, int capability);

// Counts a launch.
void note_launch(const void* host_function);

// How often an algorithm that selects elements ran next to a read of its count by the host (nonzero, unique, boolean
// masks): what was allocated for the result has the wrong size. A selection whose count stays on the device, as in
// the backward of an embedding, is not counted. A good sign rather than a proof: the caller's operators are not known.
uint64_t num_data_sized_results();

}  // namespace memgate::phantom
