// The real cuDNN, where it is installed, answering for the phantom device.
//
// Since version 9.8 cuDNN chooses engines and builds plans for a device that is only described. So PyTorch's own
// questions can be passed on to it, with a description of the phantom where PyTorch gave a handle, and what comes back
// (which engines in which order, which plans are refused, how large each workspace is) is NVIDIA's own answer. It is
// asked for nothing else: no handle is made, nothing is executed.
#pragma once

#include <cstdint>
#include <string>

namespace memgate::phantom {

// The functions of the graph interface, as cudnn_graph.h of cuDNN 9 declares them.
struct RealCudnn {
  int (*create)(int type, void** descriptor);
  int (*destroy)(void* descriptor);
  int (*set)(void* descriptor, int name, int element_type, int64_t count, const void* elements);
  int (*get)(void* descriptor, int name, int element_type, int64_t requested, int64_t* count, void* elements);
  int (*finalize)(void* descriptor);
  void (*last_error)(char* text, size_t length);
};

// Opens the library in `directory`. Returns what went wrong, or nothing. To be called once, before any thread exists
// and before a fork: children then find it loaded.
std::string open_real_cudnn(const std::string& directory);

// Null if it was never opened, or is lost.
const RealCudnn* real_cudnn();

// It has crashed, and must not be called again.
void lose_real_cudnn();
bool is_real_cudnn_lost();

// A finalized descriptor of the phantom device, made at the first call and kept; null if the library refuses it.
void* described_device();

}  // namespace memgate::phantom
