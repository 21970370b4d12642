#include "parallel/remote/segment_update.h"

#include <cstring>
#include <type_traits>

namespace tessera::parallel {
namespace {

constexpr int kNoRank = 255;  // for poison

struct Frame {
  uint32_t bytes;  // of the whole update
  uint8_t kind, from, to, notes;
  uint32_t group, more;  // `more`: variable-length bytes at the end
};

template <typename T>
void Put(const T& value, std::string& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Reads values from the front; returns false if too few bytes are left.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  bool Take(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() < sizeof(value)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return true;
  }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

bool ReadBody(const Frame& frame, std::string_view body, SegmentUpdate& update) {
  Reader reader(body);
  bool read = false;
  switch (update.kind) {
    case UpdateKind::kSlot:
      read = reader.Take(update.index) && reader.Take(update.header);
      break;
    case UpdateKind::kRead:
      read = reader.Take(update.index) && reader.Take(update.posted);
      break;
    case UpdateKind::kArea:
      read = reader.Take(update.entered) && reader.Take(update.barriers) && reader.Take(update.activity) &&
             reader.Take(update.call) && frame.notes <= host_layout::kNotes;
      for (int note = 0; read && note < frame.notes; ++note) {
        auto& [sequence, words] = update.notes.emplace_back();
        read = reader.Take(sequence) && reader.Take(words);
      }
      break;
    case UpdateKind::kBeats:
      read = reader.Take(update.index) && reader.Take(update.effort) && reader.Take(update.loaded) &&
             reader.Take(update.to_load);
      break;
    case UpdateKind::kPoison:
      read = true;
      break;
  }
  update.bytes = reader.rest();
  return read && update.bytes.size() == frame.more;
}

}  // namespace

void AppendUpdate(const SegmentUpdate& update, std::string& batch) {
  const size_t begin = batch.size();
  Frame frame = {.bytes = 0,
                 .kind = static_cast<uint8_t>(update.kind),
                 .from = static_cast<uint8_t>(update.from < 0 ? kNoRank : update.from),
                 .to = static_cast<uint8_t>(update.to),
                 .notes = static_cast<uint8_t>(update.notes.size()),
                 .group = static_cast<uint32_t>(update.group),
                 .more = static_cast<uint32_t>(update.bytes.size())};
  Put(frame, batch);
  switch (update.kind) {
    case UpdateKind::kSlot:
      Put(update.index, batch);
      Put(update.header, batch);
      break;
    case UpdateKind::kRead:
      Put(update.index, batch);
      Put(update.posted, batch);
      break;
    case UpdateKind::kArea:
      for (const uint64_t word : {update.entered, update.barriers, update.activity, update.call}) Put(word, batch);
      for (const auto& [sequence, words] : update.notes) {
        Put(sequence, batch);
        Put(words, batch);
      }
      break;
    case UpdateKind::kBeats:
      for (const uint64_t word : {update.index, update.effort, update.loaded, update.to_load}) Put(word, batch);
      break;
    case UpdateKind::kPoison:
      break;
  }
  batch.append(update.bytes);
  frame.bytes = static_cast<uint32_t>(batch.size() - begin);
  std::memcpy(batch.data() + begin, &frame, sizeof(frame));
}

absl::StatusOr<std::vector<SegmentUpdate>> ReadUpdates(std::string_view batch) {
  std::vector<SegmentUpdate> updates;
  while (!batch.empty()) {
    Reader reader(batch);
    Frame frame;
    if (!reader.Take(frame) || frame.bytes < sizeof(frame) || frame.bytes > batch.size() ||
        frame.kind < static_cast<uint8_t>(UpdateKind::kSlot) ||
        frame.kind > static_cast<uint8_t>(UpdateKind::kPoison) || frame.group >= kMaxHostGroups) {
      return absl::InvalidArgumentError("an update of a segment is malformed");
    }
    SegmentUpdate& update = updates.emplace_back();
    update.kind = static_cast<UpdateKind>(frame.kind);
    update.group = static_cast<int>(frame.group);
    update.from = frame.from == kNoRank ? -1 : frame.from;
    update.to = frame.to;
    if (!ReadBody(frame, batch.substr(sizeof(frame), frame.bytes - sizeof(frame)), update)) {
      return absl::InvalidArgumentError("the length of an update of a segment differs from its header");
    }
    batch.remove_prefix(frame.bytes);
  }
  return updates;
}

}  // namespace tessera::parallel
