// The contents of the phantom's memory; see contents.h.
#include "contents.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace memgate::phantom {
namespace {

// Sizes, indices and masks are small; a batch of images is not worth remembering. The total bounds what a long-lived
// process can spend.
constexpr size_t kLargestRemembered = size_t{1} << 20;
constexpr size_t kMostRemembered = size_t{256} << 20;
constexpr size_t kLargestElement = 16;

struct Piece {
  size_t length;
  Certainty certainty;
  uint64_t number;  // of the write
  // Either bytes of its own, shared by the pieces that were cut from them, or an element that repeats.
  std::shared_ptr<const std::vector<unsigned char>> bytes;
  std::array<unsigned char, kLargestElement> element;
  size_t element_bytes;
  size_t offset;  // of the piece's first byte, in `bytes` or in the element
  bool from_other_ranks;
};

std::mutex mutex;
std::map<uint64_t, Piece> pieces;  // by first address; pieces never overlap
size_t remembered_bytes = 0;
uint64_t writes = 0;

std::atomic<uint64_t> launches{0};
std::atomic<uint64_t> data_sized_results{0};
std::atomic<uint64_t> reads_from_other_ranks{0};

struct ExpectedCount {
  uint64_t count;
  uint64_t writes_before;
};
thread_local std::vector<ExpectedCount> expected_counts;

size_t cost(const Piece& piece) { return piece.bytes ? piece.length : 0; }

void insert_piece(uint64_t address, Piece piece) {
  if (piece.length == 0) return;
  remembered_bytes += cost(piece);
  pieces[address] = std::move(piece);
}

Piece cut(const Piece& piece, size_t first, size_t length) {
  Piece part = piece;
  part.length = length;
  part.offset = piece.bytes ? piece.offset + first : (piece.offset + first) % piece.element_bytes;
  return part;
}

std::map<uint64_t, Piece>::iterator first_piece_reaching(uint64_t address) {
  auto found = pieces.upper_bound(address);
  if (found != pieces.begin()) {
    const auto before = std::prev(found);
    if (before->first + before->second.length > address) return before;
  }
  return found;
}

void forget_locked(uint64_t address, size_t bytes) {
  const uint64_t end = address + bytes;
  auto found = first_piece_reaching(address);
  while (found != pieces.end() && found->first < end) {
    const uint64_t start = found->first;
    const Piece old = std::move(found->second);
    found = pieces.erase(found);
    remembered_bytes -= cost(old);
    const uint64_t old_end = start + old.length;
    if (start < address) insert_piece(start, cut(old, 0, address - start));
    if (old_end > end) insert_piece(end, cut(old, end - start, old_end - end));
  }
}

void copy_out(unsigned char* destination, const Piece& piece, size_t first, size_t count) {
  if (piece.bytes) {
    std::memcpy(destination, piece.bytes->data() + piece.offset + first, count);
    return;
  }
  const size_t size = piece.element_bytes;
  for (size_t i = 0; i < std::min(count, size); ++i) destination[i] = piece.element[(piece.offset + first + i) % size];
  // Doubling what is there is much faster than going on by the byte.
  for (size_t done = size; done < count; done *= 2)
    std::memcpy(destination + done, destination, std::min(done, count - done));
}

// Calls `use` with each piece of the range and its part of it. Returns the worst certainty.
template <typename Use>
Certainty walk(uint64_t address, size_t bytes, Use use) {
  const uint64_t end = address + bytes;
  Certainty worst = kKnown;
  uint64_t reached = address;
  for (auto found = first_piece_reaching(address); found != pieces.end() && found->first < end; ++found) {
    if (found->first > reached) worst = kNothing;
    const uint64_t first = std::max(found->first, address);
    reached = std::min(found->first + found->second.length, end);
    worst = std::min(worst, found->second.certainty);
    use(found->second, first, first - found->first, reached - first);
  }
  return reached < end ? kNothing : worst;
}

void write_locked(uint64_t address, const void* source, size_t bytes, Certainty certainty) {
  forget_locked(address, bytes);
  if (bytes == 0 || bytes > kLargestRemembered || remembered_bytes + bytes > kMostRemembered) return;
  const auto* first = static_cast<const unsigned char*>(source);
  // Not make_shared: without type information it needs more of the C++ library than we bring along.
  std::shared_ptr<const std::vector<unsigned char>> copy(new std::vector<unsigned char>(first, first + bytes));
  insert_piece(address, {bytes, certainty, ++writes, std::move(copy), {}, 0, 0, false});
}

}  // namespace

void remember_upload(uint64_t address, const void* source, size_t bytes) {
  write_contents(address, source, bytes, kKnown);
}

