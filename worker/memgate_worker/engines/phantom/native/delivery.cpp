// Contents of messages; see delivery.h.
#include "delivery.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "contents.h"
#include "transfers.h"

namespace memgate::phantom {
namespace {

constexpr size_t kLargestDelivered = size_t{1} << 20;
// Objects travel as bytes, and are read back by all ranks' numbers.
constexpr size_t kLargestObjects = size_t{64} << 20;

float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  float value;
  if (magnitude < 0x0400) {  // below the normal numbers
    value = static_cast<float>(magnitude) / 16777216.0F;
    return sign == 0 ? value : -value;
  }
  const uint32_t wide = sign | (magnitude >= 0x7c00 ? 0x7f800000 | (magnitude << 13) : (magnitude << 13) + 0x38000000);
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_half(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  const auto sign = static_cast<uint16_t>((wide >> 16) & 0x8000);
  const uint32_t magnitude = wide & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    float absolute;
    std::memcpy(&absolute, &magnitude, sizeof absolute);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(absolute * 16777216.0F + 0.5F));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0x1000) >> 13));
}

float from_bfloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bfloat(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

template <typename Number>
Number combine(Number value, int operation, int num_ranks) {
  if (operation == kSum) return static_cast<Number>(value * static_cast<Number>(num_ranks));
  if (operation != kProduct) return value;
  Number product = 1;
  for (int rank = 0; rank < num_ranks; ++rank) product = static_cast<Number>(product * value);
  return product;
}

template <typename Number>
void combine_all(unsigned char* bytes, size_t count, int operation, int num_ranks) {
  for (size_t i = 0; i < count; ++i) {
    Number value;
    std::memcpy(&value, bytes + i * sizeof value, sizeof value);
    value = combine(value, operation, num_ranks);
    std::memcpy(bytes + i * sizeof value, &value, sizeof value);
  }
}

template <float (*From)(uint16_t), uint16_t (*To)(float)>
void combine_short(unsigned char* bytes, size_t count, int operation, int num_ranks) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    bits = To(combine(From(bits), operation, num_ranks));
    std::memcpy(bytes + i * sizeof bits, &bits, sizeof bits);
  }
}

// Numbers of 8 bits and those that wrap around are taken without a sign: the bits are the same.
void combine_elements(unsigned char* bytes, size_t count, int data_type, int operation, int num_ranks) {
  switch (data_type) {
    case kInt8:
    case kUint8: return combine_all<uint8_t>(bytes, count, operation, num_ranks);
    case kInt32:
    case kUint32: return combine_all<uint32_t>(bytes, count, operation, num_ranks);
    case kInt64:
    case kUint64: return combine_all<uint64_t>(bytes, count, operation, num_ranks);
    case kFloat16: return combine_short<from_half, to_half>(bytes, count, operation, num_ranks);
    case kBfloat16: return combine_short<from_bfloat, to_bfloat>(bytes, count, operation, num_ranks);
    case kFloat32: return combine_all<float>(bytes, count, operation, num_ranks);
    case kFloat64: return combine_all<double>(bytes, count, operation, num_ranks);
    default: return;  // of 8-bit floats the sum may not be one
  }
}

}  // namespace

size_t element_bytes(int data_type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[static_cast<size_t>(data_type) % (sizeof(kSizes) / sizeof(kSizes[0]))];
}

bool is_integer(int data_type) { return data_type <= kUint64; }

void make_up(void* target, size_t count, int data_type) {
  const size_t size = element_bytes(data_type);
  unsigned char element[8] = {};
  constexpr float kPlausible = 0.75F;
  const uint16_t half = data_type == kFloat16 ? to_half(kPlausible) : to_bfloat(kPlausible);
  const double wide = kPlausible;
  if (data_type == kFloat32) std::memcpy(element, &kPlausible, sizeof kPlausible);
  if (data_type == kFloat64) std::memcpy(element, &wide, sizeof wide);
  if (data_type == kFloat16 || data_type == kBfloat16) std::memcpy(element, &half, sizeof half);
  fill_contents(address_of(target), count * size, element, size, kMadeUp);
}

void repeat(void* target, const void* source, size_t count, int data_type, int times) {
  const size_t size = element_bytes(data_type);
  const size_t bytes = count * size;
  if (bytes == 0) return;
  const size_t total = bytes * static_cast<size_t>(times);
  unsigned char element[16] = {};
  const Certainty constant = find_constant(address_of(source), bytes, size, element);
  if (constant != kNothing) return fill_contents(address_of(target), total, element, size, constant);
  const bool is_small = total <= (data_type == kUint8 || data_type == kInt8 ? kLargestObjects : kLargestDelivered);
  if (!is_small || certainty_of(address_of(source), bytes) == kNothing)
    return make_up(target, count * static_cast<size_t>(times), data_type);
  for (int part = 0; part < times; ++part) {
    void* const place = static_cast<char*>(target) + static_cast<size_t>(part) * bytes;
    if (place != source) copy(place, source, bytes);
  }
}

void reduce(void* target, const void* source, size_t count, int data_type, int operation, int num_ranks) {
  const size_t size = element_bytes(data_type);
  const size_t bytes = count * size;
  if (bytes == 0) return;
  unsigned char element[16] = {};
  const Certainty constant = find_constant(address_of(source), bytes, size, element);
  if (constant != kNothing) {
    combine_elements(element, 1, data_type, operation, num_ranks);
    return fill_contents(address_of(target), bytes, element, size, constant);
  }
  if (bytes > kLargestDelivered || certainty_of(address_of(source), bytes) == kNothing)
    return make_up(target, count, data_type);
  std::vector<unsigned char> contents(bytes);
  const Certainty certainty = read_contents(contents.data(), address_of(source), bytes);
  combine_elements(contents.data(), count, data_type, operation, num_ranks);
  write_contents(address_of(target), contents.data(), bytes, certainty);
}

}  // namespace memgate::phantom
