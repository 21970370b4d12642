#include "client/sdk/json_messages.h"

#include <rapidjson/document.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json/rapidjson_reader.h"
#include "base/macros/status_macros.h"
#include "client/sdk/attempts.h"

namespace tessera::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Value = rapidjson::GenericValue<rapidjson::UTF8<>>;
using Document =
    rapidjson::GenericDocument<rapidjson::UTF8<>, rapidjson::MemoryPoolAllocator<>, base::JsonStackAllocator>;
using Buffer = rapidjson::GenericStringBuffer<rapidjson::UTF8<>, base::JsonStackAllocator>;
using Writer = rapidjson::Writer<Buffer, rapidjson::UTF8<>, rapidjson::UTF8<>, base::JsonStackAllocator>;

constexpr char kStatePrefix[] = "JOB_STATE_";

// Returns a field's name in HTTP. HTTP gives times and waits in seconds and the sides of an image as one text.
std::string NameOf(const FieldDescriptor& field) {
  absl::string_view name = field.has_json_name() ? field.json_name() : field.name();
  if (absl::ConsumeSuffix(&name, "width") || absl::ConsumeSuffix(&name, "height")) return absl::StrCat(name, "size");
  return std::string(name);
}

// Whether every Tessera server sends this field.
bool IsRequired(const FieldDescriptor& field) {
  const bool may_be_left_out = field.has_presence() || field.type() == FieldDescriptor::TYPE_BYTES;
  return field.name() == "id" || (!may_be_left_out && NameOf(field) != field.name());
}

absl::Status NotAsItMustBe(const FieldDescriptor& field) {
  return absl::InternalError(
      absl::StrCat("the server's answer has no valid '", NameOf(field), "': is it a Tessera server?"));
}

// Empty if the value is not a text.
std::string TextOf(const Value& value) {
  return value.IsString() ? std::string(value.GetString(), value.GetStringLength()) : "";
}

// Also empty if there is no such member.
std::string TextIn(const Value& object, const char* name) {
  const auto member = object.FindMember(name);
  return member == object.MemberEnd() ? "" : TextOf(member->value);
}

// Returns an integer: the number itself, a number of seconds as milliseconds, or one side of "WIDTHxHEIGHT".
std::optional<int64_t> WholeOf(const FieldDescriptor& field, const Value& value) {
  if (absl::EndsWith(field.name(), "_ms")) {
    constexpr double kMostSeconds = 1e15;  // the milliseconds fit into 64 bits
    if (!value.IsNumber() || !(std::abs(value.GetDouble()) <= kMostSeconds)) return std::nullopt;
    return std::llround(value.GetDouble() * 1000);
  }
  const bool is_width = absl::EndsWith(field.name(), "width"), is_height = absl::EndsWith(field.name(), "height");
  if (!is_width && !is_height) return value.IsInt64() ? std::optional(value.GetInt64()) : std::nullopt;
  const std::vector<std::string> sides = absl::StrSplit(TextOf(value), 'x');
  int64_t side = 0;
  const bool is_side = sides.size() == 2 && absl::SimpleAtoi(sides[is_height ? 1 : 0], &side);
  return is_side ? std::optional(side) : std::nullopt;
}

// Ids of jobs and images are used in paths; those of models may contain any characters.
bool IsId(const std::string& text) {
  return !text.empty() && text.size() <= 200 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
}

absl::StatusCode CodeOf(int status, const std::string& word) {
  static const auto* codes = new std::map<int, absl::StatusCode>{
      {401, absl::StatusCode::kUnauthenticated},    {403, absl::StatusCode::kPermissionDenied},
      {404, absl::StatusCode::kNotFound},           {408, absl::StatusCode::kUnavailable},
      {409, absl::StatusCode::kFailedPrecondition}, {429, absl::StatusCode::kResourceExhausted},
      {501, absl::StatusCode::kUnimplemented},      {502, absl::StatusCode::kUnavailable},
      {503, absl::StatusCode::kUnavailable},        {504, absl::StatusCode::kUnavailable}};
  if (word == "deadline_exceeded") return absl::StatusCode::kDeadlineExceeded;
  if (word == "idempotency_key_reused") return absl::StatusCode::kAlreadyExists;
  if (const auto code = codes->find(status); code != codes->end()) return code->second;
  return status >= 400 && status < 500 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
}

