// Passing on what PyTorch asks; see cudnn_counterpart.h. Numbers are the published values of cuDNN 9.
#include "cudnn_counterpart.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "cudnn_real.h"

namespace memgate::phantom {
namespace {

enum Status { kSuccess = 0, kNotInitialized = 1001 };

pthread_mutex_t calls_mutex = PTHREAD_MUTEX_INITIALIZER;  // backward runs on a thread of its own
thread_local sigjmp_buf* way_back = nullptr;
struct sigaction before_the_call;

void leave_the_call(int signal_number) {
  if (way_back != nullptr) siglongjmp(*way_back, 1);
  sigaction(signal_number, &before_the_call, nullptr);  // not of ours: it happens again, and goes where it would have
}

// Calls the real library. A crash in it is its last call.
template <typename Call>
int call_real(const Call& call) {
  pthread_mutex_lock(&calls_mutex);
  volatile int status = kNotInitialized;
  struct sigaction ours = {};
  ours.sa_handler = leave_the_call;
  sigaction(SIGSEGV, &ours, &before_the_call);
  sigjmp_buf here;
  if (real_cudnn() == nullptr) {
    // lost meanwhile
  } else if (sigsetjmp(here, 1) == 0) {
    way_back = &here;
    status = call(*real_cudnn());
  } else {
    lose_real_cudnn();
  }
  way_back = nullptr;
  sigaction(SIGSEGV, &before_the_call, nullptr);
  pthread_mutex_unlock(&calls_mutex);
  return status;
}

enum DescriptorType { kHeuristics = 4, kExecutionPlan = 5, kVariantPack = 16 };

enum AttributeName { kHeuristicsDevice = 204, kPlanDevice = 407 };

enum ElementType { kHandle = 0, kDescriptor = 15 };

std::vector<void*> counterparts_of(const Attribute& attribute) {
  std::vector<void*> counterparts;
  for (const SharedDescriptor& descriptor : attribute.descriptors) counterparts.push_back(descriptor->counterpart());
  return counterparts;
}

int set_device(const RealCudnn& real, void* counterpart, int name) {
  void* device = described_device();
  return device == nullptr ? kNotInitialized : real.set(counterpart, name, kDescriptor, 1, &device);
}

}  // namespace

bool is_passed_on(const BackendDescriptor& descriptor) {
  return descriptor.counterpart() != nullptr && real_cudnn() != nullptr;
}

int create_counterpart(BackendDescriptor& descriptor) {
  // A variant pack only holds addresses for a launch.
  if (real_cudnn() == nullptr || descriptor.type() == kVariantPack) return kSuccess;
  void* counterpart = nullptr;
  const int status = call_real([&](const RealCudnn& real) { return real.create(descriptor.type(), &counterpart); });
  if (real_cudnn() == nullptr) return kSuccess;
  if (status == kSuccess) descriptor.set_counterpart(counterpart);
  return status;
}

void destroy_counterpart(BackendDescriptor& descriptor) {
  if (is_passed_on(descriptor)) call_real([&](const RealCudnn& real) { return real.destroy(descriptor.counterpart()); });
}

int set_in_counterpart(const BackendDescriptor& descriptor, int name) {
  const Attribute& attribute = *descriptor.find(name);
  // The device stands in for it; see finalize_counterpart().
  if (attribute.element_type == kHandle) return kSuccess;
  if (attribute.element_type != kDescriptor)
    return call_real([&](const RealCudnn& real) {
      return real.set(descriptor.counterpart(), name, attribute.element_type, attribute.count, attribute.bytes.data());
    });
  const std::vector<void*> counterparts = counterparts_of(attribute);
  return call_real([&](const RealCudnn& real) {
    return real.set(descriptor.counterpart(), name, kDescriptor, attribute.count, counterparts.data());
  });
}

int finalize_counterpart(const BackendDescriptor& descriptor) {
  return call_real([&](const RealCudnn& real) {
    int status = kSuccess;
    if (descriptor.type() == kHeuristics) status = set_device(real, descriptor.counterpart(), kHeuristicsDevice);
    if (descriptor.type() == kExecutionPlan) status = set_device(real, descriptor.counterpart(), kPlanDevice);
    return status == kSuccess ? real.finalize(descriptor.counterpart()) : status;
  });
}

int get_from_counterpart(const BackendDescriptor& descriptor, int name, const Attribute& asked, int64_t requested,
                         int64_t* count, void* elements) {
  std::vector<void*> counterparts = counterparts_of(asked);
  void* target = counterparts.empty() ? elements : counterparts.data();
  return call_real([&](const RealCudnn& real) {
    return real.get(descriptor.counterpart(), name, asked.element_type, requested, count, target);
  });
}

}  // namespace memgate::phantom
