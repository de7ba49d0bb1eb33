// Where a tensor lies in the phantom's memory, and its contents there as a tensor on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

#include "core.h"

namespace memgate::values {

using phantom::Certainty;
using phantom::kKnown;
using phantom::kMadeUp;
using phantom::kNothing;

using Element = std::array<unsigned char, 16>;

struct Place {
  uint64_t address;
  at::ScalarType type;
  size_t element_bytes;
  int64_t num_elements;
  size_t span_bytes;  // from the first element to the end of the last
  bool is_dense;      // the span holds nothing but the elements
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
};

// Nothing if the tensor's data is not in the phantom's memory, or not to be taken as it lies there.
std::optional<Place> place_of(const at::Tensor& tensor);

Certainty certainty_of(const Place& place);
// kNothing unless all elements are the same.
Certainty constant_of(const Place& place, Element& element);
// Has anything been written to all of it since that many writes?
bool was_written(const Place& place, uint64_t num_writes_before);

// A tensor on the CPU of the same shape and strides, with the contents or without.
at::Tensor load(const Place& place);
at::Tensor make_alike(const Place& place);
// One element, with as many dimensions as the place has.
at::Tensor make_single(const Place& place, const Element& element);

void store(const Place& place, const at::Tensor& values, Certainty certainty);
void fill(const Place& place, const Element& element, Certainty certainty);

// A number as an element of a type: zero for types that are not numbers.
Element to_element(at::ScalarType type, double number);
Element first_element(const at::Tensor& values);

}  // namespace memgate::values
