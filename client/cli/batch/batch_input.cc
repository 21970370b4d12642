#include "client/cli/batch/batch_input.h"

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "client/cli/batch/item_pictures.h"
#include "server/api/field_checks.h"
#include "server/api/request_fields.h"
#include "server/http/image_request_json.h"

namespace tessera::client {
namespace {

namespace json = boost::json;

constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";
constexpr char kUnbalanced[] =
    "a quotation mark is not closed, or is inside an unquoted value: quote such a value, and double the mark inside "
    "it";
constexpr char kIdField[] = "custom_id";
constexpr size_t kMaxIdBytes = 512;
constexpr absl::string_view kUrls[] = {"/v1/images/generations", "/v1/jobs"};

std::string HexDigestOf(absl::string_view text) {
  base::Sha256 digest;
  digest.Update({text.data(), text.size()});
  return digest.Finish();
}

absl::StatusOr<server::ImageRequest> RequestOfBody(const std::string& body) {
  ASSIGN_OR_RETURN(server::GenerationBody read, server::ReadGenerationBody(body, server::BodyKind::kGeneration));
  if (read.stream) return server::FieldError("stream", " is true; a batch does not stream: leave it out");
  return std::move(read.request);
}

absl::Status CheckIs(const json::object& line, const char* name, absl::Span<const absl::string_view> valid) {
  const json::value* value = line.if_contains(name);
  if (value == nullptr) return absl::OkStatus();
  if (value->is_string() && std::ranges::find(valid, absl::string_view(value->get_string().data(),
                                                                       value->get_string().size())) != valid.end()) {
    return absl::OkStatus();
  }
  return server::FieldError(name, absl::StrCat(" is ", server::QuotedValue(json::serialize(*value)),
                                               "; valid values are ", absl::StrJoin(valid, ", ")));
}

// CsvScan tracks whether the lines read so far complete a CSV record (RFC 4180). A value is quoted if its first byte is
// a quotation mark, and only quoted values may contain quotation marks or line ends.
class CsvScan {
 public:
  void Add(absl::string_view line) {
    for (const char c : line) Add(c);
  }

  // True within a quoted value, when the next line belongs to the record.
  bool IsOpen() const { return state_ == State::kQuoted; }
  bool IsMalformed() const { return state_ == State::kMalformed; }

 private:
  enum class State : uint8_t { kBegin, kPlain, kQuoted, kQuoteInQuoted, kMalformed };

  void Add(char c) {
    switch (state_) {
      case State::kBegin:
        state_ = c == '"' ? State::kQuoted : c == ',' ? State::kBegin : State::kPlain;
        return;
      case State::kPlain:
        state_ = c == '"' ? State::kMalformed : c == ',' ? State::kBegin : State::kPlain;
        return;
      case State::kQuoted:
        if (c == '"') state_ = State::kQuoteInQuoted;
        return;
      case State::kQuoteInQuoted:
        state_ = c == '"' ? State::kQuoted : c == ',' ? State::kBegin : State::kMalformed;
        return;
      case State::kMalformed:
        return;
    }
  }

  State state_ = State::kBegin;
};

// Checks the encoding of the input's first line.
absl::Status CheckEncoding(absl::string_view line) {
  const bool has_mark = absl::StartsWith(line, "\xFF\xFE") || absl::StartsWith(line, "\xFE\xFF");
  const bool has_nul = line.substr(0, 2).find('\0') != absl::string_view::npos;
  if (!has_mark && !has_nul) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "line 1: the input is UTF-16 or UTF-32; it must be UTF-8: convert it, for example with iconv -f UTF-16 -t UTF-8");
}

// Whether the first line of an input begins a JSON array. A prompt may also begin with a bracket, so the first byte
// alone is decisive only for JSON lines.
bool BeginsArray(absl::string_view text, std::optional<BatchFormat> format) {
  if (!absl::ConsumePrefix(&text, "[") || format.value_or(BatchFormat::kJsonl) != BatchFormat::kJsonl) return false;
  text = absl::StripLeadingAsciiWhitespace(text);
  return format.has_value() || text.empty() || text.front() == '{' || text == "]";
}

// Returns the values of a record; nullopt if a quotation mark is not closed or not at an edge of its value.
std::optional<std::vector<std::string>> ValuesOf(absl::string_view record) {
  std::vector<std::string> values(1);
  size_t at = 0;
  while (true) {
    if (at < record.size() && record[at] == '"') {
      for (++at;; ++at) {
        if (at >= record.size()) return std::nullopt;
        if (record[at] == '"' && (++at >= record.size() || record[at] != '"')) break;
        values.back() += record[at];
      }
      if (at < record.size() && record[at] != ',') return std::nullopt;
    } else {
      const size_t end = std::min(record.find(',', at), record.size());
      if (record.substr(at, end - at).find('"') != absl::string_view::npos) return std::nullopt;
      absl::StrAppend(&values.back(), record.substr(at, end - at));
      at = end;
    }
    if (at >= record.size()) return values;
    ++at;
    values.emplace_back();
  }
}

bool IsText(const std::string& name) {
  bool is_text = false;
  base::ForEachFieldOf<server::ImageRequest>([&](const auto& field) {
    if (std::is_same_v<std::decay_t<decltype(field.valid)>, base::Text>) {
      is_text = is_text || server::ApiName(field.facts) == name;
    }
  });
  return is_text;
}

// Converts a CSV value to JSON: text fields and paths to strings, other fields by the form of the value.
json::value ValueOf(const std::string& name, const std::string& text) {
  const bool is_path = name == "mask" || (name == "image" && !absl::StartsWith(text, "["));
  if (IsText(name) || is_path) return json::value(text);
  json::error_code error;
  const json::value value = json::parse(text, error);
  return error ? json::value(text) : value;
}

}  // namespace

