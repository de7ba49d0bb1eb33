// PyTorch's CUDACachingAllocator, decision by decision, without a GPU: the native twin of
// caching.py, which has the rules in words and is the reference. Functions have upstream's names:
// https://github.com/pytorch/pytorch/blob/v2.14.1/c10/cuda/CUDACachingAllocator.cpp

#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blocks.h"
#include "device.h"
#include "sizes.h"

namespace memgate {

enum class SegmentAction : int64_t { kAlloc = 0, kFree = 1, kMap = 2, kUnmap = 3 };

// A row of the binding's answer, as all structs of int64_t below are.
struct SegmentEvent {
  int64_t event_index, action, size, stream;
};

struct OutOfMemory {
  int64_t event_index, requested, tried, free, allowed /* -1: no limit */, allocated, reserved;
  int64_t rejected_in_advance;
};

struct SegmentInfo {
  int64_t address, total_size, allocated_size, active_size;
  int64_t is_large, is_expandable, stream, num_blocks;
};

// An address range, and the pages behind parts of it: Note [Expandable segments], expandable.py.
struct ExpandableSegment {
  int64_t page_size, size, ptr, placed_at;
};

struct ResidentPiece {
  // the number of its id; -1 if it is free
  int32_t id;
  int64_t size;
};

struct ResidentSegment {
  int32_t stream;
  bool is_small, is_expandable;
  std::vector<ResidentPiece> pieces;
};

// Blocks that the program freed while other streams still use them, in upstream's order: events.py.
class EventQueues {
 public:
  bool empty() const { return queues_.empty(); }
  void append(int64_t stream, BlockId block);
  void remove(BlockId block);
  std::vector<BlockId> take_all();

 private:
  uint64_t slot(int64_t stream) const;

  std::vector<std::pair<int64_t, std::vector<BlockId>>> queues_;
  int table_bits_ = 2;
};

class CachingAllocator {
 public:
  // `streams` are the names of the numbered streams; `is_private`: which keep their cache.
  CachingAllocator(const AllocatorConfig& config, const Device& device,
                   const std::vector<int64_t>& streams, const std::vector<bool>& is_private);
  CachingAllocator(const CachingAllocator&) = delete;

  // kNoBlock: out of memory, and `ooms.back()` says how
  BlockId malloc(int64_t size, int32_t stream);
  void free(BlockId block);
  // false: there is no room for all of it, and nothing was taken
  bool adopt(const std::vector<ResidentSegment>& segments, std::vector<BlockId>& placed);
  void hand_out(BlockId block, int64_t orig_size);
  void record_stream(BlockId block, int32_t stream);
  void finish_streams(BlockId block);
  void empty_cache(int32_t private_stream = -1);
  void set_memory_fraction(double fraction);
  std::vector<SegmentInfo> snapshot() const;
  Block& block(BlockId id) { return blocks_[static_cast<size_t>(id)]; }

  Device device;
  DeviceStats stats;
  bool events_pending = false;
  // what is being replayed, for the records below
  int64_t event_index = 0;
  std::vector<SegmentEvent> segment_events;
  std::vector<OutOfMemory> ooms;

 private:
  // A request that no cached block can serve.
  struct AllocParams {
    BlockPool& pool;
    int64_t size, alloc_size, orig_size;
    int32_t stream;
  };

  // blocks
  const Block& at(BlockId id) const { return blocks_[static_cast<size_t>(id)]; }
  BlockId make_block(int32_t stream, int64_t size, const BlockPool& pool, int64_t ptr,
                     int32_t expandable_segment);
  void drop_block(BlockId id);
  void splice(BlockId id, BlockId before, BlockId after);
  BlockPool& pool_of(const Block& block) { return block.is_small ? small_blocks_ : large_blocks_; }
  void insert_into_blocks(BlockId id);
  void erase(BlockId id);
  int64_t try_merge_blocks(BlockId dst, BlockId src);
  void insert_unmapped(BlockId id);
  void erase_unmapped(BlockId id);
  int64_t placed_at(BlockId id) const;

  // requests
  BlockId get_free_block(BlockPool& pool, int64_t size, int32_t stream);
  BlockId tightest_fit(BlockId block, const FreeBlocks& free_blocks);
  BlockId get_new_block(AllocParams& params);
  BlockId alloc_found_block(BlockId block, int64_t size);
  BlockId split(BlockId remaining, int64_t size);
  BlockId alloc_block(AllocParams& params, bool& is_rejected);
  void note_oom(const AllocParams& params, bool rejected_in_advance);

  // frees
  void free_block(BlockId block);
  void insert_events(BlockId block);
  void finish_events();
  void finish_event(BlockId block);

  // segments
  BlockId cuda_malloc(BlockPool& pool, int64_t size, int32_t stream);
  void cache(BlockId block);
  void release_block(BlockId block);
  void release_blocks(BlockPool& pool, int32_t private_stream);
  bool release_available_cached_blocks(const AllocParams& params);
  void garbage_collect_cached_blocks();
  void record_trace(SegmentAction action, int64_t size, int32_t stream);
  void count_reserved(BlockPool& pool, int64_t segments, int64_t size);

  // expandable segments
  BlockId try_allocate_expandable_block(BlockPool& pool, int64_t size, int32_t stream);
  BlockId find_expandable_block(BlockPool& pool, int64_t size, int32_t stream);
  bool has_available_address_space(BlockId block, int64_t size);
  bool map_block(BlockId to_map, int64_t size);
  void unmap_block(BlockId block);
  void release_expandable_segment(BlockId block);
  int64_t page_size(bool is_small) const {
    return is_small ? kSmallBuffer : config_.large_segment_size;
  }
  bool is_tail(BlockId block) const;
  bool reaches_addresses(BlockId block, int64_t value);

  const AllocatorConfig config_;
  const std::vector<int64_t>& streams_;
  const std::vector<bool>& is_private_;
  BlockPool small_blocks_, large_blocks_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  uint64_t num_made_ = 0;
  std::vector<ExpandableSegment> expandable_segments_;
  EventQueues cuda_events_;
  // of blocks that record_stream marked, the streams in the order of the calls
  std::unordered_map<BlockId, std::vector<int32_t>> stream_uses_;
  int64_t total_allocated_memory_ = 0;
  double fraction_ = 1.0;
  bool garbage_collects_ = false;
};

}  // namespace memgate
