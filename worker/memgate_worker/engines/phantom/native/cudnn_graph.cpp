// libcudnn, the graph interface (cudnnBackend*) as far as PyTorch's convolutions use it.
//
// Descriptors keep what is set. Where the real library is there, every question goes to it (cudnn_counterpart.h).
// Otherwise heuristics answer one engine configuration for a graph of convolutions and pointwise operations; the plan
// built from it asks cudnn_workspace.h for its workspace. Any other graph (attention, normalisation) is refused by
// name: its workspaces are not known here. Numbers are the published values of cuDNN 9.
#include "cudnn_graph.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "contents.h"
#include "cudnn_counterpart.h"
#include "cudnn_workspace.h"
#include "refusals.h"
#include "workspaces.h"

using namespace memgate::phantom;

namespace {

enum Status { kSuccess = 0, kBadParam = 2000, kNotSupported = 3000 };

enum DescriptorType {
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kPointwise = 13,
};

enum AttributeName {
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kPlanConfig = 401,
  kPlanWorkspaceBytes = 402,
  kForwardFilter = 703,         // the two images are the next two, as for the others
  kBackwardDataFilter = 709,
  kBackwardFilterFilter = 715,
  kGraphOperations = 801,
  kTensorType = 901,
  kTensorDimensions = 902,
  kVariantPackWorkspace = 1003,
  kEngineGraph = 1300,
  kEngineGlobalIndex = 1301,
};

enum ElementType { kInt64 = 3, kDescriptor = 15 };

// Of cudnnDataType_t.
int64_t data_type_bytes(int32_t type) {
  switch (type) {
    case 1:   // double
    case 10:  // int64
      return 8;
    case 2:  // half
    case 9:  // bfloat16
      return 2;
    case 3:  // int8
    case 7:  // uint8
    case 11:  // boolean
    case 12:  // the two kinds of fp8
    case 13:
      return 1;
    default:  // float, int32
      return 4;
  }
}

size_t element_bytes(int element_type) {
  switch (element_type) {
    case 2:   // boolean
    case 24:  // char
      return 1;
    case 0:   // handle
    case 3:   // int64
    case 5:   // double
    case 6:   // pointer
    case 15:  // descriptor
      return 8;
    case 26:  // fraction: two int64
      return 16;
    default:  // enumerations, float, int32
      return 4;
  }
}

bool is_convolution(int type) {
  return type == kConvolutionForward || type == kConvolutionBackwardFilter || type == kConvolutionBackwardData;
}

// The type of the first operation that is not modelled, or 0.
int foreign_operation(const BackendDescriptor& graph) {
  for (const SharedDescriptor& operation : graph.descriptors(kGraphOperations)) {
    if (!is_convolution(operation->type()) && operation->type() != kPointwise) return operation->type();
  }
  return 0;
}

ConvolutionKind kind_of(const BackendDescriptor& graph) {
  for (const SharedDescriptor& operation : graph.descriptors(kGraphOperations)) {
    if (operation->type() == kConvolutionBackwardData) return ConvolutionKind::kBackwardData;
    if (operation->type() == kConvolutionBackwardFilter) return ConvolutionKind::kBackwardFilter;
  }
  return ConvolutionKind::kForward;
}

int finalize_heuristics(const BackendDescriptor& heuristics) {
  const SharedDescriptor graph = heuristics.first_descriptor(kHeuristicsGraph);
  if (graph == nullptr) return kBadParam;
  const int foreign = foreign_operation(*graph);
  if (foreign == 0) return kSuccess;
  const std::string call = "cudnnBackendFinalize(operation type " + std::to_string(foreign) + ")";
  return static_cast<int>(refuse(call.c_str(), kNotSupported));
}

int64_t plan_workspace_bytes(const BackendDescriptor& plan) {
  const SharedDescriptor config = plan.first_descriptor(kPlanConfig);
  const SharedDescriptor engine = config ? config->first_descriptor(kConfigEngine) : nullptr;
  const SharedDescriptor graph = engine ? engine->first_descriptor(kEngineGraph) : nullptr;
  return graph ? convolution_workspace_bytes(kind_of(*graph), graph.get()) : 0;
}

int64_t tensor_bytes(const SharedDescriptor& tensor) {
  const Attribute* dimensions = tensor ? tensor->find(kTensorDimensions) : nullptr;
  if (dimensions == nullptr) return 0;
  int32_t type = 0;  // float
  const Attribute* stored = tensor->find(kTensorType);
  if (stored != nullptr && stored->bytes.size() >= sizeof type) std::memcpy(&type, stored->bytes.data(), sizeof type);
  int64_t bytes = data_type_bytes(type);
  for (size_t at = 0; at + sizeof(int64_t) <= dimensions->bytes.size(); at += sizeof(int64_t)) {
    int64_t extent = 0;
    std::memcpy(&extent, &dimensions->bytes[at], sizeof extent);
    bytes *= extent;
  }
  return bytes;
}

void note_what_a_plan_might_take(const BackendDescriptor& plan) {
  const SharedDescriptor config = plan.first_descriptor(kPlanConfig);
  const SharedDescriptor engine = config ? config->first_descriptor(kConfigEngine) : nullptr;
  const SharedDescriptor graph = engine ? engine->first_descriptor(kEngineGraph) : nullptr;
  if (graph != nullptr) note_possible_workspace(copies_bytes(*graph), kind_of(*graph) == ConvolutionKind::kForward);
}

// A descriptor as PyTorch holds it.
using Handle = SharedDescriptor*;

// Answers one descriptor: the caller has made it and passes its handle, which now means ours.
int answer_descriptor(const SharedDescriptor& answer, int64_t requested, int64_t* count, void* elements) {
  if (count != nullptr) *count = 1;
  if (requested < 1 || elements == nullptr) return kSuccess;
  const Handle target = *static_cast<Handle*>(elements);
  if (target == nullptr) return kBadParam;
  *target = answer;
  return kSuccess;
}

int answer_int64(int64_t answer, int64_t requested, int64_t* count, void* elements) {
  if (count != nullptr) *count = 1;
  if (requested >= 1 && elements != nullptr) std::memcpy(elements, &answer, sizeof answer);
  return kSuccess;
}

// The only engine: it remembers the graph it was chosen for, so that the plan can look at it.
SharedDescriptor engine_config_for(const SharedDescriptor& graph) {
  const auto engine = SharedDescriptor(new BackendDescriptor(kEngine));
  engine->set(kEngineGraph, {kDescriptor, 1, {}, {graph}});
  const auto config = SharedDescriptor(new BackendDescriptor(kEngineConfig));
  config->set(kConfigEngine, {kDescriptor, 1, {}, {engine}});
  return config;
}

// What was set, or nothing: notes and knobs of the engine are lists that are empty here.
int answer_stored(const BackendDescriptor& descriptor, int name, int64_t requested, int64_t* count, void* elements) {
  const Attribute* stored = descriptor.find(name);
  if (stored != nullptr && !stored->descriptors.empty())
    return answer_descriptor(stored->descriptors.front(), requested, count, elements);
  const int64_t available = stored == nullptr ? 0 : stored->count;
  if (count != nullptr) *count = available;
  if (available == 0 || elements == nullptr) return kSuccess;
  const size_t bytes = static_cast<size_t>(std::min(requested, available)) * element_bytes(stored->element_type);
  std::memcpy(elements, stored->bytes.data(), bytes);
  return kSuccess;
}

Attribute make_attribute(int element_type, int64_t count, const void* elements) {
  Attribute attribute{element_type, count, {}, {}};
  if (elements == nullptr) return attribute;
  if (element_type == kDescriptor) {
    const auto* handles = static_cast<const Handle*>(elements);
    for (int64_t index = 0; index < count; ++index) attribute.descriptors.push_back(*handles[index]);
  } else {
    const auto* first = static_cast<const unsigned char*>(elements);
    attribute.bytes.assign(first, first + static_cast<size_t>(count) * element_bytes(element_type));
  }
  return attribute;
}

}  // namespace

