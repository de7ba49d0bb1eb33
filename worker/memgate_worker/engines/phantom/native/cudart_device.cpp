// libcudart, the device: how many, which, what it can do; errors; versions; driver entry points.
//
// As many as there are, all alike. Their description is DeviceSpec; fields that no description has keep the value zero only where
// zero means "not supported" or "no limit known" to PyTorch.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "attributes.h"
#include "cudart.h"
#include "device.h"
#include "driver_calls.h"
#include "refusals.h"

using namespace memgate::phantom;

namespace {
thread_local cudaError_t last_error = cudaSuccess;

bool is_phantom(int device) { return device >= 0 && device < num_devices(); }

cudaError_t fill(cudaDeviceProp* properties, int device) {
  if (!is_phantom(device)) return failed(cudaErrorInvalidDevice);
  const DeviceSpec spec = resolved_spec();
  *properties = cudaDeviceProp{};
  std::snprintf(properties->name, sizeof properties->name, "%s", spec.name.c_str());
  std::memcpy(properties->uuid, "memgate-phantom", sizeof properties->uuid);
  properties->uuid[15] = static_cast<char>(device);
  properties->totalGlobalMem = spec.total_bytes;
  properties->major = spec.compute_major;
  properties->minor = spec.compute_minor;
  properties->multiProcessorCount = spec.multiprocessors;
  properties->warpSize = spec.warp_size;
  properties->sharedMemPerBlock = size_t{48} << 10;
  properties->sharedMemPerBlockOptin = spec.shared_bytes_per_block_optin;
  properties->sharedMemPerMultiprocessor = spec.shared_bytes_per_multiprocessor;
  properties->reservedSharedMemPerBlock = spec.compute_major >= 8 ? 1024 : 0;
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = spec.threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = spec.blocks_per_multiprocessor;
  const int threads_dim[] = {1024, 1024, 64};
  const int grid_dim[] = {2147483647, 65535, 65535};
  std::copy(threads_dim, threads_dim + 3, properties->maxThreadsDim);
  std::copy(grid_dim, grid_dim + 3, properties->maxGridSize);
  properties->totalConstMem = 65536;
  properties->memPitch = 2147483647;
  properties->textureAlignment = 512;
  properties->texturePitchAlignment = 32;
  properties->l2CacheSize = static_cast<int>(spec.l2_bytes);
  properties->memoryBusWidth = spec.memory_bus_bits;
  properties->pciBusID = pci_bus(device);
  properties->canMapHostMemory = 1;
  properties->concurrentKernels = 1;
  properties->asyncEngineCount = 2;
  properties->unifiedAddressing = 1;
  properties->streamPrioritiesSupported = 1;
  properties->globalL1CacheSupported = 1;
  properties->localL1CacheSupported = 1;
  properties->cooperativeLaunch = 1;
  properties->clusterLaunch = spec.compute_major >= 9 ? 1 : 0;
#if MEMGATE_CUDA_VERSION < 13000
  properties->clockRate = spec.clock_khz;
  properties->memoryClockRate = spec.memory_clock_khz;
#endif
  return cudaSuccess;
}

}  // namespace

cudaError_t memgate::phantom::failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}

// PyTorch puts this text into the exception it raises.
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNotSupported: return last_refusal();
    default: return "unknown error";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_devices();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return set_current_device(device) ? cudaSuccess : failed(cudaErrorInvalidDevice); }

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaDeviceReset() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_phantom(device)) return failed(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", pci_bus(device));
  return cudaSuccess;
}

// The devices of one machine reach each other.
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  *can_access = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) { return cudaSuccess; }
cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }

// From CUDA 12 on there are two functions, see kFirstPropertiesBytes; in CUDA 13 only one is left, with all fields.
#if MEMGATE_CUDA_VERSION >= 13000
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) { return fill(properties, device); }
#else
cudaError_t cudaGetDeviceProperties(void* properties, int device) {
  cudaDeviceProp all;
  const cudaError_t status = fill(&all, device);
  if (status == cudaSuccess) std::memcpy(properties, &all, kFirstPropertiesBytes);
  return status;
}

cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device) { return fill(properties, device); }
#endif

cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (!is_phantom(device)) return failed(cudaErrorInvalidDevice);
  if (attribute == kPciBusId) {
    *value = pci_bus(device);
    return cudaSuccess;
  }
  if (device_attribute(attribute, value)) return cudaSuccess;
  const std::string call = "cudaDeviceGetAttribute(" + std::to_string(attribute) + ")";
  return failed(static_cast<cudaError_t>(refuse(call.c_str(), cudaErrorNotSupported)));
}

// The entry points are whatever our libcuda exports: the modelled ones and those that refuse.
static cudaError_t driver_entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
  *function = find_driver_call(symbol);
  if (result != nullptr) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(symbol, function, result);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(symbol, function, result);
}

}
