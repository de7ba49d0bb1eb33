// The table of operators; see operators.h.
#include "operators.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace memgate::values {
namespace {

const std::unordered_map<std::string_view, Rule> kRules = {
    {"_amp_foreach_non_finite_check_and_unscale", Rule::kUnchanged},
    {"_amp_update_scale", Rule::kUnchanged},
    {"isfinite", Rule::kTrue},
    {"isreal", Rule::kTrue},
    {"isnan", Rule::kFalse},
    {"isinf", Rule::kFalse},
    {"isposinf", Rule::kFalse},
    {"isneginf", Rule::kFalse},
    {"eq", Rule::kLogic},
    {"ne", Rule::kLogic},
    {"lt", Rule::kLogic},
    {"le", Rule::kLogic},
    {"gt", Rule::kLogic},
    {"ge", Rule::kLogic},
    {"logical_not", Rule::kLogic},
    {"logical_and", Rule::kLogic},
    {"logical_or", Rule::kLogic},
    {"logical_xor", Rule::kLogic},
    {"bitwise_not", Rule::kLogic},
    {"bitwise_and", Rule::kLogic},
    {"bitwise_or", Rule::kLogic},
    {"bitwise_xor", Rule::kLogic},
    {"any", Rule::kLogic},
    {"all", Rule::kAll},
    {"equal", Rule::kEqual},
    {"copy", Rule::kCopy},
    {"index_select", Rule::kCopy},
    {"min", Rule::kSmallest},
    {"amin", Rule::kSmallest},
    {"max", Rule::kLargest},
    {"amax", Rule::kLargest},
    {"aminmax", Rule::kLargest},
    {"_aminmax", Rule::kLargest},
    {"sum", Rule::kCount},
    {"count_nonzero", Rule::kCount},
    {"_softmax", Rule::kShare},
    {"_log_softmax", Rule::kLogShare},
    {"randint", Rule::kLowest},
    {"randint_like", Rule::kLowest},
    {"random", Rule::kLowest},
    {"randperm", Rule::kInOrder},
    {"argsort", Rule::kInOrder},
    {"sort", Rule::kInOrder},
    {"bincount", Rule::kTally},
    {"histc", Rule::kTally},
    {"bernoulli", Rule::kOne},
};

const std::unordered_map<std::string_view, DataSize> kDataSizes = {
    {"nonzero", DataSize::kNonzero},          {"repeat_interleave", DataSize::kRepeated},
    {"_unique", DataSize::kUnique},           {"_unique2", DataSize::kUnique},
    {"unique_consecutive", DataSize::kUnique}, {"unique_dim", DataSize::kUniqueRows},
    {"unique_dim_consecutive", DataSize::kUniqueRows},
};

// Besides those that PyTorch tags as pointwise.
const std::unordered_set<std::string_view> kSameForOne = {"any",  "all",     "max",      "min",  "amax", "amin",
                                                          "mean", "aminmax", "_aminmax", "copy", "fill", "zero",
                                                          "equal"};

const std::unordered_set<std::string_view> kOverwrites = {"copy", "fill", "zero"};

const std::unordered_set<std::string_view> kHeavy = {
    "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "convolution", "convolution_backward", "_scaled_mm", "cdist"};

// Registered for CUDA, and yet made of other operators alone, which are seen themselves.
const std::unordered_set<std::string_view> kMadeOfOthers = {"_nested_tensor_from_mask",
                                                            "_nested_tensor_from_mask_left_aligned"};

// Nothing of the data changes: storage, strides or the book-keeping around them.
bool changes_no_data(const c10::OperatorHandle& handle, std::string_view name) {
  return handle.hasTag(at::Tag::inplace_view) || name == "set" || name == "resize" || name == "set_data" ||
         name == "record_stream";
}

bool has_kernel(const c10::OperatorHandle& handle, c10::DispatchKey key) {
  return handle.hasKernelForDispatchKey(key);
}

// In place or not, the rule is the same.
std::string_view without_underscore(std::string_view name) {
  if (name.size() > 1 && name.back() == '_') name.remove_suffix(1);
  return name;
}

template <typename Table>
typename Table::mapped_type look_up(const Table& table, std::string_view name) {
  const auto found = table.find(name);
  return found == table.end() ? typename Table::mapped_type{} : found->second;
}

void read_schema(Operator& op) {
  const c10::FunctionSchema& schema = op.handle.schema();
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  for (const c10::Argument& argument : schema.arguments()) {
    op.writes.push_back(is_written(argument));
    op.is_out.push_back(argument.is_out());
  }
  for (const c10::Argument& result : schema.returns())
    op.gives.push_back(result.alias_info() == nullptr || is_written(result));
  const auto num_written = std::count(op.writes.begin(), op.writes.end(), true);
  op.returns_what_it_writes =
      num_written == std::count_if(schema.returns().begin(), schema.returns().end(), is_written);
  const bool gives_nothing = std::count(op.gives.begin(), op.gives.end(), true) == 0;
  op.is_ignored = num_written == 0 && gives_nothing;
}

std::unique_ptr<Operator> describe(c10::OperatorHandle handle) {
  auto op = std::make_unique<Operator>(Operator{handle});
  const std::string& full_name = handle.schema().name();
  const size_t colons = full_name.find("::");
  const std::string_view space = std::string_view(full_name).substr(0, colons);
  const std::string_view name = without_underscore(std::string_view(full_name).substr(colons + 2));
  read_schema(*op);
  op->is_ignored = op->is_ignored || changes_no_data(handle, name);
  const bool is_composite = has_kernel(handle, c10::DispatchKey::CompositeImplicitAutograd) ||
                            has_kernel(handle, c10::DispatchKey::CompositeExplicitAutograd);
  const bool is_own = space == "aten";
  op->overwrites = is_own && kOverwrites.count(name) != 0;
  // What is sent and received is in nccl.cpp, copies of it are seen on their own, and what is in place stays.
  const bool is_collective = space == "c10d" || space == "_c10d_functional" || space == "_c10d_functional_autograd";
  op->is_composite = is_collective || (is_composite && !has_kernel(handle, c10::DispatchKey::CUDA) && !op->overwrites) ||
                     (is_own && kMadeOfOthers.count(name) != 0);
  op->is_computable = (is_own || space == "torchvision") && !op->is_composite &&
                      (is_composite || has_kernel(handle, c10::DispatchKey::CPU)) &&
                      !handle.hasTag(at::Tag::nondeterministic_seeded) && name.substr(0, 5) != "empty";
  if (is_own) {
    op->rule = look_up(kRules, name);
    op->data_size = op->is_composite ? DataSize::kNone : look_up(kDataSizes, name);
    op->is_elementwise = handle.hasTag(at::Tag::pointwise) || kSameForOne.count(name) != 0;
    op->is_heavy = kHeavy.count(name) != 0;
  }
  if (full_name == "torchvision::nms") op->data_size = DataSize::kBoxes;
  // The parts of a composite operator are seen on their own.
  const bool says_more = op->rule == Rule::kTrue || op->rule == Rule::kFalse;
  op->is_ignored = op->is_ignored || (op->is_composite && !says_more);
  return op;
}

struct NameHash {
  size_t operator()(const c10::OperatorName& name) const {
    return std::hash<std::string>()(name.name) ^ (~std::hash<std::string>()(name.overload_name));
  }
};

}  // namespace

const Operator* find_operator(const at::RecordFunction& function) {
  // One table for each thread, so that nothing has to be locked; there are few threads.
  thread_local std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>, NameHash> known;
  const auto name = function.operator_name();
  if (!name) return nullptr;
  const auto found = known.find(*name);
  if (found != known.end()) return found->second.get();
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  return known.emplace(*name, handle ? describe(*handle) : nullptr).first->second.get();
}

}  // namespace memgate::values
