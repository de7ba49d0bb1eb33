// Passing on what PyTorch asks; see cudnn_counterpart.h. Numbers are the published values of cuDNN 9.
#include "cudnn_counterpart.h"

#include "cudnn_real.h"

namespace memgate::phantom {
namespace {

enum Status { kSuccess = 0, kNotInitialized = 1001 };

enum DescriptorType { kHeuristics = 4, kExecutionPlan = 5, kVariantPack = 16 };

enum AttributeName { kHeuristicsDevice = 204, kPlanDevice = 407 };

enum ElementType { kHandle = 0, kDescriptor = 15 };

std::vector<void*> counterparts_of(const Attribute& attribute) {
  std::vector<void*> counterparts;
  for (const SharedDescriptor& descriptor : attribute.descriptors) counterparts.push_back(descriptor->counterpart());
  return counterparts;
}

int set_device(void* counterpart, int name) {
  void* device = described_device();
  return device == nullptr ? kNotInitialized : real_cudnn()->set(counterpart, name, kDescriptor, 1, &device);
}

}  // namespace

int create_counterpart(BackendDescriptor& descriptor) {
  // A variant pack only holds addresses for a launch.
  if (real_cudnn() == nullptr || descriptor.type() == kVariantPack) return kSuccess;
  void* counterpart = nullptr;
  const int status = real_cudnn()->create(descriptor.type(), &counterpart);
  if (status == kSuccess) descriptor.set_counterpart(counterpart);
  return status;
}

void destroy_counterpart(BackendDescriptor& descriptor) {
  if (descriptor.counterpart() != nullptr) real_cudnn()->destroy(descriptor.counterpart());
}

int set_in_counterpart(const BackendDescriptor& descriptor, int name) {
  const Attribute& attribute = *descriptor.find(name);
  // The device stands in for it; see finalize_counterpart().
  if (attribute.element_type == kHandle) return kSuccess;
  if (attribute.element_type != kDescriptor)
    return real_cudnn()->set(descriptor.counterpart(), name, attribute.element_type, attribute.count,
                             attribute.bytes.data());
  const std::vector<void*> counterparts = counterparts_of(attribute);
  return real_cudnn()->set(descriptor.counterpart(), name, kDescriptor, attribute.count, counterparts.data());
}

int finalize_counterpart(const BackendDescriptor& descriptor) {
  int status = kSuccess;
  if (descriptor.type() == kHeuristics) status = set_device(descriptor.counterpart(), kHeuristicsDevice);
  if (descriptor.type() == kExecutionPlan) status = set_device(descriptor.counterpart(), kPlanDevice);
  return status == kSuccess ? real_cudnn()->finalize(descriptor.counterpart()) : status;
}

int get_from_counterpart(const BackendDescriptor& descriptor, int name, const Attribute& asked, int64_t requested,
                         int64_t* count, void* elements) {
  std::vector<void*> counterparts = counterparts_of(asked);
  void* target = counterparts.empty() ? elements : counterparts.data();
  return real_cudnn()->get(descriptor.counterpart(), name, asked.element_type, requested, count, target);
}

}  // namespace memgate::phantom