int64_t memgate::phantom::copies_bytes(const BackendDescriptor& graph) {
  for (const SharedDescriptor& operation : graph.descriptors(kGraphOperations)) {
    for (const int filter : {kForwardFilter, kBackwardDataFilter, kBackwardFilterFilter}) {
      if (operation->find(filter) == nullptr) continue;
      int64_t bytes = 0;
      for (int name = filter; name < filter + 3; ++name) bytes += tensor_bytes(operation->first_descriptor(name));
      return bytes;
    }
  }
  return 0;
}

BackendDescriptor::~BackendDescriptor() { destroy_counterpart(*this); }

const Attribute* BackendDescriptor::find(int name) const {
  const auto found = attributes_.find(name);
  return found == attributes_.end() ? nullptr : &found->second;
}

std::vector<SharedDescriptor> BackendDescriptor::descriptors(int name) const {
  const Attribute* attribute = find(name);
  return attribute == nullptr ? std::vector<SharedDescriptor>{} : attribute->descriptors;
}

SharedDescriptor BackendDescriptor::first_descriptor(int name) const {
  const auto found = descriptors(name);
  return found.empty() ? nullptr : found.front();
}

extern "C" {

int cudnnBackendCreateDescriptor(int type, Handle* descriptor) {
  auto body = SharedDescriptor(new BackendDescriptor(type));
  const int status = create_counterpart(*body);
  *descriptor = status == kSuccess ? new SharedDescriptor(std::move(body)) : nullptr;
  return status;
}

int cudnnBackendDestroyDescriptor(Handle descriptor) {
  delete descriptor;
  return kSuccess;
}

int cudnnBackendSetAttribute(Handle descriptor, int name, int element_type, int64_t count, const void* elements) {
  BackendDescriptor& body = **descriptor;
  body.set(name, make_attribute(element_type, count, elements));
  const int status = is_passed_on(body) ? set_in_counterpart(body, name) : kSuccess;
  return is_passed_on(body) ? status : kSuccess;
}

int cudnnBackendFinalize(Handle descriptor) {
  BackendDescriptor& body = **descriptor;
  if (body.type() == kHeuristics) {
    const int status = finalize_heuristics(body);
    if (status != kSuccess) return status;
  }
  if (is_passed_on(body)) {
    const int status = finalize_counterpart(body);
    if (is_passed_on(body)) return status;  // otherwise it was lost just now
  }
  if (body.type() == kExecutionPlan) {
    const int64_t bytes = plan_workspace_bytes(body);
    body.set(kPlanWorkspaceBytes, make_attribute(kInt64, 1, &bytes));
  }
  return kSuccess;
}

int cudnnBackendGetAttribute(Handle descriptor, int name, int element_type, int64_t requested, int64_t* count,
                             void* elements) {
  const BackendDescriptor& body = **descriptor;
  if (is_passed_on(body)) {
    const bool are_descriptors = element_type == kDescriptor && elements != nullptr;
    const Attribute asked = are_descriptors ? make_attribute(element_type, requested, elements)
                                            : Attribute{element_type, 0, {}, {}};
    const int status = get_from_counterpart(body, name, asked, requested, count, elements);
    if (is_passed_on(body)) return status;  // otherwise it was lost just now
  }
  if (name == kHeuristicsResults) {
    return answer_descriptor(engine_config_for(body.first_descriptor(kHeuristicsGraph)), requested, count, elements);
  }
  if (name == kEngineGlobalIndex) return answer_int64(0, requested, count, elements);
  return answer_stored(body, name, requested, count, elements);
}

int cudnnBackendExecute(void*, Handle plan, Handle variant_pack) {
  if (!is_passed_on(**plan)) note_what_a_plan_might_take(**plan);
  const Attribute* workspace = (*variant_pack)->find(kVariantPackWorkspace);
  if (workspace != nullptr && workspace->bytes.size() == sizeof(uint64_t)) {
    uint64_t address = 0;
    std::memcpy(&address, workspace->bytes.data(), sizeof address);
    note_workspace(address);
  }
  count_launch();
  return kSuccess;
}

}
