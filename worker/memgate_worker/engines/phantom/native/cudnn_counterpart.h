// A descriptor's counterpart in the real cuDNN: what is asked of ours is asked of it.
//
// PyTorch gives a handle where it asks for a plan; the real library gets the description of the phantom device there
// instead, and also with the heuristics, which take the handle from the graph. All functions return cuDNN's status, and
// do nothing if the real library is not there.
//
// Some versions crash where they are asked about some devices (9.10 about compute capability 10.0: an engine looks into
// the handle, which a described device has none of). That must not end the job: the crash is caught, the library is never
// called again, and from then on it is as if it were not there. memgate is told (is_real_cudnn_lost).
#pragma once

#include <cstdint>

#include "cudnn_graph.h"

namespace memgate::phantom {

// Whether the real library answers for this descriptor.
bool is_passed_on(const BackendDescriptor& descriptor);

int create_counterpart(BackendDescriptor& descriptor);
void destroy_counterpart(BackendDescriptor& descriptor);

// Passes on what `descriptor` has stored under `name`.
int set_in_counterpart(const BackendDescriptor& descriptor, int name);
int finalize_counterpart(const BackendDescriptor& descriptor);

// `asked` says what is wanted, and if that is descriptors, which ones the answers go into.
int get_from_counterpart(const BackendDescriptor& descriptor, int name, const Attribute& asked, int64_t requested,
                         int64_t* count, void* elements);

}  // namespace memgate::phantom
