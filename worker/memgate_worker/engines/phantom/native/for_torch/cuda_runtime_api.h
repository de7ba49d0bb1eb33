// What PyTorch's own headers mention of CUDA, so that tracker.cpp compiles against them without NVIDIA's headers.
//
// The tracker calls none of these functions: they stand in inline functions of PyTorch's that it does not use. So each
// is declared for any arguments, which serves every version, and defined nowhere. Found before any CUDA toolkit that a
// machine may have, because this folder comes first.
#pragma once

#include <cstddef>

#define CUDA_VERSION MEMGATE_CUDA_VERSION
#define CUDART_VERSION MEMGATE_CUDA_VERSION
#define CUDART_CB

enum cudaError { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
enum cudaMemcpyKind { cudaMemcpyHostToHost = 0 };
enum { cudaUserObjectNoDestructorSync = 1, cudaGraphUserObjectMove = 1, cudaEventDisableTiming = 2 };

using cudaError_t = cudaError;
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaUserObject_t = struct CUuserObject_st*;
using cudaHostFn_t = void (*)(void*);
using cudaMemPool_t = struct CUmemPoolHandle_st*;
struct cudaDeviceProp;
struct cudaIpcMemHandle_t {
  char reserved[64];
};
struct cudaIpcEventHandle_t {
  char reserved[64];
};

template <typename... Arguments> const char* cudaGetErrorString(Arguments...);
template <typename... Arguments> const char* cudaGetErrorName(Arguments...);

#define MEMGATE_DECLARE(name) template <typename... Arguments> cudaError_t name(Arguments...);
MEMGATE_DECLARE(cudaDeviceGetStreamPriorityRange)
MEMGATE_DECLARE(cudaDeviceSynchronize)
MEMGATE_DECLARE(cudaEventCreateWithFlags)
MEMGATE_DECLARE(cudaEventDestroy)
MEMGATE_DECLARE(cudaEventElapsedTime)
MEMGATE_DECLARE(cudaEventQuery)
MEMGATE_DECLARE(cudaEventRecord)
MEMGATE_DECLARE(cudaEventSynchronize)
MEMGATE_DECLARE(cudaFree)
MEMGATE_DECLARE(cudaGetDevice)
MEMGATE_DECLARE(cudaGetLastError)
MEMGATE_DECLARE(cudaGraphRetainUserObject)
MEMGATE_DECLARE(cudaMalloc)
MEMGATE_DECLARE(cudaMemGetInfo)
MEMGATE_DECLARE(cudaMemcpyAsync)
MEMGATE_DECLARE(cudaPeekAtLastError)
MEMGATE_DECLARE(cudaSetDevice)
MEMGATE_DECLARE(cudaStreamGetCaptureInfo)
MEMGATE_DECLARE(cudaStreamGetCaptureInfo_v2)
MEMGATE_DECLARE(cudaStreamGetPriority)
MEMGATE_DECLARE(cudaStreamIsCapturing)
MEMGATE_DECLARE(cudaStreamQuery)
MEMGATE_DECLARE(cudaStreamSynchronize)
MEMGATE_DECLARE(cudaStreamWaitEvent)
MEMGATE_DECLARE(cudaThreadExchangeStreamCaptureMode)
MEMGATE_DECLARE(cudaUserObjectCreate)
MEMGATE_DECLARE(cudaUserObjectRelease)
#undef MEMGATE_DECLARE
