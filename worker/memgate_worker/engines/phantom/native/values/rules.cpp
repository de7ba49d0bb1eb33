// Made-up values; see rules.h.
#include "rules.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "../old_glibc.h"

namespace memgate::values {
namespace {

// After this many writes a number has fallen halfway from one to a half.
constexpr double kWritesToHalfway = 20000;

constexpr int64_t kMostInOrder = 1 << 16;

double falling_number(uint64_t num_writes) {
  return 0.5 + 0.5 / (1 + static_cast<double>(num_writes) / kWritesToHalfway);
}

// Arguments that are integers, in order: dimensions, limits.
int64_t integer_argument(c10::ArrayRef<c10::IValue> numbers, size_t index, int64_t otherwise) {
  for (const c10::IValue& number : numbers) {
    if (number.isInt() && index-- == 0) return number.toInt();
  }
  return otherwise;
}

double size_of_dimension(const Place& place, int64_t dimension) {
  const auto num_dimensions = static_cast<int64_t>(place.sizes.size());
  if (num_dimensions == 0) return 1;
  const int64_t index = dimension < 0 ? dimension + num_dimensions : dimension;
  const bool is_there = index >= 0 && index < num_dimensions;
  return static_cast<double>(std::max<int64_t>(is_there ? place.sizes[static_cast<size_t>(index)] : 1, 1));
}

// Integers that count what is true among made-up comparisons: all or none.
double number_counted(const std::optional<Place>& input, const Place& result) {
  if (!input || input->type != at::kBool || result.num_elements == 0) return 0;
  if (chosen_end() == End::kNone) return 0;
  return static_cast<double>(input->num_elements / result.num_elements);
}

// random_ and randint take the limits as (from, to) or as (to) alone.
double lowest_drawn(c10::ArrayRef<c10::IValue> numbers) {
  const auto num_integers =
      std::count_if(numbers.begin(), numbers.end(), [](const c10::IValue& number) { return number.isInt(); });
  return num_integers >= 2 ? static_cast<double>(integer_argument(numbers, 0, 0)) : 0;
}

}  // namespace

End chosen_end() {
  const char* end = std::getenv("MEMGATE_PHANTOM_DATA_SIZES");
  return end != nullptr && std::string_view(end) == "none" ? End::kNone : End::kAll;
}

Element make_up(const Operator& op, const Circumstances& given, const Place& result) {
  const auto& [num_writes, input, numbers] = given;
  const bool is_number = at::isFloatingType(result.type) || at::isComplexType(result.type);
  const double plain = is_number ? falling_number(num_writes) : 0;
  const double size = input ? size_of_dimension(*input, integer_argument(numbers, 0, -1)) : 1;
  switch (op.rule) {
    case Rule::kTrue:
    case Rule::kLogic:
    case Rule::kAll: return to_element(result.type, 1);
    case Rule::kFalse: return to_element(result.type, 0);
    case Rule::kOne: return to_element(result.type, 1);
    case Rule::kSmallest: return to_element(result.type, plain / 2);
    case Rule::kLargest: return to_element(result.type, is_number ? 1 : 0);
    case Rule::kShare: return to_element(result.type, 1 / size);
    case Rule::kLogShare: return to_element(result.type, -std::log(std::max(size, 2.0)));
    case Rule::kLowest: return to_element(result.type, lowest_drawn(numbers));
    case Rule::kCount: return to_element(result.type, is_number ? plain : number_counted(input, result));
    default: return to_element(result.type, plain);
  }
}

bool is_tally(const Operator& op, const Circumstances& given, const Place& result) {
  return op.rule == Rule::kTally && given.input && result.num_elements > 0 && result.num_elements <= kMostInOrder;
}

void fill_tally(const Place& result, int64_t num_counted) {
  // The first ones get what is left over, so that the sum is right.
  const int64_t each = num_counted / result.num_elements;
  const at::Tensor gets_one_more = at::arange(result.num_elements).lt(num_counted % result.num_elements);
  store(result, gets_one_more.to(at::kLong).add(each).to(result.type).view(result.sizes), kMadeUp);
}

bool is_in_order(const Operator& op, const Place& result) {
  return op.rule == Rule::kInOrder && result.type == at::kLong && result.num_elements <= kMostInOrder;
}

void fill_in_order(const Place& result, c10::ArrayRef<c10::IValue> numbers) {
  // A randperm's only integer is how many there are.
  const int64_t dimension = result.sizes.size() == 1 ? 0 : integer_argument(numbers, 0, -1);
  const auto num_dimensions = static_cast<int64_t>(result.sizes.size());
  const int64_t index = dimension < 0 ? dimension + num_dimensions : dimension;
  if (index < 0 || index >= num_dimensions) return store(result, at::arange(1), kMadeUp);
  c10::SmallVector<int64_t, 5> shape(result.sizes.size(), 1);
  shape[static_cast<size_t>(index)] = result.sizes[static_cast<size_t>(index)];
  store(result, at::arange(shape[static_cast<size_t>(index)]).view(shape).expand(result.sizes), kMadeUp);
}

uint64_t count_at_end(const Operator& op, const Place& input, c10::ArrayRef<c10::IValue> numbers) {
  auto all = static_cast<uint64_t>(input.num_elements);
  if (op.data_size == DataSize::kUniqueRows)
    all = static_cast<uint64_t>(size_of_dimension(input, integer_argument(numbers, 0, 0)));
  if (chosen_end() == End::kAll) return all;
  const bool may_be_none = op.data_size == DataSize::kNonzero || op.data_size == DataSize::kRepeated;
  return may_be_none ? 0 : std::min<uint64_t>(all, 1);
}

uint64_t count_equal(const Operator& op, const Place& input, const Element& element) {
  if (op.data_size == DataSize::kUnique || op.data_size == DataSize::kUniqueRows)
    return input.num_elements == 0 ? 0 : 1;
  uint64_t times = element == Element{} ? 0 : 1;
  if (op.data_size == DataSize::kRepeated) std::memcpy(&times, element.data(), sizeof times);
  return times * static_cast<uint64_t>(input.num_elements);
}

uint64_t count_found(const Operator& op, const at::Tensor& found, c10::ArrayRef<c10::IValue> numbers) {
  if (found.dim() == 0) return 1;
  const int64_t dimension = op.data_size == DataSize::kUniqueRows ? integer_argument(numbers, 0, 0) : 0;
  return static_cast<uint64_t>(found.size(dimension));
}

}  // namespace memgate::values
