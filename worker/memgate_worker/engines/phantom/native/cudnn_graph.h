// One descriptor of cuDNN's graph interface: a type, and whatever attributes were set, kept byte for byte.
//
// A descriptor shares those that it refers to, as the real library does: PyTorch destroys the operation graph as soon
// as it has the engine configurations, and builds plans from them afterwards. Where the real library is there
// (cudnn_real.h), each has a counterpart in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace memgate::phantom {

class BackendDescriptor;
using SharedDescriptor = std::shared_ptr<BackendDescriptor>;

struct Attribute {
  int element_type;
  int64_t count;
  std::vector<unsigned char> bytes;           // plain elements
  std::vector<SharedDescriptor> descriptors;  // elements that are descriptors
};

class BackendDescriptor {
 public:
  explicit BackendDescriptor(int type) : type_(type) {}
  ~BackendDescriptor();
  BackendDescriptor(const BackendDescriptor&) = delete;
  BackendDescriptor& operator=(const BackendDescriptor&) = delete;

  int type() const { return type_; }
  void* counterpart() const { return counterpart_; }
  void set_counterpart(void* counterpart) { counterpart_ = counterpart; }  // owned from now on
  void set(int name, Attribute attribute) { attributes_[name] = std::move(attribute); }
  const Attribute* find(int name) const;  // null: never set
  // What an attribute refers to: nothing if it was never set.
  std::vector<SharedDescriptor> descriptors(int name) const;
  SharedDescriptor first_descriptor(int name) const;

 private:
  int type_;
  void* counterpart_ = nullptr;
  std::map<int, Attribute> attributes_;
};

}  // namespace memgate::phantom
