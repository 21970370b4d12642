#include "client/cli/pull/hub_requests.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/random_bytes.h"
#include "base/time/steady_time.h"
#include "client/cli/pull/content_digest.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxAnswerBytes = 64 << 20;
constexpr int kMaxRedirects = 5, kMaxTreePages = 200;
constexpr absl::Duration kFirstPause = absl::Milliseconds(250), kLongestPause = absl::Seconds(30);
constexpr absl::Duration kLongestAskedPause = absl::Minutes(10);
constexpr absl::Duration kTick = absl::Milliseconds(100);

std::string EscapedRevision(const std::string& revision) {
  std::string escaped;
  for (const char c : EscapedPath(revision)) escaped += c == '/' ? std::string("%2F") : std::string(1, c);
  return escaped;
}

// A quoted or weak ETag.
std::string DigestOf(std::string etag) {
  if (etag.starts_with("W/")) etag = etag.substr(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return etag;
}

// Returns the URL of the next page of a list (RFC 8288); empty if there is none.
std::string NextPage(const HttpHead& head) {
  const std::string link = head.Field("link");
  const size_t open = link.find('<'), close = link.find('>');
  const bool is_next = link.find("rel=\"next\"") != std::string::npos;
  return is_next && open != link.npos && close > open ? link.substr(open + 1, close - open - 1) : "";
}

}  // namespace

bool MayPass(int status) { return status == 408 || status == 429 || status >= 500; }

absl::StatusOr<absl::Duration> Backoff::Next(const absl::Status& error, const HttpHead& head) {
  if (++failures_ >= kAttempts) return error;
  absl::Duration pause = std::min(kLongestPause, kFirstPause * (1 << (failures_ - 1)));
  pause += pause * (base::RandomNumber<uint32_t>() / 4294967296.0 / 4);
  int64_t asked = 0;
  if (absl::SimpleAtoi(head.Field("retry-after"), &asked) && asked > 0) {
    if (absl::Seconds(asked) > kLongestAskedPause) {
      return absl::UnavailableError(
          absl::StrCat(std::string(error.message()), "; it asks for a pause of ", asked, " seconds"));
    }
    pause = std::max(pause, absl::Seconds(asked));
  }
  return pause;
}

absl::Status RefusalOf(const HttpHead& head, const HubSettings& settings, const HubModel& model,
                       const std::string& what) {
  const std::string code = head.Field("x-error-code"), page = absl::StrCat(settings.endpoint, "/", model.name);
  if (code == "GatedRepo") {
    const std::string next = settings.token.empty() ? absl::StrCat("then make a token at ", settings.endpoint,
                                                                   "/settings/tokens and set HF_TOKEN to it")
                                                    : "with the account of your token";
    return absl::PermissionDeniedError(absl::StrCat("the licence of ", model.name, " has to be accepted: open ", page,
                                                    ", log in and accept it, ", next));
  }
  if (head.Field("x-error-message") == "Invalid credentials in Authorization header") {
    return absl::PermissionDeniedError(
        absl::StrCat(settings.endpoint, " refuses the access token; set HF_TOKEN to a valid one, or unset it"));
  }
  if (code == "RevisionNotFound") {
    return absl::NotFoundError(absl::StrCat("revision is ", base::QuotedValue(model.revision), ", which ", model.name,
                                            " does not have; see ", page, "/tree/main"));
  }
  if (code != "EntryNotFound" && (head.status == 401 || head.status == 403 || head.status == 404)) {
    return absl::NotFoundError(absl::StrCat("there is no ", what, " of ", model.name, " at ", settings.endpoint,
                                            settings.token.empty()
                                                ? "; if the model is private or gated, set HF_TOKEN to an access token"
                                                : ", or your access token may not read it; see ",
                                            settings.token.empty() ? "" : page));
  }
  return absl::Status(MayPass(head.status) ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition,
                      absl::StrCat(settings.endpoint, " answers ", head.status, " for ", what, " of ", model.name));
}

std::string HubRequests::FileUrl(const std::string& commit, const std::string& path) const {
  return absl::StrCat(settings_.endpoint, "/", model_.name, "/resolve/", commit, "/", EscapedPath(path));
}

absl::Status HubRequests::Wait(absl::Duration pause) {
  const absl::Duration until = base::SteadyNow() + pause;
  while (base::SteadyNow() < until) {
    RETURN_IF_ERROR(hooks_.proceed());
    RETURN_IF_ERROR(http_.Run(std::min(kTick, until - base::SteadyNow())));
  }
  return absl::OkStatus();
}

