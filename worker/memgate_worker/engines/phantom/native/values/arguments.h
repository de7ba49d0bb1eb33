// An operator's arguments, as far as their values are known: copies on the CPU with which it can be computed there.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "operators.h"
#include "place.h"

namespace memgate::values {

// What is given and what is found: enough for labels, masks, boxes and counters; nobody branches on a batch of images.
inline constexpr int64_t kMostElements = 1 << 16;

struct Arguments {
  std::vector<c10::IValue> values;
  std::vector<at::Tensor> written;  // those among them that the operator writes, in order
  Certainty certainty = kKnown;
};

// Tensors on the phantom become tensors on the CPU. Nothing if one is less certain, or if there is too much of it.
std::optional<Arguments> copy_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> given, Certainty least);

// Each tensor becomes a single element that stands for all. Nothing if one's elements differ, or are less certain.
std::optional<Arguments> shrink_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> given, Certainty least);

// Computes the operator. Nothing if it cannot be done on the CPU, or gives "not a number" where none was given.
std::optional<std::vector<c10::IValue>> compute(const Operator& op, const Arguments& arguments);

// Calls `use` with each tensor of an argument or result: itself, or all of a list.
template <typename Use>
void for_each_tensor(const c10::IValue& value, Use use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) use(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) use(*tensor);
  }
}

// While one is there, this thread's operators are observed by nobody, go to the CPU's kernels directly, and run on this
// thread alone: waking others would take longer than the work.
class Apart {
 public:
  Apart();
  ~Apart();
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  at::RecordFunctionGuard unobserved_;
  c10::impl::ExcludeDispatchKeyGuard excluded_;
  int num_threads_before_;
};

}  // namespace memgate::values
