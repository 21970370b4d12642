#include "client/cli/pull/http_client.h"

#include <curl/curl.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/files/trusted_certificates.h"
#include "client/cli/pull/web_url.h"
#include "server/metadata/image_metadata.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(20);
constexpr long kReadBytes = 512 << 10;  // the largest buffer that libcurl allows
constexpr size_t kMaxHeaderBytes = 64 << 10;

void TrustCertificates(CURL* curl) {
  const base::TrustedCertificates trusted = base::FindTrustedCertificates();
  if (!trusted.folder.empty()) curl_easy_setopt(curl, CURLOPT_CAPATH, trusted.folder.c_str());
  if (!trusted.file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, trusted.file.c_str());
}

}  // namespace

std::string HttpHead::Field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

struct HttpClient::Transfer {
  HttpRequest request;
  std::function<void(const HttpResult&)> done;
  HttpHead head;
  size_t header_bytes = 0;
  bool has_head = false;  // on_head was called
  absl::Status status;    // of on_head and on_body
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;

  ~Transfer() {
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
  }

  void CallOnHead() {
    if (std::exchange(has_head, true) || !request.on_head) return;
    status = request.on_head(head);
  }
};

HttpClient::HttpClient(void* multi, absl::Duration stall) : multi_(multi), stall_(stall) {}

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Create(absl::Duration stall) {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  CURLM* multi = kReady == CURLE_OK ? curl_multi_init() : nullptr;
  if (multi == nullptr) return absl::InternalError("libcurl cannot be initialized");
  return std::unique_ptr<HttpClient>(new HttpClient(multi, stall));
}

HttpClient::~HttpClient() {
  CancelAll();
  curl_multi_cleanup(multi_);
}

void HttpClient::CancelAll() {
  for (const auto& [curl, transfer] : transfers_) curl_multi_remove_handle(multi_, curl);
  transfers_.clear();
}

size_t HttpClient::OnHeader(char* data, size_t size, size_t count, void* of) {
  auto& transfer = *static_cast<Transfer*>(of);
  const std::string line(data, size * count);
  transfer.header_bytes += line.size();
  if (transfer.header_bytes > kMaxHeaderBytes) return 0;
  if (line.starts_with("HTTP/")) {  // of a proxy, of an interim answer or of the last one
    transfer.head = {};
    return line.size();
  }
  if (const size_t colon = line.find(':'); colon != line.npos) {
    transfer.head.fields[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return line.size();
}

size_t HttpClient::OnBody(char* data, size_t size, size_t count, void* of) {
  auto& transfer = *static_cast<Transfer*>(of);
  long status = 0;
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
  transfer.head.status = static_cast<int>(status);
  transfer.CallOnHead();
  if (transfer.status.ok() && transfer.request.on_body) {
    transfer.status = transfer.request.on_body({data, size * count});
  }
  return transfer.status.ok() ? size * count : CURL_WRITEFUNC_ERROR;
}

void HttpClient::Start(HttpRequest request, std::function<void(const HttpResult&)> done) {
  auto transfer = std::make_unique<Transfer>();
  transfer->request = std::move(request);
  transfer->done = std::move(done);
  CURL* curl = transfer->curl = curl_easy_init();
  const HttpRequest& wanted = transfer->request;
  std::vector<std::string> headers = {"Accept-Encoding: identity"};
  if (!wanted.token.empty()) headers.push_back(absl::StrCat("Authorization: Bearer ", wanted.token));
  for (const std::string& header : headers) transfer->headers = curl_slist_append(transfer->headers, header.c_str());
  curl_easy_setopt(curl, CURLOPT_URL, wanted.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, transfer->headers);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, server::kProgramVersion);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  // Ranges that share one connection, as with HTTP/2, share its congestion window too.
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NOBODY, wanted.head_only ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kReadBytes);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(kConnectTimeout)));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(absl::ToInt64Seconds(stall_)));
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer.get());
  if (wanted.range) {
    curl_easy_setopt(curl, CURLOPT_RANGE, absl::StrCat(wanted.range->first, "-", wanted.range->last).c_str());
  }
  TrustCertificates(curl);
  curl_multi_add_handle(multi_, curl);
  transfers_.emplace(curl, std::move(transfer));
}

absl::Status HttpClient::StatusOf(const Transfer& transfer, int code) const {
  if (!transfer.status.ok()) return transfer.status;
  if (code == CURLE_OK) return absl::OkStatus();
  const absl::StatusOr<WebUrl> url = ParseWebUrl(transfer.request.url);
  // libcurl's texts name neither URLs nor headers.
  const std::string text = absl::StrCat(
      "the connection to ", url.ok() ? url->host : "the server",
      " failed: ", code == CURLE_OPERATION_TIMEDOUT ? "it timed out" : curl_easy_strerror(static_cast<CURLcode>(code)));
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_ISSUER_ERROR) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, "; SSL_CERT_FILE names a file with the certificates that are trusted"));
  }
  return absl::UnavailableError(text);
}

absl::Status HttpClient::Run(absl::Duration at_most) {
  int running = 0;
  CURLMcode code = curl_multi_perform(multi_, &running);
  bool finished = false;
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    CURL* curl = message->easy_handle;
    const CURLcode result = message->data.result;
    auto node = transfers_.extract(curl);
    Transfer& transfer = *node.mapped();
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    transfer.head.status = static_cast<int>(status);
    if (result == CURLE_OK) transfer.CallOnHead();
    const HttpResult answer = {.head = transfer.head, .status = StatusOf(transfer, result)};
    curl_multi_remove_handle(multi_, curl);
    transfer.done(answer);
    finished = true;
  }
  if (code == CURLM_OK && !finished) {
    code = curl_multi_poll(multi_, nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(at_most)), nullptr);
  }
  return code == CURLM_OK
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("the network cannot be used: ", curl_multi_strerror(code)));
}

}  // namespace tessera::client
