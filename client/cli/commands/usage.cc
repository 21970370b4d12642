// Implements `tessera usage`, which shows what the keys of a server have used.
#include <boost/json.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/remote/server_connection.h"
#include "client/sdk/http_transport.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(1);

struct UsageOptions {
  ServerOptions server;
  std::string key, since, until;
  std::string format = "table";
};

struct UsageRow {
  std::string day, key, model;
  int64_t images = 0;
  int64_t steps = 0;
  double device_seconds = 0;
};

absl::StatusOr<std::vector<UsageRow>> ParseRows(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value answer = boost::json::parse(text, error);
  const boost::json::object* object = error ? nullptr : answer.if_object();
  const boost::json::value* data = object == nullptr ? nullptr : object->if_contains("data");
  if (data == nullptr || !data->is_array()) return absl::InternalError("the server's answer is not a list of usage");
  std::vector<UsageRow> rows;
  for (const boost::json::value& item : data->get_array()) {
    const boost::json::object* row = item.if_object();
    if (row == nullptr) return absl::InternalError("the server's answer has a row that is no object");
    const auto text_of = [row](const char* name) {
      const boost::json::value* value = row->if_contains(name);
      return value == nullptr || !value->is_string() ? std::string() : PrintableText(std::string(value->get_string()));
    };
    const auto number_of = [row](const char* name) -> double {
      const boost::json::value* value = row->if_contains(name);
      boost::system::error_code wrong;
      const double number = value == nullptr || !value->is_number() ? 0 : value->to_number<double>(wrong);
      return wrong ? 0 : number;
    };
    const auto count_of = [row](const char* name) -> int64_t {
      const boost::json::value* value = row->if_contains(name);
      return value == nullptr || !value->is_int64() ? 0 : value->get_int64();
    };
    rows.push_back({.day = text_of("day"),
                    .key = text_of("key"),
                    .model = text_of("model"),
                    .images = count_of("images"),
                    .steps = count_of("steps"),
                    .device_seconds = number_of("device_seconds")});
  }
  return rows;
}

absl::StatusOr<std::vector<UsageRow>> Ask(const UsageOptions& options, std::stop_token stop) {
  ASSIGN_OR_RETURN(const ServerUrl url, ParseServerUrl(options.server.url));
  ASSIGN_OR_RETURN(const ImageClientOptions client, ClientOptionsFor(options.server, url, /*retries=*/0));
  ASSIGN_OR_RETURN(const std::unique_ptr<HttpTransport> transport, HttpTransport::Create(url, client));
  std::vector<std::string> query;
  for (const auto& [name, value] :
       {std::pair("key", options.key), std::pair("since", options.since), std::pair("until", options.until)}) {
    if (!value.empty()) query.push_back(absl::StrCat(name, "=", PercentEncoded(value)));
  }
  ASSIGN_OR_RETURN(
      const HttpAnswer answer,
      transport->Call({.target = absl::StrCat("/v1/usage", query.empty() ? "" : "?", absl::StrJoin(query, "&")),
                       .deadline = base::SteadyNow() + kTimeout,
                       .stop = std::move(stop)}));
  return ParseRows(answer.body);
}

// A value of CSV (RFC 4180).
std::string CsvField(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

void PrintTable(const std::vector<UsageRow>& rows) {
  constexpr char kHead[] = "%-10s  %-20s  %-20s  %10s  %12s  %16s\n";
  static constexpr char kRow[] = "%-10s  %-20s  %-20s  %10lld  %12lld  %16.1f\n";
  const auto print = [](const UsageRow& row) {
    std::printf(kRow, row.day.c_str(), row.key.c_str(), row.model.c_str(), static_cast<long long>(row.images),
                static_cast<long long>(row.steps), row.device_seconds);
  };
  std::printf(kHead, "day", "key", "model", "images", "steps", "device seconds");
  UsageRow total = {.day = "total"};
  for (const UsageRow& row : rows) {
    print(row);
    total.images += row.images;
    total.steps += row.steps;
    total.device_seconds += row.device_seconds;
  }
  print(total);
}

void Print(const std::vector<UsageRow>& rows, const std::string& format) {
  if (format == "table") return PrintTable(rows);
  if (format == "csv") std::printf("day,key,model,images,steps,device_seconds\n");
  for (const UsageRow& row : rows) {
    if (format == "csv") {
      std::printf("%s,%s,%s,%lld,%lld,%.6f\n", CsvField(row.day).c_str(), CsvField(row.key).c_str(),
                  CsvField(row.model).c_str(), static_cast<long long>(row.images), static_cast<long long>(row.steps),
                  row.device_seconds);
      continue;
    }
    PrintJsonLine({{"event", "usage"},
                   {"day", row.day},
                   {"key", row.key},
                   {"model", row.model},
                   {"images", row.images},
                   {"steps", row.steps},
                   {"device_seconds", row.device_seconds}});
  }
}

ExitCode ShowUsage(const UsageOptions& options, Interrupts& interrupts) {
  const std::unique_ptr<Reporter> reporter = MakeReporter({.json = options.format == "json", .quiet = true});
  absl::Status status = server::CheckName("format", options.format, {"table", "json", "csv"});
  if (status.ok()) {
    std::stop_source stop;
    const Interrupts::Reaction reaction(interrupts, [&] { stop.request_stop(); });
    const absl::StatusOr<std::vector<UsageRow>> rows = Ask(options, stop.get_token());
    status = ErrorForUser(rows.status());
    if (status.ok()) Print(*rows, options.format);
  }
  if (status.ok()) return ExitCode::kOk;
  const Stage stage = status.code() == absl::StatusCode::kInternal ? Stage::kJob : Stage::kOptions;
  return Finish(reporter, interrupts, At(stage, status));
}

}  // namespace

CommandRun AddUsage(CLI::App& app) {
  auto options = std::make_shared<UsageOptions>();
  AddServerOptions(app, options->server, /*required=*/true);
  BeginGroup(app, "Selection");
  AddText(app, {"--key", "Only this key, by its name; at the admin listener (default: all keys)", "NAME"},
          options->key);
  AddText(app, {"--since", "First day, in UTC, such as 2026-11-01 (default: 30 days until the last one)", "DATE"},
          options->since);
  AddText(app, {"--until", "Last day (default: today)", "DATE"}, options->until);
  BeginGroup(app, "Output");
  AddText(app, {"--format", "How rows are printed; json: one object per line (default: table)", "table|json|csv"},
          options->format);
  SetFooter(app,
            "\nAt the admin listener of a server (--server http://localhost:9090) it shows all keys; at its API, the "
            "key that --api-key-file holds.");
  return [options](Interrupts& interrupts) { return ShowUsage(*options, interrupts); };
}

}  // namespace tessera::client