absl::StatusOr<HubRequests::Answer> HubRequests::GetOnce(const WebUrl& url, bool head_only) {
  ASSIGN_OR_RETURN(const WebUrl endpoint, ParseWebUrl(settings_.endpoint));
  struct State {
    Answer answer;
    absl::Status status;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  HttpRequest request = {.url = url.text, .head_only = head_only};
  if (url.origin == endpoint.origin) request.token = settings_.token;
  request.on_body = [state](std::string_view part) {
    if (state->answer.body.size() + part.size() > kMaxAnswerBytes) {
      return absl::FailedPreconditionError("the answer of the endpoint is too long");
    }
    state->answer.body.append(part);
    return absl::OkStatus();
  };
  http_.Start(std::move(request), [state](const HttpResult& result) {
    state->answer.head = result.head;
    state->status = result.status;
    state->done = true;
  });
  while (!state->done) {
    RETURN_IF_ERROR(hooks_.proceed());
    RETURN_IF_ERROR(http_.Run(kTick));
  }
  RETURN_IF_ERROR(state->status);
  return std::move(state->answer);
}

absl::StatusOr<HubRequests::Answer> HubRequests::Get(const std::string& url, const std::string& what, bool head_only) {
  ASSIGN_OR_RETURN(const WebUrl first, ParseWebUrl(url));
  WebUrl at = first;
  Backoff backoff;
  int redirects = 0;
  while (true) {
    absl::StatusOr<Answer> answer = GetOnce(at, head_only);
    if (!answer.ok() && !absl::IsUnavailable(answer.status())) return answer.status();
    const HttpHead head = answer.ok() ? answer->head : HttpHead{};
    if (answer.ok() && head.status >= 200 && head.status < 300) return answer;
    if (head.status >= 300 && head.status < 400) {
      if (++redirects > kMaxRedirects)
        return absl::FailedPreconditionError(absl::StrCat(first.host, " redirects in circles"));
      // The headers of a file are those of the endpoint, not of the storage.
      if (head_only && !head.Field("x-linked-size").empty()) return answer;
      ASSIGN_OR_RETURN(at, ResolveRedirect(at, head.Field("location"), /*may_be_insecure=*/!first.is_secure));
      continue;
    }
    const absl::Status error = answer.ok() ? RefusalOf(head, settings_, model_, what) : answer.status();
    if (answer.ok() && !MayPass(head.status)) return error;
    ASSIGN_OR_RETURN(const absl::Duration pause, backoff.Next(error, head));
    hooks_.on_event(absl::StrCat(std::string(error.message()), "; trying again"));
    RETURN_IF_ERROR(Wait(pause));
    at = first;
    redirects = 0;
  }
}

absl::Status HubRequests::AddSizes(HubListing& listing) {
  std::string url =
      absl::StrCat(settings_.endpoint, "/api/models/", model_.name, "/tree/", listing.commit, "?recursive=true");
  std::vector<HubFile> files;
  for (int page = 0; !url.empty(); ++page) {
    if (page == kMaxTreePages) return absl::FailedPreconditionError("the list of files has too many pages");
    const absl::StatusOr<Answer> answer = Get(url, "list of files", false);
    if (!answer.ok() && page == 0 && absl::IsNotFound(answer.status())) break;
    RETURN_IF_ERROR(answer.status());
    ASSIGN_OR_RETURN(std::vector<HubFile> more, ParseTree(answer->body));
    std::ranges::move(more, std::back_inserter(files));
    url = NextPage(answer->head);
  }
  if (!files.empty()) {
    RETURN_IF_ERROR(CheckFiles(files));
    listing.files = std::move(files);
    return absl::OkStatus();
  }
  for (HubFile& file : listing.files) {
    ASSIGN_OR_RETURN(const Answer answer, Get(FileUrl(listing.commit, file.path), file.path, /*head_only=*/true));
    const std::string linked = answer.head.Field("x-linked-size");
    const std::string size = linked.empty() ? answer.head.Field("content-length") : linked;
    if (!absl::SimpleAtoi(size, &file.size)) {
      return absl::FailedPreconditionError(
          absl::StrCat(settings_.endpoint, " gives no size of ", base::QuotedValue(file.path)));
    }
    std::string digest = DigestOf(answer.head.Field("x-linked-etag"));
    if (digest.empty()) digest = DigestOf(answer.head.Field("etag"));
    if (base::IsSha256Text(digest)) file.sha256 = digest;
    if (IsHubCommit(digest)) file.git_sha1 = digest;
  }
  return absl::OkStatus();
}

absl::StatusOr<HubListing> HubRequests::List() {
  const std::string url = absl::StrCat(settings_.endpoint, "/api/models/", model_.name, "/revision/",
                                       EscapedRevision(model_.revision), "?blobs=true");
  ASSIGN_OR_RETURN(const Answer answer, Get(url, "model", false));
  ASSIGN_OR_RETURN(HubListing listing, ParseRepository(answer.body));
  if (!listing.has_sizes) RETURN_IF_ERROR(AddSizes(listing));
  return listing;
}

absl::StatusOr<std::string> HubRequests::Fetch(const HubListing& listing, const std::string& path) {
  const auto file = std::ranges::find(listing.files, path, &HubFile::path);
  if (file == listing.files.end()) {
    return absl::NotFoundError(
        absl::StrCat(model_.name, " has no ", path, ", so it is no model in the diffusers layout"));
  }
  ASSIGN_OR_RETURN(Answer answer, Get(FileUrl(listing.commit, path), path, false));
  ContentDigest digest(*file);
  digest.Update(answer.body);
  RETURN_IF_ERROR(digest.Check());
  return std::move(answer.body);
}

}  // namespace tessera::client
