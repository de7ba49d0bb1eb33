#include "replay.h"

#include <unordered_map>
#include <utility>

namespace memgate {

namespace {

// what `live_` says instead of a block
constexpr BlockId kNotLive = -1;
constexpr BlockId kZeroBytes = -2;

// The state of a replay while it runs.
class Player {
 public:
  Player(const Timeline& timeline, const Question& question)
      : timeline_(timeline),
        question_(question),
        allocator_(question.config,
                   Device(question.capacity, question.context, question.address_policy),
                   timeline.stream_names, timeline.is_private),
        live_(timeline.num_ids, kNotLive),
        has_failed_(timeline.num_ids, false) {
    if (timeline.residents.empty()) return;
    residents_.assign(timeline.num_ids, kNoBlock);
    if (!allocator_.adopt(timeline.residents, residents_)) residents_.clear();
  }

  Answer play() {
    Answer answer;
    const size_t num_events = timeline_.kinds.size();
    if (question_.is_recorded) {
      answer.allocated_series.reserve(num_events);
      answer.active_series.reserve(num_events);
    }
    size_t index = 0;
    for (; index < num_events; ++index) {
      allocator_.event_index = static_cast<int64_t>(index);
      answer.problem = step(index);
      if (answer.problem != Problem::kNone) break;
      if (question_.is_recorded) {
        answer.allocated_series.push_back(allocator_.stats.all.allocated_bytes.current);
        answer.active_series.push_back(allocator_.stats.all.active_bytes.current);
      }
      if (question_.stops_at_oom && !allocator_.ooms.empty()) {
        ++index;
        break;
      }
    }
    answer.num_events = static_cast<int64_t>(index);
    answer.lowest_bytes = allocator_.device.window.lowest();
    answer.below_bytes = allocator_.device.window.below();
    answer.stats = allocator_.stats;
    answer.ooms = std::move(allocator_.ooms);
    if (question_.is_recorded) {
      answer.segment_events = std::move(allocator_.segment_events);
      answer.final_segments = allocator_.snapshot();
    }
    return answer;
  }

 private:
  Problem step(size_t index) {
    switch (timeline_.kinds[index]) {
      case EventKind::kAlloc:
        return alloc(index);
      case EventKind::kFree:
        return free(index);
      case EventKind::kRecordStream:
        return record_stream(index);
      case EventKind::kEventsPending:
        allocator_.events_pending = timeline_.values[index] != 0;
        break;
      case EventKind::kStreamsDone:
        finish_streams(timeline_.ids[index]);
        break;
      case EventKind::kEmptyCache:
        allocator_.empty_cache(timeline_.streams[index]);
        break;
      case EventKind::kSetFraction:
        allocator_.set_memory_fraction(
            timeline_.fractions[static_cast<size_t>(timeline_.values[index])]);
        break;
    }
    return Problem::kNone;
  }

  Problem alloc(size_t index) {
    const auto id = static_cast<size_t>(timeline_.ids[index]);
    const int64_t size = timeline_.values[index];
    if (live_[id] != kNotLive) return Problem::kIsAllocated;
    if (!residents_.empty() && residents_[id] != kNoBlock) {
      live_[id] = std::exchange(residents_[id], kNoBlock);
      allocator_.hand_out(live_[id], size);
      return Problem::kNone;
    }
    live_[id] = size == 0 ? kZeroBytes : allocator_.malloc(size, timeline_.streams[index]);
    if (live_[id] == kNoBlock) {
      has_failed_[id] = true;
      if (timeline_.is_dispensable[id]) allocator_.ooms.pop_back();
    }
    return Problem::kNone;
  }

  Problem free(size_t index) {
    const auto id = static_cast<size_t>(timeline_.ids[index]);
    const BlockId block = std::exchange(live_[id], kNotLive);
    if (block >= 0) {
      allocator_.free(block);
    } else if (block == kNotLive && !has_failed_[id]) {
      return Problem::kIsNotAllocated;
    }
    return Problem::kNone;
  }

  Problem record_stream(size_t index) {
    const auto id = static_cast<size_t>(timeline_.ids[index]);
    if (live_[id] == kNotLive && !has_failed_[id]) return Problem::kIsNotAllocated;
    if (live_[id] < 0) return Problem::kNone;
    allocator_.record_stream(live_[id], timeline_.streams[index]);
    if (timeline_.will_be_done[id]) {
      Block& block = allocator_.block(live_[id]);
      block.last_user = timeline_.ids[index];
      used_elsewhere_[timeline_.ids[index]] = {live_[id], block.serial};
    }
    return Problem::kNone;
  }

  void finish_streams(int32_t id) {
    const auto found = used_elsewhere_.find(id);
    if (found == used_elsewhere_.end()) return;
    const auto [number, serial] = found->second;
    used_elsewhere_.erase(found);
    const Block& block = allocator_.block(number);
    // under pressure the wait may have ended before, and the block be another id's, or gone
    if (block.serial == serial && block.last_user == id) allocator_.finish_streams(number);
  }

  const Timeline& timeline_;
  const Question& question_;
  CachingAllocator allocator_;
  // the block of each id that the program holds
  std::vector<BlockId> live_;
  // ids whose request failed: they never lived, and freeing them does nothing
  std::vector<bool> has_failed_;
  // blocks that were there before the first event, by id
  std::vector<BlockId> residents_;
  // blocks that other streams use and that kStreamsDone will name, by id, with their serials
  std::unordered_map<int32_t, std::pair<BlockId, uint64_t>> used_elsewhere_;
};

}  // namespace

Answer replay(const Timeline& timeline, const Question& question) {
  return Player(timeline, question).play();
}

}  // namespace memgate
