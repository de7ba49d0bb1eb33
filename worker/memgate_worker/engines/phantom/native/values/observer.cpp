// Follows the values of tensors while a job runs, so that what the host reads back makes sense.
//
// PyTorch tells observers of every operator what it is given and what it returns. What is small and known (labels that
// were uploaded, counters, flags, masks made of them) is computed on the CPU and is then known as well; for the rest a
// plausible value stands in (rules.h). Contents are kept by the core, which the runtime's copies ask (../contents.h).
// Nothing of the job changes: no tensor is allocated on the device, none is kept alive, and no random number is drawn.
//
// Known limitations: kernels that are launched past PyTorch's dispatcher (Triton, other libraries) are not seen; what
// they write into keeps its last contents, or the plausible value it got when it was allocated.
//
// Built for each torch against its own headers; called from Python through ctypes (`memgate_hook.values`).
#include <ATen/ops/count_nonzero.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <memory>

#include "rules.h"

namespace memgate::values {
namespace {

// Inside an operator that has kernels of its own, what its parts write is not the last word.
thread_local int num_kernels_around = 0;

// Around nms at the end where nothing is found: a mask of overlaps has all bits set.
thread_local bool all_overlap = false;

// Within torch.equal, which asks whether all of a comparison is true that is made past the dispatcher: the answer, where
// it can be computed.
thread_local std::optional<bool> are_equal;

struct Call : at::ObserverContext, Circumstances {
  const Operator* op = nullptr;
  std::optional<Arguments> arguments;  // if it can be computed
  bool is_shrunk = false;
  std::optional<std::vector<c10::IValue>> results;  // if it had to be computed at once
  std::vector<Place> written;
  bool expects_count = false;
};

bool is_for_the_device(c10::ArrayRef<const c10::IValue> given) {
  bool found = false;
  for (const c10::IValue& value : given) {
    if (value.isDevice()) found = found || value.toDevice().is_cuda();
    for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || (tensor.defined() && tensor.is_cuda()); });
    if (found) return true;
  }
  return false;
}

void note_inputs(Call& call, c10::ArrayRef<const c10::IValue> given) {
  const Operator& op = *call.op;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].isInt() || given[i].isBool()) call.numbers.push_back(given[i]);
    for_each_tensor(given[i], [&](const at::Tensor& tensor) {
      auto place = place_of(tensor);
      if (!place) return;
      if (!call.input && !op.is_out[i] && !(op.overwrites && i == 0)) call.input = place;
      if (op.writes[i] && !op.returns_what_it_writes) call.written.push_back(std::move(*place));
    });
  }
}

bool computes_made_up(const Call& call) {
  const Operator& op = *call.op;
  // Made-up numbers differ where a GPU's would not; a comparison of them is taken at its word.
  if (op.rule == Rule::kEqual) return call.input && call.input->type == at::kBool;
  return op.rule == Rule::kLogic || op.rule == Rule::kCopy || op.rule == Rule::kSmallest ||
         op.rule == Rule::kLargest || op.overwrites;
}

// What keeps made-up values that differ: a copy, and the sum of integers, as of a tally. For others one value will do.
bool computes_each(const Call& call) {
  const bool is_integer = call.input && at::isIntegralType(call.input->type, /*includeBool=*/false);
  return call.op->rule == Rule::kCopy || (call.op->rule == Rule::kCount && is_integer);
}

// A sum is not the same for one element as for many, unless they are zero.
bool adds_zeros(const Call& call) {
  Element element{};
  return call.op->rule == Rule::kCount && call.input && constant_of(*call.input, element) == kKnown &&
         element == Element{};
}

// Looked at first: most operators have weights or images among their arguments, and copies of the rest are for nothing.
Certainty worst_of(const Operator& op, c10::ArrayRef<const c10::IValue> given) {
  Certainty worst = kKnown;
  for (size_t i = 0; i < given.size() && worst != kNothing; ++i) {
    if (op.is_out[i] || (op.overwrites && i == 0)) continue;
    for_each_tensor(given[i], [&](const at::Tensor& tensor) {
      const auto place = worst == kNothing ? std::nullopt : place_of(tensor);
      if (place && place->num_elements > 0) worst = std::min(worst, certainty_of(*place));
    });
  }
  return worst;
}

