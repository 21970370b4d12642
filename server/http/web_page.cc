// Serves the page for browsers: its files under / and /web/, with headers that protect it from other sites' scripts and
// pages. The page is an ordinary client of the public API and has the rights of its key.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/sha256.h"
#include "server/http/api_routes.h"
#include "server/http/web_files.h"

namespace tessera::server {
namespace {

constexpr char kEntryFile[] = "index.html";
constexpr size_t kEntityTagBytes = 16;  // of the file's digest

// All resources come from this server, nothing is inline, and the page cannot be framed. Pictures that were fetched
// with a key are shown as blobs. Scripts cannot turn text into markup (Trusted Types).
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

// Evaluates If-None-Match by the weak comparison of RFC 9110, because a proxy that compresses weakens the tag.
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
                                       // Cached, but revalidated each time, so that a new server's page is used at
                                       // once.
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
