#include "server/config/server_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/fields/enum_names.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/utf8.h"
#include "base/yaml/yaml_document.h"
#include "base/yaml/yaml_fields.h"
#include "base/yaml/yaml_reader.h"
#include "control/host/device.h"
#include "server/api/foreign_client.h"
#include "server/api/generation_request.h"
#include "server/api/picture_size.h"
#include "server/config/web_url.h"
#include "server/fetch/http_url.h"

namespace tessera::server {
namespace {

using base::LineText;
using base::ReadYamlDocument;
using base::YamlMapping;

constexpr int64_t kMaxGroups = 64;
constexpr int kBeatsUntilLost = 2;
constexpr absl::Duration kLongestInputCheck = absl::Seconds(60);
constexpr absl::Duration kShortestLease = absl::Seconds(1);  // a lease is renewed three times within its duration

}  // namespace

// These functions read and write the structs that are no plain mapping in the file. WriteYamlFields and ReadYamlFields
// find them by their argument, so they are outside the unnamed namespace.
static void WriteYamlField(YAML::Emitter& out, const char* name, const ListenConfig& listener) {
  out << YAML::Key << name << YAML::Value;
  if (!listener.enabled) {
    out << "off";
    return;
  }
  out << YAML::Flow;
  base::WriteYamlFields(out, listener);
}

static void ReadYamlField(YamlMapping& listeners, const char* name, ListenConfig& listener, const base::Nested&) {
  if (const YAML::Node node = listeners.Take(name); node.IsDefined() && node.IsScalar() && node.Scalar() == "off") {
    listener.enabled = false;
    return;
  }
  listeners.Nested(name, [&](YamlMapping& mapping) { base::ReadYamlFields(mapping, listener); });
}

static void ReadYamlField(YamlMapping& document, const char* name, InputCheckConfig& check, const base::Nested&) {
  if (const YAML::Node node = document.Take(name); node.IsDefined() && node.IsScalar()) {
    check.url = node.Scalar();
    return;
  }
  document.Nested(name, [&](YamlMapping& mapping) { base::ReadYamlFields(mapping, check); });
}

static void WriteYamlField(YAML::Emitter& out, const char* name, const NodesConfig& nodes) {
  if (!nodes.enabled) return;
  out << YAML::Key << name << YAML::Value;
  base::WriteYamlFields(out, nodes);
}

static void ReadYamlField(YamlMapping& document, const char* name, NodesConfig& nodes, const base::Nested&) {
  document.Nested(name, [&](YamlMapping& mapping) {
    nodes.enabled = true;
    base::ReadYamlFields(mapping, nodes);
    if (!nodes.listen.enabled) mapping.Fail("listen", "is off; leave out nodes instead");
    const std::pair<const char*, const std::string*> files[] = {{"certificate_chain", &nodes.certificate_chain},
                                                                {"private_key", &nodes.private_key},
                                                                {"authority", &nodes.authority},
                                                                {"token_file", &nodes.token_file}};
    for (const auto& [key, file] : files) {
      if (file->empty()) mapping.Fail(key, "is missing; nodes authenticate with a certificate and a token");
    }
    if (nodes.lost_after < kBeatsUntilLost * nodes.beat) {
      mapping.Fail("lost_after",
                   absl::StrCat("is ", absl::FormatDuration(nodes.lost_after), "; it must be at least ",
                                kBeatsUntilLost, " heartbeats, ", absl::FormatDuration(kBeatsUntilLost * nodes.beat)));
    }
  });
}

static void WriteYamlField(YAML::Emitter& out, const char* name, const std::vector<GroupConfig>& groups) {
  if (IsDefaultGroup(groups)) return;
  out << YAML::Key << name << YAML::Value << YAML::BeginSeq;
  for (const GroupConfig& group : groups) base::WriteYamlFields(out, group);
  out << YAML::EndSeq;
}

// Groups are read only if everything else is valid: an error about an unknown key is more useful than one about the
// setting that is missing because of it.
static void ReadYamlField(YamlMapping& document, const char* name, std::vector<GroupConfig>&,
                          const base::List<base::Nested>&) {
  document.Take(name);
}

namespace {

absl::Status ReadGroup(const YAML::Node& node, const std::string& path, GroupConfig& group) {
  YamlMapping mapping(node, path);
  base::ReadYamlFields(mapping, group);
  RETURN_IF_ERROR(mapping.Finish());
  if (group.model.empty()) mapping.Fail("model", "is missing; it must be a model folder or the name of a known model");
  if (group.layout.empty())
    mapping.Fail("layout", "is empty; it must be a layout such as 'cfg=2,ulysses=2', or 'auto'");
  if (group.devices.empty()) mapping.Fail("devices", "is empty; it must be a list such as [cuda:0, cuda:1]");
  for (const std::string& device : group.devices) {
    const control::PlacedDevice placed = control::SplitDevice(device);
    if (!placed.node.empty() && !control::IsNodeDevice(placed.device)) {
      mapping.Fail("devices", absl::StrCat("names ", QuotedValue(device),
                                           "; valid values on a node are cpu:N and cuda:N, "
                                           "the nearest is ",
                                           placed.node, "/cpu:0"));
      continue;
    }
    const absl::Status valid = ServedDtype(group.dtype, control::DeviceOnItsHost(device)).status();
    if (!valid.ok()) {
      mapping.Update(absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message(), LineText(node))));
    }
  }
  if (const absl::Status valid = control::CheckRules(group.placement); !valid.ok()) {
    mapping.Update(absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message(), LineText(node))));
  }
  for (const std::string& size : group.warmup) {
    if (const absl::Status valid = ParsePictureSize(size).status(); !valid.ok()) {
      mapping.Fail("warmup", std::string(valid.message()));
    }
  }
  return mapping.Finish();
}

