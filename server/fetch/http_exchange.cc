#include "server/fetch/http_exchange.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/files/trusted_certificates.h"
#include "base/time/steady_time.h"
#include "server/metadata/image_metadata.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxLocationBytes = kMaxUrlBytes;

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlList = std::unique_ptr<curl_slist, FreeCurl>;

// One exchange while it runs.
struct Running {
  const HttpExchange& exchange;
  HttpAnswer answer;
  size_t header_bytes = 0;
  bool is_too_large = false;
};

size_t OnHeaderLine(char* data, size_t size, size_t count, void* of) {
  auto& running = *static_cast<Running*>(of);
  const absl::string_view line(data, size * count);
  running.header_bytes += line.size();
  running.is_too_large = running.header_bytes > running.exchange.most_header_bytes;
  if (running.is_too_large) return 0;
  if (absl::StartsWith(line, "HTTP/")) running.answer.location.clear();  // of an interim answer or the last one
  constexpr absl::string_view kName = "location:";
  if (absl::StartsWithIgnoreCase(line, kName) && line.size() <= kMaxLocationBytes) {
    running.answer.location = std::string(absl::StripAsciiWhitespace(line.substr(kName.size())));
  }
  return line.size();
}

size_t OnBodyPart(char* data, size_t size, size_t count, void* of) {
  auto& running = *static_cast<Running*>(of);
  std::string& body = running.answer.body;
  running.is_too_large = size * count > running.exchange.most_body_bytes - body.size();
  if (running.is_too_large) return CURL_WRITEFUNC_ERROR;
  body.append(data, size * count);
  return size * count;
}

size_t ReadBodyPart(char* out, size_t size, size_t count, void* of) {
  return static_cast<Running*>(of)->exchange.body(out, size * count);
}

// libcurl asks for a socket before each attempt to connect, with the address that it is about to connect to.
curl_socket_t OpenSocketTo(void* of, curlsocktype, curl_sockaddr* target) {
  const HttpExchange& exchange = static_cast<Running*>(of)->exchange;
  const std::optional<IpAddress> address = IpAddressOf(target->addr);
  const bool is_checked =
      address.has_value() && std::ranges::find(exchange.addresses, *address) != exchange.addresses.end();
  if (!is_checked) return CURL_SOCKET_BAD;
  return socket(target->family, target->socktype | SOCK_CLOEXEC, target->protocol);
}

CurlList ListOf(const std::vector<std::string>& lines) {
  curl_slist* list = nullptr;
  for (const std::string& line : lines) list = curl_slist_append(list, line.c_str());
  return CurlList(list);
}

// The entry that makes libcurl use the addresses for the host: "host:443:192.0.2.1,[2001:db8::1]".
std::string PinnedHost(const HttpExchange& exchange) {
  return absl::StrCat(exchange.url.host, ":", exchange.url.port, ":",
                      absl::StrJoin(exchange.addresses, ",", [](std::string* out, const IpAddress& address) {
                        absl::StrAppend(out, address.is_v6 ? "[" : "", IpAddressText(address),
                                        address.is_v6 ? "]" : "");
                      }));
}

void TrustAuthorities(CURL* curl, const std::string& authority_file) {
  base::TrustedCertificates trusted = base::FindTrustedCertificates();
  if (!authority_file.empty()) trusted = {.file = authority_file};
  if (!trusted.folder.empty()) curl_easy_setopt(curl, CURLOPT_CAPATH, trusted.folder.c_str());
  if (!trusted.file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, trusted.file.c_str());
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
}

void PrepareExchange(CURL* curl, Running& running, curl_slist* headers, curl_slist* pinned, absl::Duration timeout) {
  const HttpExchange& exchange = running.exchange;
  curl_easy_setopt(curl, CURLOPT_URL, HttpUrlText(exchange.url).c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, exchange.url.is_secure ? "https" : "http");
  curl_easy_setopt(curl, CURLOPT_RESOLVE, pinned);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, &OpenSocketTo);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, &running);
  curl_easy_setopt(curl, CURLOPT_PROXY, "");  // none, and none of the environment
  curl_easy_setopt(curl, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(timeout)));
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(exchange.most_body_bytes));
  curl_easy_setopt(curl, CURLOPT_USERAGENT, kProgramVersion);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeaderLine);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &running);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBodyPart);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &running);
  TrustAuthorities(curl, exchange.authority_file);
  if (!exchange.body) return;
  curl_easy_setopt(curl, CURLOPT_POST, 1L);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(exchange.body_bytes));
  curl_easy_setopt(curl, CURLOPT_READFUNCTION, &ReadBodyPart);
  curl_easy_setopt(curl, CURLOPT_READDATA, &running);
}

absl::Status ErrorOfExchange(CURLcode code, const Running& running) {
  if (running.is_too_large || code == CURLE_FILESIZE_EXCEEDED) {
    return absl::ResourceExhaustedError("the answer is too large");
  }
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return absl::DeadlineExceededError("the answer was not complete in time");
    case CURLE_PARTIAL_FILE:
      return absl::UnavailableError("the answer was cut off");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
      return absl::UnavailableError("its certificate is not valid for the host");
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
      return absl::UnavailableError("no connection could be made");
    default:
      return absl::UnavailableError("the connection failed");
  }
}

}  // namespace

absl::StatusOr<HttpAnswer> Exchange(const HttpExchange& exchange) {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, FreeCurl> curl(kReady == CURLE_OK ? curl_easy_init() : nullptr);
  if (curl == nullptr) return absl::UnavailableError("libcurl cannot be initialized");
  // libcurl takes 0 for no timeout.
  const absl::Duration timeout = exchange.deadline - base::SteadyNow();
  if (timeout < absl::Milliseconds(1)) return absl::DeadlineExceededError("the answer was not complete in time");
  // Without "Expect:", libcurl waits for a permission before it sends a large body.
  std::vector<std::string> lines = {"Accept-Encoding: identity", "Expect:"};
  lines.insert(lines.end(), exchange.headers.begin(), exchange.headers.end());
  const CurlList headers = ListOf(lines);
  const CurlList pinned = ListOf(exchange.url.address ? std::vector<std::string>() : std::vector{PinnedHost(exchange)});
  Running running = {.exchange = exchange};
  PrepareExchange(curl.get(), running, headers.get(), pinned.get(), timeout);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) return ErrorOfExchange(code, running);
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  running.answer.status = static_cast<int>(status);
  return std::move(running.answer);
}

}  // namespace tessera::server
