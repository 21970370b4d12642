// InputCheckConfig is the part of the configuration that names the service which judges prompts and pictures
// (server_config.h).
#pragma once

#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "base/fields/duration_field.h"
#include "base/fields/fields.h"

namespace tessera::server {

struct InputCheckConfig {
  std::string url;  // empty: nothing is checked
  absl::Duration timeout = absl::Seconds(10);
  std::string headers_file;

  bool operator==(const InputCheckConfig&) const = default;
};

constexpr auto FieldsOf(const InputCheckConfig*) {
  using base::Field;
  using I = InputCheckConfig;
  return std::tuple(
      Field(
          "url", &I::url,
          "URL of a service that [judges prompts and pictures](operations.md#a-check-of-prompts-and-pictures) before a "
          "job is accepted; `input_check: URL` is short for it; without it, nothing is judged"),
      Field("timeout", &I::timeout, "Time for one judgement, at most 60s; without one, the request is refused"),
      Field(
          "headers_file", &I::headers_file, base::Text{.is_path = true},
          "A file of header lines, such as `Authorization: Bearer SECRET`, which each request to that service has; it "
          "is read again for each"));
}

}  // namespace tessera::server
