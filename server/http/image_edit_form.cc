#include "server/http/image_edit_form.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "control/parameters/picture_use.h"
#include "server/api/field_checks.h"
#include "server/api/request_limits.h"
#include "server/http/flat_json.h"

namespace tessera::server {
namespace {

constexpr char kImage[] = "image", kImages[] = "image[]", kMask[] = "mask", kMaskImage[] = "mask_image";

// Values are checked after they have been read.
constexpr size_t kMostTextBytes = size_t{256} << 10;

// The fields of a form: the pictures, and the other fields of an edit.
struct FormFields {
  explicit FormFields(bool foreign) : others(BodyFields(BodyKind::kEdit)) {
    std::erase_if(others, [](const BodyField& field) { return field.kind == BodyField::Kind::kPictures; });
    for (const char* name : {kImage, kImages, kMask}) {
      forms.push_back({.name = name, .is_file = true, .most = control::kMaxPictures, .most_bytes = kMaxPictureBytes});
    }
    forms.back().most = 1;
    if (foreign) {
      for (const char* name : {"url", "url[]", "reference_image", kMaskImage}) {
        forms.push_back(
            {.name = name, .is_file = true, .most = control::kMaxPictures, .most_bytes = kMaxPictureUrlBytes});
      }
      forms.back().most = 1;
    }
    for (const BodyField& field : others) {
      const bool is_short = field.kind != BodyField::Kind::kText && field.kind != BodyField::Kind::kList;
      forms.push_back({.name = field.name.c_str()});
      if (!is_short) forms.back().most_bytes = kMostTextBytes;
    }
  }
  FormFields(const FormFields&) = delete;

  // Requires one of the other fields.
  BodyField::Kind KindOf(const FormField& field) const {
    return others[&field - (forms.data() + forms.size() - others.size())].kind;
  }

  std::vector<BodyField> others;  // in the order of the last entries of `forms`
  std::vector<FormField> forms;
};

const FormFields& AllFields(bool foreign) {
  static const FormFields own(false), all(true);
  return foreign ? all : own;
}

absl::Status WrongText(const FormPart& part, absl::string_view valid) {
  return FieldError(part.field->name, absl::StrCat(" is ", QuotedValue(part.content), "; it must be ", valid));
}

// Reads a text that is a value of JSON in a form, and begins with one of `begins`.
absl::StatusOr<FlatJsonMember> ReadJson(const FormPart& part, absl::string_view begins, absl::string_view valid) {
  if (part.content.empty() || begins.find(part.content[0]) == absl::string_view::npos) return WrongText(part, valid);
  auto members = ReadFlatJson(absl::StrCat("{\"\":", part.content, "}"));
  if (!members.ok() || members->size() != 1) return WrongText(part, valid);
  return FlatJsonMember{.name = part.field->name, .value = std::move(members->front().value)};
}

absl::StatusOr<FlatJsonMember> ReadMember(const FormPart& part, const FormFields& fields) {
  constexpr absl::string_view kNumberBegins = "-0123456789";
  const auto scalar = [&](auto value) { return FlatJsonMember{.name = part.field->name, .value = JsonScalar(value)}; };
  switch (fields.KindOf(*part.field)) {
    case BodyField::Kind::kWholeNumber:
      return ReadJson(part, kNumberBegins, "a whole number");
    case BodyField::Kind::kNumber:
      return ReadJson(part, kNumberBegins, "a number");
    case BodyField::Kind::kList:
      return ReadJson(part, "[", "a list in JSON");
    case BodyField::Kind::kFlag:
      if (part.content != "true" && part.content != "false") return WrongText(part, "true or false");
      return scalar(part.content == "true");
    case BodyField::Kind::kText:
    case BodyField::Kind::kPictures:
      break;
  }
  return scalar(std::string(part.content));
}

// A form's error with the names that this API has for the field, and with what an unknown field probably means.
absl::Status NamedAsByCallers(const absl::Status& status, bool foreign) {
  const std::string field = ErrorField(status);
  if (field.empty()) return status;
  std::vector<std::string> names;
  for (const FormField& form : ImageEditFields(foreign)) names.emplace_back(form.name);
  if (std::ranges::count(names, field) == 0) return UnknownField(field, names);
  if (field != kImages) return status;
  return FieldError(kImage, absl::StripPrefix(status.message(), kImages));
}

absl::Status AddPicture(const FormPart& part, EditBody& edit) {
  const absl::string_view field = part.field->name;
  const bool is_mask = field == kMask || field == kMaskImage;
  const char* const name = is_mask ? kMask : kImage;
  if (part.content.empty()) return FieldError(name, " is an empty file");
  if (is_mask) {
    if (!edit.mask.empty()) return FieldError(name, " is given twice");
    edit.mask = part.content;
    return absl::OkStatus();
  }
  if (edit.images.size() == control::kMaxPictures) {
    return FieldError(name, absl::StrCat(" is given more than ", control::kMaxPictures, " times"));
  }
  edit.images.push_back(part.content);
  return absl::OkStatus();
}

}  // namespace

absl::Span<const FormField> ImageEditFields(bool foreign) { return AllFields(foreign).forms; }

absl::StatusOr<EditBody> ReadImageEditForm(const HttpRequest& request, bool foreign) {
  ASSIGN_OR_RETURN(const std::string boundary, FormBoundary(request.Header("content-type").value_or("")));
  const absl::StatusOr<std::vector<FormPart>> parts =
      ReadForm(request.body, boundary, ImageEditFields(foreign), {.total_bytes = request.body.size()});
  if (!parts.ok()) return NamedAsByCallers(parts.status(), foreign);
  EditBody edit;
  std::vector<FlatJsonMember> members;
  for (const FormPart& part : *parts) {
    if (part.field->is_file) {
      RETURN_IF_ERROR(AddPicture(part, edit));
    } else {
      ASSIGN_OR_RETURN(members.emplace_back(), ReadMember(part, AllFields(foreign)));
    }
  }
  RETURN_IF_ERROR(ReadMembers(members, BodyKind::kEdit, edit.body));
  if (edit.images.empty()) {
    return FieldError(kImage, absl::StrCat(" is missing; it must be 1 to ", control::kMaxPictures, " pictures"));
  }
  return edit;
}

}  // namespace tessera::server