// Sets the field to `value`; returns false if the value is not of the field's type.
bool ReadScalar(const Value& value, const FieldDescriptor& field, Message& message) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64: {
      const bool is_short = field.cpp_type() == FieldDescriptor::CPPTYPE_INT32;
      const std::optional<int64_t> number = WholeOf(field, value);
      if (!number.has_value() || (is_short && *number != static_cast<int32_t>(*number))) return false;
      if (is_short) reflection.SetInt32(&message, &field, static_cast<int32_t>(*number));
      if (!is_short) reflection.SetInt64(&message, &field, *number);
      return true;
    }
    case FieldDescriptor::CPPTYPE_UINT64:
      if (value.IsUint64()) reflection.SetUInt64(&message, &field, value.GetUint64());
      return value.IsUint64();
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (value.IsNumber()) reflection.SetDouble(&message, &field, value.GetDouble());
      return value.IsNumber();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (value.IsBool()) reflection.SetBool(&message, &field, value.GetBool());
      return value.IsBool();
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* state = field.enum_type()->FindValueByName(kStatePrefix + absl::AsciiStrToUpper(TextOf(value)));
      if (state != nullptr) reflection.SetEnum(&message, &field, state);
      return state != nullptr;
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      if (!value.IsString()) return false;
      std::string text = TextOf(value), bytes;
      if (field.type() == FieldDescriptor::TYPE_BYTES) {
        if (!absl::Base64Unescape(text, &bytes)) return false;
        text = std::move(bytes);
      }
      if (field.name() == "id" && field.containing_type() != v1::Model::descriptor() && !IsId(text)) return false;
      reflection.SetString(&message, &field, std::move(text));
      return true;
    }
    default:
      if (!value.IsObject()) return false;
      // The only nested message is a job's error, whose code is a word in HTTP.
      v1::JobError error;
      const bool was_refused = TextIn(value, "type") == "invalid_request_error";
      error.set_code(static_cast<int>(CodeOf(was_refused ? 400 : 500, TextIn(value, "code"))));
      error.set_message(TextIn(value, "message"));
      reflection.MutableMessage(&message, &field)->CopyFrom(error);
      return true;
  }
}

absl::Status ReadObject(const Value& object, Message& message) {
  if (!object.IsObject()) {
    return absl::InternalError("the server's answer is not a JSON object: is it a Tessera server?");
  }
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const auto member = object.FindMember(NameOf(field).c_str());
    const bool is_there = member != object.MemberEnd() && !member->value.IsNull();
    if (!is_there && !IsRequired(field)) continue;
    if (!is_there || field.is_repeated() != member->value.IsArray()) return NotAsItMustBe(field);
    if (!field.is_repeated()) {
      if (!ReadScalar(member->value, field, message)) return NotAsItMustBe(field);
      continue;
    }
    for (const Value& value : member->value.GetArray()) {
      if (field.message_type() == nullptr) {
        reflection.AddString(&message, &field, TextOf(value));
      } else if (!value.IsObject() || TextIn(value, "alias_of").empty()) {
        // HTTP also lists a model under each of its aliases.
        RETURN_IF_ERROR(ReadObject(value, *reflection.AddMessage(&message, &field)));
      }
    }
  }
  return absl::OkStatus();
}

// Passes the reader's values to a document, except numbers, which the reader delivers as text.
struct DocumentBuilder {
  using Size = rapidjson::SizeType;

  bool RawNumber(const char* text, Size length, bool) {
    const std::optional<base::ParsedNumber> number = base::ReadJsonNumber(text, length);
    if (!number.has_value()) return false;
    if (const auto* integer = std::get_if<int64_t>(&*number)) return document.Int64(*integer);
    if (const auto* natural = std::get_if<uint64_t>(&*number)) return document.Uint64(*natural);
    return document.Double(std::get<double>(*number));
  }
  bool Null() { return document.Null(); }
  bool Bool(bool value) { return document.Bool(value); }
  bool String(const char* text, Size length, bool copy) { return document.String(text, length, copy); }
  bool StartObject() { return document.StartObject(); }
  bool Key(const char* text, Size length, bool copy) { return document.Key(text, length, copy); }
  bool EndObject(Size members) { return document.EndObject(members); }
  bool StartArray() { return document.StartArray(); }
  bool EndArray(Size items) { return document.EndArray(items); }
  // Not called, because numbers are read as text.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(int64_t) { return false; }
  bool Uint64(uint64_t) { return false; }
  bool Double(double) { return false; }

  Document& document;
};

// Returns null if `json` is not valid JSON. Not recursive, so that deeply nested text is safe.
Document Parse(const std::string& json) {
  constexpr unsigned kFlags =
      rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseValidateEncodingFlag;
  Document document;
  auto read = [&json](Document& to) {
    rapidjson::MemoryStream stream(json.data(), json.size());
    rapidjson::EncodedInputStream<rapidjson::UTF8<>, rapidjson::MemoryStream> input(stream);
    DocumentBuilder builder{to};
    return !base::JsonReader().Parse<kFlags>(input, builder).IsError();
  };
  document.Populate(read);
  return document;
}

