// Memory as both the runtime and the driver handle it: copies and sets, pinned and managed host memory.
//
// Copies between host and device go to contents.h, and so do sets: what was set is known.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memgate::phantom {

inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// The kind a caller names adds nothing: the addresses tell which side is the device.
void copy(void* destination, const void* source, size_t bytes);
void copy_rows(void* destination, size_t destination_pitch, const void* source, size_t source_pitch, size_t width,
               size_t height);
// Fills with a pattern of `unit` bytes, as often as it fits.
void set(void* pointer, const void* pattern, size_t unit, size_t bytes);

// Memory of the device. Null: it does not fit, or nothing was asked for.
void* allocate_on_device(size_t bytes);

// Host memory that the device could reach; null if there is none left.
void* allocate_pinned(size_t bytes);
bool free_pinned(void* pointer);  // false: not what allocate_pinned() gave
void pin(const void* pointer, size_t bytes);
bool unpin(const void* pointer);
bool is_pinned(const void* pointer);

// Managed memory: on a GPU its pages go both ways, and leave the device when it has no room. So it is host memory here,
// which a program may really read and write, and takes nothing of the device. Pages that are not touched cost nothing.
void* allocate_managed(size_t bytes);
bool is_managed(const void* pointer);

// Frees memory of the device, or managed memory. False: it is neither.
bool release(void* pointer);

}  // namespace memgate::phantom
