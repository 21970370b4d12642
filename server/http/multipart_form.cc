#include "server/http/multipart_form.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "server/api/field_checks.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxBoundaryBytes = 70;
constexpr size_t kMaxHeaderParameters = 8;
constexpr size_t kMaxFieldNameBytes = 64;

// A header's value with parameters: `form-data; name="image"`.
struct ParameterizedValue {
  std::string value;                              // in lower case
  std::map<std::string, std::string> parameters;  // by name in lower case
};

bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
}

std::string TakeToken(absl::string_view& text) {
  const size_t end = std::find_if_not(text.begin(), text.end(), IsTokenCharacter) - text.begin();
  const std::string token = absl::AsciiStrToLower(text.substr(0, end));
  text.remove_prefix(end);
  return token;
}

void SkipBlanks(absl::string_view& text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\t')) text.remove_prefix(1);
}

// Takes the value of a parameter, in quotes or without. A backslash before a quote or a backslash escapes it; browsers
// and curl send others as they are, and a quote as %22.
std::optional<std::string> TakeParameterValue(absl::string_view& text) {
  std::string value;
  if (!absl::ConsumePrefix(&text, "\"")) {
    const size_t end = std::min(text.find_first_of("; \t\""), text.size());
    value = std::string(text.substr(0, end));
    text.remove_prefix(end);
    return value.empty() ? std::nullopt : std::optional(value);
  }
  for (; !text.empty(); text.remove_prefix(1)) {
    if (text[0] == '"') {
      text.remove_prefix(1);
      return value;
    }
    if (text[0] == '\\' && text.size() > 1 && (text[1] == '"' || text[1] == '\\')) text.remove_prefix(1);
    value.push_back(text[0]);
  }
  return std::nullopt;
}

// Returns nothing for a malformed value and for a parameter that is given twice.
std::optional<ParameterizedValue> ReadParameterizedValue(absl::string_view text) {
  ParameterizedValue result;
  SkipBlanks(text);
  result.value = TakeToken(text);
  if (absl::ConsumePrefix(&text, "/")) absl::StrAppend(&result.value, "/", TakeToken(text));
  for (SkipBlanks(text); !text.empty(); SkipBlanks(text)) {
    if (!absl::ConsumePrefix(&text, ";")) return std::nullopt;
    SkipBlanks(text);
    if (text.empty()) break;
    const std::string name = TakeToken(text);
    if (name.empty() || !absl::ConsumePrefix(&text, "=")) return std::nullopt;
    std::optional<std::string> value = TakeParameterValue(text);
    if (!value.has_value() || !result.parameters.emplace(name, *std::move(value)).second) return std::nullopt;
    if (result.parameters.size() > kMaxHeaderParameters) return std::nullopt;
  }
  return result.value.empty() ? std::nullopt : std::optional(std::move(result));
}

// The headers of one part that have a meaning.
struct PartHeaders {
  std::optional<ParameterizedValue> disposition, type;
};

class FormReader {
 public:
  FormReader(absl::string_view body, absl::string_view boundary, absl::Span<const FormField> fields,
             const FormLimits& limits)
      : body_(body), delimiter_(absl::StrCat("\r\n--", boundary)), fields_(fields), limits_(limits) {}

  absl::StatusOr<std::vector<FormPart>> Read() {
    if (body_.size() > limits_.total_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the form has ", body_.size(), " bytes; valid values are at most ", limits_.total_bytes));
    }
    const absl::string_view first = absl::string_view(delimiter_).substr(2);
    if (absl::StartsWith(body_, first)) {
      at_ = first.size();
    } else if (absl::StartsWith(body_, delimiter_)) {
      at_ = delimiter_.size();
    } else {
      return Malformed("it does not begin with its boundary");
    }
    while (!TakeEnd()) {
      RETURN_IF_ERROR(ReadPart());
    }
    if (at_ != body_.size()) return Malformed("there is text after its last part");
    return std::move(parts_);
  }

