// ServerConfig holds tessera.yaml, the configuration of `tessera serve`. Every key has a default; unknown and duplicate
// keys are refused with the line, the valid keys and the nearest one.
//
// Reading checks everything that needs no disk, model or device. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "control/load_parameters.h"
#include "server/verification/certify_policy.h"

namespace tessera::server {

inline constexpr size_t kMaxConfigBytes = 1 << 20;

struct ListenConfig {
  bool enabled = true;
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port

  bool operator==(const ListenConfig&) const = default;
};

struct TlsConfig {
  std::string certificate_chain;  // PEM files; set both or neither
  std::string private_key;

  bool operator==(const TlsConfig&) const = default;
};

// `count` replicas of one layout of one model.
struct GroupConfig {
  std::string model;                 // folder or known name; empty: the default model
  std::string name;                  // the model's name in requests; empty: the folder's name
  std::vector<std::string> aliases;  // other names in requests
  std::string layout = "auto";
  std::vector<std::string> devices = {"cpu"};
  std::string dtype;  // empty: fp32 on the cpu, bf16 on cuda
  int64_t count = 1;
  control::Placement placement;
  std::vector<std::string> warmup = {};  // sizes, WIDTHxHEIGHT; one step of each runs before the group is ready

  bool operator==(const GroupConfig&) const = default;
};

// The database of a job queue that several servers share.
struct StoreConfig {
  std::string dsn;  // libpq connection string; empty: the queue is in data_folder and belongs to this server alone
  std::string password_file;                 // empty: no password
  absl::Duration lease = absl::Seconds(15);  // time after which other servers take over the jobs of a lost server

  bool operator==(const StoreConfig&) const = default;
};

// The listener for hosts that provide devices to groups; off without the key.
struct NodesConfig {
  bool enabled = false;
  ListenConfig listen = {.port = 8082};
  std::string certificate_chain, private_key;    // PEM files
  std::string authority;                         // certificate authority for the nodes' certificates, a PEM file
  std::string token_file;                        // file with the token that nodes must also present
  absl::Duration beat = absl::Seconds(1);        // interval at which each side sends a message
  absl::Duration lost_after = absl::Seconds(5);  // silence after which the other side counts as lost
  absl::Duration join_wait = absl::Seconds(5);   // how long each attempt to start a group waits for its nodes

  bool operator==(const NodesConfig&) const = default;
};

enum class ReadyWhen : uint8_t {
  kGroups,   // every model has a warm group
  kDurable,  // jobs can be accepted
};
constexpr auto NamesOf(ReadyWhen) { return std::array{"groups", "durable"}; }

struct ServerConfig {
  ListenConfig http = {.port = 8080};
  ListenConfig grpc = {.port = 8081};
  ListenConfig admin = {.port = 9090};
  TlsConfig tls;              // for http
  bool behind_proxy = false;  // a proxy is in front of the server: grpc may listen beyond loopback
  std::vector<std::string> hosts;
  std::vector<std::string> origins;
  std::string public_url;

  std::string keys_file;
  std::string admin_keys_file;   // keys for the admin calls that use devices
  bool allow_anonymous = false;  // allows listening beyond loopback without a keys file

  struct Limits {
    int64_t images_per_request = 10;
    int64_t pixels_per_image = 1 << 24;
    int64_t steps_per_image = 1000;
    int64_t queued_jobs = 10000;
    double queued_device_seconds = 0;  // 0: no limit
    double max_job_seconds = 3600;     // predicted, per job; 0: no limit
    int64_t connections = 1024;
    int64_t header_bytes = 16 << 10;
    int64_t body_bytes = 1 << 20;
    int64_t sending_bytes = 4 << 20;  // bytes of images being sent to http clients, over all connections
    absl::Duration header_time = absl::Seconds(10);
    absl::Duration body_time = absl::Seconds(30);
    absl::Duration idle_time = absl::Seconds(75);
    absl::Duration write_time = absl::Seconds(30);

    bool operator==(const Limits&) const = default;
  };
  Limits limits;

  NodesConfig nodes;
  std::vector<GroupConfig> groups;  // without the key: one group of the default model on this machine
  CertifyPolicy certify = CertifyPolicy::kAuto;
  ReadyWhen ready_when = ReadyWhen::kGroups;
  bool openai_names = true;        // the first model answers to the names of OpenAI's image models
  std::string adapter_folder;      // folder of the adapters that requests may name; empty: none
  bool web_page = true;            // http serves a page for browsers at /
  bool api_health = false;         // http answers GET /health
  bool api_metrics = false;        // http answers GET /metrics
  base::LogLevel log_level = base::LogLevel::kInfo;  // the lowest level that is written
  std::string data_folder = "tessera-data";
  StoreConfig store;
  absl::Duration retention = absl::Hours(24);  // how long ended jobs and their images are kept
  int64_t committed_image_bytes = 1 << 18;     // largest image that is stored in the same sync as its job; 0: none
  int64_t retention_bytes = 0;  // limit for the kept images; the oldest jobs are deleted first; 0: no limit
  absl::Duration drain_time = absl::Seconds(60);
  absl::Duration heartbeat = absl::Seconds(15);  // interval in event streams

  bool operator==(const ServerConfig&) const = default;
};

// INVALID_ARGUMENT with the line, the key, the value and what is valid.
absl::StatusOr<ServerConfig> ReadServerConfig(absl::string_view yaml);

// Checks settings that depend on each other in a configuration that was changed after reading. Errors are those of
// ReadServerConfig, without a line.
absl::Status CheckServerConfig(const ServerConfig& config);

// Reads a file with ReadServerConfig; NOT_FOUND if it cannot be opened.
absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path);

// Whether `groups` is the default that applies without the key.
bool IsDefaultGroup(const std::vector<GroupConfig>& groups);

// Returns every key with its value as YAML that reads back as `config`, without `groups` if they are the default.
std::string ServerConfigText(const ServerConfig& config);

// Whether only this machine can reach the address.
bool IsLoopbackAddress(absl::string_view address);

}  // namespace tessera::server
