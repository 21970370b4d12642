#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "base/files/crc32c.h"
#include "base/json/json.h"
#include "control/training_log/event_file.h"
#include "control/training_log/metrics_log.h"
#include "tests/support/test_folder.h"

namespace tessera::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// During its lifetime, no file of the process can grow beyond this size.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_ = {};
};

TEST(MetricsLogTest, EveryStepIsALineOfJson) {
  TestFolder folder;
  auto log = MetricsLog::Open(folder / "log.jsonl", 0);
  ASSERT_TRUE(log.ok()) << log.status();
  const std::vector<Metric> metrics = {{"loss", 0.1}, {"grad_norm", std::nan("")}};
  ASSERT_TRUE(log->Append(1, 1700000000.25, metrics).ok());
  ASSERT_TRUE(log->Append(2, 1700000001, {}, "saved \"checkpoint-2\"").ok());
  EXPECT_EQ(Content(folder / "log.jsonl"),
            "{\"step\":1,\"time\":1700000000.25,\"loss\":0.1,\"grad_norm\":null}\n"
            "{\"step\":2,\"time\":1700000001.0,\"event\":\"saved \\\"checkpoint-2\\\"\"}\n");
}

TEST(MetricsLogTest, ARunThatResumesDropsLaterStepsAndAHalfLine) {
  TestFolder folder;
  const std::string path = folder.Write("log.jsonl", "{\"step\":1}\n{\"step\":3}\n{\"step\":2}\n{\"step\":4,\"lo");
  auto log = MetricsLog::Open(path, 2);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(log->Append(3, 5, {}).ok());
  EXPECT_EQ(Content(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"time\":5.0}\n");
}

TEST(MetricsLogTest, AFileThatIsNoLogIsRefusedAndStaysAsItIs) {
  TestFolder folder;
  for (const char* text : {"{\"step\":1}\nhello\n", "{\"step\":1}\n{\"loss\":1}\n", "{\"step\":1}\n[1]\n"}) {
    const std::string path = folder.Write("log.jsonl", text);
    const absl::Status status = MetricsLog::Open(path, 9).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2"));
    EXPECT_EQ(Content(path), text);
  }
}

TEST(MetricsLogTest, OfALineThatHasNoRoomNothingIsLeftAndTheNextOneIsWhole) {
  TestFolder folder;
  auto log = MetricsLog::Open(folder / "log.jsonl", 0);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE(log->Append(1, 1, {}).ok());
  const std::string before = Content(folder / "log.jsonl");
  {
    const FileSizeLimit limit(before.size() + 10);
    EXPECT_EQ(log->Append(2, 2, {}).code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Content(folder / "log.jsonl"), before);
  ASSERT_TRUE(log->Append(3, 3, {}).ok());
  EXPECT_EQ(Content(folder / "log.jsonl"), before + "{\"step\":3,\"time\":3.0}\n");
}

// An independent decoder for what EventFile writes: fields by number, in order.
struct Field {
  uint32_t number = 0;
  uint64_t integer = 0;  // value of varint, fixed32 and fixed64 fields
  std::string bytes;
};

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

uint64_t TakeVarint(std::string_view& message) {
  uint64_t number = 0;
  for (int shift = 0; !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message[0]);
    message.remove_prefix(1);
    number |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  return number;
}

std::vector<Field> Decode(std::string_view message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const uint64_t key = TakeVarint(message);
    Field field{.number = static_cast<uint32_t>(key >> 3)};
    const int type = static_cast<int>(key & 7);
    if (type == 0) {
      field.integer = TakeVarint(message);
    } else {
      const size_t size = type == 1 ? 8 : type == 5 ? 4 : TakeVarint(message);
      EXPECT_LE(size, message.size());
      field.bytes = message.substr(0, size);
      if (type != 2) field.integer = LittleEndian(field.bytes);
      message.remove_prefix(std::min(size, message.size()));
    }
    fields.push_back(field);
  }
  return fields;
}

std::optional<Field> Find(const std::string& message, uint32_t number) {
  for (const Field& field : Decode(message)) {
    if (field.number == number) return field;
  }
  return std::nullopt;
}

// TensorFlow's unmasking, the inverse of the masking in the file.
uint32_t Unmasked(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}

// Returns the records of a file and checks their framing.
std::vector<std::string> Records(const std::string& path) {
  const std::string file = Content(path);
  std::vector<std::string> records;
  std::string_view rest = file;
  while (!rest.empty()) {
    EXPECT_GE(rest.size(), 16u);
    const uint64_t size = LittleEndian(rest.substr(0, 8));
    EXPECT_EQ(Unmasked(static_cast<uint32_t>(LittleEndian(rest.substr(8, 4)))), base::Crc32c(rest.substr(0, 8)));
    EXPECT_LE(size + 16, rest.size());
    if (size + 16 > rest.size()) break;
    records.emplace_back(rest.substr(12, size));
    EXPECT_EQ(Unmasked(static_cast<uint32_t>(LittleEndian(rest.substr(12 + size, 4)))), base::Crc32c(records.back()));
    rest.remove_prefix(size + 16);
  }
  return records;
}

double TimeOf(const std::string& event) {
  const uint64_t bits = Find(event, 1)->integer;
  double time = 0;
  std::memcpy(&time, &bits, sizeof(time));
  return time;
}

// Values of a scalar event by tag.
std::map<std::string, float> Scalars(const std::string& event) {
  std::map<std::string, float> scalars;
  for (const Field& value : Decode(Find(event, 5)->bytes)) {
    EXPECT_EQ(value.number, 1u);
    const uint32_t bits = static_cast<uint32_t>(Find(value.bytes, 2)->integer);
    std::memcpy(&scalars[Find(value.bytes, 1)->bytes], &bits, sizeof(bits));
  }
  return scalars;
}

TEST(EventFileTest, AScalarRecordIsByteForByteWhatTensorBoardReads) {
  // Event{wall_time: 2, step: 300, summary{value{tag: "a", simple_value: 1}}}, encoded by hand.
  const std::string expected(
      "\x09\0\0\0\0\0\0\0\x40\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01"
      "a"
      "\x15\0\0\x80\x3f",
      24);
  TestFolder folder;
  auto events = EventFile::Create(folder.path(), 1, 0);
  ASSERT_TRUE(events.ok()) << events.status();
  const std::vector<Metric> metrics = {{"a", 1}};
  ASSERT_TRUE(events->AddScalars(300, 2, metrics).ok());
  EXPECT_EQ(Records(events->path()).back(), expected);
}

TEST(EventFileTest, TheFileBeginsWithItsVersionAndTheStepFromWhichItGoesOn) {
  TestFolder folder;
  const auto events = EventFile::Create(folder.path(), 1700000000.5, 40);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(events->path(), HasSubstr("/events.out.tfevents.1700000000."));
  const std::vector<std::string> records = Records(events->path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(Find(records[0], 3)->bytes, "brain.Event:2");
  EXPECT_EQ(TimeOf(records[0]), 1700000000.5);
  EXPECT_EQ(Find(records[1], 2)->integer, 40u);
  EXPECT_EQ(Find(Find(records[1], 7)->bytes, 1)->integer, 1u);  // SessionLog.START
}

TEST(EventFileTest, ScalarsAndPicturesReadBack) {
  TestFolder folder;
  auto events = EventFile::Create(folder.path(), 1, 0);
  ASSERT_TRUE(events.ok()) << events.status();
  const std::vector<Metric> metrics = {{"loss", 0.1}, {"lr", 1e-5}, {"bad", std::numeric_limits<double>::infinity()}};
  ASSERT_TRUE(events->AddScalars(7, 3.5, metrics).ok());
  std::string png("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x01\x02\0\0\0\x03\x08\x02", 26);
  png += std::string(300, 'x');
  ASSERT_TRUE(events->AddImage(8, 4, "samples/0", png).ok());
  EXPECT_EQ(events->AddImage(8, 4, "samples/1", "\xff\xd8\xff").code(), absl::StatusCode::kInvalidArgument);

  const std::vector<std::string> records = Records(events->path());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(Find(records[2], 2)->integer, 7u);
  EXPECT_EQ(TimeOf(records[2]), 3.5);
  const std::map<std::string, float> expected = {
      {"loss", 0.1f}, {"lr", 1e-5f}, {"bad", std::numeric_limits<float>::infinity()}};
  EXPECT_EQ(Scalars(records[2]), expected);
  const std::string value = Find(Find(records[3], 5)->bytes, 1)->bytes;
  EXPECT_EQ(Find(value, 1)->bytes, "samples/0");
  const std::string image = Find(value, 4)->bytes;
  EXPECT_EQ(Find(image, 1)->integer, 3u);
  EXPECT_EQ(Find(image, 2)->integer, 258u);
  EXPECT_EQ(Find(image, 3)->integer, 3u);
  EXPECT_EQ(Find(image, 4)->bytes, png);
}

TEST(EventFileTest, OfARecordThatHasNoRoomNothingIsLeft) {
  TestFolder folder;
  auto events = EventFile::Create(folder.path(), 1, 0);
  ASSERT_TRUE(events.ok()) << events.status();
  const std::vector<Metric> metrics = {{"loss", 1}};
  {
    const FileSizeLimit limit(std::filesystem::file_size(events->path()) + 5);
    EXPECT_EQ(events->AddScalars(1, 1, metrics).code(), absl::StatusCode::kResourceExhausted);
  }
  ASSERT_TRUE(events->AddScalars(2, 1, metrics).ok());
  const std::vector<std::string> records = Records(events->path());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(Find(records[2], 2)->integer, 2u);
}

}  // namespace
}  // namespace tessera::control
