// Made-up values: what stands in for results that no kernel computed.
//
// Numbers are between a half and one and fall slowly while a job runs, as losses do: positive, finite, a probability if
// need be, never the same for long. Integers are 0: an index into anything, a class, a status without an error.
#pragma once

#include <optional>

#include "arguments.h"

namespace memgate::values {

// Which end is taken where a size depends on data that is not known.
enum class End { kAll, kNone };
End chosen_end();

// What is known of a call when it begins.
struct Circumstances {
  uint64_t num_writes_before = 0;
  std::optional<Place> input;  // the first tensor on the phantom
  std::vector<c10::IValue> numbers;
};

// The element that stands for every element of a result.
Element make_up(const Operator& op, const Circumstances& given, const Place& result);

// Results whose elements differ: a tally of all elements, and an order of them.
bool is_tally(const Operator& op, const Circumstances& given, const Place& result);
void fill_tally(const Place& result, int64_t num_counted);
bool is_in_order(const Operator& op, const Place& result);
void fill_in_order(const Place& result, c10::ArrayRef<c10::IValue> numbers);

// How many elements an operator finds: among elements that are all the same, and where nothing is known of them.
uint64_t count_equal(const Operator& op, const Place& input, const Element& element);
uint64_t count_at_end(const Operator& op, const Place& input, c10::ArrayRef<c10::IValue> numbers);
// The same of what was computed.
uint64_t count_found(const Operator& op, const at::Tensor& found, c10::ArrayRef<c10::IValue> numbers);

}  // namespace memgate::values
