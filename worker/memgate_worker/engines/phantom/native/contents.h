// What the phantom's memory is known to contain: small buffers that were copied up from the host.
//
// Turns copies into remembered bytes and reads into bytes plus the answer whether they are known. Kernels leave no
// trace here, so what is remembered may be out of date; see read_back() for what is done about it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memgate::phantom {

// Reads up to this size are control flow (`.item()`, GradScaler's flag) and give zero unless surely known.
inline constexpr size_t kScalarBytes = 16;

void remember_upload(uint64_t address, const void* source, size_t bytes);
void copy_within_device(uint64_t destination, uint64_t source, size_t bytes);
void forget(uint64_t address, size_t bytes);

// Fills `destination` with what is known of the range. Three cases:
// - at most kScalarBytes: zero, unless the bytes were copied up and nothing was launched since. A stale value would be
//   worse than zero: addresses are reused, and a GradScaler flag read as "inf found" skips the optimizer's step.
// - larger and copied up before: those bytes.
// - larger and not known: zeros, and the read is counted in num_data_reads().
void read_back(void* destination, uint64_t address, size_t bytes);

void count_launch();
uint64_t num_launches();
uint64_t num_scalar_reads();
uint64_t launches_before_last_scalar_read();  // 0: there was none
uint64_t num_data_reads();

}  // namespace memgate::phantom
