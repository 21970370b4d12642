// /v1/files: pictures that are uploaded once and named in requests. The shapes are those of OpenAI's files.
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json/plain_json.h"
#include "base/macros/status_macros.h"
#include "server/api/field_checks.h"
#include "server/api/request_limits.h"
#include "server/api/stored_picture.h"
#include "server/http/api_routes.h"
#include "server/http/multipart_form.h"

namespace tessera::server {
namespace {

using boost::json::array;
using boost::json::object;

constexpr FormField kFields[] = {{.name = "file", .is_file = true, .most_bytes = kMaxPictureBytes},
                                 {.name = "purpose"}};

object FileObject(const UploadedFile& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.bytes},
          {"created_at", absl::ToUnixSeconds(file.created)},
          {"expires_at", absl::ToUnixSeconds(file.expires)},
          {"filename", file.id},  // the caller's name for it is not kept
          {"purpose", "vision"},
          {"status", "processed"},
          {"size", absl::StrCat(file.picture.picture.width, "x", file.picture.picture.height)}};
}

// Returns the picture of a form.
absl::StatusOr<absl::string_view> ReadUpload(const HttpRequest& request) {
  ASSIGN_OR_RETURN(const std::string boundary, FormBoundary(request.Header("content-type").value_or("")));
  ASSIGN_OR_RETURN(const std::vector<FormPart> parts, ReadForm(request.body, boundary, kFields));
  std::optional<absl::string_view> file;
  for (const FormPart& part : parts) {
    if (part.field->is_file) {
      file = part.content;
    } else {
      RETURN_IF_ERROR(CheckName("purpose", part.content, {"vision", "user_data"}));
    }
  }
  if (!file.has_value()) return FieldError("file", " is missing; it must be a picture");
  return *file;
}

void Upload(const ApiContext& context, const ApiCall& call) {
  const absl::StatusOr<absl::string_view> picture = ReadUpload(call.request);
  if (!picture.ok()) return call.reply->SendError(picture.status());
  const absl::StatusOr<UploadedFile> file = context.service.PutFile(call.caller, *picture);
  if (!file.ok()) return call.reply->SendError(WithFieldName("file", file.status()));
  call.reply->SendJson(200, base::PlainJson(FileObject(*file)));
}

void List(const ApiContext& context, const ApiCall& call) {
  const absl::StatusOr<std::vector<UploadedFile>> files = context.service.ListFiles(call.caller);
  if (!files.ok()) return call.reply->SendError(WithFieldName("file", files.status()));
  array all;
  for (const UploadedFile& file : *files) all.push_back(FileObject(file));
  call.reply->SendJson(200, base::PlainJson(object{{"object", "list"}, {"data", std::move(all)}, {"has_more", false}}));
}

void Get(const ApiContext& context, const ApiCall& call) {
  const absl::StatusOr<UploadedFile> file = context.service.FindFile(call.caller, call.parameters[0]);
  if (!file.ok()) return call.reply->SendError(WithFieldName("file_id", file.status()));
  call.reply->SendJson(200, base::PlainJson(FileObject(*file)));
}

void Delete(const ApiContext& context, const ApiCall& call) {
  const std::string& id = call.parameters[0];
  const absl::Status deleted = context.service.DeleteFile(call.caller, id);
  if (!deleted.ok()) return call.reply->SendError(WithFieldName("file_id", deleted));
  call.reply->SendJson(200, base::PlainJson(object{{"id", id}, {"object", "file"}, {"deleted", true}}));
}

}  // namespace

std::vector<ApiRoute> FileRoutes(const ApiContext& context) {
  const auto with = [&context](void (*handle)(const ApiContext&, const ApiCall&)) {
    return [context, handle](const ApiCall& call) { handle(context, call); };
  };
  return {{.method = "POST",
           .pattern = "/v1/files",
           .reads_form = true,
           .most_body_bytes = context.options.picture_body_bytes,
           .handle = with(Upload)},
          {.method = "GET", .pattern = "/v1/files", .query = {"purpose", "limit"}, .handle = with(List)},
          {.method = "GET", .pattern = "/v1/files/{id}", .handle = with(Get)},
          {.method = "DELETE", .pattern = "/v1/files/{id}", .handle = with(Delete)}};
}

}  // namespace tessera::server
