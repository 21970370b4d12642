#include "server/config/server_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log_line.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/api/generation_request.h"
#include "server/config/yaml_document.h"
#include "server/config/yaml_reader.h"

namespace tessera {
namespace {

constexpr int64_t kMaxGroups = 64;
constexpr int64_t kMaxReplicas = 64;

void ReadListener(YamlMapping& listeners, const std::string& name, ListenConfig& listener) {
  const YAML::Node node = listeners.Take(name);
  if (!node.IsDefined()) return;
  if (node.IsScalar() && node.Scalar() == "off") {
    listener.enabled = false;
    return;
  }
  YamlMapping mapping(node, absl::StrCat("listen.", name));
  int64_t port = listener.port;
  mapping.Read("address", listener.address);
  mapping.ReadInteger("port", 0, 65535, port);
  listener.port = static_cast<uint16_t>(port);
  listeners.Update(mapping.Finish());
}

void ReadListeners(YamlMapping& document, ServerConfig& config) {
  const YAML::Node node = document.Take("listen");
  if (!node.IsDefined()) return;
  YamlMapping mapping(node, "listen");
  ReadListener(mapping, "http", config.http);
  ReadListener(mapping, "grpc", config.grpc);
  ReadListener(mapping, "admin", config.admin);
  document.Update(mapping.Finish());
}

void ReadTls(YamlMapping& document, TlsConfig& tls) {
  const YAML::Node node = document.Take("tls");
  if (!node.IsDefined()) return;
  YamlMapping mapping(node, "tls");
  mapping.Read("certificate_chain", tls.certificate_chain);
  mapping.Read("private_key", tls.private_key);
  document.Update(mapping.Finish());
  if (tls.certificate_chain.empty() != tls.private_key.empty()) {
    document.Fail("tls", "has only one of certificate_chain and private_key; give both or neither");
  }
}

void ReadLimits(YamlMapping& document, ServerConfig::Limits& limits) {
  const YAML::Node node = document.Take("limits");
  if (!node.IsDefined()) return;
  YamlMapping mapping(node, "limits");
  mapping.ReadInteger("images_per_request", 1, kMaxImageCount, limits.images_per_request);
  mapping.ReadInteger("pixels_per_image", 1, int64_t{1} << 29, limits.pixels_per_image);
  mapping.ReadInteger("steps_per_image", 1, 100000, limits.steps_per_image);
  mapping.ReadInteger("queued_jobs", 1, 100000000, limits.queued_jobs);
  mapping.ReadNumber("queued_device_seconds", 0, 1e12, limits.queued_device_seconds);
  mapping.ReadNumber("max_job_seconds", 0, 1e12, limits.max_job_seconds);
  mapping.ReadInteger("connections", 1, 1000000, limits.connections);
  mapping.ReadInteger("header_bytes", 1024, 1 << 20, limits.header_bytes);
  mapping.ReadInteger("body_bytes", 1024, 1 << 28, limits.body_bytes);
  mapping.Read("header_time", limits.header_time);
  mapping.Read("body_time", limits.body_time);
  mapping.Read("idle_time", limits.idle_time);
  mapping.Read("write_time", limits.write_time);
  document.Update(mapping.Finish());
}

absl::Status ReadGroup(const YAML::Node& node, const std::string& path, GroupConfig& group) {
  YamlMapping mapping(node, path);
  mapping.Read("model", group.model);
  mapping.Read("name", group.name);
  mapping.Read("aliases", group.aliases);
  mapping.Read("layout", group.layout);
  mapping.Read("devices", group.devices);
  mapping.Read("dtype", group.dtype);
  mapping.ReadInteger("count", 1, kMaxReplicas, group.count);
  mapping.ReadInteger("threads", 0, kMaxThreads, group.threads);
  mapping.ReadName("text_encoders", {"rank0", "cpu", "unload"}, group.text_encoders);
  mapping.ReadName("autoencoder", {"rank0", "cpu", "unload"}, group.autoencoder);
  mapping.Read("stream_blocks", group.stream_blocks);
  absl::Status status = mapping.Finish();
  if (!status.ok()) return status;
  if (group.model.empty()) mapping.Fail("model", "is missing; it must be a model folder or the name of a known model");
  if (group.layout.empty())
    mapping.Fail("layout", "is empty; it must be a layout such as 'cfg=2,ulysses=2', or 'auto'");
  if (group.devices.empty()) mapping.Fail("devices", "is empty; it must be a list such as [cuda:0, cuda:1]");
  for (const std::string& device : group.devices) {
    const PlacementRequest placement = {.dtype = group.dtype.empty() ? "fp32" : group.dtype, .device = device};
    const absl::Status valid = Validate(placement, group.model).status();
    if (!valid.ok()) {
      mapping.Update(absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message(), LineText(node))));
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
  // One name means one model.
  std::set<std::pair<std::string, std::string>> owners;
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

// What only makes sense together.
void CheckExposure(YamlMapping& document, const ServerConfig& config) {
  const auto beyond = [](const ListenConfig& listener) {
    return listener.enabled && !IsLoopbackAddress(listener.address);
  };
  if ((beyond(config.http) || beyond(config.grpc)) && config.keys_file.empty() && !config.allow_anonymous) {
    document.Fail("listen", "reaches beyond this machine without API keys; give a keys_file, or allow_anonymous: true");
  }
  if (beyond(config.grpc) && !config.behind_proxy) {
    document.Fail("listen.grpc", absl::StrCat("is ", config.grpc.address,
                                              "; beyond loopback it is valid only behind a proxy (behind_proxy: true), "
                                              "the nearest is 127.0.0.1"));
  }
  if (!config.http.enabled && !config.grpc.enabled) {
    document.Fail("listen", "has http and grpc off; at least one of them must be on");
  }
  for (const std::string& origin : config.origins) {
    if (!absl::StartsWith(origin, "http://") && !absl::StartsWith(origin, "https://")) {
      document.Fail("origins", absl::StrCat("holds ", QuotedValue(origin),
                                            "; valid values are origins such as https://studio.example"));
    }
  }
  if (!config.public_url.empty() && !absl::StartsWith(config.public_url, "http://") &&
      !absl::StartsWith(config.public_url, "https://")) {
    document.Fail("public_url", absl::StrCat("is ", QuotedValue(config.public_url),
                                             "; it must be a URL such as https://images.example"));
  }
  if (config.data_folder.empty()) document.Fail("data_folder", "is empty; it must be a folder");
}

absl::StatusOr<ServerConfig> ReadDocument(const YAML::Node& node) {
  ServerConfig config;
  YamlMapping document(node, "");
  ReadListeners(document, config);
  ReadTls(document, config.tls);
  document.Read("behind_proxy", config.behind_proxy);
  document.Read("hosts", config.hosts);
  document.Read("origins", config.origins);
  document.Read("public_url", config.public_url);
  document.Read("keys_file", config.keys_file);
  document.Read("allow_anonymous", config.allow_anonymous);
  ReadLimits(document, config.limits);
  document.ReadName("certify", {"auto", "require", "off"}, config.certify);
  document.ReadName("ready_when", {"groups", "durable"}, config.ready_when);
  document.Read("openai_names", config.openai_names);
  document.ReadName("log_level", LogLevelNames(), config.log_level);
  document.Read("data_folder", config.data_folder);
  document.Read("retention", config.retention);
  document.ReadInteger("retention_bytes", 0, int64_t{1} << 60, config.retention_bytes);
  document.Read("drain_time", config.drain_time);
  document.Read("heartbeat", config.heartbeat);
  document.Take("groups");
  // A wrong key is worth more to know than what is missing because of it.
  absl::Status status = document.Finish();
  if (!status.ok()) return status;
  ReadGroups(document, config.groups);
  CheckExposure(document, config);
  status = document.Finish();
  if (!status.ok()) return status;
  while (absl::EndsWith(config.public_url, "/")) config.public_url.pop_back();
  return config;
}

void Write(YAML::Emitter& out, const char* key, const std::string& value) {
  out << YAML::Key << key << YAML::Value << YAML::DoubleQuoted << value;
}
void Write(YAML::Emitter& out, const char* key, int64_t value) { out << YAML::Key << key << YAML::Value << value; }
void WriteFlag(YAML::Emitter& out, const char* key, bool value) { out << YAML::Key << key << YAML::Value << value; }
void Write(YAML::Emitter& out, const char* key, absl::Duration value) {
  out << YAML::Key << key << YAML::Value << absl::FormatDuration(value);
}
void Write(YAML::Emitter& out, const char* key, const std::vector<std::string>& values) {
  out << YAML::Key << key << YAML::Value << YAML::Flow << YAML::BeginSeq;
  for (const std::string& value : values) out << YAML::DoubleQuoted << value;
  out << YAML::EndSeq;
}
void Write(YAML::Emitter& out, const char* key, const ListenConfig& listener) {
  out << YAML::Key << key << YAML::Value;
  if (!listener.enabled) {
    out << "off";
    return;
  }
  out << YAML::Flow << YAML::BeginMap;
  Write(out, "address", listener.address);
  Write(out, "port", int64_t{listener.port});
  out << YAML::EndMap;
}

void WriteGroups(YAML::Emitter& out, const std::vector<GroupConfig>& groups) {
  out << YAML::Key << "groups" << YAML::Value << YAML::BeginSeq;
  for (const GroupConfig& group : groups) {
    out << YAML::BeginMap;
    Write(out, "model", group.model);
    Write(out, "name", group.name);
    Write(out, "aliases", group.aliases);
    Write(out, "layout", group.layout);
    Write(out, "devices", group.devices);
    Write(out, "dtype", group.dtype);
    Write(out, "count", group.count);
    Write(out, "threads", group.threads);
    Write(out, "text_encoders", group.text_encoders);
    Write(out, "autoencoder", group.autoencoder);
    WriteFlag(out, "stream_blocks", group.stream_blocks);
    out << YAML::EndMap;
  }
  out << YAML::EndSeq;
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
  if (const size_t wrong = FirstInvalidUtf8(yaml); wrong < yaml.size()) {
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
  const std::optional<std::string> text = ReadSmallFile(path, kMaxConfigBytes);
  if (!text) return absl::NotFoundError(absl::StrCat("the configuration ", QuotedValue(path), " cannot be opened"));
  return ReadServerConfig(*text);
}

std::string ServerConfigText(const ServerConfig& config) {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "listen" << YAML::Value << YAML::BeginMap;
  Write(out, "http", config.http);
  Write(out, "grpc", config.grpc);
  Write(out, "admin", config.admin);
  out << YAML::EndMap << YAML::Key << "tls" << YAML::Value << YAML::BeginMap;
  Write(out, "certificate_chain", config.tls.certificate_chain);
  Write(out, "private_key", config.tls.private_key);
  out << YAML::EndMap;
  WriteFlag(out, "behind_proxy", config.behind_proxy);
  Write(out, "hosts", config.hosts);
  Write(out, "origins", config.origins);
  Write(out, "public_url", config.public_url);
  Write(out, "keys_file", config.keys_file);
  WriteFlag(out, "allow_anonymous", config.allow_anonymous);
  out << YAML::Key << "limits" << YAML::Value << YAML::BeginMap;
  Write(out, "images_per_request", config.limits.images_per_request);
  Write(out, "pixels_per_image", config.limits.pixels_per_image);
  Write(out, "steps_per_image", config.limits.steps_per_image);
  Write(out, "queued_jobs", config.limits.queued_jobs);
  out << YAML::Key << "queued_device_seconds" << YAML::Value << config.limits.queued_device_seconds;
  out << YAML::Key << "max_job_seconds" << YAML::Value << config.limits.max_job_seconds;
  Write(out, "connections", config.limits.connections);
  Write(out, "header_bytes", config.limits.header_bytes);
  Write(out, "body_bytes", config.limits.body_bytes);
  Write(out, "header_time", config.limits.header_time);
  Write(out, "body_time", config.limits.body_time);
  Write(out, "idle_time", config.limits.idle_time);
  Write(out, "write_time", config.limits.write_time);
  out << YAML::EndMap;
  if (!IsDefaultGroup(config.groups)) WriteGroups(out, config.groups);
  Write(out, "certify", config.certify);
  Write(out, "ready_when", config.ready_when);
  WriteFlag(out, "openai_names", config.openai_names);
  Write(out, "log_level", config.log_level);
  Write(out, "data_folder", config.data_folder);
  Write(out, "retention", config.retention);
  Write(out, "retention_bytes", config.retention_bytes);
  Write(out, "drain_time", config.drain_time);
  Write(out, "heartbeat", config.heartbeat);
  out << YAML::EndMap;
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace tessera
