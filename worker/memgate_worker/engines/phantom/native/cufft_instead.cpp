// What the real cuFFT finds where it looks for the driver: a device to plan for, and nothing that executes.
//
// To make a plan cuFFT asks what the device is, loads its kernels, asks what they need, copies tables to the device and
// fills some by kernels. All of that succeeds here and does nothing; memory is counted and not held. Of all answers
// only the compute capability and the shared memory were seen to change a work area: registers, threads, occupancy,
// multiprocessors, cache and memory did not (cuFFT of CUDA 12.4, 12.8 and 13; 3,000 plans for each).
//
// It also asks the driver for two tables of functions that NVIDIA does not document, for two things: the number of a
// context, and the kernels in a module. Another table, or another function of these, is refused; cuFFT then makes no
// plan, and the work area is assumed as where there is no cuFFT at all.
#include "cufft_instead.h"

#include <cstddef>
#include <cstring>

namespace {

using namespace memgate::phantom;

enum Result { kSuccess = 0, kNotFound = 500, kNotSupported = 801 };

InsteadDevice device{8, 0, 108, 163 << 10, 40 << 20, uint64_t{80} << 30};

// A phantom address is the number of its allocation and its size, so that nothing has to be looked up to free it.
constexpr int kSizeBits = 40;
constexpr uint64_t kAlignment = 512;
uint64_t num_allocations = 0;
uint64_t used_bytes = 0;

// Handles are only passed back.
void* const kContext = reinterpret_cast<void*>(0x10);
void* const kModule = reinterpret_cast<void*>(0x20);
void* const kKernel = reinterpret_cast<void*>(0x30);
constexpr uint64_t kGlobalAddress = uint64_t{1} << 62;

constexpr int kBufferId = 7;  // of the attributes of a pointer

int attribute_of_device(int attribute) {
  switch (attribute) {
    case 8: return 48 << 10;  // shared memory of a block
    case 10: return 32;  // threads of a warp
    case 16: return device.multiprocessors;
    case 38: return device.l2_bytes;
    case 75: return device.compute_major;
    case 76: return device.compute_minor;
    case 97: return device.shared_bytes_per_block_optin;
    default: return 0;
  }
}

int attribute_of_kernel(int attribute) {
  switch (attribute) {
    case 0: return 1024;  // threads of a block
    case 4: return 64;  // registers of a thread
    case 5:
    case 6: return device.compute_major * 10 + device.compute_minor;  // what it was compiled for
    case 8: return device.shared_bytes_per_block_optin;
    default: return 0;
  }
}

using Uuid = unsigned char[16];
constexpr Uuid kOfContexts = {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48,
                              0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2};
constexpr Uuid kOfModules = {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d,
                             0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e};
constexpr size_t kNumSlots = 40;

int64_t not_supported() { return kNotSupported; }

int64_t number_of_context(void*, uint64_t* number) {
  *number = 1;
  return kSuccess;
}

// Gives each kernel of a module to `take`; how many there were.
int64_t kernels_of_module(void*, void* module, void (*take)(void*, void*, void*), void* given) {
  take(given, kKernel, module);
  return 1;
}

// Its first entry is how many bytes it has.
struct Table {
  void* slots[kNumSlots];

  Table(size_t index, void* function) {
    slots[0] = reinterpret_cast<void*>(sizeof slots);
    for (size_t i = 1; i < kNumSlots; ++i) slots[i] = reinterpret_cast<void*>(&not_supported);
    slots[index] = function;
  }
};

Table of_contexts(4, reinterpret_cast<void*>(&number_of_context));
Table of_modules(7, reinterpret_cast<void*>(&kernels_of_module));

}  // namespace