 private:
  absl::Status Malformed(absl::string_view reason) const {
    return absl::InvalidArgumentError(absl::StrCat("the form is malformed at byte ", at_, ": ", reason));
  }

  bool Take(absl::string_view text) {
    if (!absl::StartsWith(body_.substr(at_), text)) return false;
    at_ += text.size();
    return true;
  }
  void TakeBlanks() {
    while (at_ < body_.size() && (body_[at_] == ' ' || body_[at_] == '\t')) ++at_;
  }

  // Whether the delimiter before this place is the last one, which is then read to its end.
  bool TakeEnd() {
    if (!Take("--")) return false;
    TakeBlanks();
    Take("\r\n");
    return true;
  }

  absl::Status ReadPart() {
    TakeBlanks();
    if (!Take("\r\n")) return Malformed("a line that begins with the boundary goes on");
    if (parts_.size() == limits_.parts) return Malformed(absl::StrCat("it has more than ", limits_.parts, " parts"));
    PartHeaders headers;
    RETURN_IF_ERROR(ReadHeaders(headers));
    ASSIGN_OR_RETURN(const FormField* field, FieldOf(headers));
    // A delimiter has its only carriage return at its beginning, so the search compares no byte more than twice. The
    // empty line after the headers may be the beginning of the next delimiter.
    const size_t begin = at_, end = body_.find(delimiter_, begin - 2);
    if (end == body_.npos) return Malformed("the part is cut off before its boundary");
    FormPart part = {.field = field, .content = body_.substr(begin, end > begin ? end - begin : 0)};
    if (headers.type.has_value()) part.media_type = headers.type->value;
    RETURN_IF_ERROR(CheckPart(part, headers));
    parts_.push_back(std::move(part));
    at_ = end + delimiter_.size();
    return absl::OkStatus();
  }

  absl::Status ReadHeaders(PartHeaders& headers) {
    const size_t begin = at_;
    while (!Take("\r\n")) {
      const absl::string_view rest = body_.substr(at_, limits_.header_bytes - (at_ - begin));
      const size_t length = rest.find("\r\n");
      if (length == rest.npos) {
        const bool is_cut = at_ + rest.size() == body_.size();
        return Malformed(is_cut ? "a header is cut off"
                                : absl::StrCat("a part has more than ", limits_.header_bytes, " bytes of headers"));
      }
      RETURN_IF_ERROR(ReadHeader(rest.substr(0, length), headers));
      at_ += length + 2;
    }
    return absl::OkStatus();
  }

