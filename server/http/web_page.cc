// The page for browsers: its files under / and /web/, with what keeps scripts and pages of others out of it. The page
// itself is a client of the public API like any other; what it may do is what its key may do.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/sha256.h"
#include "server/http/api_routes.h"
#include "server/http/web_files.h"

namespace tessera::server {
namespace {

constexpr char kEntryFile[] = "index.html";
constexpr size_t kEntityTagBytes = 16;  // of the file's digest

// Everything comes from this server, nothing stands inline, and nobody frames the page. Pictures that were fetched
// with a key are shown as blobs. Scripts cannot make markup out of text (Trusted Types).
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'";

const char* MediaTypeOf(const std::string& name) {
  if (absl::EndsWith(name, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(name, ".css")) return "text/css; charset=utf-8";
  if (absl::EndsWith(name, ".js")) return "text/javascript; charset=utf-8";
  if (absl::EndsWith(name, ".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

std::string EntityTagOf(const std::string& content) {
  return absl::StrCat("\"", absl::BytesToHexString(base::Sha256Of(content).substr(0, kEntityTagBytes)), "\"");
}

// If-None-Match, by the weak comparison of RFC 9110: a proxy that compresses weakens the tag.
bool IsNamed(absl::string_view tags, absl::string_view tag) {
  for (absl::string_view candidate : absl::StrSplit(tags, ',')) {
    candidate = absl::StripAsciiWhitespace(candidate);
    if (candidate == "*") return true;
    if (absl::StartsWith(candidate, "W/")) candidate.remove_prefix(2);
    if (candidate == tag) return true;
  }
  return false;
}

void SendFile(const ApiCall& call, const WebFile& file) {
  const std::string tag = EntityTagOf(file.content);
  HttpResponse response = {.status = 200,
                           .headers = {{"Content-Type", MediaTypeOf(file.name)},
                                       // Kept, and asked for again each time: a new server's page is there at once.
                                       {"Cache-Control", "no-cache"},
                                       {"ETag", tag},
                                       {"Content-Security-Policy", kContentSecurityPolicy},
                                       {"Cross-Origin-Opener-Policy", "same-origin"},
                                       {"Cross-Origin-Resource-Policy", "same-origin"},
                                       {"Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=()"},
                                       {"Referrer-Policy", "no-referrer"},
                                       {"X-Frame-Options", "DENY"}},
                           .body = file.content};
  if (IsNamed(call.request.Header("if-none-match").value_or(""), tag)) {
    response.status = 304;
    response.body.clear();
  }
  call.reply->Send(std::move(response));
}

void SendNamedFile(const ApiCall& call, const std::string& name) {
  for (const WebFile& file : WebFiles()) {
    if (file.name == name) return SendFile(call, file);
  }
  call.reply->SendError(absl::NotFoundError("the page has no such file"));
}

}  // namespace

std::vector<ApiRoute> WebPageRoutes(const ApiContext& context) {
  if (!context.options.web_page) return {};
  return {{.method = "GET",
           .pattern = "/",
           .needs_key = false,
           .any_query = true,
           .handle = [](const ApiCall& call) { SendNamedFile(call, kEntryFile); }},
          {.method = "GET", .pattern = "/web/{file}", .needs_key = false, .handle = [](const ApiCall& call) {
             SendNamedFile(call, call.parameters[0]);
           }}};
}

}  // namespace tessera::server
