// What is to be known about each of PyTorch's operators, looked up once: what it writes, and how its values are found.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <vector>

namespace memgate::values {

// How the values of results are made up where they cannot be computed.
enum class Rule {
  kPlain,      // a number that suits the type, see make_up()
  kUnchanged,  // what it writes stays as it was: no overflow was found
  kTrue,       // isfinite
  kFalse,      // isnan, isinf
  kLogic,      // a comparison or logical function: computed from made-up values too
  kAll,        // true: a check that everything is in order
  kEqual,      // torch.equal: compares unseen, and asks for all
  kCopy,       // made-up values stay the same when they are copied or converted
  kSmallest,   // of made-up values
  kLargest,
  kCount,      // how many are true, or the sum of integers
  kShare,      // one part in as many as there are: a softmax
  kLogShare,
  kLowest,     // randint: the lowest that can be drawn
  kInOrder,    // randperm, argsort: an order that is one
  kTally,      // bincount, histc: as many in each, and all of them together
  kOne,        // bernoulli
};

// Operators that ask the host how large their result is.
enum class DataSize {
  kNone,
  kNonzero,    // between none and all of the elements
  kRepeated,   // the sum of the elements; at the ends none, or one of each
  kUnique,     // between one and all of the elements
  kUniqueRows, // between one and all of the rows
  kBoxes,      // nms: between one and all of the boxes; the host may look for overlaps itself
};

struct Operator {
  c10::OperatorHandle handle;
  Rule rule = Rule::kPlain;
  DataSize data_size = DataSize::kNone;
  bool is_ignored = false;      // writes nothing: views, questions
  bool is_composite = false;    // made of other operators, which are seen themselves
  bool is_computable = false;   // the same on the CPU, given the same arguments
  bool is_elementwise = false;  // or otherwise the same for one element as for many equal ones
  bool is_heavy = false;        // far more work than elements
  bool overwrites = false;      // the first argument's old contents do not matter
  std::vector<bool> writes;     // by argument
  std::vector<bool> is_out;
  std::vector<bool> gives;      // by result: not a view of an argument
  bool returns_what_it_writes = false;
};

// Null: not an operator.
const Operator* find_operator(const at::RecordFunction& function);

}  // namespace memgate::values
