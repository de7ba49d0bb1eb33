// What a collective leaves in the buffers of one rank, if all ranks had sent the same.
//
// Small messages, and those that hold one value throughout, are delivered. Of larger ones the contents are made up: the
// cost of a collective must not grow with the number of ranks.
#pragma once

#include <cstddef>

namespace memgate::phantom {

// NCCL's numbers of data types and of operations.
enum DataType : int {
  kInt8 = 0,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8E4M3,
  kFloat8E5M2,
};
enum Operation : int { kSum = 0, kProduct, kMax, kMin, kAverage };

size_t element_bytes(int data_type);
bool is_integer(int data_type);

// The same, `times` times in a row. The source may be a part of the target.
void repeat(void* target, const void* source, size_t count, int data_type, int times);

// All ranks' contributions in one.
void reduce(void* target, const void* source, size_t count, int data_type, int operation, int num_ranks);

// Plausible numbers.
void make_up(void* target, size_t count, int data_type);

}  // namespace memgate::phantom
