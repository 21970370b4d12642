#include "client/cli/train/adapter_publisher.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/time/steady_time.h"
#include "client/cli/remote/server_connection.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kTimeout = absl::Seconds(10);
absl::Status OfKey(const char* key, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("publish.", key, ": ", std::string(status.message())));
}

}  // namespace

AdapterPublisher::AdapterPublisher(const control::TrainPublish& options, std::unique_ptr<HttpTransport> transport)
    : name_(options.name),
      path_((fs::path(options.adapter_folder) / absl::StrCat(options.name, ".safetensors")).string()),
      transport_(std::move(transport)) {}

absl::StatusOr<std::unique_ptr<AdapterPublisher>> AdapterPublisher::Create(const control::TrainPublish& options) {
  std::error_code error;
  if (!fs::is_directory(options.adapter_folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat("publish.adapter_folder is ",
                                                   base::QuotedValue(options.adapter_folder),
                                                   ", which is not a folder; it must be the server's adapter_folder"));
  }
  const absl::StatusOr<ServerUrl> url = ParseServerUrl(options.server);
  if (!url.ok()) return OfKey("server", url.status());
  const absl::StatusOr<ImageClientOptions> client = ClientOptionsFor(
      {.url = options.server, .api_key_file = options.api_key_file, .ca_file = options.server_ca}, *url, /*retries=*/0);
  if (!client.ok()) return OfKey("api_key_file", client.status());
  absl::StatusOr<std::unique_ptr<HttpTransport>> transport = HttpTransport::Create(*url, *client);
  if (!transport.ok()) return OfKey("server_ca", transport.status());
  return std::unique_ptr<AdapterPublisher>(new AdapterPublisher(options, *std::move(transport)));
}

absl::StatusOr<Publication> AdapterPublisher::Load() const {
  base::JsonWriter body;
  body.BeginObject();
  body.Key("lora_name").String(name_);
  body.EndObject();
  const absl::StatusOr<HttpAnswer> answer = transport_->Call({.method = "POST",
                                                              .target = "/v1/load_lora_adapter",
                                                              .body = body.text(),
                                                              .deadline = base::SteadyNow() + kTimeout});
  if (!answer.ok()) return ErrorForUser(answer.status());
  const absl::StatusOr<base::Json> json = base::ParseJson(answer->body, "the server's answer");
  const auto find = [&](const char* key) { return json.ok() ? json->Find(key) : nullptr; };
  const base::Json *digest = find("digest"), *parent = find("parent"), *seconds = find("seconds");
  if (digest == nullptr || parent == nullptr || digest->AsString() == nullptr || parent->AsString() == nullptr) {
    return absl::UnavailableError("the server's answer is malformed: can it load adapters?");
  }
  return Publication{.digest = *digest->AsString(),
                     .model = *parent->AsString(),
                     .seconds = seconds == nullptr ? 0 : seconds->AsNumber().value_or(0)};
}

}  // namespace tessera::client
