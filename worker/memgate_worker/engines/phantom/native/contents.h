// What the phantom's memory contains: bytes that are known, values made up where nothing is known.
//
// Turns uploads, copies, sets and what values/ learns from PyTorch's operators into ranges of bytes, and reads by the
// host into those bytes. A long run of one element takes no more room than the element. Nothing uninitialised is ever
// delivered: where nothing was written, the host reads zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memgate::phantom {

// How far the contents of a range can be relied on; the worst of a range counts.
enum Certainty : int {
  kNothing = 0,  // never written since it was allocated
  kMadeUp = 1,   // a kernel would have computed it; a plausible value stands in
  kKnown = 2,    // what a GPU would have there
};

void remember_upload(uint64_t address, const void* source, size_t bytes);
void copy_within_device(uint64_t destination, uint64_t source, size_t bytes);
void forget(uint64_t address, size_t bytes);

void write_contents(uint64_t address, const void* source, size_t bytes, Certainty certainty);
// The same element (at most 16 bytes) over and over.
void fill_contents(uint64_t address, size_t bytes, const void* element, size_t element_bytes, Certainty certainty);

// Fills `destination`; zeros where there is nothing.
Certainty read_contents(void* destination, uint64_t address, size_t bytes);
// kNothing unless the range holds the same element over and over, which is then copied to `element`.
Certainty find_constant(uint64_t address, size_t bytes, size_t element_bytes, void* element);
Certainty certainty_of(uint64_t address, size_t bytes);

// Every write has a number. The smallest in a range: 0 if a part of it was never written.
uint64_t oldest_write(uint64_t address, size_t bytes);
uint64_t num_writes();

// The host reads a range: its contents, or the count of the operator that is under way (see expect_count).
void read_back(void* destination, uint64_t address, size_t bytes);

// Until the matching call of end_count, integers of 4 or 8 bytes that the host reads on this thread, and that were not
// written for certain meanwhile, are this count: how many elements an operator found.
void expect_count(uint64_t count);
void end_count();

// Marks what another rank would have said: how many tokens it sends, say.
void note_from_other_ranks(uint64_t address, size_t bytes);
// How often such contents were looked at, by the host or to compute others.
uint64_t num_reads_from_other_ranks();

void count_launch();
uint64_t num_launches();

// Results whose size depends on data that is not known.
void note_data_sized_result();
uint64_t num_data_sized_results();

}  // namespace memgate::phantom
