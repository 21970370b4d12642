#include "control/training_log/event_file.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files/crc32c.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"

namespace tessera::control {
namespace {

// Field numbers of the messages, and their wire types (protobuf's encoding).
constexpr uint32_t kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;
constexpr uint32_t kEventTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5, kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1, kValueNumber = 2, kValueImage = 4;
constexpr uint32_t kImageHeight = 1, kImageWidth = 2, kImageColorSpace = 3, kImageBytes = 4;
constexpr uint32_t kSessionLogStatus = 1;
constexpr uint64_t kSessionStart = 1;
constexpr uint64_t kRgb = 3;
constexpr char kFileVersion[] = "brain.Event:2";

template <class Number>
void AppendLittleEndian(Number number, std::string& text) {
  for (size_t i = 0; i < sizeof(number); ++i) text += static_cast<char>(number >> (8 * i));
}

void AppendVarint(uint64_t number, std::string& text) {
  for (; number >= 0x80; number >>= 7) text += static_cast<char>(number | 0x80);
  text += static_cast<char>(number);
}

// Encodes a protobuf message field by field.
class Message {
 public:
  Message& Int(uint32_t field, uint64_t number) {
    AppendVarint(field << 3 | kVarint, text_);
    AppendVarint(number, text_);
    return *this;
  }
  Message& Double(uint32_t field, double number) {
    AppendVarint(field << 3 | kFixed64, text_);
    AppendLittleEndian(std::bit_cast<uint64_t>(number), text_);
    return *this;
  }
  Message& Float(uint32_t field, float number) {
    AppendVarint(field << 3 | kFixed32, text_);
    AppendLittleEndian(std::bit_cast<uint32_t>(number), text_);
    return *this;
  }
  Message& Bytes(uint32_t field, std::string_view bytes) {
    AppendVarint(field << 3 | kLengthDelimited, text_);
    AppendVarint(bytes.size(), text_);
    text_ += bytes;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Message Event(int64_t step, double time) {
  Message event;
  event.Double(kEventTime, time).Int(kEventStep, static_cast<uint64_t>(step));
  return event;
}

uint32_t BigEndian(std::string_view bytes) {
  uint32_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

}  // namespace

uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = base::Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

absl::StatusOr<EventFile> EventFile::Create(const std::string& folder, double time, int64_t first_step) {
  // TensorBoard reads every file with "tfevents" in its name, in the order of their names.
  const std::string path =
      absl::StrCat(folder, absl::StrFormat("/events.out.tfevents.%010d.", static_cast<int64_t>(time)),
                   absl::Hex(base::RandomNumber<uint64_t>(), absl::kZeroPad16));
  ASSIGN_OR_RETURN(RecordFile file, RecordFile::Open(path));
  EventFile events(std::move(file));
  Message version;
  RETURN_IF_ERROR(events.AddRecord(version.Double(kEventTime, time).Bytes(kEventFileVersion, kFileVersion).text()));
  Message start;
  start.Int(kSessionLogStatus, kSessionStart);
  RETURN_IF_ERROR(events.AddRecord(Event(first_step, time).Bytes(kEventSessionLog, start.text()).text()));
  return events;
}

absl::Status EventFile::AddScalars(int64_t step, double time, std::span<const Metric> metrics) {
  Message summary;
  for (const Metric& metric : metrics) {
    Message value;
    value.Bytes(kValueTag, metric.name).Float(kValueNumber, static_cast<float>(metric.value));
    summary.Bytes(kSummaryValue, value.text());
  }
  return AddRecord(Event(step, time).Bytes(kEventSummary, summary.text()).text());
}

absl::Status EventFile::AddImage(int64_t step, double time, const std::string& name, std::string_view png) {
  // A PNG begins with a signature of 8 bytes and the chunk IHDR: its length, its name, width and height.
  constexpr std::string_view kSignature = "\x89PNG\r\n\x1a\n";
  if (!png.starts_with(kSignature) || png.size() < 24 || png.substr(12, 4) != "IHDR") {
    return absl::InvalidArgumentError(absl::StrCat("picture \"", name, "\" is not a PNG"));
  }
  Message image;
  image.Int(kImageHeight, BigEndian(png.substr(20, 4))).Int(kImageWidth, BigEndian(png.substr(16, 4)));
  image.Int(kImageColorSpace, kRgb).Bytes(kImageBytes, png);
  Message value, summary;
  summary.Bytes(kSummaryValue, value.Bytes(kValueTag, name).Bytes(kValueImage, image.text()).text());
  return AddRecord(Event(step, time).Bytes(kEventSummary, summary.text()).text());
}

absl::Status EventFile::AddRecord(std::string_view event) {
  std::string record;
  AppendLittleEndian(uint64_t{event.size()}, record);
  AppendLittleEndian(MaskedCrc32c(record), record);
  record += event;
  AppendLittleEndian(MaskedCrc32c(event), record);
  return file_.Append(record);
}

}  // namespace tessera::control
