// Requests to the hub's API, with redirects and repeated attempts.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/pull/http_client.h"
#include "client/cli/pull/hub_listing.h"
#include "client/cli/pull/hub_settings.h"
#include "client/cli/pull/web_url.h"

namespace tessera::client {

// What a download needs of the program: all may be called often.
struct PullHooks {
  std::function<absl::Status()> proceed;             // an error, such as an interruption, ends the download
  std::function<void(const std::string&)> on_event;  // something that delays it, for people
};

struct HubModel {
  std::string name;      // ORG/NAME
  std::string revision;  // as the user names it
};

// Pauses between attempts: they double, and a server may ask for a longer one.
class Backoff {
 public:
  static constexpr int kAttempts = 10;

  // Returns the pause before the next attempt, or `error` if there have been enough or the server wants a pause of more
  // than ten minutes. `head` is that of the answer.
  absl::StatusOr<absl::Duration> Next(const absl::Status& error, const HttpHead& head);
  void Reset() { failures_ = 0; }

 private:
  int failures_ = 0;
};

// Whether the answer's status means that the same request may succeed later: 408, 429 and 5xx.
bool MayPass(int status);

// Returns the error of an answer that refuses `what` of the model, with what the user can do about it. The status must
// not be below 400.
absl::Status RefusalOf(const HttpHead& head, const HubSettings& settings, const HubModel& model,
                       const std::string& what);

// Used by one thread, with its client.
class HubRequests {
 public:
  HubRequests(HttpClient& http, const HubSettings& settings, const HubModel& model, const PullHooks& hooks)
      : http_(http), settings_(settings), model_(model), hooks_(hooks) {}

  // Returns every file of the revision, with its size.
  absl::StatusOr<HubListing> List();

  // Returns the bytes of a small file, whose digest is checked.
  absl::StatusOr<std::string> Fetch(const HubListing& listing, const std::string& path);

  // The URL of a file of the commit at the endpoint.
  std::string FileUrl(const std::string& commit, const std::string& path) const;

 private:
  struct Answer {
    HttpHead head;
    std::string body;
  };

  // Follows redirects; the token goes to the endpoint only. The answer's status is below 400.
  absl::StatusOr<Answer> Get(const std::string& url, const std::string& what, bool head_only);
  absl::StatusOr<Answer> GetOnce(const WebUrl& url, bool head_only);
  absl::Status Wait(absl::Duration pause);
  // Without sizes in the list: from /tree, or else from the headers of each file.
  absl::Status AddSizes(HubListing& listing);

  HttpClient& http_;
  const HubSettings& settings_;
  const HubModel& model_;
  const PullHooks& hooks_;
};

}  // namespace tessera::client
