// libcudnn, the older interface: handles, tensor and filter descriptions, convolutions, batch normalisation.
//
// Batch normalisation needs neither workspace nor reserve space here (the real library's sizes are 0 for most shapes).
// Recurrent networks, CTC and the state of dropout have sizes that only the real library knows: refused by name.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cudnn_workspace.h"
#include "refusals.h"
#include "streams.h"

using namespace memgate::phantom;

namespace {

enum Status { kSuccess = 0, kNotSupported = 3000 };

struct Handle {
  void* stream = nullptr;
};

// A tensor or filter description, kept because PyTorch asks for it when it prints an error.
struct Shape {
  int data_type = 0;
  int format = 0;
  std::vector<int> dims;
  std::vector<int> strides;
};

int create_opaque(void** out) {
  *out = reinterpret_cast<void*>(next_handle());
  return kSuccess;
}

// The documented layout of one answer about an algorithm; the same for all three directions.
struct AlgorithmChoice {
  int algorithm;
  int status;
  float milliseconds;
  size_t workspace_bytes;
  int determinism;
  int math_type;
  int reserved[3];
};

int choose(ConvolutionKind kind, int num_requested, int* num_returned, AlgorithmChoice* choices) {
  *num_returned = num_requested > 0 ? 1 : 0;
  if (*num_returned == 0) return kSuccess;
  choices[0] = AlgorithmChoice{};
  choices[0].workspace_bytes = static_cast<size_t>(convolution_workspace_bytes(kind, nullptr));
  choices[0].determinism = 1;
  return kSuccess;
}

int workspace(ConvolutionKind kind, size_t* bytes) {
  *bytes = static_cast<size_t>(convolution_workspace_bytes(kind, nullptr));
  return kSuccess;
}

void read_shape(const Shape& shape, const std::vector<int>& source, int requested, int* target) {
  for (int index = 0; index < requested && index < static_cast<int>(shape.dims.size()); ++index)
    target[index] = source[static_cast<size_t>(index)];
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return MEMGATE_CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return MEMGATE_CUDA_VERSION; }

int cudnnGetProperty(int property, int* value) {
  const int parts[] = {MEMGATE_CUDNN_VERSION / 10000, MEMGATE_CUDNN_VERSION / 100 % 100, MEMGATE_CUDNN_VERSION % 100};
  if (property < 0 || property > 2) return static_cast<int>(refuse("cudnnGetProperty", kNotSupported));
  *value = parts[property];
  return kSuccess;
}

// These texts end up in PyTorch's exceptions.
const char* cudnnGetErrorString(int status) { return status == kSuccess ? "CUDNN_STATUS_SUCCESS" : last_refusal(); }

void cudnnGetLastErrorString(char* text, size_t length) {
  const char* refusal = last_refusal();
  size_t index = 0;
  for (; index + 1 < length && refusal[index] != '\0'; ++index) text[index] = refusal[index];
  if (length > 0) text[index] = '\0';
}

int cudnnCreate(Handle** handle) {
  *handle = new Handle;
  return kSuccess;
}

int cudnnDestroy(Handle* handle) {
  delete handle;
  return kSuccess;
}

int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return kSuccess;
}

int cudnnGetStream(Handle* handle, void** stream) {
  *stream = handle->stream;
  return kSuccess;
}

int cudnnCreateTensorDescriptor(Shape** shape) {
  *shape = new Shape;
  return kSuccess;
}

int cudnnDestroyTensorDescriptor(Shape* shape) {
  delete shape;
  return kSuccess;
}

int cudnnSetTensorNdDescriptor(Shape* shape, int data_type, int num_dims, const int* dims, const int* strides) {
  *shape = {data_type, 0, {dims, dims + num_dims}, {strides, strides + num_dims}};
  return kSuccess;
}

int cudnnGetTensorNdDescriptor(const Shape* shape, int requested, int* data_type, int* num_dims, int* dims,
                               int* strides) {
  *data_type = shape->data_type;
  *num_dims = static_cast<int>(shape->dims.size());
  read_shape(*shape, shape->dims, requested, dims);
  read_shape(*shape, shape->strides, requested, strides);
  return kSuccess;
}

int cudnnCreateFilterDescriptor(Shape** shape) { return cudnnCreateTensorDescriptor(shape); }
int cudnnDestroyFilterDescriptor(Shape* shape) { return cudnnDestroyTensorDescriptor(shape); }

int cudnnSetFilterNdDescriptor(Shape* shape, int data_type, int format, int num_dims, const int* dims) {
  *shape = {data_type, format, {dims, dims + num_dims}, {}};
  return kSuccess;
}

int cudnnGetFilterNdDescriptor(const Shape* shape, int requested, int* data_type, int* format, int* num_dims,
                               int* dims) {
  *data_type = shape->data_type;
  *format = shape->format;
  *num_dims = static_cast<int>(shape->dims.size());
  read_shape(*shape, shape->dims, requested, dims);
  return kSuccess;
}

int cudnnCreateConvolutionDescriptor(void** descriptor) { return create_opaque(descriptor); }
int cudnnCreateActivationDescriptor(void** descriptor) { return create_opaque(descriptor); }
int cudnnCreatePoolingDescriptor(void** descriptor) { return create_opaque(descriptor); }
int cudnnCreateDropoutDescriptor(void** descriptor) { return create_opaque(descriptor); }
int cudnnCreateSpatialTransformerDescriptor(void** descriptor) { return create_opaque(descriptor); }

using Opaque = const void*;

int cudnnGetConvolutionForwardAlgorithm_v7(Handle*, Opaque, Opaque, Opaque, Opaque, int requested, int* returned,
                                           AlgorithmChoice* choices) {
  return choose(ConvolutionKind::kForward, requested, returned, choices);
}

int cudnnGetConvolutionBackwardDataAlgorithm_v7(Handle*, Opaque, Opaque, Opaque, Opaque, int requested, int* returned,
                                                AlgorithmChoice* choices) {
  return choose(ConvolutionKind::kBackwardData, requested, returned, choices);
}

int cudnnGetConvolutionBackwardFilterAlgorithm_v7(Handle*, Opaque, Opaque, Opaque, Opaque, int requested, int* returned,
                                                  AlgorithmChoice* choices) {
  return choose(ConvolutionKind::kBackwardFilter, requested, returned, choices);
}

int cudnnGetConvolutionForwardWorkspaceSize(Handle*, Opaque, Opaque, Opaque, Opaque, int, size_t* bytes) {
  return workspace(ConvolutionKind::kForward, bytes);
}

int cudnnGetConvolutionBackwardDataWorkspaceSize(Handle*, Opaque, Opaque, Opaque, Opaque, int, size_t* bytes) {
  return workspace(ConvolutionKind::kBackwardData, bytes);
}

int cudnnGetConvolutionBackwardFilterWorkspaceSize(Handle*, Opaque, Opaque, Opaque, Opaque, int, size_t* bytes) {
  return workspace(ConvolutionKind::kBackwardFilter, bytes);
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(Handle*, int, int, Opaque, Opaque, Opaque, Opaque, Opaque,
                                                             size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(Handle*, int, int, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque,
                                                      Opaque, size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(Handle*, int, int, Opaque, Opaque, size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

}
