// The items of a batch, read one after the other from a file or from standard input.
//
// Three kinds of text: JSON objects, one a line, of the fields that a request has (server/api/request_fields.h), as
// they are or as OpenAI's batch lines with custom_id, method, url and body; CSV (RFC 4180) with the names of those
// fields in its first row; and prompts, one a line. An item that cannot be read is an error of that item alone.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api/request_fields.h"

namespace tessera::client {

enum class BatchFormat : uint8_t { kJsonl, kCsv, kText };
constexpr auto NamesOf(BatchFormat) { return std::array{"jsonl", "csv", "txt"}; }

struct BatchItem {
  int64_t index = 0;      // among the items, from 0; blank lines are none
  int64_t line = 0;       // on which it begins, from 1
  std::string digest;     // SHA-256 of what it says, 64 hexadecimal digits
  std::string custom_id;  // empty: it has none
  // INVALID_ARGUMENT that names the field, where there is one, and what is valid; the line is not in it.
  absl::StatusOr<server::ImageRequest> request = server::ImageRequest();
};

// Of a file's name, by its ending; of what is read otherwise, by its first byte that is no blank.
std::optional<BatchFormat> BatchFormatOf(const std::string& path);

class BatchReader final {
 public:
  static constexpr size_t kMaxItemBytes = size_t{1} << 20;

  // `input` outlives it. Without a format the first byte tells: '{' is JSON, all else are prompts.
  BatchReader(std::istream& input, std::optional<BatchFormat> format) : input_(input), format_(format) {}

  // Absent at the end. An error ends the reading: the input cannot be read, is not UTF-8 but UTF-16 or
  // is a JSON array, or the header of a CSV file is none.
  absl::StatusOr<std::optional<BatchItem>> Next();

 private:
  struct Line {
    std::string text;
    bool too_long = false;
  };

  // Without the end of line; absent at the end of the input.
  absl::StatusOr<std::optional<Line>> ReadLine();
  // A record of CSV, whose quoted values may hold ends of lines. One with an unbalanced quotation mark is its first
  // line alone.
  absl::StatusOr<std::optional<Line>> ReadRecord();
  absl::Status ReadHeader(const std::string& record);
  BatchItem ItemOf(const Line& line);
  absl::StatusOr<server::ImageRequest> RequestOfJson(const std::string& text, BatchItem& item);
  absl::StatusOr<server::ImageRequest> RequestOfRow(const std::string& record, BatchItem& item);
  absl::Status KeepId(const std::string& custom_id, BatchItem& item);

  std::istream& input_;
  std::optional<BatchFormat> format_;
  bool has_record_ = false;  // that is not blank
  bool began_ = false;
  std::deque<Line> ahead_;  // lines that were read for a record and do not belong to it
  int64_t line_ = 0;        // lines read
  int64_t item_line_ = 1;   // on which the record that was read last begins
  int64_t next_index_ = 0;
  std::vector<std::string> columns_;    // of CSV
  std::map<std::string, int64_t> ids_;  // custom_id → the line that has it
};

}  // namespace tessera::client