void ReadGroups(YamlMapping& document, std::vector<GroupConfig>& groups) {
  const YAML::Node node = document.Take("groups");
  if (!node.IsDefined()) return groups.push_back(GroupConfig());
  if (!node.IsSequence() || node.size() == 0) {
    return document.Fail("groups", "is missing or empty; it must be a list such as [{model: emoji}]");
  }
  if (node.size() > static_cast<size_t>(kMaxGroups)) {
    return document.Fail("groups",
                         absl::StrCat("has ", node.size(), " entries; valid values are at most ", kMaxGroups));
  }
  for (size_t i = 0; i < node.size(); ++i) {
    document.Update(ReadGroup(node[i], absl::StrCat("groups[", i, "]"), groups.emplace_back()));
  }
  // Each name must stand for one model.
  for (const GroupConfig& group : groups) {
    for (const std::string& alias : group.aliases) {
      for (const GroupConfig& other : groups) {
        const bool taken = (!other.name.empty() && other.name == alias && other.model != group.model) ||
                           (other.model != group.model &&
                            std::find(other.aliases.begin(), other.aliases.end(), alias) != other.aliases.end());
        if (taken) document.Fail("groups", absl::StrCat("give the name ", QuotedValue(alias), " to two models"));
      }
    }
  }
}

void CheckNodes(YamlMapping& document, const ServerConfig& config) {
  if (config.nodes.enabled) return;
  for (const GroupConfig& group : config.groups) {
    for (const std::string& device : group.devices) {
      if (control::SplitDevice(device).node.empty()) continue;
      return document.Fail("groups", absl::StrCat("name ", QuotedValue(device),
                                                  ", a device of a node, but the server does not listen for nodes; "
                                                  "configure nodes, or name a device of this host such as ",
                                                  control::DeviceOnItsHost(device)));
    }
  }
}

// A browser sends its page's origin without a path, so an origin with a path would match no page.
void CheckUrls(YamlMapping& document, const ServerConfig& config) {
  for (const std::string& origin : config.origins) {
    const std::optional<WebUrl> url = ParseWebUrl(origin);
    if (url.has_value() && url->path.empty()) continue;
    document.Fail(
        "origins",
        absl::StrCat("holds ", QuotedValue(origin),
                     "; valid values are origins such as https://studio.example or http://localhost:3000, with "
                     "no path and no wildcard",
                     url.has_value() ? absl::StrCat("; the nearest is ", url->origin) : ""));
  }
  if (!config.public_url.empty() && !ParseWebUrl(config.public_url).has_value()) {
    document.Fail("public_url", absl::StrCat("is ", QuotedValue(config.public_url),
                                             "; it must be a URL such as https://images.example or "
                                             "https://images.example:8443/tessera, with no user, query or fragment"));
  }
}

void CheckClients(YamlMapping& document, const ServerConfig& config) {
  for (size_t i = 0; i < config.clients.size(); ++i) {
    const std::string& name = config.clients[i];
    if (const std::string problem = base::ProblemOfName(name, base::EnumNames<ForeignClient>()); !problem.empty()) {
      document.Fail("clients", absl::StrCat("has the entry", problem));
    } else if (std::find(config.clients.begin(), config.clients.begin() + i, name) != config.clients.begin() + i) {
      document.Fail("clients", absl::StrCat("has ", QuotedValue(name), " twice"));
    }
  }
}

void CheckPictureHosts(YamlMapping& document, const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    const absl::Status valid = CheckHostPattern(host);
    if (!valid.ok()) document.Fail("picture_hosts", std::string(valid.message()));
  }
}

void CheckInputCheck(YamlMapping& document, const InputCheckConfig& check) {
  const absl::Status url = check.url.empty() ? absl::OkStatus() : ParseHttpUrl(check.url).status();
  if (!url.ok()) {
    document.Fail("input_check.url", absl::StrCat(std::string(absl::StripPrefix(url.message(), " ")),
                                                  "; it must be a URL such as http://localhost:9000/check"));
  }
  if (check.url.empty() && !check.headers_file.empty()) {
    document.Fail("input_check", "has a headers_file and no url; give the url, such as http://localhost:9000/check");
  }
  if (check.timeout > kLongestInputCheck) {
    document.Fail("input_check.timeout",
                  absl::StrCat("is ", absl::FormatDuration(check.timeout), "; it must be at most ",
                               absl::FormatDuration(kLongestInputCheck)));
  }
}

