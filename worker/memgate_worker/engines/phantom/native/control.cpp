// The C interface through which Python reads its counters (ctypes on libmemgate_phantom.so).
//
// May be called before torch initialises CUDA, and in a forked child before it does. Python side: memgate_hook/phantom.py.
#include <cstdlib>
#include <string>

#include "contents.h"
#include "cudnn_real.h"
#include "cufft_real.h"
#include "device.h"
#include "kernels.h"
#include "refusals.h"
#include "streams.h"
#include "work_areas.h"
#include "workspaces.h"

using namespace memgate::phantom;

// PyTorch keeps kernels that NVRTC compiled in the user's home. Ours are empty and must never be found there by a run
// on a real GPU, so the cache is switched off before PyTorch can look.
__attribute__((constructor)) static void keep_out_of_the_kernel_cache() {
  setenv("USE_PYTORCH_KERNEL_CACHE", "0", 1);
}

extern "C" {

// Opens the real cuDNN in `directory`. Returns what went wrong; empty: nothing.
const char* memgate_phantom_open_cudnn(const char* directory) {
  static std::string problem;
  problem = open_real_cudnn(directory);
  return problem.c_str();
}

// 1: it has crashed, and was not asked again.
int memgate_phantom_is_cudnn_lost() { return is_real_cudnn_lost() ? 1 : 0; }

// The same for the real cuFFT, by the path of its library.
const char* memgate_phantom_open_cufft(const char* path) {
  static std::string problem;
  problem = open_real_cufft(path);
  return problem.c_str();
}

// Notes every workspace that cuDNN is lent, with what `position` says then; see workspaces.h.
void memgate_phantom_watch_workspaces(int64_t (*position)()) { watch_workspaces(position); }
int64_t memgate_phantom_num_workspaces() { return num_workspaces(); }
const void* memgate_phantom_workspaces() { return workspaces(); }
int64_t memgate_phantom_num_possible_workspaces() { return num_possible_workspaces(); }
const void* memgate_phantom_possible_workspaces() { return possible_workspaces(); }

// 1: recorded events stay incomplete until set back, so frees of blocks used on several streams wait.
void memgate_phantom_events_pending(int pending) { set_events_pending(pending != 0); }

size_t memgate_phantom_shown_bytes() { return resolved_spec().shown_bytes; }
int memgate_phantom_devices() { return num_devices(); }
size_t memgate_phantom_used_bytes() { return books().used_bytes(); }
size_t memgate_phantom_peak_bytes(int device) { return books(device).peak_bytes(); }
// 1: it has a context.
int memgate_phantom_is_touched(int device) { return is_touched(device) ? 1 : 0; }
unsigned long long memgate_phantom_reads_from_other_ranks() { return num_reads_from_other_ranks(); }
void memgate_phantom_note_from_other_ranks(uint64_t address, size_t bytes) { note_from_other_ranks(address, bytes); }
unsigned long long memgate_phantom_launches() { return num_launches(); }
unsigned long long memgate_phantom_data_sized_results() { return num_data_sized_results(); }
// The largest of a kind (work_areas.h); -1: there was none.
int64_t memgate_phantom_work_area(int kind) { return largest_work_area(static_cast<WorkArea>(kind)); }
unsigned long long memgate_phantom_cufft_bytes() { return real_cufft_bytes(); }
const char* memgate_phantom_unmodelled() { return refused_calls(); }

// For values/; see contents.h.
uint64_t memgate_phantom_num_writes() { return num_writes(); }
uint64_t memgate_phantom_oldest_write(uint64_t address, size_t bytes) { return oldest_write(address, bytes); }
int memgate_phantom_certainty(uint64_t address, size_t bytes) { return certainty_of(address, bytes); }
int memgate_phantom_read(void* destination, uint64_t address, size_t bytes) {
  return read_contents(destination, address, bytes);
}
int memgate_phantom_constant(uint64_t address, size_t bytes, size_t element_bytes, void* element) {
  return find_constant(address, bytes, element_bytes, element);
}
void memgate_phantom_write(uint64_t address, const void* source, size_t bytes, int certainty) {
  write_contents(address, source, bytes, static_cast<Certainty>(certainty));
}
void memgate_phantom_fill(uint64_t address, size_t bytes, const void* element, size_t element_bytes, int certainty) {
  fill_contents(address, bytes, element, element_bytes, static_cast<Certainty>(certainty));
}
void memgate_phantom_forget(uint64_t address, size_t bytes) { forget(address, bytes); }
void memgate_phantom_expect_count(uint64_t count) { expect_count(count); }
void memgate_phantom_end_count() { end_count(); }
void memgate_phantom_note_data_sized_result() { note_data_sized_result(); }

// For generated code.
long memgate_phantom_refuse(const char* call, long status) { return refuse(call, status); }
const char* memgate_phantom_last_refusal() { return last_refusal(); }
void memgate_phantom_count_launch() { count_launch(); }

}
