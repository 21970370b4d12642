#include "server/otlp/http_span_transport.h"

#include <curl/curl.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files/trusted_certificates.h"
#include "base/time/steady_time.h"
#include "server/metadata/image_metadata.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxHeaderBytes = 64 << 10;

}  // namespace

struct HttpSpanTransport::Exchange {
  SpanReply reply;
  size_t header_bytes = 0;
  CURL* curl = curl_easy_init();
  curl_slist* headers = nullptr;

  ~Exchange() {
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
  }
};

HttpSpanTransport::HttpSpanTransport(std::string url, Headers headers)
    : url_(std::move(url)),
      headers_(std::move(headers)),
      multi_(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_multi_init() : nullptr),
      hurry_nanoseconds_(std::numeric_limits<int64_t>::max()) {}

HttpSpanTransport::~HttpSpanTransport() {
  if (multi_ != nullptr) curl_multi_cleanup(multi_);
}

size_t HttpSpanTransport::OnHeader(char* data, size_t size, size_t count, void* of) {
  auto& exchange = *static_cast<Exchange*>(of);
  const absl::string_view line(data, size * count);
  exchange.header_bytes += line.size();
  if (exchange.header_bytes > kMaxHeaderBytes) return 0;
  if (absl::StartsWith(line, "HTTP/")) exchange.reply.retry_after.reset();  // of an interim answer or the last one
  constexpr absl::string_view kName = "retry-after:";
  if (absl::StartsWithIgnoreCase(line, kName)) {
    exchange.reply.retry_after = ParseRetryAfter(line.substr(kName.size()), absl::Now());
  }
  return line.size();
}

// The rest of a long answer is read and discarded, so that the connection can be used again; the timeout bounds it.
size_t HttpSpanTransport::OnBody(char* data, size_t size, size_t count, void* of) {
  std::string& body = static_cast<Exchange*>(of)->reply.body;
  body.append(data, std::min(size * count, kMaxSpanReplyBytes - body.size()));
  return size * count;
}

void HttpSpanTransport::Prepare(Exchange& exchange, const std::string& message,
                                const std::vector<std::string>& headers) const {
  CURL* curl = exchange.curl;
  // Without "Expect:", libcurl waits for a permission before it sends a large message.
  for (const char* header : {"Content-Type: application/json", "Expect:"}) {
    exchange.headers = curl_slist_append(exchange.headers, header);
  }
  for (const std::string& header : headers) exchange.headers = curl_slist_append(exchange.headers, header.c_str());
  curl_easy_setopt(curl, CURLOPT_URL, url_.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, exchange.headers);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, kProgramVersion);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_POST, 1L);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, message.data());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(message.size()));
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
  const base::TrustedCertificates trusted = base::FindTrustedCertificates();
  if (!trusted.folder.empty()) curl_easy_setopt(curl, CURLOPT_CAPATH, trusted.folder.c_str());
  if (!trusted.file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, trusted.file.c_str());
}

SpanReply HttpSpanTransport::Wait(Exchange& exchange, absl::Duration deadline) {
  while (true) {
    int running = 0;
    CURLMcode code = curl_multi_perform(multi_, &running);
    int left = 0;
    if (const CURLMsg* message = curl_multi_info_read(multi_, &left); message != nullptr) {
      if (message->data.result != CURLE_OK) return {.error = curl_easy_strerror(message->data.result)};
      long status = 0;
      curl_easy_getinfo(exchange.curl, CURLINFO_RESPONSE_CODE, &status);
      exchange.reply.status = static_cast<int>(status);
      return std::move(exchange.reply);
    }
    const absl::Duration hurry = absl::Nanoseconds(hurry_nanoseconds_.load());
    const absl::Duration rest = std::min(deadline, hurry) - base::SteadyNow();
    if (rest <= absl::ZeroDuration()) return {.error = "it timed out"};
    if (code == CURLM_OK) {
      const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(rest, absl::Milliseconds(1)));
      code = curl_multi_poll(multi_, nullptr, 0, static_cast<int>(std::min<int64_t>(milliseconds, 60000)), nullptr);
    }
    if (code != CURLM_OK) return {.error = curl_multi_strerror(code)};
  }
}

SpanReply HttpSpanTransport::Post(const std::string& message, absl::Duration timeout) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  const absl::StatusOr<std::vector<std::string>> headers = headers_();
  if (!headers.ok()) return {.error = std::string(headers.status().message())};
  Exchange exchange;
  if (multi_ == nullptr || exchange.curl == nullptr) return {.error = "libcurl cannot be initialized"};
  Prepare(exchange, message, *headers);
  curl_multi_add_handle(multi_, exchange.curl);
  SpanReply reply = Wait(exchange, deadline);
  curl_multi_remove_handle(multi_, exchange.curl);
  return reply;
}

void HttpSpanTransport::HurryUntil(absl::Duration deadline) {
  hurry_nanoseconds_ = absl::ToInt64Nanoseconds(deadline);
  if (multi_ != nullptr) curl_multi_wakeup(multi_);
}

}  // namespace tessera::server