void take_arguments(Call& call, c10::ArrayRef<const c10::IValue> given) {
  const Operator& op = *call.op;
  const Certainty least = computes_made_up(call) || computes_each(call) ? kMadeUp : kKnown;
  const Certainty worst = op.is_computable ? worst_of(op, given) : kNothing;
  if (worst < least) return;
  const Apart apart;
  if (worst == kKnown) call.arguments = copy_arguments(op, given, least);
  if (!call.arguments && (op.is_elementwise || adds_zeros(call))) {
    call.arguments = shrink_arguments(op, given, least);
    call.is_shrunk = call.arguments.has_value();
  }
  if (!call.arguments && computes_each(call)) call.arguments = copy_arguments(op, given, least);
}

// A mask that is repeated along some dimensions, as one of tokens is along their vectors, is known if one copy is.
std::optional<uint64_t> count_in_copies(const Operator& op, const Place& mask) {
  if (op.data_size != DataSize::kNonzero) return std::nullopt;
  Place copy = mask;
  uint64_t num_copies = 1;
  for (size_t d = 0; d < mask.sizes.size(); ++d) {
    if (mask.strides[d] != 0) continue;
    num_copies *= static_cast<uint64_t>(mask.sizes[d]);
    copy.sizes[d] = 1;
  }
  if (num_copies <= 1) return std::nullopt;
  copy.num_elements = mask.num_elements / static_cast<int64_t>(num_copies);
  const bool is_small = copy.num_elements <= kMostElements && copy.span_bytes <= kMostElements * 16;
  if (!is_small || certainty_of(copy) != kKnown) return std::nullopt;
  const Apart apart;
  return num_copies * static_cast<uint64_t>(load(copy).count_nonzero().item<int64_t>());
}

// Before the operator runs: how large will its result be?
void foresee_count(Call& call) {
  const Operator& op = *call.op;
  if (!call.input) return;
  Element element{};
  uint64_t count = 0;
  if (call.arguments) {
    const Apart apart;
    call.results = compute(op, *call.arguments);
  }
  if (call.results) {
    count = count_found(op, call.results->front().toTensor(), call.numbers);
  } else if (constant_of(*call.input, element) == kKnown) {
    count = count_equal(op, *call.input, element);
  } else if (const auto in_copies = count_in_copies(op, *call.input)) {
    count = *in_copies;
  } else {
    count = count_at_end(op, *call.input, call.numbers);
    if (call.input->num_elements > 1) memgate_phantom_note_data_sized_result();
  }
  memgate_phantom_expect_count(count);
  call.expects_count = true;
}

// The same for boxes: each is in the way of all others, or none is.
void foresee_boxes(const Call& call) {
  if (!call.input || call.input->num_elements == 0) return;
  memgate_phantom_note_data_sized_result();
  all_overlap = chosen_end() == End::kNone;
}

void foresee_equality(const Call& call) {
  if (!call.arguments) return;
  const Apart apart;
  const auto results = compute(*call.op, *call.arguments);
  if (results) are_equal = results->front().toBool();
}

// Stores a result or what was written, each beside its stand-in on the CPU; false if they do not match.
bool keep_values(const Call& call, const Place& place, const at::Tensor& values) {
  const Certainty certainty = num_kernels_around > 0 ? kMadeUp : call.arguments->certainty;
  if (call.is_shrunk) {
    if (values.numel() != 1) return false;
    fill(place, first_element(values.to(place.type)), certainty);
    return true;
  }
  if (values.sizes() != at::IntArrayRef(place.sizes)) return false;
  store(place, values, certainty);
  return true;
}

void keep_made_up(const Call& call, const Place& place) {
  const Operator& op = *call.op;
  if (op.rule == Rule::kUnchanged) return;
  const bool says_for_certain = op.rule == Rule::kTrue || op.rule == Rule::kFalse;
  // A copy by the runtime, or the parts of a composite operator, have done it already.
  const bool is_done = (op.overwrites || op.is_composite) && was_written(place, call.num_writes_before);
  if (is_done && (!says_for_certain || certainty_of(place) == kKnown)) return;
  if (is_tally(op, call, place)) {
    const Apart apart;
    return fill_tally(place, call.input->num_elements);
  }
  if (is_in_order(op, place)) {
    const Apart apart;
    return fill_in_order(place, call.numbers);
  }
  if (op.rule == Rule::kAll && are_equal) return fill(place, to_element(place.type, *are_equal ? 1 : 0), kMadeUp);
  const bool is_mask = all_overlap && place.type == at::kLong;
  fill(place, is_mask ? to_element(place.type, -1) : make_up(op, call, place), says_for_certain ? kKnown : kMadeUp);
}

