// Memory taken from the device and given back to it, and the bookkeeping of blocks: the counterpart
// of segments.py, expandable.py, adoption.py, snapshot.py and the lists in pool.py. It only does
// what it is told; the policy is in caching_allocator.cpp.

#include <algorithm>

#include "caching_allocator.h"

namespace memgate {

// -- blocks --------------------------------------------------------------------------------------

BlockId CachingAllocator::make_block(int32_t stream, int64_t size, const BlockPool& pool,
                                     int64_t ptr, int32_t expandable_segment) {
  BlockId id;
  if (unused_.empty()) {
    if (blocks_.size() >= static_cast<size_t>(INT32_MAX)) throw BeyondNative("too many blocks");
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
    block(id) = Block();
  }
  Block& made = block(id);
  made.stream = stream;
  made.size = size;
  made.is_small = pool.is_small;
  made.ptr = ptr;
  made.expandable_segment = expandable_segment;
  made.serial = ++num_made_;
  return id;
}

void CachingAllocator::drop_block(BlockId id) {
  block(id) = Block();
  unused_.push_back(id);
}

// Link a block between two neighbours.
void CachingAllocator::splice(BlockId id, BlockId before, BlockId after) {
  if (before != kNoBlock) block(before).next = id;
  block(id).prev = before;
  if (after != kNoBlock) block(after).prev = id;
  block(id).next = after;
}

void CachingAllocator::insert_into_blocks(BlockId id) {
  Block& added = block(id);
  BlockPool& pool = pool_of(added);
  added.gc_count_base = pool.get_free_blocks_call_count;
  added.pooled = true;
  pool.blocks[static_cast<size_t>(added.stream)].add({added.size, added.ptr, id});
}

void CachingAllocator::erase(BlockId id) {
  Block& erased = block(id);
  erased.pooled = false;
  pool_of(erased).blocks[static_cast<size_t>(erased.stream)].remove({erased.size, erased.ptr, id});
}

// Join a free neighbour into `dst`; return its size, or 0 if that is not possible.
int64_t CachingAllocator::try_merge_blocks(BlockId dst_id, BlockId src_id) {
  if (src_id == kNoBlock || !at(src_id).is_free() || at(dst_id).mapped != at(src_id).mapped) {
    return 0;
  }
  if (at(src_id).mapped) {
    erase(src_id);
  } else {
    erase_unmapped(src_id);
  }
  Block& dst = block(dst_id);
  const Block& src = at(src_id);
  if (dst.prev == src_id) {
    dst.ptr = src.ptr;
    dst.prev = src.prev;
    if (dst.prev != kNoBlock) block(dst.prev).next = dst_id;
  } else {
    dst.next = src.next;
    if (dst.next != kNoBlock) block(dst.next).prev = dst_id;
  }
  const int64_t subsumed = src.size;
  dst.size += subsumed;
  drop_block(src_id);
  return subsumed;
}

int64_t CachingAllocator::placed_at(BlockId id) const {
  const ExpandableSegment& segment =
      expandable_segments_[static_cast<size_t>(at(id).expandable_segment)];
  return segment.placed_at + at(id).ptr - segment.ptr;
}

void CachingAllocator::insert_unmapped(BlockId id) {
  std::vector<BlockId>& unmapped = pool_of(at(id)).unmapped[static_cast<size_t>(at(id).stream)];
  const auto is_lower = [this](int64_t address, BlockId other) {
    return address < placed_at(other);
  };
  unmapped.insert(std::upper_bound(unmapped.begin(), unmapped.end(), placed_at(id), is_lower), id);
}

void CachingAllocator::erase_unmapped(BlockId id) {
  std::vector<BlockId>& unmapped = pool_of(at(id)).unmapped[static_cast<size_t>(at(id).stream)];
  const auto is_lower = [this](BlockId other, int64_t address) {
    return placed_at(other) < address;
  };
  unmapped.erase(std::lower_bound(unmapped.begin(), unmapped.end(), placed_at(id), is_lower));
}

// -- segments ------------------------------------------------------------------------------------

void CachingAllocator::record_trace(SegmentAction action, int64_t size, int32_t stream) {
  segment_events.push_back({event_index, static_cast<int64_t>(action), size,
                            streams_[static_cast<size_t>(stream)]});
}

void CachingAllocator::count_reserved(BlockPool& pool, int64_t segments, int64_t size) {
  total_allocated_memory_ += size;
  stats.all.change_reserved(segments, size);
  pool.stats.change_reserved(segments, size);
}

// Open a segment of its own; kNoBlock if the device is full.
BlockId CachingAllocator::cuda_malloc(BlockPool& pool, int64_t size, int32_t stream) {
  if (!device.create_pages(size)) return kNoBlock;
  count_reserved(pool, 1, size);
  if (config_.is_oversize(size)) stats.oversize_segments.change(1);
  stats.num_device_alloc += 1;
  record_trace(SegmentAction::kAlloc, size, stream);
  return make_block(stream, size, pool, device.next_address(size), -1);
}

// Put a free piece of a segment into its pool.
void CachingAllocator::cache(BlockId id) {
  insert_into_blocks(id);
  const Block& cached = at(id);
  if (cached.is_split() && !cached.is_expandable()) {
    stats.all.change_inactive_split(1, cached.size);
    pool_of(cached).stats.change_inactive_split(1, cached.size);
  }
}

// Give back a segment that is all one free block.
void CachingAllocator::release_block(BlockId id) {
  const Block& released = at(id);
  stats.num_device_free += 1;
  record_trace(SegmentAction::kFree, released.size, released.stream);
  device.release_pages(released.size);
  count_reserved(pool_of(released), -1, -released.size);
  if (config_.is_oversize(released.size)) stats.oversize_segments.change(-1);
  erase(id);
  drop_block(id);
}

// Give back every segment of a pool that is entirely free, and every free page. Private pools keep
// theirs, unless one of them is named.
void CachingAllocator::release_blocks(BlockPool& pool, int32_t private_stream) {
  std::vector<BlockId> to_unmap;
  for (const BlockId id : pool.all_blocks()) {
    const Block& cached = at(id);
    if (private_stream < 0 ? is_private_[static_cast<size_t>(cached.stream)]
                           : cached.stream != private_stream) {
      continue;
    }
    if (cached.is_expandable()) {
      to_unmap.push_back(id);
    } else if (!cached.is_split()) {
      release_block(id);
    }
  }
  for (const BlockId id : to_unmap) {
    unmap_block(id);
    if (!at(id).is_split()) release_expandable_segment(id);
  }
}

// -- expandable segments: Note [Expandable segments], expandable.py ------------------------------

// Grow an expandable segment until it has a free block of `size`; kNoBlock if it cannot.
BlockId CachingAllocator::try_allocate_expandable_block(BlockPool& pool, int64_t size,
                                                        int32_t stream) {
  BlockId candidate = find_expandable_block(pool, size, stream);
  if (!at(candidate).mapped && !map_block(candidate, std::min(at(candidate).size, size))) {
    return kNoBlock;
  }
  while (at(candidate).size < size) {
    const BlockId following = at(candidate).next;
    const int64_t missing = std::min(size - at(candidate).size, at(following).size);
    if (!map_block(following, missing)) return kNoBlock;
    candidate = following;
  }
  erase(candidate);
  return candidate;
}

// The lowest place where `size` bytes of free or empty address space begin.
BlockId CachingAllocator::find_expandable_block(BlockPool& pool, int64_t size, int32_t stream) {
  for (const BlockId empty : pool.unmapped[static_cast<size_t>(stream)]) {
    const BlockId before = at(empty).prev;
    const BlockId candidate = before != kNoBlock && at(before).is_free() ? before : empty;
    if (has_available_address_space(candidate, size)) return candidate;
  }
  const Limit addresses = Limit::addresses(page_size(pool.is_small));
  ExpandableSegment segment{addresses.page_size, addresses.of(device.capacity), 0, 0};
  device.window.reaches(addresses, size);  // a larger one might hold it
  segment.ptr = device.next_address(segment.size);
  segment.placed_at = device.place_range(segment.size);
  expandable_segments_.push_back(segment);
  const auto number = static_cast<int32_t>(expandable_segments_.size() - 1);
  const BlockId candidate = make_block(stream, segment.size, pool, segment.ptr, number);
  block(candidate).mapped = false;
  insert_unmapped(candidate);
  return candidate;
}

// Whether free and empty blocks from `id` on add up to `size`.
bool CachingAllocator::has_available_address_space(BlockId id, int64_t size) {
  int64_t found = 0;
  BlockId last = kNoBlock;
  while (found < size && id != kNoBlock && at(id).is_free()) {
    found += at(id).size;
    last = id;
    id = at(id).next;
  }
  if (last == kNoBlock || !is_tail(last)) return found >= size;
  const auto segment = static_cast<size_t>(at(last).expandable_segment);
  return reaches_addresses(last, size - found + expandable_segments_[segment].size);
}

// What is empty up to the end of its segment grows with the capacity.
bool CachingAllocator::is_tail(BlockId id) const {
  const Block& empty = at(id);
  if (empty.mapped) return false;
  const ExpandableSegment& segment =
      expandable_segments_[static_cast<size_t>(empty.expandable_segment)];
  return empty.ptr + empty.size == segment.ptr + segment.size;
}

// Whether the segment of a block is at least so large; the window notes it.
bool CachingAllocator::reaches_addresses(BlockId id, int64_t value) {
  const auto segment = static_cast<size_t>(at(id).expandable_segment);
  return device.window.reaches(Limit::addresses(expandable_segments_[segment].page_size), value);
}

// Put pages behind the start of an empty range; false if the device is full.
bool CachingAllocator::map_block(BlockId to_map, int64_t size) {
  const int32_t number = at(to_map).expandable_segment;
  const ExpandableSegment segment = expandable_segments_[static_cast<size_t>(number)];
  const int64_t mapped_size = round_up(size, segment.page_size);
  // of a device without memory there are no addresses either
  if (!device.create_pages(mapped_size) || mapped_size == 0) return false;
  BlockPool& pool = pool_of(at(to_map));
  erase_unmapped(to_map);
  if (is_tail(to_map)) {
    reaches_addresses(to_map, segment.size - at(to_map).size + mapped_size + 1);
  }
  block(to_map).mapped = true;
  if (mapped_size < at(to_map).size) {
    const BlockId remaining =
        make_block(at(to_map).stream, at(to_map).size - mapped_size, pool,
                   at(to_map).ptr + mapped_size, number);
    block(remaining).mapped = false;
    splice(remaining, to_map, at(to_map).next);
    insert_unmapped(remaining);
    block(to_map).size = mapped_size;
  }
  try_merge_blocks(to_map, at(to_map).prev);
  try_merge_blocks(to_map, at(to_map).next);
  insert_into_blocks(to_map);
  count_reserved(pool, 0, mapped_size);
  stats.num_device_alloc += 1;
  record_trace(SegmentAction::kMap, mapped_size, at(to_map).stream);
  return true;
}

// Give back the whole pages inside a free block; what is left of it stays in the pool.
void CachingAllocator::unmap_block(BlockId id) {
  const int32_t number = at(id).expandable_segment;
  const ExpandableSegment segment = expandable_segments_[static_cast<size_t>(number)];
  const int64_t begin = at(id).ptr - segment.ptr, end = begin + at(id).size;
  const int64_t first = round_up(begin, segment.page_size) / segment.page_size;
  const int64_t last = end / segment.page_size;
  if (first >= last) return;
  const int64_t size = (last - first) * segment.page_size;
  const int64_t ptr = segment.ptr + first * segment.page_size;
  device.release_pages(size);
  BlockPool& pool = pool_of(at(id));
  erase(id);
  const int64_t before_size = ptr - at(id).ptr;
  if (before_size > 0) {
    const BlockId before = make_block(at(id).stream, before_size, pool, at(id).ptr, number);
    splice(before, at(id).prev, id);
    insert_into_blocks(before);
  }
  const int64_t after_size = at(id).size - before_size - size;
  if (after_size > 0) {
    const BlockId after = make_block(at(id).stream, after_size, pool, ptr + size, number);
    splice(after, id, at(id).next);
    insert_into_blocks(after);
  }
  block(id).ptr = ptr;
  block(id).size = size;
  block(id).mapped = false;
  try_merge_blocks(id, at(id).prev);
  try_merge_blocks(id, at(id).next);
  insert_unmapped(id);
  count_reserved(pool, 0, -size);
  stats.num_device_free += 1;
  record_trace(SegmentAction::kUnmap, size, at(id).stream);
}

// Give back the address range of an expandable segment that no longer holds any page.
void CachingAllocator::release_expandable_segment(BlockId id) {
  const auto number = static_cast<size_t>(at(id).expandable_segment);
  erase_unmapped(id);
  device.release_range(expandable_segments_[number].placed_at, expandable_segments_[number].size);
  drop_block(id);
}

// -- what was there before, what is there at the end ---------------------------------------------

// Take the segments from the device, cache what is free; `placed`: the other blocks, by id.
bool CachingAllocator::adopt(const std::vector<ResidentSegment>& segments,
                             std::vector<BlockId>& placed) {
  int64_t size = 0;
  std::vector<int64_t> sizes;
  for (const ResidentSegment& segment : segments) {
    int64_t segment_size = 0;
    for (const ResidentPiece& piece : segment.pieces) segment_size += piece.size;
    // it could not have come about under these settings
    if (segment.is_expandable != config_.expandable_segments) return false;
    if (segment.is_expandable && segment_size % page_size(segment.is_small) != 0) return false;
    sizes.push_back(segment_size);
    size += segment_size;
  }
  if (!device.has_room(size)) return false;
  if (fraction_ < 1.0 && !device.window.reaches(Limit::share(fraction_), size)) return false;
  for (size_t at_segment = 0; at_segment < segments.size(); ++at_segment) {
    const ResidentSegment& segment = segments[at_segment];
    BlockPool& pool = segment.is_small ? small_blocks_ : large_blocks_;
    const BlockId head =
        segment.is_expandable
            ? try_allocate_expandable_block(pool, sizes[at_segment], segment.stream)
            : cuda_malloc(pool, sizes[at_segment], segment.stream);
    if (head == kNoBlock) throw std::logic_error("there was room for all of it");
    for (size_t number = 0; number < segment.pieces.size(); ++number) {
      const ResidentPiece& piece = segment.pieces[number];
      BlockId id = head;
      if (number + 1 < segment.pieces.size()) {
        id = make_block(segment.stream, piece.size, pool, at(head).ptr,
                        at(head).expandable_segment);
        splice(id, at(head).prev, head);
        block(head).ptr += piece.size;
        block(head).size -= piece.size;
      }
      if (piece.id < 0) {
        cache(id);
      } else {
        block(id).allocated = true;  // the next segment does not grow over it
        placed[static_cast<size_t>(piece.id)] = id;
      }
    }
  }
  return true;
}

// All segments by address; an expandable one counts once for each stretch with memory behind it.
std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  std::vector<SegmentInfo> segments;
  for (size_t number = 0; number < blocks_.size(); ++number) {
    const Block& head = blocks_[number];
    if (!head.active && !head.pooled) continue;
    if (head.prev != kNoBlock && at(head.prev).mapped) continue;
    const BlockId id = static_cast<BlockId>(number);
    SegmentInfo info{head.is_expandable() ? placed_at(id) : head.ptr, 0, 0, 0, !head.is_small,
                     head.is_expandable(), streams_[static_cast<size_t>(head.stream)], 0};
    for (BlockId piece = id; piece != kNoBlock && at(piece).mapped; piece = at(piece).next) {
      info.total_size += at(piece).size;
      info.allocated_size += at(piece).allocated ? at(piece).size : 0;
      info.active_size += at(piece).is_free() ? 0 : at(piece).size;
      info.num_blocks += 1;
    }
    segments.push_back(info);
  }
  std::sort(segments.begin(), segments.end(), [](const SegmentInfo& left, const SegmentInfo& right) {
    return left.address < right.address;
  });
  return segments;
}

}  // namespace memgate
