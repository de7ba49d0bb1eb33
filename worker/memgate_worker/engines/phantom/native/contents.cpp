// Remembered bytes of the phantom's memory; see contents.h.
#include "contents.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace memgate::phantom {
namespace {

// Sizes, indices and masks are small; a batch of images is not worth remembering. The total bounds what a long-lived
// process can spend.
constexpr size_t kLargestRemembered = size_t{1} << 20;
constexpr size_t kMostRemembered = size_t{64} << 20;

struct Piece {
  std::vector<unsigned char> bytes;
  uint64_t launches_before;  // num_launches() when it was copied up
};

std::mutex mutex;
std::map<uint64_t, Piece> pieces;  // by first address; pieces never overlap
size_t remembered_bytes = 0;

std::atomic<uint64_t> launches{0};
std::atomic<uint64_t> scalar_reads{0};
std::atomic<uint64_t> launches_before_scalar_read{0};
std::atomic<uint64_t> data_reads{0};

void insert_piece(uint64_t address, Piece piece) {
  remembered_bytes += piece.bytes.size();
  pieces[address] = std::move(piece);
}

std::map<uint64_t, Piece>::iterator first_piece_reaching(uint64_t address) {
  auto found = pieces.upper_bound(address);
  if (found != pieces.begin()) {
    const auto before = std::prev(found);
    if (before->first + before->second.bytes.size() > address) return before;
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
    remembered_bytes -= old.bytes.size();
    const uint64_t old_end = start + old.bytes.size();
    const auto kept_before = static_cast<ptrdiff_t>(start < address ? address - start : 0);
    const auto kept_after = static_cast<ptrdiff_t>(old_end > end ? old_end - end : 0);
    if (kept_before > 0)
      insert_piece(start, {{old.bytes.begin(), old.bytes.begin() + kept_before}, old.launches_before});
    if (kept_after > 0) insert_piece(end, {{old.bytes.end() - kept_after, old.bytes.end()}, old.launches_before});
  }
}

// Copies the range out if every byte of it is known; gives the launch count of its oldest piece.
bool read_locked(unsigned char* destination, uint64_t address, size_t bytes, uint64_t* launches_before) {
  const uint64_t end = address + bytes;
  *launches_before = UINT64_MAX;
  auto found = first_piece_reaching(address);
  while (address < end) {
    if (found == pieces.end() || found->first > address) return false;
    const size_t offset = address - found->first;
    const size_t count = std::min<size_t>(found->second.bytes.size() - offset, end - address);
    std::memcpy(destination, found->second.bytes.data() + offset, count);
    *launches_before = std::min(*launches_before, found->second.launches_before);
    destination += count;
    address += count;
    ++found;
  }
  return true;
}

void remember_locked(uint64_t address, Piece piece) {
  if (piece.bytes.empty() || remembered_bytes + piece.bytes.size() > kMostRemembered) return;
  insert_piece(address, std::move(piece));
}

}  // namespace

void remember_upload(uint64_t address, const void* source, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  forget_locked(address, bytes);
  if (bytes > kLargestRemembered) return;
  const auto* first = static_cast<const unsigned char*>(source);
  remember_locked(address, {{first, first + bytes}, launches.load()});
}

void copy_within_device(uint64_t destination, uint64_t source, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  Piece piece{{}, 0};
  if (bytes <= kLargestRemembered) {
    piece.bytes.resize(bytes);
    if (!read_locked(piece.bytes.data(), source, bytes, &piece.launches_before)) piece.bytes.clear();
  }
  forget_locked(destination, bytes);
  remember_locked(destination, std::move(piece));
}

void forget(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  forget_locked(address, bytes);
}

void read_back(void* destination, uint64_t address, size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard<std::mutex> lock(mutex);
  uint64_t launches_before = 0;
  const bool known = read_locked(static_cast<unsigned char*>(destination), address, bytes, &launches_before);
  if (bytes <= kScalarBytes) {
    ++scalar_reads;
    launches_before_scalar_read = launches.load();
    if (!known || launches_before != launches.load()) std::memset(destination, 0, bytes);
    return;
  }
  if (known) return;
  ++data_reads;
  std::memset(destination, 0, bytes);
}

void count_launch() { ++launches; }
uint64_t num_launches() { return launches; }
uint64_t num_scalar_reads() { return scalar_reads; }
uint64_t launches_before_last_scalar_read() { return launches_before_scalar_read; }
uint64_t num_data_reads() { return data_reads; }

}  // namespace memgate::phantom