  absl::Status ReadHeader(absl::string_view line, PartHeaders& headers) const {
    const bool has_control = std::ranges::any_of(
        line, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t'; });
    absl::string_view value = line;
    const std::string name = TakeToken(value);
    if (has_control || name.empty() || !absl::ConsumePrefix(&value, ":")) {
      return Malformed("a line is no header of the form NAME: VALUE");
    }
    if (name == "content-transfer-encoding") {
      const std::string encoding = absl::AsciiStrToLower(absl::StripAsciiWhitespace(value));
      if (encoding == "binary" || encoding == "8bit" || encoding == "7bit") return absl::OkStatus();
      return Malformed("contents with a Content-Transfer-Encoding are not read; send them as they are");
    }
    if (name != "content-disposition" && name != "content-type") return absl::OkStatus();
    std::optional<ParameterizedValue>& header = name == "content-type" ? headers.type : headers.disposition;
    if (header.has_value()) return Malformed(absl::StrCat("a part has two headers ", name));
    header = ReadParameterizedValue(value);
    return header.has_value() ? absl::OkStatus() : Malformed(absl::StrCat("a header ", name, " is malformed"));
  }

  absl::StatusOr<const FormField*> FieldOf(const PartHeaders& headers) const {
    if (!headers.disposition.has_value() || headers.disposition->value != "form-data") {
      return Malformed("a part has no header Content-Disposition: form-data");
    }
    const auto name = headers.disposition->parameters.find("name");
    if (name == headers.disposition->parameters.end()) return Malformed("a part has no name");
    std::vector<std::string> names;
    for (const FormField& field : fields_) {
      if (name->second == field.name) return &field;
      names.emplace_back(field.name);
    }
    const bool is_long =
        name->second.size() > kMaxFieldNameBytes || base::FirstInvalidUtf8(name->second) != name->second.size();
    return FieldError(is_long ? QuotedValue(name->second) : name->second,
                      absl::StrCat(": field", base::ProblemOfName(name->second, names)));
  }

  absl::Status CheckPart(const FormPart& part, const PartHeaders& headers) {
    const FormField& field = *part.field;
    if (++counts_[part.field] > field.most) {
      return FieldError(
          field.name, field.most == 1 ? " is given twice" : absl::StrCat(" is given more than ", field.most, " times"));
    }
    if (part.content.size() > field.most_bytes) {
      return FieldError(field.name, absl::StrCat(" has ", part.content.size(), " bytes; valid values are at most ",
                                                 field.most_bytes));
    }
    if (field.is_file) return absl::OkStatus();
    const auto& disposition = headers.disposition->parameters;
    if (disposition.contains("filename") || disposition.contains("filename*")) {
      return FieldError(field.name, " is a file; it must be a text");
    }
    if (headers.type.has_value()) {
      const auto charset = headers.type->parameters.find("charset");
      if (charset != headers.type->parameters.end() && !absl::EqualsIgnoreCase(charset->second, "utf-8") &&
          !absl::EqualsIgnoreCase(charset->second, "us-ascii")) {
        return FieldError(field.name,
                          absl::StrCat(" has the charset ", QuotedValue(charset->second), "; it must be utf-8"));
      }
    }
    const size_t wrong = base::FirstInvalidUtf8(part.content);
    if (wrong == part.content.size()) return absl::OkStatus();
    return FieldError(field.name, absl::StrCat(" is no text in UTF-8 at byte ", wrong));
  }

  const absl::string_view body_;
  const std::string delimiter_;
  const absl::Span<const FormField> fields_;
  const FormLimits& limits_;
  size_t at_ = 0;
  std::vector<FormPart> parts_;
  std::map<const FormField*, size_t> counts_;
};

}  // namespace

absl::StatusOr<std::string> FormBoundary(absl::string_view content_type) {
  const std::optional<ParameterizedValue> type = ReadParameterizedValue(content_type);
  if (!type.has_value() || type->value != kFormMediaType) {
    return absl::InvalidArgumentError(absl::StrCat("the Content-Type is ", QuotedValue(content_type),
                                                   "; it must be multipart/form-data with one boundary"));
  }
  const auto found = type->parameters.find("boundary");
  if (found == type->parameters.end()) {
    return absl::InvalidArgumentError("the Content-Type multipart/form-data has no boundary");
  }
  const std::string& boundary = found->second;
  const bool is_valid = std::ranges::all_of(boundary, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("'()+_,-./:=? ").find(c) != absl::string_view::npos;
  });
  if (!is_valid || boundary.empty() || boundary.size() > kMaxBoundaryBytes || boundary.back() == ' ') {
    return absl::InvalidArgumentError(
        absl::StrCat("the boundary of the form is ", QuotedValue(boundary), "; it must have 1 to ", kMaxBoundaryBytes,
                     " letters, digits and characters of '()+_,-./:=? and blank, and not end with a blank"));
  }
  return boundary;
}

absl::StatusOr<std::vector<FormPart>> ReadForm(absl::string_view body, absl::string_view boundary,
                                               absl::Span<const FormField> fields, const FormLimits& limits) {
  return FormReader(body, boundary, fields, limits).Read();
}

}  // namespace tessera::server