// The places of an operator's results, and of what it wrote besides.
std::vector<Place> find_places(const Call& call, const std::vector<c10::IValue>& results) {
  std::vector<Place> places = call.written;
  const size_t num_results = std::min(results.size(), call.op->gives.size());
  for (size_t i = 0; i < num_results; ++i) {
    if (!call.op->gives[i]) continue;
    for_each_tensor(results[i], [&](const at::Tensor& tensor) {
      if (auto place = place_of(tensor)) places.push_back(std::move(*place));
    });
  }
  return places;
}

// The stand-ins for those places, in the same order; too few if the operator could not be computed.
std::vector<at::Tensor> find_values(Call& call) {
  if (!call.arguments) return {};
  if (!call.results) call.results = compute(*call.op, *call.arguments);
  if (!call.results) return {};
  std::vector<at::Tensor> values;
  if (!call.op->returns_what_it_writes) values = call.arguments->written;
  const size_t num_results = std::min(call.results->size(), call.op->gives.size());
  for (size_t i = 0; i < num_results; ++i) {
    if (!call.op->gives[i]) continue;
    for_each_tensor((*call.results)[i], [&](const at::Tensor& tensor) { values.push_back(tensor); });
  }
  return values;
}

void keep_results(Call& call, const std::vector<c10::IValue>& results) {
  const std::vector<Place> places = find_places(call, results);
  if (places.empty()) return;
  int64_t num_elements = 0;
  for (const Place& place : places) num_elements += place.num_elements;
  if (call.arguments && (call.is_shrunk || num_elements <= kMostElements)) {
    const Apart apart;
    const std::vector<at::Tensor> values = find_values(call);
    bool is_kept = values.size() == places.size();
    for (size_t i = 0; is_kept && i < places.size(); ++i) is_kept = keep_values(call, places[i], values[i]);
    if (is_kept) return;
  }
  for (const Place& place : places) keep_made_up(call, place);
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const Operator* op = find_operator(function);
  if (op == nullptr || op->is_ignored || !is_for_the_device(function.inputs())) return nullptr;
  auto call = std::make_unique<Call>();
  call->op = op;
  call->num_writes_before = memgate_phantom_num_writes();
  note_inputs(*call, function.inputs());
  take_arguments(*call, function.inputs());
  if (op->rule == Rule::kEqual) foresee_equality(*call);
  if (op->data_size == DataSize::kBoxes) {
    foresee_boxes(*call);
  } else if (op->data_size != DataSize::kNone) {
    foresee_count(*call);
  }
  if (!op->is_composite && !op->overwrites) ++num_kernels_around;
  return call;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* call = static_cast<Call*>(context);
  if (call == nullptr) return;
  if (!call->op->is_composite && !call->op->overwrites) --num_kernels_around;
  if (call->expects_count) memgate_phantom_end_count();
  if (call->op->rule == Rule::kEqual) are_equal.reset();
  if (call->op->data_size == DataSize::kBoxes) all_overlap = false;
  keep_results(*call, function.outputs());
}

// Memory that is handed out anew has no contents, whatever was there before.
void forget_contents(const c10::cuda::CUDACachingAllocator::TraceEntry& entry) {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  if (entry.action_ == Entry::ALLOC) memgate_phantom_forget(static_cast<uint64_t>(entry.addr_), entry.size_);
}

}  // namespace
}  // namespace memgate::values

extern "C" {

// Operators are observed from now on.
__attribute__((visibility("default"))) void memgate_values_observe() {
  using namespace memgate::values;
  at::addGlobalCallback(at::RecordFunctionCallback(begin, end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
}

// The allocator is listened to from now on; call torch.cuda.init() first.
__attribute__((visibility("default"))) void memgate_values_attach() {
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(memgate::values::forget_contents);
}

}  // extern "C"
