// A descriptor's counterpart in the real cuDNN: what is asked of ours is asked of it.
//
// PyTorch gives a handle where it asks for a plan; the real library gets the description of the phantom device there
// instead, and also with the heuristics, which take the handle from the graph. All functions return cuDNN's status, and
// do nothing if the real library is not there.
#pragma once

#include <cstdint>

#include "cudnn_graph.h"

namespace memgate::phantom {

int create_counterpart(BackendDescriptor& descriptor);
void destroy_counterpart(BackendDescriptor& descriptor);

// Passes on what `descriptor` has stored under `name`.
int set_in_counterpart(const BackendDescriptor& descriptor, int name);
int finalize_counterpart(const BackendDescriptor& descriptor);

// `asked` says what is wanted, and if that is descriptors, which ones the answers go into.
int get_from_counterpart(const BackendDescriptor& descriptor, int name, const Attribute& asked, int64_t requested,
                         int64_t* count, void* elements);

}  // namespace memgate::phantom
