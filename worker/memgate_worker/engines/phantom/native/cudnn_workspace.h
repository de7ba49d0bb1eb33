// The one place where the size of a convolution's workspace is decided where the real cuDNN is not there to be asked
// (cudnn_counterpart.h): 0 bytes, which is what many plans need.
//
// No rule in its stead: "a copy of each operand in the other layout" is what the real library wants for many shapes on
// compute capability 8.0 and up, but for which ones changes with its version. Three such rules were tried on measured
// jobs (for all operands, only for filters larger than 1 x 1, only backward to the filter); none beat 0 bytes. What such
// a copy may do to the memory that a job needs is part of its bound: see `copies_bytes` and possible_workspaces.py.
#pragma once

#include <cstdint>

namespace memgate::phantom {

class BackendDescriptor;

enum class ConvolutionKind { kForward, kBackwardData, kBackwardFilter };

// What a copy of every operand takes: of the filter and of the two images.
int64_t copies_bytes(const BackendDescriptor& graph);

// `graph` is the operation graph of the graph interface; null for the older interface, whose descriptors are not kept.
inline int64_t convolution_workspace_bytes(ConvolutionKind /*kind*/, const BackendDescriptor* /*graph*/) { return 0; }

}  // namespace memgate::phantom
