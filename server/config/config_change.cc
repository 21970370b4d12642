#include "server/config/config_change.h"

#include <yaml-cpp/yaml.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

// Maps every setting's full name to its value.
std::map<std::string, std::string> SettingsOf(const ServerConfig& config) {
  const auto text = [](const YAML::Node& node) {
    YAML::Emitter out;
    out << YAML::Flow << node;
    return std::string(out.c_str());
  };
  std::map<std::string, std::string> settings;
  for (const auto& entry : YAML::Load(ServerConfigText(config))) {
    const auto name = entry.first.as<std::string>();
    if (!entry.second.IsMap()) {
      settings[name] = text(entry.second);
      continue;
    }
    for (const auto& inner : entry.second) {
      settings[absl::StrCat(name, ".", inner.first.as<std::string>())] = text(inner.second);
    }
  }
  return settings;
}

}  // namespace

absl::StatusOr<ConfigChange> ChangeOf(const ServerConfig& now, const ServerConfig& wanted) {
  ConfigChange change = {.config = now};
  ServerConfig& config = change.config;
  config.keys_file = wanted.keys_file;
  config.allow_anonymous = wanted.allow_anonymous;
  config.groups = wanted.groups;
  config.drain_time = wanted.drain_time;
  config.limits.images_per_request = wanted.limits.images_per_request;
  config.limits.pixels_per_image = wanted.limits.pixels_per_image;
  config.limits.steps_per_image = wanted.limits.steps_per_image;
  config.limits.queued_jobs = wanted.limits.queued_jobs;
  config.limits.queued_device_seconds = wanted.limits.queued_device_seconds;
  config.limits.max_job_seconds = wanted.limits.max_job_seconds;
  config.picture_hosts = wanted.picture_hosts;
  config.input_check = wanted.input_check;
  RETURN_IF_ERROR(ReadServerConfig(ServerConfigText(config)).status());
  const std::map<std::string, std::string> before = SettingsOf(now), after = SettingsOf(config),
                                           asked = SettingsOf(wanted);
  if (now.groups != wanted.groups) change.changed.push_back("groups");
  for (const auto& [name, value] : asked) {
    if (name == "groups") continue;
    const auto was = before.find(name);
    const std::string old = was == before.end() ? "none" : was->second;
    if (old == value) continue;
    const auto is = after.find(name);
    if (is == after.end() || is->second != value) {
      change.needs_restart.push_back(name);
    } else {
      change.changed.push_back(absl::StrCat(name, ": ", old, " -> ", value));
    }
  }
  return change;
}

}  // namespace tessera::server
