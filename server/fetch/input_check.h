// InputCheck asks a service of the operator whether a request's prompts and pictures are allowed, once for each request
// that would otherwise be accepted. Without a clear answer the request is refused. Thread-safe.
//
// The service's address may be private, because the operator configures it. Its name is looked up for each check, with
// a deadline; no redirect is followed and no proxy of the environment is used, and its certificate is verified.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "server/fetch/call_slots.h"
#include "server/fetch/host_resolver.h"
#include "server/fetch/http_url.h"
#include "server/fetch/input_check_message.h"

namespace tessera::server {

inline constexpr char kModerationCode[] = "moderation_blocked";  // that of OpenAI's image API
inline constexpr char kNoInputCheckCode[] = "input_check_unavailable";

class InputCheck {
 public:
  struct Options {
    HttpUrl url;
    absl::Duration timeout = absl::Seconds(10);  // of one check, with the wait for a slot
    // Returns the header lines of the next request, "Name: value"; null: none.
    std::function<absl::StatusOr<std::vector<std::string>>()> headers = nullptr;
    size_t most_picture_bytes = 256 << 20;  // of all pictures of one request
    int concurrency = 4;                    // checks that run at once; further ones wait
    HostResolver resolver = nullptr;        // null: that of the system
    std::string authority_file = "";        // PEM, instead of the authorities that this machine trusts
    base::EventLog log = nullptr;           // of checks that failed
  };

  explicit InputCheck(Options options);

  // OK if the service allows the input. INVALID_ARGUMENT with kModerationCode and the service's reason if it does not;
  // INVALID_ARGUMENT about `images` if the pictures are too large to be checked; UNAVAILABLE with kNoInputCheckCode if
  // the service cannot be reached, does not answer in time or answers something else. Waits, so it must be called where
  // that is allowed.
  absl::Status Check(const CheckedInput& input);

 private:
  absl::StatusOr<Verdict> Ask(const CheckedInput& input);

  const Options options_;
  const HostResolver resolver_;
  CallSlots slots_;
};

}  // namespace tessera::server
