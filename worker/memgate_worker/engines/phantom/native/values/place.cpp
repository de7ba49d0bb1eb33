// Tensors in the phantom's memory; see place.h.
#include "place.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <cstring>

#include "../device.h"

namespace memgate::values {
namespace {

// A tensor that lies in more separate runs than this is not written element by element.
constexpr int64_t kMostRuns = 4096;

// Calls `use` with the byte offset of each run of adjacent elements; all runs have `run_bytes`. False: too many.
template <typename Use>
bool for_each_run(const Place& place, Use use) {
  int64_t run = 1;
  size_t outer = place.sizes.size();
  while (outer > 0 && (place.sizes[outer - 1] == 1 || place.strides[outer - 1] == run)) run *= place.sizes[--outer];
  const int64_t num_runs = place.num_elements / std::max<int64_t>(run, 1);
  if (num_runs > kMostRuns) return false;
  for (int64_t index = 0; index < num_runs; ++index) {
    int64_t rest = index;
    int64_t offset = 0;
    for (size_t d = outer; d-- > 0; rest /= place.sizes[d]) offset += rest % place.sizes[d] * place.strides[d];
    use(static_cast<uint64_t>(offset) * place.element_bytes, static_cast<size_t>(run) * place.element_bytes,
        index * run);
  }
  return true;
}

template <typename T>
Element as_element(T value) {
  Element element{};
  std::memcpy(element.data(), &value, sizeof value);
  return element;
}

}  // namespace

std::optional<Place> place_of(const at::Tensor& tensor) {
  // Tensors of Python subclasses (fake, distributed) have no data of their own, nested ones no one shape.
  if (!tensor.defined() || !tensor.is_cuda() || tensor.is_nested() || tensor.layout() != at::kStrided ||
      !tensor.has_storage() || tensor.key_set().has(c10::DispatchKey::Python) || tensor.is_conj() || tensor.is_neg())
    return std::nullopt;
  const auto* data = static_cast<const char*>(tensor.storage().data());
  if (!phantom::is_device_address(data) && tensor.numel() != 0) return std::nullopt;
  Place place;
  place.type = tensor.scalar_type();
  place.element_bytes = tensor.element_size();
  const uint64_t offset = static_cast<uint64_t>(tensor.storage_offset()) * place.element_bytes;
  place.address = reinterpret_cast<uint64_t>(data) + offset;
  place.num_elements = tensor.numel();
  place.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  place.strides.assign(tensor.strides().begin(), tensor.strides().end());
  int64_t last = 0;
  for (size_t d = 0; d < place.sizes.size(); ++d) last += (place.sizes[d] - 1) * place.strides[d];
  place.span_bytes = place.num_elements == 0 ? 0 : static_cast<size_t>(last + 1) * place.element_bytes;
  place.is_dense = place.span_bytes == static_cast<size_t>(place.num_elements) * place.element_bytes &&
                   tensor.is_non_overlapping_and_dense();
  return place;
}

Certainty certainty_of(const Place& place) {
  return static_cast<Certainty>(memgate_phantom_certainty(place.address, place.span_bytes));
}

Certainty constant_of(const Place& place, Element& element) {
  return static_cast<Certainty>(
      memgate_phantom_constant(place.address, place.span_bytes, place.element_bytes, element.data()));
}

bool was_written(const Place& place, uint64_t num_writes_before) {
  return memgate_phantom_oldest_write(place.address, place.span_bytes) > num_writes_before;
}

at::Tensor make_alike(const Place& place) {
  const auto num_elements = static_cast<int64_t>(place.span_bytes / place.element_bytes);
  return at::zeros({num_elements}, at::TensorOptions().dtype(place.type).device(at::kCPU))
      .as_strided(place.sizes, place.strides);
}

at::Tensor load(const Place& place) {
  const at::Tensor tensor = make_alike(place);
  memgate_phantom_read(tensor.storage().mutable_data(), place.address, place.span_bytes);
  return tensor;
}

at::Tensor make_single(const Place& place, const Element& element) {
  const c10::SmallVector<int64_t, 5> ones(place.sizes.size(), 1);
  const at::Tensor tensor = at::empty(ones, at::TensorOptions().dtype(place.type).device(at::kCPU));
  std::memcpy(tensor.storage().mutable_data(), element.data(), place.element_bytes);
  return tensor;
}

void store(const Place& place, const at::Tensor& values, Certainty certainty) {
  if (place.num_elements == 0) return;
  if (place.is_dense) {
    const at::Tensor laid_out = make_alike(place);
    laid_out.copy_(values);
    memgate_phantom_write(place.address, laid_out.storage().data(), place.span_bytes, certainty);
    return;
  }
  const at::Tensor laid_out = values.to(place.type).contiguous();
  const auto* data = static_cast<const char*>(laid_out.storage().data());
  const size_t size = place.element_bytes;
  const bool is_done = for_each_run(place, [&](uint64_t offset, size_t bytes, int64_t first) {
    memgate_phantom_write(place.address + offset, data + static_cast<size_t>(first) * size, bytes, certainty);
  });
  if (!is_done) fill(place, to_element(place.type, 0), kMadeUp);
}

void fill(const Place& place, const Element& element, Certainty certainty) {
  if (place.num_elements == 0) return;
  const size_t size = place.element_bytes;
  const bool is_done = !place.is_dense && for_each_run(place, [&](uint64_t offset, size_t bytes, int64_t) {
    memgate_phantom_fill(place.address + offset, bytes, element.data(), size, certainty);
  });
  if (is_done) return;
  // Too scattered: what lies between is overwritten too, and is then no longer certain.
  const Certainty whole = place.is_dense ? certainty : kMadeUp;
  memgate_phantom_fill(place.address, place.span_bytes, element.data(), size, whole);
}

Element to_element(at::ScalarType type, double number) {
  switch (type) {
    case at::kFloat: return as_element(static_cast<float>(number));
    case at::kDouble: return as_element(number);
    case at::kHalf: return as_element(c10::Half(static_cast<float>(number)));
    case at::kBFloat16: return as_element(c10::BFloat16(static_cast<float>(number)));
    case at::kComplexFloat: return as_element(c10::complex<float>(static_cast<float>(number)));
    case at::kComplexDouble: return as_element(c10::complex<double>(number));
    case at::kLong: return as_element(static_cast<int64_t>(number));
    case at::kInt: return as_element(static_cast<int32_t>(number));
    case at::kShort: return as_element(static_cast<int16_t>(number));
    case at::kChar: return as_element(static_cast<int8_t>(number));
    case at::kByte: return as_element(static_cast<uint8_t>(number));
    case at::kBool: return as_element(number != 0);
    default: return Element{};
  }
}

Element first_element(const at::Tensor& values) {
  Element element{};
  const auto* data = static_cast<const char*>(values.storage().data());
  const size_t size = values.element_size();
  std::memcpy(element.data(), data + static_cast<size_t>(values.storage_offset()) * size, size);
  return element;
}

}  // namespace memgate::values
