// Device attributes; see attributes.h.
#include "attributes.h"

#include "cuda_api.h"
#include "device.h"

namespace memgate::phantom {
namespace {

// Numbers that follow from the description of the device.
bool described_attribute(int attribute, int* value) {
  const DeviceSpec spec = resolved_spec();
  switch (attribute) {
    case kComputeMajor: *value = spec.compute_major; return true;
    case kComputeMinor: *value = spec.compute_minor; return true;
    case kMultiprocessors: *value = spec.multiprocessors; return true;
    case kWarpSize: *value = spec.warp_size; return true;
    case kThreadsPerMultiprocessor: *value = spec.threads_per_multiprocessor; return true;
    case kBlocksPerMultiprocessor: *value = spec.blocks_per_multiprocessor; return true;
    case kSharedBytesPerBlockOptin: *value = static_cast<int>(spec.shared_bytes_per_block_optin); return true;
    case kSharedBytesPerMultiprocessor: *value = static_cast<int>(spec.shared_bytes_per_multiprocessor); return true;
    case kReservedSharedBytesPerBlock: *value = spec.compute_major >= 8 ? 1024 : 0; return true;
    case kClusterLaunch: *value = spec.compute_major >= 9 ? 1 : 0; return true;
    case kL2Bytes: *value = static_cast<int>(spec.l2_bytes); return true;
    case kMemoryBusBits: *value = spec.memory_bus_bits; return true;
    case kClockKhz: *value = spec.clock_khz; return true;
    case kMemoryClockKhz: *value = spec.memory_clock_khz; return true;
    default: return false;
  }
}

// Numbers that are the same for every GPU since Pascal.
bool common_attribute(int attribute, int* value) {
  switch (attribute) {
    case kMaxThreadsPerBlock: *value = 1024; return true;
    case kMaxBlockDimX: *value = 1024; return true;
    case kMaxBlockDimY: *value = 1024; return true;
    case kMaxBlockDimZ: *value = 64; return true;
    case kMaxGridDimX: *value = 2147483647; return true;
    case kMaxGridDimY: *value = 65535; return true;
    case kMaxGridDimZ: *value = 65535; return true;
    case kSharedBytesPerBlock: *value = 48 << 10; return true;
    case kRegistersPerBlock: *value = 65536; return true;
    case kRegistersPerMultiprocessor: *value = 65536; return true;
    case kConstantBytes: *value = 65536; return true;
    case kMaxPitch: *value = 2147483647; return true;
    case kTextureAlignment: *value = 512; return true;
    case kPciBusId: *value = 1; return true;
    case kAsyncEngines: *value = 2; return true;
    default: return false;
  }
}

// What a single card answers: no NVLink, no fabric, not part of the processor. Managed memory and memory pools are said
// to be missing, so that programs which ask first take the ordinary way.
bool ability(int attribute, int* value) {
  switch (attribute) {
    case kCanMapHostMemory:
    case kConcurrentKernels:
    case kUnifiedAddressing:
    case kStreamPriorities:
    case kComputePreemption:
    case kHostPointerForRegistered:
    case kCooperativeLaunch:
    case kHostRegister:
    case kVirtualMemoryManagement: *value = 1; return true;
    case kIntegrated:
    case kComputeMode:  // shared by all processes
    case kEccEnabled:
    case kPciDeviceId:
    case kPciDomainId:
    case kManagedMemory:
    case kPageableMemoryAccess:
    case kConcurrentManagedAccess:
    case kMemoryPools:
    case kRdmaWithVirtualMemory:
    case kFabricHandles:
    case kMulticast: *value = 0; return true;
    default: return false;
  }
}

}  // namespace

bool device_attribute(int attribute, int* value) {
  return described_attribute(attribute, value) || common_attribute(attribute, value) || ability(attribute, value);
}

}  // namespace memgate::phantom