std::optional<BatchFormat> BatchFormatOf(const std::string& path) {
  const std::string name = absl::AsciiStrToLower(path);
  if (absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".ndjson")) return BatchFormat::kJsonl;
  if (absl::EndsWith(name, ".csv")) return BatchFormat::kCsv;
  if (absl::EndsWith(name, ".txt")) return BatchFormat::kText;
  return std::nullopt;
}

absl::StatusOr<std::optional<BatchReader::Line>> BatchReader::ReadLine() {
  if (!ahead_.empty()) {
    ++line_;
    Line next = std::move(ahead_.front());
    ahead_.pop_front();
    return next;
  }
  Line line;
  char c = 0;
  bool any = false;
  while (input_.get(c)) {
    any = true;
    if (c == '\n') break;
    line.too_long = line.too_long || line.text.size() >= kMaxItemBytes;
    if (!line.too_long) line.text += c;
  }
  if (input_.bad()) return absl::UnavailableError(absl::StrCat("the input cannot be read after line ", line_));
  if (!any) return std::nullopt;
  if (++line_ == 1) {
    RETURN_IF_ERROR(CheckEncoding(line.text));
    if (absl::StartsWith(line.text, kByteOrderMark)) line.text.erase(0, 3);
  }
  if (!line.text.empty() && line.text.back() == '\r') line.text.pop_back();
  return line;
}

absl::StatusOr<std::optional<BatchReader::Line>> BatchReader::ReadRecord() {
  ASSIGN_OR_RETURN(std::optional<Line> record, ReadLine());
  item_line_ = line_;
  if (!record.has_value() || format_ != BatchFormat::kCsv) return record;
  const size_t first_bytes = record->text.size();
  CsvScan scan;
  scan.Add(record->text);
  std::deque<Line> more;
  bool complete = true;
  while (!record->too_long && scan.IsOpen() && complete) {
    ASSIGN_OR_RETURN(std::optional<Line> line, ReadLine());
    complete = line.has_value();
    if (!complete) break;
    absl::StrAppend(&record->text, "\n", line->text);
    scan.Add("\n");
    scan.Add(line->text);
    complete = !scan.IsMalformed() && !line->too_long && record->text.size() <= kMaxItemBytes;
    more.push_back(*std::move(line));
  }
  if (complete) return record;
  // The quotation mark on the first line is unbalanced: the following lines are separate records.
  record->text.resize(first_bytes);
  line_ -= static_cast<int64_t>(more.size());
  ahead_.insert(ahead_.begin(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return record;
}

absl::Status BatchReader::ReadHeader(const std::string& record) {
  const std::optional<std::vector<std::string>> names = ValuesOf(record);
  if (!names.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("line ", item_line_, ": ", kUnbalanced));
  }
  std::vector<std::string> valid = server::GenerationFields(server::BodyKind::kJob);
  valid.emplace_back(kIdField);
  for (const char* field : kPictureFields) {
    if (std::ranges::find(valid, field) == valid.end()) valid.emplace_back(field);
  }
  for (const std::string& name : *names) {
    columns_.emplace_back(absl::AsciiStrToLower(absl::StripAsciiWhitespace(name)));
    RETURN_IF_ERROR(server::CheckName("the column", columns_.back(), valid));
    if (std::ranges::count(columns_, columns_.back()) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("the column ", columns_.back(), " is given twice"));
    }
  }
  if (std::ranges::find(columns_, "prompt") != columns_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "line ", item_line_, ": the first row has no column \"prompt\"; it must name the fields of the rows below it"));
}

