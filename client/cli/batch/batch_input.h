// BatchReader reads the items of a batch one by one from a file or from standard input.
//
// Three formats are supported: JSON objects, one per line, either with the fields of a request
// (server/api/request_values.h) or as OpenAI's batch lines with custom_id, method, url and body; CSV (RFC 4180) with
// the names of those fields in its first row; and prompts, one per line. In the first two, an item may also name the
// files of pictures (item_pictures.h). An item that cannot be read is an error of that item only.
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <cstdint>
#include <deque>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/models/picture_options.h"
#include "server/api/request_values.h"

namespace tessera::client {

enum class BatchFormat : uint8_t { kJsonl, kCsv, kText };
constexpr auto NamesOf(BatchFormat) { return std::array{"jsonl", "csv", "txt"}; }

struct BatchItem {
  int64_t index = 0;      // among the items, from 0; blank lines are not items
  int64_t line = 0;       // line on which it begins, from 1
  std::string digest;     // SHA-256 of its text, 64 hexadecimal digits
  std::string custom_id;  // empty if it has none
  // The request, or INVALID_ARGUMENT with the field, if there is one, and what is valid. The message does not include
  // the line number.
  absl::StatusOr<server::ImageRequest> request = server::ImageRequest();
  PictureOptions pictures;
};

// Returns the format of a file by its extension, or nullopt, in which case BatchReader decides by the first byte that
// is not blank.
std::optional<BatchFormat> BatchFormatOf(const std::string& path);

class BatchReader final {
 public:
  static constexpr size_t kMaxItemBytes = size_t{1} << 20;

  // `input` outlives the reader. Without a format, the first byte decides: '{' means JSON, anything else means prompts.
  // Paths of pictures are relative to `folder`; an empty one is the working directory.
  BatchReader(std::istream& input, std::optional<BatchFormat> format, std::string folder = "")
      : input_(input), format_(format), folder_(std::move(folder)) {}

  // Returns the next item, nullopt at the end. An error ends the reading: the input cannot be read, is UTF-16 instead
  // of UTF-8, is a JSON array, or is a CSV file without a valid header.
  absl::StatusOr<std::optional<BatchItem>> Next();

 private:
  struct Line {
    std::string text;
    bool too_long = false;
  };

  // Returns a line without its end-of-line characters; nullopt at the end of the input.
  absl::StatusOr<std::optional<Line>> ReadLine();
  // Reads a CSV record, whose quoted values may span lines. If a quotation mark is unbalanced, the record is its first
  // line only.
  absl::StatusOr<std::optional<Line>> ReadRecord();
  absl::Status ReadHeader(const std::string& record);
  BatchItem ItemOf(const Line& line);
  absl::StatusOr<server::ImageRequest> RequestOfJson(const std::string& text, BatchItem& item);
  // Reads the fields of an item, of which it takes those of pictures.
  absl::StatusOr<server::ImageRequest> RequestOfFields(boost::json::object fields, BatchItem& item) const;
  absl::StatusOr<server::ImageRequest> RequestOfRow(const std::string& record, BatchItem& item);
  absl::Status KeepId(const std::string& custom_id, BatchItem& item);

  std::istream& input_;
  std::optional<BatchFormat> format_;
  const std::string folder_;
  bool has_record_ = false;  // a nonblank record was read
  bool began_ = false;
  std::deque<Line> ahead_;  // lines that were read ahead for a record but do not belong to it
  int64_t line_ = 0;        // lines read
  int64_t item_line_ = 1;   // line on which the last record begins
  int64_t next_index_ = 0;
  std::vector<std::string> columns_;    // the CSV header
  std::map<std::string, int64_t> ids_;  // custom_id → its line
};

}  // namespace tessera::client
