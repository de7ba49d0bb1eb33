// Pool blocks, and the ordered pools in which the free ones wait: the counterpart of pool.py.
//
// A block is known by its number, not by a pointer.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sizes.h"

namespace memgate {

using BlockId = int32_t;
constexpr BlockId kNoBlock = -1;

// A piece of a segment.
struct Block {
  int64_t ptr = 0;
  int64_t size = 0;
  int64_t requested_size = 0;
  // the pool's get_free_blocks_call_count when it was freed
  int64_t gc_count_base = 0;
  // tells a block from an earlier one of the same number
  uint64_t serial = 0;
  BlockId prev = kNoBlock;
  BlockId next = kNoBlock;
  // streams are numbered in ascending order
  int32_t stream = 0;
  // -1: a segment of its own
  int32_t expandable_segment = -1;
  // CUDA events that must finish before it may be reused
  int32_t event_count = 0;
  // which id's use on other streams was noted last
  int32_t last_user = -1;
  bool is_small = false;
  bool allocated = false;
  bool mapped = true;
  // record_stream was called since it was handed out
  bool has_stream_uses = false;
  // in the program's hands, or waited for by a stream
  bool active = false;
  // in FreeBlocks
  bool pooled = false;

  bool is_split() const { return prev != kNoBlock || next != kNoBlock; }
  bool is_free() const { return !allocated && event_count == 0 && !has_stream_uses; }
  bool is_expandable() const { return expandable_segment >= 0; }
};

// The free blocks of one stream in one pool, ordered by size, then address: a sorted list in
// chunks, so that a change moves few entries however many blocks there are.
class FreeBlocks {
 public:
  struct Entry {
    int64_t size;
    int64_t ptr;
    BlockId block;

    bool operator<(const Entry& other) const {
      return size != other.size ? size < other.size : ptr < other.ptr;
    }
  };

  void add(const Entry& entry) {
    const size_t at = find_chunk(entry);
    std::vector<Entry>& chunk = chunks_[at];
    chunk.insert(std::lower_bound(chunk.begin(), chunk.end(), entry), entry);
    if (chunk.size() > kChunkLength) {
      const auto half = chunk.begin() + static_cast<std::ptrdiff_t>(chunk.size() / 2);
      std::vector<Entry> front(chunk.begin(), half);
      chunk.erase(chunk.begin(), half);
      bounds_.insert(bounds_.begin() + static_cast<std::ptrdiff_t>(at), front.back());
      chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(at), std::move(front));
    }
  }

  void remove(const Entry& entry) {
    const size_t at = find_chunk(entry);
    std::vector<Entry>& chunk = chunks_[at];
    chunk.erase(std::lower_bound(chunk.begin(), chunk.end(), entry));
    if (chunk.empty() && !bounds_.empty()) {
      chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at));
      const size_t bound = std::min(at, bounds_.size() - 1);
      bounds_.erase(bounds_.begin() + static_cast<std::ptrdiff_t>(bound));
    }
  }

  // the smallest block of at least `size`, the lowest address of those
  BlockId lower_bound(int64_t size) const {
    const Entry wanted{size, INT64_MIN, kNoBlock};
    const size_t at = find_chunk(wanted);
    const std::vector<Entry>& chunk = chunks_[at];
    const auto found = std::lower_bound(chunk.begin(), chunk.end(), wanted);
    if (found != chunk.end()) return found->block;
    return at < bounds_.size() ? chunks_[at + 1].front().block : kNoBlock;
  }

  // Call `visit` with each block after `entry`, in order, until it returns false.
  template <typename Visit>
  void visit_following(const Entry& entry, Visit visit) const {
    size_t at = find_chunk(entry);
    auto found = std::upper_bound(chunks_[at].begin(), chunks_[at].end(), entry);
    while (true) {
      for (; found != chunks_[at].end(); ++found) {
        if (!visit(found->block)) return;
      }
      if (++at == chunks_.size()) return;
      found = chunks_[at].begin();
    }
  }

  // the largest block, the highest address of those
  BlockId largest() const {
    return chunks_.back().empty() ? kNoBlock : chunks_.back().back().block;
  }

  bool empty() const { return chunks_.back().empty(); }

  void append_to(std::vector<BlockId>& blocks) const {
    for (const std::vector<Entry>& chunk : chunks_) {
      for (const Entry& entry : chunk) blocks.push_back(entry.block);
    }
  }

 private:
  // chunk i holds what is up to bound i, the last chunk the rest
  size_t find_chunk(const Entry& entry) const {
    return static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), entry) -
                               bounds_.begin());
  }

  static constexpr size_t kChunkLength = 128;
  // none is empty unless it is the only one
  std::vector<std::vector<Entry>> chunks_{1};
  std::vector<Entry> bounds_;
};

// All free blocks of one kind, small or large; by the number of their stream.
struct BlockPool {
  BlockPool(bool is_small, PoolStats& stats, size_t num_streams)
      : is_small(is_small), stats(stats), blocks(num_streams), unmapped(num_streams) {}

  const bool is_small;
  PoolStats& stats;
  std::vector<FreeBlocks> blocks;
  // empty address ranges of expandable segments, lowest first
  std::vector<std::vector<BlockId>> unmapped;
  // the age of a block is counted in searches
  int64_t get_free_blocks_call_count = 0;

  std::vector<BlockId> all_blocks() const {
    std::vector<BlockId> all;
    for (const FreeBlocks& of_stream : blocks) of_stream.append_to(all);
    return all;
  }
};

}  // namespace memgate
