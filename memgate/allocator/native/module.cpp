// The binding: two functions, for any CPython from 3.11 on (the limited API). memgate/allocator's
// native.py is the only caller; core.pyi has the types.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "replay.h"
#include "timeline.h"

// a digest of what it was built from
#ifndef MEMGATE_SOURCES
#define MEMGATE_SOURCES ""
#endif

namespace {

using memgate::Answer;
using memgate::Question;
using memgate::Timeline;

constexpr char kCapsuleName[] = "memgate.allocator.native.core.Timeline";

static_assert(sizeof(memgate::PoolStats) == 18 * sizeof(int64_t));
static_assert(sizeof(memgate::DeviceStats) == (3 * 18 + 4 + 6) * sizeof(int64_t));

// A struct of int64_t, or a vector of them, as bytes.
template <typename Rows>
PyObject* to_bytes(const Rows* rows, size_t count) {
  static_assert(std::is_trivially_copyable_v<Rows> && sizeof(Rows) % sizeof(int64_t) == 0);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(rows),
                                   static_cast<Py_ssize_t>(count * sizeof(Rows)));
}

template <typename Rows>
PyObject* to_bytes(const std::vector<Rows>& rows) {
  return to_bytes(rows.data(), rows.size());
}

void raise(const std::exception& error) {
  const bool is_beyond = dynamic_cast<const memgate::BeyondNative*>(&error) != nullptr;
  const bool is_invalid = dynamic_cast<const std::invalid_argument*>(&error) != nullptr;
  const bool is_full = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  PyErr_SetString(is_beyond    ? PyExc_OverflowError
                  : is_invalid ? PyExc_ValueError
                  : is_full    ? PyExc_MemoryError
                               : PyExc_AssertionError,
                  error.what());
}

PyObject* pack(PyObject*, PyObject* packed) {
  char* data;
  Py_ssize_t length;
  if (PyBytes_AsStringAndSize(packed, &data, &length) < 0) return nullptr;
  try {
    auto timeline = std::make_unique<Timeline>(
        Timeline::read(std::string_view(data, static_cast<size_t>(length))));
    const auto destroy = [](PyObject* capsule) {
      delete static_cast<Timeline*>(PyCapsule_GetPointer(capsule, kCapsuleName));
    };
    PyObject* capsule = PyCapsule_New(timeline.get(), kCapsuleName, destroy);
    if (capsule != nullptr) timeline.release();
    return capsule;
  } catch (const std::exception& error) {
    raise(error);
    return nullptr;
  }
}

PyObject* to_tuple(const Answer& answer) {
  return Py_BuildValue("iLLLNNNNNN", static_cast<int>(answer.problem),
                       static_cast<long long>(answer.num_events),
                       static_cast<long long>(answer.lowest_bytes),
                       static_cast<long long>(answer.below_bytes), to_bytes(&answer.stats, 1),
                       to_bytes(answer.ooms), to_bytes(answer.segment_events),
                       to_bytes(answer.allocated_series), to_bytes(answer.active_series),
                       to_bytes(answer.final_segments));
}

PyObject* replay(PyObject*, PyObject* arguments) {
  PyObject* capsule;
  Question question;
  memgate::AllocatorConfig& config = question.config;
  unsigned long long max_split_size, max_non_split_rounding_size;
  long long large_segment_size, capacity, context;
  const char* divisions;
  Py_ssize_t divisions_length;
  int expandable_segments, throw_on_cudamalloc_oom, address_policy, stops_at_oom, is_recorded;
  if (!PyArg_ParseTuple(arguments, "OKKdy#pLdpLLipp", &capsule, &max_split_size,
                        &max_non_split_rounding_size, &config.garbage_collection_threshold,
                        &divisions, &divisions_length, &expandable_segments, &large_segment_size,
                        &config.per_process_memory_fraction, &throw_on_cudamalloc_oom, &capacity,
                        &context, &address_policy, &stops_at_oom, &is_recorded)) {
    return nullptr;
  }
  const auto* timeline = static_cast<Timeline*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  if (timeline == nullptr) return nullptr;
  if (static_cast<size_t>(divisions_length) != sizeof config.roundup_power2_divisions) {
    PyErr_SetString(PyExc_ValueError, "one entry per power of two is wanted");
    return nullptr;
  }
  std::memcpy(config.roundup_power2_divisions.data(), divisions,
              sizeof config.roundup_power2_divisions);
  config.max_split_size = max_split_size;
  config.max_non_split_rounding_size = max_non_split_rounding_size;
  config.expandable_segments = expandable_segments != 0;
  config.large_segment_size = large_segment_size;
  config.throw_on_cudamalloc_oom = throw_on_cudamalloc_oom != 0;
  question.capacity = capacity;
  question.context = context;
  question.address_policy = static_cast<memgate::AddressPolicy>(address_policy);
  question.stops_at_oom = stops_at_oom != 0;
  question.is_recorded = is_recorded != 0;

  Answer answer;
  std::exception_ptr thrown;
  Py_BEGIN_ALLOW_THREADS;
  try {
    answer = memgate::replay(*timeline, question);
  } catch (...) {
    thrown = std::current_exception();
  }
  Py_END_ALLOW_THREADS;
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    raise(error);
    return nullptr;
  }
  return to_tuple(answer);
}

PyMethodDef methods[] = {
    {"pack", pack, METH_O, "Turn a timeline, as MessagePack, into columns to be replayed."},
    {"replay", replay, METH_VARARGS, "Replay a packed timeline; the answer comes as columns."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "core", "The caching allocator in C++.", 0, methods, nullptr,
    nullptr,               nullptr, nullptr,
};

}  // namespace

// native_core.py has the same number, and takes no other: change both when the calls change
constexpr long kProtocol = 1;

PyMODINIT_FUNC PyInit_core() {
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr) return nullptr;
  if (PyModule_AddIntConstant(made, "PROTOCOL", kProtocol) < 0 ||
      PyModule_AddStringConstant(made, "SOURCES", MEMGATE_SOURCES) < 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
