// libcudart, order: streams, events, host callbacks, and the queries about capture.
//
// All work is done the moment it is given, so every stream is idle and every event complete (unless a test asks for
// pending ones). Capturing into a graph is refused by name.
#include "cudart.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

cudaStream_t new_stream() { return reinterpret_cast<cudaStream_t>(next_handle()); }
cudaEvent_t new_event() { return reinterpret_cast<cudaEvent_t>(next_handle()); }

// What a GPU reports: smaller numbers go first.
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = new_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = new_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned int) { return cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = kLeastPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned int* flags) {
  *flags = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  const cudaStreamCaptureMode previous = current;
  current = *mode;
  *mode = previous;
  return cudaSuccess;
}

#if MEMGATE_CUDA_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     void** graph, void** dependencies, void** edges, size_t* num_dependencies) {
  if (edges != nullptr) *edges = nullptr;
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                        void** graph, void** dependencies, size_t* num_dependencies) {
#endif
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (num_dependencies != nullptr) *num_dependencies = 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new_event();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned int) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return events_pending() ? failed(cudaErrorNotReady) : cudaSuccess; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = kElapsedMilliseconds;
  return cudaSuccess;
}

// Nothing is recorded by a profiler that is not there.
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}