void copy_within_device(uint64_t destination, uint64_t source, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<std::pair<uint64_t, Piece>> found;
  walk(source, bytes, [&](const Piece& piece, uint64_t first, size_t offset, size_t count) {
    found.emplace_back(destination + (first - source), cut(piece, offset, count));
  });
  forget_locked(destination, bytes);
  ++writes;
  for (auto& [address, piece] : found) {
    piece.number = writes;
    if (remembered_bytes + cost(piece) <= kMostRemembered) insert_piece(address, std::move(piece));
  }
}

void forget(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  forget_locked(address, bytes);
}

void write_contents(uint64_t address, const void* source, size_t bytes, Certainty certainty) {
  const std::lock_guard<std::mutex> lock(mutex);
  write_locked(address, source, bytes, certainty);
}

void fill_contents(uint64_t address, size_t bytes, const void* element, size_t element_bytes, Certainty certainty) {
  if (element_bytes == 0 || element_bytes > kLargestElement) return forget(address, bytes);
  const std::lock_guard<std::mutex> lock(mutex);
  forget_locked(address, bytes);
  Piece piece{bytes, certainty, ++writes, nullptr, {}, element_bytes, 0, false};
  std::memcpy(piece.element.data(), element, element_bytes);
  insert_piece(address, std::move(piece));
}

Certainty read_contents(void* destination, uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto* start = static_cast<unsigned char*>(destination);
  std::memset(start, 0, bytes);
  bool is_from_others = false;
  const Certainty worst = walk(address, bytes, [&](const Piece& piece, uint64_t first, size_t offset, size_t count) {
    copy_out(start + (first - address), piece, offset, count);
    is_from_others = is_from_others || piece.from_other_ranks;
  });
  if (is_from_others) ++reads_from_other_ranks;
  return worst;
}

Certainty find_constant(uint64_t address, size_t bytes, size_t element_bytes, void* element) {
  if (element_bytes == 0 || element_bytes > kLargestElement || bytes < element_bytes) return kNothing;
  const std::lock_guard<std::mutex> lock(mutex);
  auto* value = static_cast<unsigned char*>(element);
  bool has_value = false;
  bool is_constant = true;
  const auto compare = [&](const Piece& piece, uint64_t first, size_t offset, size_t count) {
    std::array<unsigned char, kLargestElement> here;
    const bool repeats = !piece.bytes && element_bytes % piece.element_bytes == 0;
    if (!is_constant || (!repeats && count != element_bytes) || (first - address) % element_bytes != 0 ||
        count % element_bytes != 0) {
      is_constant = false;
      return;
    }
    copy_out(here.data(), piece, offset, element_bytes);
    if (!has_value) std::memcpy(value, here.data(), element_bytes);
    is_constant = std::memcmp(value, here.data(), element_bytes) == 0;
    has_value = true;
  };
  const Certainty certainty = walk(address, bytes, compare);
  return is_constant && has_value ? certainty : kNothing;
}

Certainty certainty_of(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  return walk(address, bytes, [](const Piece&, uint64_t, size_t, size_t) {});
}

uint64_t oldest_write(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  uint64_t oldest = UINT64_MAX;
  const Certainty certainty = walk(address, bytes, [&](const Piece& piece, uint64_t, size_t, size_t) {
    oldest = std::min(oldest, piece.number);
  });
  return certainty == kNothing ? 0 : oldest;
}

uint64_t num_writes() {
  const std::lock_guard<std::mutex> lock(mutex);
  return writes;
}

void read_back(void* destination, uint64_t address, size_t bytes) {
  const Certainty certainty = read_contents(destination, address, bytes);
  if (expected_counts.empty() || (bytes != sizeof(int32_t) && bytes != sizeof(int64_t))) return;
  const ExpectedCount& expected = expected_counts.back();
  if (certainty == kKnown && oldest_write(address, bytes) > expected.writes_before) return;
  std::memcpy(destination, &expected.count, bytes);  // little-endian: the low half of a count is the count
}

void expect_count(uint64_t count) { expected_counts.push_back({count, num_writes()}); }
void end_count() { expected_counts.pop_back(); }

void note_from_other_ranks(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto found = first_piece_reaching(address); found != pieces.end() && found->first < address + bytes; ++found)
    found->second.from_other_ranks = true;
}

uint64_t num_reads_from_other_ranks() { return reads_from_other_ranks; }

void count_launch() { ++launches; }
uint64_t num_launches() { return launches; }
void note_data_sized_result() { ++data_sized_results; }
uint64_t num_data_sized_results() { return data_sized_results; }

}  // namespace memgate::phantom