void Write(Writer& writer, const std::string& text) {
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void WriteObject(Writer& writer, const Message& message);

// Writes a list of integers or of objects.
void WriteList(Writer& writer, const FieldDescriptor& field, const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  writer.StartArray();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    if (field.message_type() != nullptr) {
      WriteObject(writer, reflection.GetRepeatedMessage(message, &field, i));
    } else {
      writer.Int64(reflection.GetRepeatedInt64(message, &field, i));
    }
  }
  writer.EndArray();
}

// Writes a field that is a number, a text or a list.
void WriteField(Writer& writer, const FieldDescriptor& field, const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  Write(writer, field.name());
  if (field.is_repeated()) return WriteList(writer, field, message);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      writer.Int64(reflection.GetInt64(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      writer.Uint64(reflection.GetUInt64(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      writer.Double(reflection.GetDouble(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      writer.Bool(reflection.GetBool(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      WriteObject(writer, reflection.GetMessage(message, &field));
      break;
    default: {
      const std::string text = reflection.GetString(message, &field);
      Write(writer, field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text);
    }
  }
}

std::vector<const FieldDescriptor*> FieldsOf(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

void WriteObject(Writer& writer, const Message& message) {
  writer.StartObject();
  for (const FieldDescriptor* field : FieldsOf(message)) WriteField(writer, *field, message);
  writer.EndObject();
}

// JSON has only finite numbers.
absl::Status CheckNumbers(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  for (const FieldDescriptor* field : FieldsOf(message)) {
    const bool is_message = field->message_type() != nullptr;
    if (is_message && !field->is_repeated()) RETURN_IF_ERROR(CheckNumbers(reflection.GetMessage(message, field)));
    for (int i = 0; is_message && field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
      RETURN_IF_ERROR(CheckNumbers(reflection.GetRepeatedMessage(message, field, i)));
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && !std::isfinite(reflection.GetDouble(message, field))) {
      return absl::InvalidArgumentError(
          absl::StrCat(field->name(), " is ", reflection.GetDouble(message, field), "; it must be a number"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ToJson(const v1::ImageRequest& request) {
  RETURN_IF_ERROR(CheckNumbers(request));
  Buffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  // An empty prompt is also sent.
  if (request.prompt().empty()) WriteField(writer, *v1::ImageRequest::descriptor()->FindFieldByName("prompt"), request);
  for (const FieldDescriptor* field : FieldsOf(request)) WriteField(writer, *field, request);
  writer.EndObject();
  return std::string(buffer.GetString(), buffer.GetSize());
}

absl::Status FromJson(const std::string& json, google::protobuf::Message& message) {
  return ReadObject(Parse(json), message);
}

absl::StatusOr<std::string> FileIdOf(const std::string& json) {
  const Document document = Parse(json);
  std::string id = document.IsObject() ? TextIn(document, "id") : "";
  if (!IsId(id)) return absl::InternalError("the server's answer has no valid 'id': is it a Tessera server?");
  return id;
}

absl::StatusOr<std::optional<v1::JobEvent>> EventOf(const ServerEvent& event) {
  static const auto* names = new std::map<std::string, const char*>{
      {"queued", "queued"}, {"started", "started"}, {"step", "step"},    {"preview", "preview"},
      {"image", "image"},   {"done", "ended"},      {"failed", "ended"}, {"cancelled", "ended"}};
  const auto name = names->find(event.name);
  if (name == names->end()) return std::optional<v1::JobEvent>();
  v1::JobEvent message;
  const FieldDescriptor* field = v1::JobEvent::descriptor()->FindFieldByName(name->second);
  RETURN_IF_ERROR(FromJson(event.data, *message.GetReflection()->MutableMessage(&message, field)));
  return message;
}

absl::Status ReadError(int status, const std::string& body, const std::string& retry_after) {
  const Document document = Parse(body);
  const bool is_error = document.IsObject() && document.HasMember("error") && document["error"].IsObject();
  const auto text = [&](const char* name) { return is_error ? TextIn(document["error"], name) : ""; };
  const std::string message = text("message"), code = text("code");
  int64_t seconds = 0;
  const bool has_wait = absl::SimpleAtoi(retry_after, &seconds) && seconds >= 0 && seconds < 1000000000;
  return WithRefusal(absl::Status(CodeOf(status, code),
                                  message.empty() ? absl::StrCat("the server answered with status ", status) : message),
                     {.field = text("param"),
                      .code = code,
                      .retry_after = has_wait ? std::optional(absl::Seconds(seconds)) : std::nullopt});
}

std::string JobStateWord(v1::JobState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::JobState_Name(state), kStatePrefix));
}

}  // namespace tessera::client
