// Copies of arguments, and computing with them; see arguments.h.
#include "arguments.h"

#include <ATen/core/List.h>
#include <ATen/ops/isnan.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <functional>

#include "../old_glibc.h"

namespace memgate::values {
namespace {

constexpr int64_t kMostElementsIfHeavy = 1 << 12;

// Of the OpenMP library that torch brings along, whatever its name; these settings are each thread's own.
struct OpenMp {
  int (*get_max_threads)() = [] { return 1; };
  void (*set_num_threads)(int) = [](int) {};
};

const OpenMp& openmp() {
  static const OpenMp found = [] {
    OpenMp functions;
    auto* get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    auto* set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (get == nullptr || set == nullptr) return functions;
    functions.get_max_threads = reinterpret_cast<int (*)()>(get);
    functions.set_num_threads = reinterpret_cast<void (*)(int)>(set);
    return functions;
  }();
  return found;
}

bool is_on_host(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && !tensor.key_set().has(c10::DispatchKey::Python);
}

// What is written there is written for real.
bool has_host_tensor(const c10::IValue& value) {
  bool found = false;
  for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || is_on_host(tensor); });
  return found;
}

// Turns one tensor into its stand-in; an undefined tensor if there is none.
using StandIn = std::function<at::Tensor(const at::Tensor&, bool is_overwritten)>;

// Nothing if a tensor has no stand-in.
std::optional<c10::IValue> replace_tensors(const c10::IValue& value, bool is_overwritten, const StandIn& stand_in) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return value;
    const at::Tensor other = stand_in(tensor, is_overwritten);
    return other.defined() ? std::optional<c10::IValue>(other) : std::nullopt;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> others;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      const at::Tensor other = stand_in(tensor, is_overwritten);
      if (!other.defined()) return std::nullopt;
      others.push_back(other);
    }
    return c10::IValue(others);
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> others;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      const bool is_there = tensor && tensor->defined();
      const at::Tensor other = is_there ? stand_in(*tensor, is_overwritten) : at::Tensor();
      if (is_there && !other.defined()) return std::nullopt;
      others.push_back(is_there ? std::optional<at::Tensor>(other) : std::nullopt);
    }
    return c10::IValue(others);
  }
  if (value.isDevice()) return c10::IValue(c10::Device(at::kCPU));
  return value;
}

std::optional<Arguments> replace_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> given,
                                           const StandIn& stand_in) {
  Arguments arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].isGenerator() || (op.writes[i] && has_host_tensor(given[i]))) return std::nullopt;
    const bool is_overwritten = op.is_out[i] || (op.overwrites && i == 0);
    auto value = replace_tensors(given[i], is_overwritten, stand_in);
    if (!value) return std::nullopt;
    if (op.handle.schema().arguments()[i].name() == "pin_memory") value = c10::IValue();
    if (op.writes[i]) for_each_tensor(*value, [&](const at::Tensor& tensor) { arguments.written.push_back(tensor); });
    arguments.values.push_back(std::move(*value));
  }
  return arguments;
}

bool has_nan(const std::vector<c10::IValue>& values) {
  bool found = false;
  for (const c10::IValue& value : values) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()))
        found = found || at::isnan(tensor).any().item<bool>();
    });
  }
  return found;
}

}  // namespace

std::optional<Arguments> copy_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> given, Certainty least) {
  Certainty worst = kKnown;
  int64_t left = op.is_heavy ? kMostElementsIfHeavy : kMostElements;
  auto arguments = replace_arguments(op, given, [&](const at::Tensor& tensor, bool is_overwritten) {
    const auto place = place_of(tensor);
    left -= tensor.numel();
    if (left < 0 || (!place && !is_on_host(tensor))) return at::Tensor();
    if (!place) return tensor;
    if (place->span_bytes > kMostElements * 16) return at::Tensor();
    if (place->num_elements == 0 || is_overwritten) return make_alike(*place);
    const Certainty certainty = certainty_of(*place);
    worst = std::min(worst, certainty);
    return certainty >= least ? load(*place) : at::Tensor();
  });
  if (arguments) arguments->certainty = worst;
  return arguments;
}

std::optional<Arguments> shrink_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> given, Certainty least) {
  Certainty worst = kKnown;
  auto arguments = replace_arguments(op, given, [&](const at::Tensor& tensor, bool is_overwritten) {
    const auto place = place_of(tensor);
    if (!place) return is_on_host(tensor) && tensor.dim() == 0 ? tensor : at::Tensor();
    Element element{};
    if (is_overwritten) return make_single(*place, element);
    const Certainty certainty = constant_of(*place, element);
    worst = std::min(worst, certainty);
    return certainty >= least ? make_single(*place, element) : at::Tensor();
  });
  if (arguments) arguments->certainty = worst;
  return arguments;
}

std::optional<std::vector<c10::IValue>> compute(const Operator& op, const Arguments& arguments) {
  std::vector<c10::IValue> stack = arguments.values;
  try {
    op.handle.callBoxed(stack);
  } catch (const std::exception&) {
    return std::nullopt;  // not for these types, or an index that is out of range
  }
  if (has_nan(stack) && !has_nan(arguments.values)) return std::nullopt;
  return stack;
}

Apart::Apart()
    : unobserved_(/*is_enabled=*/false),
      excluded_(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                     c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA,
                                     c10::DispatchKey::Functionalize})),
      num_threads_before_(openmp().get_max_threads()) {
  openmp().set_num_threads(1);
}

Apart::~Apart() { openmp().set_num_threads(num_threads_before_); }

}  // namespace memgate::values