absl::StatusOr<std::optional<BatchItem>> BatchReader::Next() {
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Line> record, ReadRecord());
    if (!record.has_value()) return std::nullopt;
    const absl::string_view text = absl::StripAsciiWhitespace(record->text);
    if (text.empty() && !record->too_long) continue;
    if (!std::exchange(has_record_, true) && BeginsArray(text, format_)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", item_line_,
                                                     ": the input is a JSON array; it must be JSON objects, one a "
                                                     "line: convert it, for example with jq -c '.[]'"));
    }
    if (!format_.has_value()) format_ = text.front() == '{' ? BatchFormat::kJsonl : BatchFormat::kText;
    if (format_ == BatchFormat::kCsv && !std::exchange(began_, true)) {
      RETURN_IF_ERROR(ReadHeader(record->text));
      continue;
    }
    return ItemOf(*record);
  }
}

BatchItem BatchReader::ItemOf(const Line& line) {
  BatchItem item = {.index = next_index_++, .line = item_line_, .digest = HexDigestOf(line.text)};
  if (line.too_long) {
    item.request = absl::InvalidArgumentError(
        absl::StrCat("the item has more than ", kMaxItemBytes, " bytes, the most that are valid"));
  } else if (base::FirstInvalidUtf8(line.text) < line.text.size()) {
    item.request = absl::InvalidArgumentError("the item is not valid UTF-8");
  } else if (format_ == BatchFormat::kJsonl) {
    item.request = RequestOfJson(line.text, item);
  } else if (format_ == BatchFormat::kCsv) {
    item.request = RequestOfRow(line.text, item);
  } else {
    server::ImageRequest request;
    request.prompt = std::string(absl::StripAsciiWhitespace(line.text));
    item.request = std::move(request);
  }
  return item;
}

absl::Status BatchReader::KeepId(const std::string& custom_id, BatchItem& item) {
  if (custom_id.empty() || custom_id.size() > kMaxIdBytes) {
    return server::FieldError(
        kIdField, absl::StrCat(" has ", custom_id.size(), " bytes; valid values are 1 to ", kMaxIdBytes, " bytes"));
  }
  const auto [known, is_new] = ids_.emplace(custom_id, item.line);
  if (!is_new) {
    return server::FieldError(kIdField, absl::StrCat(" ", server::QuotedValue(custom_id), " is the id of line ",
                                                     known->second, " already; each id may be used once"));
  }
  item.custom_id = custom_id;
  return absl::OkStatus();
}

absl::StatusOr<server::ImageRequest> BatchReader::RequestOfJson(const std::string& text, BatchItem& item) {
  json::error_code error;
  const json::value parsed = json::parse(text, error);
  if (error || !parsed.is_object()) {
    return absl::InvalidArgumentError(error ? absl::StrCat("the line is not JSON: ", error.message())
                                            : "the line is not a JSON object");
  }
  json::object line = parsed.get_object();
  const bool has_pictures =
      std::ranges::any_of(kPictureFields, [&line](const char* field) { return line.contains(field); });
  if (!line.contains(kIdField) && !line.contains("body") && !has_pictures) return RequestOfBody(text);
  // Boost keeps only the last of several members with the same name, which RequestOfBody could then not detect.
  RETURN_IF_ERROR(base::ParseJson(text, "the line").status());
  if (const json::value* id = line.if_contains(kIdField)) {
    if (!id->is_string()) return server::FieldError(kIdField, " must be a text");
    RETURN_IF_ERROR(KeepId(std::string(id->get_string()), item));
  }
  const json::value* body = line.if_contains("body");
  if (body == nullptr) {
    line.erase(kIdField);
    return RequestOfFields(std::move(line), item);
  }
  for (const json::key_value_pair& member : line) {
    RETURN_IF_ERROR(
        server::CheckName("field", {member.key().data(), member.key().size()}, {kIdField, "method", "url", "body"}));
  }
  RETURN_IF_ERROR(CheckIs(line, "method", {"POST"}));
  RETURN_IF_ERROR(CheckIs(line, "url", kUrls));
  if (!body->is_object()) return server::FieldError("body", " must be an object");
  return RequestOfFields(body->get_object(), item);
}

absl::StatusOr<server::ImageRequest> BatchReader::RequestOfFields(json::object fields, BatchItem& item) const {
  ASSIGN_OR_RETURN(item.pictures, TakePictures(fields, folder_));
  return RequestOfBody(json::serialize(fields));
}

absl::StatusOr<server::ImageRequest> BatchReader::RequestOfRow(const std::string& record, BatchItem& item) {
  const std::optional<std::vector<std::string>> values = ValuesOf(record);
  if (!values.has_value()) {
    return absl::InvalidArgumentError(kUnbalanced);
  }
  if (values->size() != columns_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row has ", values->size(), " values, and the first row names ", columns_.size()));
  }
  json::object body;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string& value = (*values)[i];
    if (columns_[i] == kIdField) {
      RETURN_IF_ERROR(KeepId(value, item));
    } else if (!value.empty() || columns_[i] == "prompt") {
      body[columns_[i]] = ValueOf(columns_[i], value);
    }
  }
  return RequestOfFields(std::move(body), item);
}

}  // namespace tessera::client
