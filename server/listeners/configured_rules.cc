#include "server/listeners/configured_rules.h"

#include <string>
#include <utility>
#include <vector>

#include "base/macros/status_macros.h"
#include "server/config/header_lines.h"
#include "server/fetch/http_url.h"
#include "server/fetch/input_check.h"
#include "server/fetch/url_fetcher.h"

namespace tessera::server {

absl::StatusOr<RequestRules> RequestRulesOf(const ServerConfig& config, const base::EventLog& log) {
  RequestRules rules;
  if (!config.picture_hosts.empty()) {
    rules.fetcher = std::make_shared<UrlFetcher>(UrlFetcher::Options{.hosts = config.picture_hosts});
  }
  if (config.input_check.url.empty()) return rules;
  InputCheck::Options options = {.timeout = config.input_check.timeout, .log = log};
  ASSIGN_OR_RETURN(options.url, ParseHttpUrl(config.input_check.url));
  if (const std::string& file = config.input_check.headers_file; !file.empty()) {
    options.headers = [file] { return ReadHeaderLines(file, "input_check.headers_file"); };
    RETURN_IF_ERROR(options.headers().status());
  }
  rules.input_check = std::make_shared<InputCheck>(std::move(options));
  return rules;
}

}  // namespace tessera::server