extern "C" {

void memgate_instead_describe(const InsteadDevice* described) { device = *described; }
uint64_t memgate_instead_used_bytes() { return __atomic_load_n(&used_bytes, __ATOMIC_RELAXED); }

int cuInit(unsigned) { return kSuccess; }

int cuDriverGetVersion(int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return kSuccess;
}

int cuGetExportTable(void** table, const void* id) {
  const Table* found = nullptr;
  if (std::memcmp(id, kOfContexts, sizeof(Uuid)) == 0) found = &of_contexts;
  if (std::memcmp(id, kOfModules, sizeof(Uuid)) == 0) found = &of_modules;
  if (found == nullptr) return kNotFound;
  *table = const_cast<void**>(found->slots);
  return kSuccess;
}

int cuGetErrorName(int, const char** text) {
  *text = "no error is explained here";
  return kSuccess;
}

int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

int cuDeviceGet(int* ordinal, int wanted) {
  *ordinal = wanted;
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute_of_device(attribute);
  return kSuccess;
}

int cuDeviceGetName(char* text, int length, int) {
  std::strncpy(text, "phantom", static_cast<size_t>(length));
  return kSuccess;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = device.total_bytes;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = kContext;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease(int) { return kSuccess; }

int cuCtxGetCurrent(void** context) {
  *context = kContext;
  return kSuccess;
}

int cuCtxGetDevice(int* ordinal) {
  *ordinal = 0;
  return kSuccess;
}

int cuCtxPushCurrent_v2(void*) { return kSuccess; }
int cuCtxPopCurrent_v2(void** context) { return context == nullptr ? kSuccess : cuCtxGetCurrent(context); }
int cuCtxSetCurrent(void*) { return kSuccess; }
int cuCtxSynchronize() { return kSuccess; }

int cuModuleLoadData(void** module, const void*) {
  *module = kModule;
  return kSuccess;
}

int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(module, image);
}

int cuModuleUnload(void*) { return kSuccess; }

int cuModuleGetFunction(void** kernel, void*, const char*) {
  *kernel = kKernel;
  return kSuccess;
}

int cuModuleGetGlobal_v2(uint64_t* address, size_t* bytes, void*, const char*) {
  if (address != nullptr) *address = kGlobalAddress;
  if (bytes != nullptr) *bytes = sizeof(uint64_t);
  return kSuccess;
}

int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute_of_kernel(attribute);
  return kSuccess;
}

int cuFuncSetAttribute(void*, int, int) { return kSuccess; }
int cuFuncSetCacheConfig(void*, int) { return kSuccess; }

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void*, int, size_t) {
  *count = 1;
  return kSuccess;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = device.total_bytes;
  return kSuccess;
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  __atomic_add_fetch(&used_bytes, rounded, __ATOMIC_RELAXED);
  *address = __atomic_add_fetch(&num_allocations, 1, __ATOMIC_RELAXED) << kSizeBits | rounded;
  return kSuccess;
}

int cuMemFree_v2(uint64_t address) {
  __atomic_sub_fetch(&used_bytes, address & ((uint64_t{1} << kSizeBits) - 1), __ATOMIC_RELAXED);
  return kSuccess;
}

int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  if (attribute != kBufferId) return kNotSupported;
  *static_cast<uint64_t*>(value) = address >> kSizeBits;
  return kSuccess;
}

int cuPointerGetAttributes(unsigned count, const int* attributes, void** values, uint64_t address) {
  for (unsigned i = 0; i < count; ++i) {
    if (cuPointerGetAttribute(values[i], attributes[i], address) != kSuccess) return kNotSupported;
  }
  return kSuccess;
}

int cuMemcpyHtoD_v2(uint64_t, const void*, size_t) { return kSuccess; }
int cuMemcpyHtoDAsync_v2(uint64_t, const void*, size_t, void*) { return kSuccess; }
int cuMemsetD8_v2(uint64_t, unsigned char, size_t) { return kSuccess; }
int cuLaunchKernel() { return kSuccess; }

int cuStreamIsCapturing(void*, int* state) {
  *state = 0;
  return kSuccess;
}

// It looks these up before it knows whether it will use them, and does without a device if one is missing.
#define REFUSED(name) \
  int name() { return kNotSupported; }
REFUSED(cuCtxDisablePeerAccess)
REFUSED(cuCtxEnablePeerAccess)
REFUSED(cuDeviceCanAccessPeer)
REFUSED(cuEventCreate)
REFUSED(cuEventDestroy_v2)
REFUSED(cuEventElapsedTime)
REFUSED(cuEventQuery)
REFUSED(cuEventRecord)
REFUSED(cuEventSynchronize)
REFUSED(cuGetProcAddress)
REFUSED(cuGetProcAddress_v2)
REFUSED(cuGraphDestroy)
REFUSED(cuGraphExecDestroy)
REFUSED(cuGraphExecKernelNodeSetParams)
REFUSED(cuGraphGetNodes)
REFUSED(cuGraphInstantiate)
REFUSED(cuGraphKernelNodeGetParams)
REFUSED(cuGraphLaunch)
REFUSED(cuGraphNodeGetType)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuLinkDestroy)
REFUSED(cuMemPrefetchAsync)
REFUSED(cuMemcpy)
REFUSED(cuMemcpy2DAsync_v2)
REFUSED(cuMemcpy2D_v2)
REFUSED(cuMemcpyAsync)
REFUSED(cuMemcpyDtoDAsync_v2)
REFUSED(cuMemcpyDtoHAsync_v2)
REFUSED(cuStreamBatchMemOp)
REFUSED(cuStreamBeginCapture_v2)
REFUSED(cuStreamCreate)
REFUSED(cuStreamDestroy_v2)
REFUSED(cuStreamEndCapture)
REFUSED(cuStreamGetCtx)
REFUSED(cuStreamSynchronize)
REFUSED(cuStreamWaitEvent)
REFUSED(cuStreamWaitValue32)
#undef REFUSED

}
