// Opening the real cuDNN beside our own; see cudnn_real.h.
#include "cudnn_real.h"

#include <unistd.h>

#include <atomic>
#include <optional>

#include "device.h"
#include "link_namespace.h"

namespace memgate::phantom {
namespace {

enum { kDeviceProperties = 38, kDevicePropertiesJson = 2702, kChar = 24 };

constexpr size_t kFirstDevicelessVersion = 90800;

// What cuDNN opens by name when it is first asked. Loaded ahead, so that no job waits for it; which of them exist
// depends on the version.
constexpr const char* kParts[] = {
    "libcudnn_heuristic.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
    "libcudnn_engines_tensor_ir.so.9",
};

std::optional<RealCudnn> opened;
std::atomic<bool> is_lost{false};

// Its keys are those of the real library's own serialization. Of all of them only the compute capability was seen to
// change a choice for convolutions (cuDNN 9.27; every number below varied, on 8.0, 8.6 and 8.9).
std::string to_json(const DeviceSpec& spec) {
  const auto field = [](const char* name, auto value) {
    return "\"" + std::string(name) + "\":" + std::to_string(value) + ",";
  };
  return "{" + field("deviceVer", spec.compute_major * 100 + spec.compute_minor * 10) +
         field("multiProcessorCount", spec.multiprocessors) + field("smCountOrigin", 0) +
         field("warpSize", spec.warp_size) + field("maxSharedMemoryPerBlock", 48 << 10) +
         field("maxSharedMemoryPerBlockOptin", spec.shared_bytes_per_block_optin) +
         field("reservedSharedMemoryPerBlock", spec.compute_major >= 8 ? 1024 : 0) +
         field("oversizedSharedMemoryPerBlock", 0) + field("maxRegistersPerSM", 65536) + field("regsPerBlock", 65536) +
         field("maxCtasPerSM", spec.blocks_per_multiprocessor) + field("maxThreadsPerBlock", 1024) +
         field("maxThreadsPerSM", spec.threads_per_multiprocessor) + field("totalGlobalMem", spec.total_bytes) +
         field("smClockRateKHz", spec.clock_khz) + field("memClockRateKHz", spec.memory_clock_khz) +
         field("memoryBusWidth", spec.memory_bus_bits) + field("l2CacheSize", spec.l2_bytes) +
         "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]," + field("supportCoopLaunch", 1) +
         field("pciDeviceId", 0) + field("isTccDriver", 0) + field("cudaDeviceId", 0) +
         field("driverVer", MEMGATE_CUDA_VERSION) + "\"deviceName\":\"phantom\"}";
}

void* describe(const RealCudnn& real, const DeviceSpec& spec) {
  void* descriptor = nullptr;
  const std::string json = to_json(spec);
  if (real.create(kDeviceProperties, &descriptor) != 0) return nullptr;
  const auto length = static_cast<int64_t>(json.size());
  if (real.set(descriptor, kDevicePropertiesJson, kChar, length, json.data()) != 0) return nullptr;
  return real.finalize(descriptor) == 0 ? descriptor : nullptr;
}

}  // namespace

std::string open_real_cudnn(const std::string& directory) {
  LinkNamespace libraries;
  const std::string instead = own_directory() + "/instead/";
  const std::string cublaslt = "libcublasLt.so." + std::to_string(MEMGATE_CUDA_VERSION / 1000);
  for (const std::string& name : {std::string("libcuda.so.1"), cublaslt}) {
    if (libraries.open(instead + name) == nullptr) return last_problem();
  }
  void* graph = libraries.open(directory + "/libcudnn_graph.so.9");
  if (graph == nullptr) return last_problem();
  size_t (*version)() = nullptr;
  RealCudnn real{};
  const bool complete = find_function(graph, "cudnnGetVersion", version) &&
                        find_function(graph, "cudnnBackendCreateDescriptor", real.create) &&
                        find_function(graph, "cudnnBackendDestroyDescriptor", real.destroy) &&
                        find_function(graph, "cudnnBackendSetAttribute", real.set) &&
                        find_function(graph, "cudnnBackendGetAttribute", real.get) &&
                        find_function(graph, "cudnnBackendFinalize", real.finalize) &&
                        find_function(graph, "cudnnGetLastErrorString", real.last_error);
  if (!complete) return last_problem();
  if (version() < kFirstDevicelessVersion)
    return "cuDNN " + std::to_string(version()) + " cannot plan for a described device; 9.8 and later can";
  for (const char* part : kParts) {
    const std::string path = directory + "/" + part;
    if (access(path.c_str(), R_OK) == 0 && libraries.open(path) == nullptr) return last_problem();
  }
  opened = real;
  return "";
}

const RealCudnn* real_cudnn() { return opened && !is_lost ? &*opened : nullptr; }

void lose_real_cudnn() { is_lost = true; }

bool is_real_cudnn_lost() { return is_lost; }

void* described_device() {
  static void* const device = opened ? describe(*opened, resolved_spec()) : nullptr;
  return device;
}

}  // namespace memgate::phantom
