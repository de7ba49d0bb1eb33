// libcudart, kernels: registration at load time, launches that do nothing, attributes and occupancy.
//
// A launch succeeds if the library holds an image of the kernel that the device could run, as on a GPU.
#include <algorithm>
#include <vector>

#include "contents.h"
#include "cudart.h"
#include "device.h"
#include "kernels.h"

using namespace memgate::phantom;

namespace {

cudaError_t launch(const void* function) {
  if (kernel_architecture(function, compute_capability()) == 0) return failed(cudaErrorNoKernelImageForDevice);
  count_launch();
  return cudaSuccess;
}

// Between `<<<...>>>` and the generated wrapper that launches, the configuration waits on this stack.
struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  void* stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

// Registers are not known here, so this is an upper limit; it shapes grids, not allocations.
int blocks_per_multiprocessor(int block_size, size_t shared_bytes) {
  const DeviceSpec spec = resolved_spec();
  int blocks = std::min(spec.blocks_per_multiprocessor, spec.threads_per_multiprocessor / std::max(block_size, 1));
  if (shared_bytes > 0)
    blocks = std::min(blocks, static_cast<int>(spec.shared_bytes_per_multiprocessor / shared_bytes));
  return std::max(blocks, 1);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) { return static_cast<void**>(register_image(wrapper)); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** image) { unregister_image(image); }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 0; }

void __cudaRegisterFunction(void** image, const char* host_function, char*, const char*, int, void*, void*, dim3*,
                            dim3*, int*) {
  register_kernel(image, host_function);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  call_configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (call_configurations.empty()) return failed(cudaErrorInvalidValue);
  const CallConfiguration top = call_configurations.back();
  call_configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<void**>(stream) = top.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch(function);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch(function);
}

cudaError_t cudaLaunchKernelExC(const void* /*configuration*/, const void* function, void**) { return launch(function); }

// From CUDA 13 on the wrapper that nvcc generates goes through a kernel handle. Ours is the function's own address.
cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(void* kernel, dim3, dim3, void**, size_t, cudaStream_t) { return launch(kernel); }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const int architecture = kernel_architecture(function, compute_capability());
  if (architecture == 0) return failed(cudaErrorNoKernelImageForDevice);
  *attributes = cudaFuncAttributes{};
  attributes->binaryVersion = architecture;
  attributes->ptxVersion = architecture;
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}

// More shared memory than the device has is an error that callers use to choose another kernel.
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const bool too_much = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize &&
                        static_cast<size_t>(value) > resolved_spec().shared_bytes_per_block_optin;
  return too_much ? failed(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          size_t shared_bytes) {
  *blocks = blocks_per_multiprocessor(block_size, shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_size,
                                                                   size_t shared_bytes, unsigned int) {
  *blocks = blocks_per_multiprocessor(block_size, shared_bytes);
  return cudaSuccess;
}

}
