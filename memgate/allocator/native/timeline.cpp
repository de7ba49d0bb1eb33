#include "timeline.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace memgate {

namespace {

// The part of MessagePack that msgspec writes for events: arrays, strings, numbers, nil, booleans.
class Reader {
 public:
  explicit Reader(std::string_view packed) : rest_(packed) {}

  size_t read_array() {
    const uint8_t head = byte();
    if ((head & 0xf0) == 0x90) return head & 0x0f;
    if (head == 0xdc) return number<2>();
    if (head == 0xdd) return number<4>();
    throw std::invalid_argument("no array");
  }

  std::string_view read_string() {
    const uint8_t head = byte();
    if ((head & 0xe0) != 0xa0) throw std::invalid_argument("no short string");
    return take(head & 0x1f);
  }

  int64_t read_int() {
    const uint8_t head = byte();
    if (head < 0x80) return head;
    if (head >= 0xe0) return static_cast<int8_t>(head);
    switch (head) {
      case 0xcc:
        return static_cast<int64_t>(number<1>());
      case 0xcd:
        return static_cast<int64_t>(number<2>());
      case 0xce:
        return static_cast<int64_t>(number<4>());
      case 0xcf: {
        const uint64_t value = number<8>();
        if (value > INT64_MAX) throw BeyondNative("a number beyond 63 bits");
        return static_cast<int64_t>(value);
      }
      case 0xd0:
        return static_cast<int8_t>(number<1>());
      case 0xd1:
        return static_cast<int16_t>(number<2>());
      case 0xd2:
        return static_cast<int32_t>(number<4>());
      case 0xd3:
        return static_cast<int64_t>(number<8>());
      default:
        throw std::invalid_argument("no whole number");
    }
  }

  double read_float() {
    if (!rest_.empty() && static_cast<uint8_t>(rest_[0]) != 0xcb) {
      return static_cast<double>(read_int());
    }
    byte();
    const uint64_t bits = number<8>();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  bool read_bool() {
    const uint8_t head = byte();
    if (head != 0xc2 && head != 0xc3) throw std::invalid_argument("no boolean");
    return head == 0xc3;
  }

  bool skip_nil() {
    const bool is_nil = !rest_.empty() && static_cast<uint8_t>(rest_[0]) == 0xc0;
    if (is_nil) rest_.remove_prefix(1);
    return is_nil;
  }

 private:
  std::string_view take(size_t count) {
    if (rest_.size() < count) throw std::invalid_argument("cut off");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }

  template <size_t kWidth>
  uint64_t number() {
    uint64_t value = 0;
    for (const char part : take(kWidth)) value = value << 8 | static_cast<uint8_t>(part);
    return value;
  }

  std::string_view rest_;
};

// Numbers things from 0 on, in the order in which they come.
class Numbering {
 public:
  explicit Numbering(size_t expected) : small_(expected, -1) {}

  int32_t of(int64_t name) {
    int32_t& number = name >= 0 && static_cast<size_t>(name) < small_.size()
                          ? small_[static_cast<size_t>(name)]
                          : others_.try_emplace(name, -1).first->second;
    if (number < 0) {
      number = static_cast<int32_t>(names_.size());
      names_.push_back(name);
    }
    return number;
  }

  const std::vector<int64_t>& names() const { return names_; }

 private:
  std::vector<int32_t> small_;
  std::unordered_map<int64_t, int32_t> others_;
  std::vector<int64_t> names_;
};

EventKind kind_of(std::string_view tag) {
  if (tag == "alloc") return EventKind::kAlloc;
  if (tag == "free") return EventKind::kFree;
  if (tag == "record_stream") return EventKind::kRecordStream;
  if (tag == "events_pending") return EventKind::kEventsPending;
  if (tag == "streams_done") return EventKind::kStreamsDone;
  if (tag == "empty_cache") return EventKind::kEmptyCache;
  if (tag == "set_fraction") return EventKind::kSetFraction;
  throw std::invalid_argument("no such event");
}

class TimelineReader {
 public:
  TimelineReader(std::string_view packed) : reader_(packed) {
    expect_array(4);
    const size_t num_events = reader_.read_array();
    if (num_events > INT32_MAX / 2) throw BeyondNative("too many events");
    ids_ = Numbering(num_events + 64);
    read_events(num_events);
    read_set([&](int64_t id) { dispensable_.push_back(ids_.of(id)); });
    read_set([&](int64_t stream) { private_streams_.push_back(streams_.of(stream)); });
    read_residents();
  }

