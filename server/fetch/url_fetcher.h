// UrlFetcher reads the pictures that callers name by URL, from the hosts that the operator lists and from no other
// place.
//
// A name is looked up once, all its addresses must be public, and the connection goes to one of these very addresses;
// so must those of every redirect, of which at most 5 are followed, to listed hosts alone and never from https to http.
// Ports are 80 and 443. Certificates are verified with the host's name. No proxy of the environment is used, and no
// cookies, users or passwords are sent. Size, header and the time of the whole are bounded. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/fetch/call_slots.h"
#include "server/fetch/host_resolver.h"
#include "server/fetch/http_exchange.h"
#include "server/fetch/http_url.h"

namespace tessera::server {

inline constexpr char kImageUrlField[] = "image_url";  // the field in errors of Fetch
inline constexpr char kImageUrlCode[] = "invalid_image_url";
inline constexpr int kMaxRedirects = 5;

class UrlFetcher {
 public:
  struct Options {
    std::vector<std::string> hosts;              // entries that CheckHostPattern accepts; empty: no URL is fetched
    size_t most_bytes = 50 << 20;                // of one picture
    absl::Duration timeout = absl::Seconds(20);  // of one picture, with the wait for a slot and all redirects
    int concurrency = 4;                         // pictures that are fetched at once; further ones wait
    HostResolver resolver = nullptr;             // null: that of the system
    // For tests alone, never from a configuration: also loopback addresses, on any port.
    bool allow_loopback_for_tests = false;
    std::string authority_file_for_tests = "";  // PEM, instead of the authorities that this machine trusts
  };

  explicit UrlFetcher(Options options);

  // Returns the bytes of the answer with status 200, whatever they are. Waits, so it must be called where that is
  // allowed. Errors name kImageUrlField: INVALID_ARGUMENT with kImageUrlCode if the URL is not valid or not allowed, or
  // if its host does not send a picture in time. Messages name no address.
  absl::StatusOr<std::string> Fetch(absl::string_view url);

 private:
  absl::Status CheckUrl(const HttpUrl& url) const;
  absl::StatusOr<HttpAnswer> FetchOnce(const HttpUrl& url, absl::Duration deadline) const;

  const Options options_;
  const HostResolver resolver_;
  CallSlots slots_;
};

}  // namespace tessera::server
