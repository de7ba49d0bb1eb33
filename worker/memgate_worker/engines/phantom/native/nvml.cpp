// libnvidia-ml.so.1: what PyTorch, its Python side and monitoring tools ask about the card.
//
// No header of NVML is used: handles are opaque and the structs below are the documented layouts of the calls
// implemented. A question that a plain card without NVLink or fabric cannot answer gets NVML's own "not supported".
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "device.h"

using namespace memgate::phantom;

namespace {

enum Status { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kInsufficientSize = 7 };

struct Memory {
  unsigned long long total, free, used;
};

struct ProcessV1 {
  unsigned int pid;
  unsigned long long used_bytes;
};

struct ProcessV2 {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

using Handle = void*;
constexpr uintptr_t kFirstCard = 0x10;

Handle card(int device) { return reinterpret_cast<Handle>(kFirstCard + static_cast<uintptr_t>(device)); }
int device_of(Handle handle) { return static_cast<int>(reinterpret_cast<uintptr_t>(handle) - kFirstCard); }

unsigned long long bytes_in_use(Handle handle) {
  return resolved_spec().context_bytes + books(device_of(handle)).used_bytes();
}

// This process is the only one on the card.
template <typename Process>
int list_processes(Handle handle, unsigned int* count, Process* processes) {
  const bool fits = processes != nullptr && *count >= 1;
  *count = 1;
  if (!fits) return kInsufficientSize;
  processes[0] = Process{};
  processes[0].pid = static_cast<unsigned int>(getpid());
  processes[0].used_bytes = bytes_in_use(handle);
  return kSuccess;
}

int digit_of(char letter) {
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  return letter >= '0' && letter <= '9' ? letter - '0' : 0;
}

int write_text(char* text, unsigned int length, const char* value) {
  if (std::strlen(value) + 1 > length) return kInsufficientSize;
  std::snprintf(text, length, "%s", value);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit() { return kSuccess; }
int nvmlInit_v2() { return kSuccess; }
int nvmlInitWithFlags(unsigned int) { return kSuccess; }
int nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(int status) {
  switch (status) {
    case kSuccess: return "Success";
    case kInvalidArgument: return "Invalid Argument";
    case kNotSupported: return "Not Supported";
    case kInsufficientSize: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(num_devices());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Handle* handle) {
  *handle = card(static_cast<int>(index));
  return static_cast<int>(index) < num_devices() ? kSuccess : kInvalidArgument;
}

// Cards are numbered by their bus, the last but two of "00000000:01:00.0".
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Handle* handle) {
  const char* colon = std::strchr(bus, ':');
  const int number = colon == nullptr ? 1 : digit_of(colon[1]) * 16 + digit_of(colon[1] == '\0' ? '0' : colon[2]);
  *handle = card(number - 1);
  return number >= 1 && number <= num_devices() ? kSuccess : kInvalidArgument;
}

// The last two digits are the card's number.
int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  const size_t length = std::strlen(uuid);
  const int number = length < 2 ? 0 : digit_of(uuid[length - 2]) * 16 + digit_of(uuid[length - 1]);
  *handle = card(number);
  return number < num_devices() ? kSuccess : kInvalidArgument;
}

int nvmlDeviceGetName(Handle, char* text, unsigned int length) {
  return write_text(text, length, resolved_spec().name.c_str());
}

int nvmlDeviceGetUUID(Handle handle, char* text, unsigned int length) {
  char uuid[41];
  std::snprintf(uuid, sizeof uuid, "GPU-6d656d67-6174-652d-7068-616e746f6d%02x", device_of(handle) & 0xff);
  return write_text(text, length, uuid);
}

int nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  memory->total = resolved_spec().shown_bytes;
  memory->free = books(device_of(handle)).free_bytes();
  memory->used = memory->total - memory->free;
  return kSuccess;
}

// The name without a suffix is the first version of the call, whose struct ends after the bytes.
int nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned int* count, ProcessV1* processes) {
  return list_processes(handle, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned int* count, ProcessV2* processes) {
  return list_processes(handle, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned int* count, ProcessV2* processes) {
  return list_processes(handle, count, processes);
}

int nvmlSystemGetCudaDriverVersion(int* version) {
  *version = MEMGATE_CUDA_VERSION;
  return kSuccess;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned int, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned int, void*) { return kNotSupported; }
int nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return kNotSupported; }
int nvmlDeviceGetP2PStatus(Handle, Handle, int, int*) { return kNotSupported; }

}
