// What the values library asks of the phantom's core: the C interface of ../control.cpp, explained in ../contents.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../contents.h"

extern "C" {
uint64_t memgate_phantom_num_writes();
uint64_t memgate_phantom_oldest_write(uint64_t address, size_t bytes);
int memgate_phantom_certainty(uint64_t address, size_t bytes);
int memgate_phantom_read(void* destination, uint64_t address, size_t bytes);
int memgate_phantom_constant(uint64_t address, size_t bytes, size_t element_bytes, void* element);
void memgate_phantom_write(uint64_t address, const void* source, size_t bytes, int certainty);
void memgate_phantom_fill(uint64_t address, size_t bytes, const void* element, size_t element_bytes, int certainty);
void memgate_phantom_forget(uint64_t address, size_t bytes);
void memgate_phantom_expect_count(uint64_t count);
void memgate_phantom_end_count();
void memgate_phantom_note_data_sized_result();
}