void CheckTracing(YamlMapping& document, const TracingConfig& tracing) {
  if (!tracing.endpoint.empty() && !ParseWebUrl(tracing.endpoint).has_value()) {
    document.Fail("tracing.endpoint", absl::StrCat("is ", QuotedValue(tracing.endpoint),
                                                   "; it must be a URL such as http://localhost:4318, with no user, "
                                                   "query or fragment"));
  }
  if (tracing.batch_spans > tracing.queued_spans) {
    document.Fail("tracing.batch_spans", absl::StrCat("is ", tracing.batch_spans, "; it must be at most queued_spans, ",
                                                      tracing.queued_spans));
  }
}

// Checks settings that depend on each other.
void CheckExposure(YamlMapping& document, const ServerConfig& config) {
  const auto beyond = [](const ListenConfig& listener) {
    return listener.enabled && !IsLoopbackAddress(listener.address);
  };
  if ((beyond(config.listen.http) || beyond(config.listen.grpc)) && config.keys_file.empty() &&
      !config.allow_anonymous) {
    document.Fail("listen", "reaches beyond this machine without API keys; give a keys_file, or allow_anonymous: true");
  }
  if (beyond(config.listen.grpc) && !config.behind_proxy) {
    document.Fail("listen.grpc", absl::StrCat("is ", config.listen.grpc.address,
                                              "; beyond loopback it is valid only behind a proxy (behind_proxy: true), "
                                              "the nearest is 127.0.0.1"));
  }
  if (!config.listen.http.enabled && !config.listen.grpc.enabled) {
    document.Fail("listen", "has http and grpc off; at least one of them must be on");
  }
  CheckUrls(document, config);
  if (config.data_folder.empty()) document.Fail("data_folder", "is empty; it must be a folder");
}

absl::StatusOr<ServerConfig> ReadDocument(const YAML::Node& node) {
  ServerConfig config;
  YamlMapping document(node, "");
  base::ReadYamlFields(document, config);
  if (config.tls.certificate_chain.empty() != config.tls.private_key.empty()) {
    document.Fail("tls", "has only one of certificate_chain and private_key; give both or neither");
  }
  if (config.store.dsn.empty() && !config.store.password_file.empty()) {
    document.Fail("store",
                  "has a password_file and no dsn; give the dsn, such as host=postgresql dbname=tessera user=tessera");
  }
  if (config.store.lease < kShortestLease) {
    document.Fail("store.lease", absl::StrCat("is ", absl::FormatDuration(config.store.lease), "; it must be at least ",
                                              absl::FormatDuration(kShortestLease)));
  }
  CheckClients(document, config);
  CheckPictureHosts(document, config.picture_hosts);
  CheckInputCheck(document, config.input_check);
  CheckTracing(document, config.tracing);
  RETURN_IF_ERROR(document.Finish());
  ReadGroups(document, config.groups);
  CheckExposure(document, config);
  CheckNodes(document, config);
  RETURN_IF_ERROR(document.Finish());
  while (absl::EndsWith(config.public_url, "/")) config.public_url.pop_back();
  for (std::string& origin : config.origins) origin = ParseWebUrl(origin)->origin;
  return config;
}

}  // namespace

bool IsDefaultGroup(const std::vector<GroupConfig>& groups) {
  return groups == std::vector<GroupConfig>{GroupConfig()};
}

bool IsLoopbackAddress(absl::string_view address) {
  return address == "localhost" || address == "::1" || absl::StartsWith(address, "127.");
}

absl::StatusOr<ServerConfig> ReadServerConfig(absl::string_view yaml) {
  if (yaml.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration has ", yaml.size(), " bytes; valid values are at most ", kMaxConfigBytes));
  }
  if (const size_t wrong = base::FirstInvalidUtf8(yaml); wrong < yaml.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration is not UTF-8 text at byte ", wrong));
  }
  ASSIGN_OR_RETURN(const YAML::Node document, ReadYamlDocument(std::string(yaml)));
  try {
    return ReadDocument(document);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration is not readable at line ", error.mark.line + 1));
  }
}

absl::Status CheckServerConfig(const ServerConfig& config) {
  YamlMapping document(YAML::Node(YAML::NodeType::Null), "");
  CheckExposure(document, config);
  return document.Finish();
}

absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path) {
  const std::optional<std::string> text = base::ReadSmallFile(path, kMaxConfigBytes);
  if (!text) return absl::NotFoundError(absl::StrCat("the configuration ", QuotedValue(path), " cannot be opened"));
  return ReadServerConfig(*text);
}

std::string ServerConfigText(const ServerConfig& config) {
  YAML::Emitter out;
  base::WriteYamlFields(out, config);
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace tessera::server
