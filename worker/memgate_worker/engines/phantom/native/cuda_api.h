// The few types and numbers of the CUDA runtime and driver that our stand-ins use, for every CUDA from 11.8 on.
//
// NVIDIA's own headers are not used: they would have to be downloaded for each version, and refuse compilers that are
// newer than they are. Only what crosses the boundary is here, as the documentation of the interface gives it; gaps in a
// struct are fields that stay zero. Where versions differ, MEMGATE_CUDA_VERSION (12080 is CUDA 12.8) decides. Checked
// against the real headers by tests/integration/test_environments.py, where a machine has them.
#pragma once

#include <cstddef>
#include <cstdint>

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorNotSupported = 801,
};

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using CUstream = cudaStream_t;
using CUevent = cudaEvent_t;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;

enum cudaMemcpyKind : int { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaMemoryType : int {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3,
};
enum cudaFuncAttribute : int { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureStatus : int { cudaStreamCaptureStatusNone = 0 };
enum cudaStreamCaptureMode : int { cudaStreamCaptureModeGlobal = 0 };
enum cudaDriverEntryPointQueryResult : int { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };

using cudaHostFn_t = void (*)(void* data);
using cudaStreamCallback_t = void (*)(cudaStream_t stream, cudaError_t status, void* data);

struct dim3 {
  unsigned int x, y, z;
};

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
#if MEMGATE_CUDA_VERSION >= 13000
  long reserved[8];
#endif
};

struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  size_t constSizeBytes;
  size_t localSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
  int ptxVersion;
  int binaryVersion;
  int cacheModeCA;
  int maxDynamicSharedSizeBytes;
#if MEMGATE_CUDA_VERSION >= 12000
  char gap[96];
#else
  char gap[8];
#endif
};

struct cudaDeviceProp {
  char name[256];
  char uuid[16];
  char gap_a[16];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;  // a gap from CUDA 13 on
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
#if MEMGATE_CUDA_VERSION >= 13000
  int multiProcessorCount;
  char gap_b[4];
  int canMapHostMemory;
  char gap_c[164];
  int concurrentKernels;
  char gap_d[4];
  int pciBusID;
  char gap_e[12];
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryBusWidth;
  int l2CacheSize;
  char gap_f[4];
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  char gap_g[4];
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  char gap_h[32];
  int cooperativeLaunch;
  size_t sharedMemPerBlockOptin;
  char gap_i[8];
  int maxBlocksPerMultiProcessor;
  char gap_j[4];
  size_t reservedSharedMemPerBlock;
  char gap_k[44];
  int clusterLaunch;
  char gap_l[256];
#else
  char gap_b[4];
  int multiProcessorCount;
  char gap_c[8];
  int canMapHostMemory;
  char gap_d[172];
  int concurrentKernels;
  char gap_e[4];
  int pciBusID;
  char gap_f[12];
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryClockRate;
  int memoryBusWidth;
  int l2CacheSize;
  char gap_g[4];
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  char gap_h[36];
  int cooperativeLaunch;
  char gap_i[4];
  size_t sharedMemPerBlockOptin;
  char gap_j[8];
  int maxBlocksPerMultiProcessor;
  char gap_k[4];
  size_t reservedSharedMemPerBlock;
  // CUDA 11 ends here; cudaGetDeviceProperties of CUDA 12 gives no more either, cudaGetDeviceProperties_v2 does.
  char gap_l[44];
  int clusterLaunch;
  char gap_m[256];
#endif
};

// How much of it cudaGetDeviceProperties of CUDA 11 and 12 fills.
inline constexpr size_t kFirstPropertiesBytes = 728;
static_assert(sizeof(cudaDeviceProp) == (MEMGATE_CUDA_VERSION >= 13000 ? 1008 : 1032));
static_assert(sizeof(cudaFuncAttributes) == (MEMGATE_CUDA_VERSION >= 12000 ? 144 : 56));

// Questions about the device; the runtime and the driver use the same numbers.
enum DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockDimX = 2,
  kMaxBlockDimY = 3,
  kMaxBlockDimZ = 4,
  kMaxGridDimX = 5,
  kMaxGridDimY = 6,
  kMaxGridDimZ = 7,
  kSharedBytesPerBlock = 8,
  kConstantBytes = 9,
  kWarpSize = 10,
  kMaxPitch = 11,
  kRegistersPerBlock = 12,
  kClockKhz = 13,
  kTextureAlignment = 14,
  kMultiprocessors = 16,
  kIntegrated = 18,
  kCanMapHostMemory = 19,
  kComputeMode = 20,
  kConcurrentKernels = 31,
  kEccEnabled = 32,
  kPciBusId = 33,
  kPciDeviceId = 34,
  kMemoryClockKhz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kThreadsPerMultiprocessor = 39,
  kAsyncEngines = 40,
  kUnifiedAddressing = 41,
  kPciDomainId = 50,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kStreamPriorities = 78,
  kSharedBytesPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kManagedMemory = 83,
  kPageableMemoryAccess = 88,
  kConcurrentManagedAccess = 89,
  kComputePreemption = 90,
  kHostPointerForRegistered = 91,
  kCooperativeLaunch = 95,
  kSharedBytesPerBlockOptin = 97,
  kHostRegister = 99,
  kVirtualMemoryManagement = 102,
  kBlocksPerMultiprocessor = 106,
  kRdmaWithVirtualMemory = 110,
  kReservedSharedBytesPerBlock = 111,
  kMemoryPools = 115,
  kClusterLaunch = 120,
  kFabricHandles = 128,
  kMulticast = 132,
};
