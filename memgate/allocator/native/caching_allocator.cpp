// The policy: which block serves a request, and when cached memory goes back. What is below it, the
// segments and the bookkeeping of blocks, is in segments.cpp.

#include "caching_allocator.h"

#include <algorithm>

namespace memgate {

CachingAllocator::CachingAllocator(const AllocatorConfig& config, const Device& device,
                                   const std::vector<int64_t>& streams,
                                   const std::vector<bool>& is_private)
    : device(device),
      config_(config),
      streams_(streams),
      is_private_(is_private),
      small_blocks_(true, stats.small_pool, streams.size()),
      large_blocks_(false, stats.large_pool, streams.size()) {
  set_memory_fraction(config.per_process_memory_fraction);
}

// -- requests ------------------------------------------------------------------------------------

BlockId CachingAllocator::malloc(int64_t size, int32_t stream) {
  if (!cuda_events_.empty() && !events_pending) finish_events();
  const int64_t rounded = round_size(size, config_);
  BlockPool& pool = rounded <= kSmallSize ? small_blocks_ : large_blocks_;
  BlockId found = get_free_block(pool, rounded, stream);
  if (found == kNoBlock) {
    AllocParams params{pool, rounded, get_allocation_size(rounded, config_), size, stream};
    found = get_new_block(params);
    if (found == kNoBlock) return kNoBlock;
  }
  found = alloc_found_block(found, rounded);
  hand_out(found, size);
  return found;
}

// From the device, giving cached memory back to it step by step.
BlockId CachingAllocator::get_new_block(AllocParams& params) {
  if (garbage_collects_) garbage_collect_cached_blocks();
  bool is_rejected = false;
  BlockId found = alloc_block(params, is_rejected);
  if (found == kNoBlock && !is_rejected && release_available_cached_blocks(params)) {
    found = alloc_block(params, is_rejected);
  }
  if (found == kNoBlock && !is_rejected) {
    empty_cache();
    stats.num_alloc_retries += 1;
    found = alloc_block(params, is_rejected);
  }
  if (found == kNoBlock && !is_rejected) {
    stats.num_ooms += 1;
    note_oom(params, false);
  }
  return found;
}

BlockId CachingAllocator::alloc_found_block(BlockId id, int64_t size) {
  const Block& found = at(id);
  if (should_split(found.size - size, size, found.is_small, config_)) return split(id, size);
  if (!found.is_expandable() && found.is_split()) {
    stats.all.change_inactive_split(-1, -found.size);
    pool_of(found).stats.change_inactive_split(-1, -found.size);
  }
  return id;
}

void CachingAllocator::hand_out(BlockId id, int64_t orig_size) {
  Block& given = block(id);
  given.allocated = true;
  given.active = true;
  given.requested_size = orig_size;
  stats.all.block_allocated(given.size, orig_size);
  pool_of(given).stats.block_allocated(given.size, orig_size);
  if (config_.is_oversize(given.size)) stats.oversize_allocations.change(1);
}

// Cut the first `size` bytes off a free block and return them; the rest stays free.
BlockId CachingAllocator::split(BlockId remaining_id, int64_t size) {
  BlockPool& pool = pool_of(at(remaining_id));
  const bool already_split = at(remaining_id).is_split();
  const BlockId id = make_block(at(remaining_id).stream, size, pool, at(remaining_id).ptr,
                                at(remaining_id).expandable_segment);
  splice(id, at(remaining_id).prev, remaining_id);
  Block& remaining = block(remaining_id);
  remaining.ptr += size;
  remaining.size -= size;
  insert_into_blocks(remaining_id);
  if (!remaining.is_expandable()) {
    const int64_t blocks = already_split ? 0 : 1;
    const int64_t change = already_split ? -size : remaining.size;
    stats.all.change_inactive_split(blocks, change);
    pool.stats.change_inactive_split(blocks, change);
  }
  return id;
}

BlockId CachingAllocator::get_free_block(BlockPool& pool, int64_t size, int32_t stream) {
  if (garbage_collects_) pool.get_free_blocks_call_count += 1;
  const FreeBlocks& free_blocks = pool.blocks[static_cast<size_t>(stream)];
  BlockId id = free_blocks.lower_bound(size);
  if (id == kNoBlock) return kNoBlock;
  if (at(id).is_expandable()) id = tightest_fit(id, free_blocks);
  // oversize blocks are kept whole, for requests as large
  if (!config_.is_oversize(size) && config_.is_oversize(at(id).size)) return kNoBlock;
  const uint64_t excess = static_cast<uint64_t>(at(id).size - size);
  if (config_.is_oversize(size) && excess >= config_.max_non_split_rounding_size) return kNoBlock;
  erase(id);
  return id;
}

// A free block of an expandable segment counts with the size it can grow to: a later one may fit
// more tightly than one that can still grow.
BlockId CachingAllocator::tightest_fit(BlockId id, const FreeBlocks& free_blocks) {
  const auto growth = [this](BlockId of) {
    const BlockId following = at(of).next;
    return following != kNoBlock && !at(following).mapped ? following : kNoBlock;
  };
  if (growth(id) == kNoBlock) return id;
  const FreeBlocks::Entry first{at(id).size, at(id).ptr, id};
  free_blocks.visit_following(first, [&](BlockId later) {
    const BlockId mine = growth(id), other = growth(later);
    const int64_t my_size = at(id).size + (mine == kNoBlock ? 0 : at(mine).size);
    const int64_t other_size = at(later).size + (other == kNoBlock ? 0 : at(other).size);
    const bool mine_is_tail = mine != kNoBlock && is_tail(mine);
    const bool other_is_tail = other != kNoBlock && is_tail(other);
    bool is_looser = other_size >= my_size;
    // a tail grows with the capacity: what it is compared with is noted
    const int64_t addresses = expandable_segments_[static_cast<size_t>(at(id).expandable_segment)].size;
    if (other_is_tail && !mine_is_tail) {
      is_looser = reaches_addresses(later, my_size - other_size + addresses);
    } else if (mine_is_tail && !other_is_tail) {
      is_looser = !reaches_addresses(id, other_size + 1 - my_size + addresses);
    }
    if (is_looser) return false;
    id = later;
    return true;
  });
  return id;
}

// Ask the device once; `is_rejected` if asking again is ruled out.
BlockId CachingAllocator::alloc_block(AllocParams& params, bool& is_rejected) {
  const int64_t would_hold = total_allocated_memory_ + params.alloc_size;
  if (fraction_ < 1.0 && !device.window.reaches(Limit::share(fraction_), would_hold)) {
    return kNoBlock;
  }
  if (config_.throw_on_cudamalloc_oom) {
    // the share in the settings, whatever was set since, of the whole device: as upstream
    const double share = config_.per_process_memory_fraction;
    const Limit limit = share < 1.0 ? Limit::share(share) : Limit::whole();
    if (!device.window.reaches(limit, would_hold)) {
      is_rejected = true;
      stats.num_oom_rejections += 1;
      note_oom(params, true);
      return kNoBlock;
    }
  }
  if (config_.expandable_segments) {
    return try_allocate_expandable_block(params.pool, params.size, params.stream);
  }
  return cuda_malloc(params.pool, params.alloc_size, params.stream);
}

void CachingAllocator::note_oom(const AllocParams& params, bool rejected_in_advance) {
  const int64_t allowed = fraction_ < 1.0 ? Limit::share(fraction_).of(device.capacity) : -1;
  ooms.push_back({event_index, params.orig_size, params.alloc_size,
                  std::max<int64_t>(0, device.free_bytes), allowed,
                  stats.all.allocated_bytes.current, stats.all.reserved_bytes.current,
                  rejected_in_advance ? 1 : 0});
}

// -- frees ---------------------------------------------------------------------------------------

void CachingAllocator::free(BlockId id) {
  Block& freed = block(id);
  freed.allocated = false;
  if (config_.is_oversize(freed.size)) stats.oversize_allocations.change(-1);
  PoolStats& pool_stats = pool_of(freed).stats;
  if (freed.has_stream_uses) {
    stats.all.block_waits(freed.size);
    pool_stats.block_waits(freed.size);
    insert_events(id);
  } else {
    stats.all.block_freed(freed.size, freed.requested_size);
    pool_stats.block_freed(freed.size, freed.requested_size);
    free_block(id);
  }
}

// Move a block into its pool, joined with its free neighbours.
void CachingAllocator::free_block(BlockId id) {
  int64_t split_blocks = 0, split_bytes = 0;
  for (const BlockId neighbour : {at(id).prev, at(id).next}) {
    const int64_t subsumed = try_merge_blocks(id, neighbour);
    if (subsumed != 0) {
      split_blocks -= 1;
      split_bytes -= subsumed;
    }
  }
  block(id).active = false;
  insert_into_blocks(id);
  const Block& freed = at(id);
  if (freed.is_expandable()) return;
  if (freed.is_split()) {
    split_blocks += 1;
    split_bytes += freed.size;
  }
  if (split_bytes != 0) {
    stats.all.change_inactive_split(split_blocks, split_bytes);
    pool_of(freed).stats.change_inactive_split(split_blocks, split_bytes);
  }
}

// -- other streams: Note [Frees that wait], caching.py -------------------------------------------

void CachingAllocator::record_stream(BlockId id, int32_t stream) {
  if (stream == at(id).stream) return;
  std::vector<int32_t>& uses = stream_uses_[id];
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  block(id).has_stream_uses = true;
}

void CachingAllocator::insert_events(BlockId id) {
  for (const int32_t stream : stream_uses_[id]) {
    block(id).event_count += 1;
    cuda_events_.append(streams_[static_cast<size_t>(stream)], id);
  }
  stream_uses_.erase(id);
  block(id).has_stream_uses = false;
}

// Free a block that waits, unless pressure has done so.
void CachingAllocator::finish_streams(BlockId id) {
  if (at(id).event_count == 0) return;
  cuda_events_.remove(id);
  block(id).event_count = 1;
  finish_event(id);
}

void CachingAllocator::finish_events() {
  for (const BlockId id : cuda_events_.take_all()) finish_event(id);
}

void CachingAllocator::finish_event(BlockId id) {
  Block& waiting = block(id);
  waiting.event_count -= 1;
  if (waiting.event_count != 0) return;
  stats.all.block_waited(waiting.size, waiting.requested_size);
  pool_of(waiting).stats.block_waited(waiting.size, waiting.requested_size);
  free_block(id);
}

void EventQueues::append(int64_t stream, BlockId block) {
  for (auto& [name, waiting] : queues_) {
    if (name == stream) {
      waiting.push_back(block);
      return;
    }
  }
  queues_.push_back({stream, {block}});
  if (queues_.size() > size_t{1} << (table_bits_ - 1)) table_bits_ += 1;
}

void EventQueues::remove(BlockId block) {
  for (auto& [name, waiting] : queues_) {
    waiting.erase(std::remove(waiting.begin(), waiting.end(), block), waiting.end());
  }
  const auto is_empty = [](const auto& queue) { return queue.second.empty(); };
  queues_.erase(std::remove_if(queues_.begin(), queues_.end(), is_empty), queues_.end());
}

// In upstream's order, one entry per stream each waits for.
std::vector<BlockId> EventQueues::take_all() {
  std::stable_sort(queues_.begin(), queues_.end(), [this](const auto& left, const auto& right) {
    return slot(left.first) < slot(right.first);
  });
  std::vector<BlockId> all;
  for (const auto& queue : queues_) {
    all.insert(all.end(), queue.second.begin(), queue.second.end());
  }
  queues_.clear();
  return all;
}

// Fibonacci hashing over the handles that the recordings used: events.py.
uint64_t EventQueues::slot(int64_t stream) const {
  const uint64_t handle = (uint64_t{1} << 56) | static_cast<uint64_t>(stream) * 16;
  return (handle * 11400714819323198485u) >> (64 - table_bits_);
}

// -- giving cached memory back -------------------------------------------------------------------

void CachingAllocator::set_memory_fraction(double fraction) {
  fraction_ = fraction;
  garbage_collects_ = config_.garbage_collection_threshold > 0.0 && fraction < 1.0;
}

// Give back the oldest free segments once usage passes the threshold: ageing.py.
void CachingAllocator::garbage_collect_cached_blocks() {
  const Limit limit = Limit::gc_threshold(fraction_, config_.garbage_collection_threshold);
  if (device.window.reaches(limit, total_allocated_memory_)) return;
  std::vector<BlockId> freeable;
  int64_t total_age = 0;
  const auto age = [this](BlockId id) {
    return large_blocks_.get_free_blocks_call_count - at(id).gc_count_base;
  };
  for (const BlockId id : large_blocks_.all_blocks()) {
    const Block& cached = at(id);
    if (cached.is_expandable() || cached.is_split()) continue;
    if (is_private_[static_cast<size_t>(cached.stream)]) continue;
    freeable.push_back(id);
    total_age += age(id);
  }
  std::vector<BlockId> found;
  int64_t found_size = 0;
  const int64_t held = total_allocated_memory_;
  while (!device.window.reaches(limit, held - found_size) && !freeable.empty()) {
    const double threshold =
        static_cast<double>(total_age) / static_cast<double>(freeable.size());
    std::vector<BlockId> younger;
    for (const BlockId id : freeable) {
      if (static_cast<double>(age(id)) < threshold) {
        younger.push_back(id);
        continue;
      }
      found.push_back(id);
      found_size += at(id).size;
      total_age -= age(id);
    }
    freeable = std::move(younger);
  }
  for (const BlockId id : found) release_block(id);
}

// Give back blocks above max_split_size, just enough for the request, largest first.
bool CachingAllocator::release_available_cached_blocks(const AllocParams& params) {
  const FreeBlocks& free_blocks = params.pool.blocks[static_cast<size_t>(params.stream)];
  if (!config_.limits_splits() || config_.expandable_segments || free_blocks.empty()) return false;
  const uint64_t target = std::max(static_cast<uint64_t>(params.size), config_.max_split_size);
  const BlockId sufficient =
      target > INT64_MAX ? kNoBlock : free_blocks.lower_bound(static_cast<int64_t>(target));
  if (sufficient != kNoBlock) {
    release_block(sufficient);
    return true;
  }
  uint64_t released = 0;
  while (released < target) {
    const BlockId largest = free_blocks.largest();
    if (largest == kNoBlock || !config_.is_oversize(at(largest).size)) return false;
    released += static_cast<uint64_t>(at(largest).size);
    release_block(largest);
  }
  return true;
}

// Give back every segment, and every page, that is entirely free; or one private pool's.
void CachingAllocator::empty_cache(int32_t private_stream) {
  stats.num_sync_all_streams += 1;
  finish_events();
  release_blocks(large_blocks_, private_stream);
  release_blocks(small_blocks_, private_stream);
}

}  // namespace memgate