  Timeline finish() {
    timeline_.num_ids = ids_.names().size();
    timeline_.is_dispensable.assign(timeline_.num_ids, false);
    for (const int32_t id : dispensable_) timeline_.is_dispensable[static_cast<size_t>(id)] = true;
    timeline_.will_be_done.assign(timeline_.num_ids, false);
    for (size_t index = 0; index < timeline_.kinds.size(); ++index) {
      if (timeline_.kinds[index] == EventKind::kStreamsDone) {
        timeline_.will_be_done[static_cast<size_t>(timeline_.ids[index])] = true;
      }
    }
    order_streams();
    return std::move(timeline_);
  }

 private:
  void expect_array(size_t length) {
    if (reader_.read_array() != length) throw std::invalid_argument("an array of another length");
  }

  template <typename Add>
  void read_set(Add add) {
    for (size_t left = reader_.read_array(); left > 0; --left) add(reader_.read_int());
  }

  void read_events(size_t num_events) {
    timeline_.kinds.reserve(num_events);
    timeline_.ids.reserve(num_events);
    timeline_.streams.reserve(num_events);
    timeline_.values.reserve(num_events);
    for (size_t index = 0; index < num_events; ++index) read_event();
  }

  void read_event() {
    const size_t length = reader_.read_array();
    const EventKind kind = kind_of(reader_.read_string());
    if (length != (kind == EventKind::kAlloc ? 4 : kind == EventKind::kRecordStream ? 3 : 2)) {
      throw std::invalid_argument("an event of another length");
    }
    int32_t id = -1, stream = -1;
    int64_t value = 0;
    switch (kind) {
      case EventKind::kAlloc:
        id = ids_.of(reader_.read_int());
        value = reader_.read_int();
        if (value < 0 || value > kMaxCapacity) throw BeyondNative("a size beyond 60 bits");
        stream = streams_.of(reader_.read_int());
        break;
      case EventKind::kRecordStream:
        id = ids_.of(reader_.read_int());
        stream = streams_.of(reader_.read_int());
        break;
      case EventKind::kFree:
      case EventKind::kStreamsDone:
        id = ids_.of(reader_.read_int());
        break;
      case EventKind::kEventsPending:
        value = reader_.read_int();
        break;
      case EventKind::kEmptyCache:
        if (!reader_.skip_nil()) stream = streams_.of(reader_.read_int());
        break;
      case EventKind::kSetFraction:
        value = static_cast<int64_t>(timeline_.fractions.size());
        timeline_.fractions.push_back(reader_.read_float());
        break;
    }
    timeline_.kinds.push_back(kind);
    timeline_.ids.push_back(id);
    timeline_.streams.push_back(stream);
    timeline_.values.push_back(value);
  }

  // each: [stream, is_small, is_expandable, [[id or nil, bytes], ...]]
  void read_residents() {
    for (size_t left = reader_.read_array(); left > 0; --left) {
      expect_array(4);
      ResidentSegment segment{};
      segment.stream = streams_.of(reader_.read_int());
      segment.is_small = reader_.read_bool();
      segment.is_expandable = reader_.read_bool();
      for (size_t pieces = reader_.read_array(); pieces > 0; --pieces) {
        expect_array(2);
        const int32_t id = reader_.skip_nil() ? -1 : ids_.of(reader_.read_int());
        segment.pieces.push_back({id, reader_.read_int()});
      }
      timeline_.residents.push_back(std::move(segment));
    }
  }

  // Number the streams by their names: pools are walked in that order.
  void order_streams() {
    const std::vector<int64_t>& names = streams_.names();
    std::vector<int32_t> order(names.size()), ranks(names.size());
    for (size_t at = 0; at < order.size(); ++at) order[at] = static_cast<int32_t>(at);
    std::sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
      return names[static_cast<size_t>(left)] < names[static_cast<size_t>(right)];
    });
    for (size_t rank = 0; rank < order.size(); ++rank) {
      ranks[static_cast<size_t>(order[rank])] = static_cast<int32_t>(rank);
      timeline_.stream_names.push_back(names[static_cast<size_t>(order[rank])]);
    }
    const auto rank = [&](int32_t stream) { return ranks[static_cast<size_t>(stream)]; };
    for (int32_t& stream : timeline_.streams) stream = stream < 0 ? stream : rank(stream);
    for (ResidentSegment& segment : timeline_.residents) segment.stream = rank(segment.stream);
    timeline_.is_private.assign(names.size(), false);
    for (const int32_t stream : private_streams_) {
      timeline_.is_private[static_cast<size_t>(rank(stream))] = true;
    }
  }

  Reader reader_;
  Timeline timeline_;
  Numbering ids_{0}, streams_{64};
  std::vector<int32_t> dispensable_, private_streams_;
};

}  // namespace

Timeline Timeline::read(std::string_view packed) { return TimelineReader(packed).finish(); }

}  // namespace memgate
