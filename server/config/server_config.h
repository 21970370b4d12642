// tessera.yaml: how `tessera serve` is set up. Every key has a default; unknown keys and keys given twice are refused,
// with the line, the valid keys and the nearest one.
//
// Reading checks what can be checked without looking at a disk, a model or a device. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/verification/certify_policy.h"

namespace tessera::server {

inline constexpr size_t kMaxConfigBytes = 1 << 20;

struct ListenConfig {
  bool enabled = true;
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one

  bool operator==(const ListenConfig&) const = default;
};

struct TlsConfig {
  std::string certificate_chain;  // PEM files; both or neither
  std::string private_key;

  bool operator==(const TlsConfig&) const = default;
};

// count replicas of one layout of one model.
struct GroupConfig {
  std::string model;                 // folder or known name; empty: the default model
  std::string name;                  // what requests call it; empty: as the folder is called
  std::vector<std::string> aliases;  // what they may call it too
  std::string layout = "auto";
  std::vector<std::string> devices = {"cpu"};
  std::string dtype;  // empty: fp32 on the cpu, bf16 on cuda
  int64_t count = 1;
  int64_t threads = 0;  // of each rank on the cpu; 0: shared out
  std::string text_encoders = "rank0";
  std::string autoencoder = "rank0";
  bool stream_blocks = false;
  std::string offload = "auto";
  std::vector<std::string> warmup = {};  // sizes, WIDTHxHEIGHT, of which a step is made before the group is ready

  bool operator==(const GroupConfig&) const = default;
};

// The database of a queue that several servers share.
struct StoreConfig {
  std::string dsn;            // a connection string of libpq; empty: the queue is in data_folder, this server's alone
  std::string password_file;  // empty: the database asks for none
  absl::Duration lease = absl::Seconds(15);  // after which others make what a server had that is gone

  bool operator==(const StoreConfig&) const = default;
};

// Where other hosts join that lend their devices to groups; without the key nobody listens for them.
struct NodesConfig {
  bool enabled = false;
  ListenConfig listen = {.port = 8082};
  std::string certificate_chain, private_key;    // PEM files
  std::string authority;                         // of nodes' certificates, PEM
  std::string token_file;                        // what nodes must show too
  absl::Duration beat = absl::Seconds(1);        // in which either side says something
  absl::Duration lost_after = absl::Seconds(5);  // of silence
  absl::Duration join_wait = absl::Seconds(5);   // that a group waits for its nodes at each try

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
  TlsConfig tls;              // of http
  bool behind_proxy = false;  // a proxy stands in front: grpc may listen beyond loopback
  std::vector<std::string> hosts;
  std::vector<std::string> origins;
  std::string public_url;

  std::string keys_file;
  std::string admin_keys_file;   // of those who may have admin make the devices work
  bool allow_anonymous = false;  // beyond loopback, without a keys file

  struct Limits {
    int64_t images_per_request = 10;
    int64_t pixels_per_image = 1 << 24;
    int64_t steps_per_image = 1000;
    int64_t queued_jobs = 10000;
    double queued_device_seconds = 0;  // 0: no bound
    double max_job_seconds = 3600;     // predicted, of one job; 0: no bound
    int64_t connections = 1024;
    int64_t header_bytes = 16 << 10;
    int64_t body_bytes = 1 << 20;
    int64_t sending_bytes = 4 << 20;  // of pictures on their way to clients of http, of all connections together
    absl::Duration header_time = absl::Seconds(10);
    absl::Duration body_time = absl::Seconds(30);
    absl::Duration idle_time = absl::Seconds(75);
    absl::Duration write_time = absl::Seconds(30);

    bool operator==(const Limits&) const = default;
  };
  Limits limits;

  NodesConfig nodes;
  std::vector<GroupConfig> groups;  // without the key: one of the default model on this machine
  CertifyPolicy certify = CertifyPolicy::kAuto;
  ReadyWhen ready_when = ReadyWhen::kGroups;
  bool openai_names = true;        // the first model answers to the names of OpenAI's image models
  std::string adapter_folder;      // that requests may name adapters of; empty: none
  bool web_page = true;            // http serves a page for browsers at /
  bool api_health = false;         // http answers GET /health
  bool api_metrics = false;        // http answers GET /metrics
  std::string log_level = "info";  // debug, info, warning, error: lines below it are not written
  std::string data_folder = "tessera-data";
  StoreConfig store;
  absl::Duration retention = absl::Hours(24);  // of ended jobs and their images
  int64_t committed_image_bytes = 1 << 18;     // of an image that is made durable with its job, in one sync; 0: none
  int64_t retention_bytes = 0;                 // of those images; the oldest jobs go first; 0: no bound
  absl::Duration drain_time = absl::Seconds(60);
  absl::Duration heartbeat = absl::Seconds(15);  // of event streams

  bool operator==(const ServerConfig&) const = default;
};

// INVALID_ARGUMENT with the line, the key, the value and what is valid.
absl::StatusOr<ServerConfig> ReadServerConfig(absl::string_view yaml);

// What only makes sense together: the errors of ReadServerConfig for a configuration that was changed afterwards,
// without a line.
absl::Status CheckServerConfig(const ServerConfig& config);

// ReadServerConfig of a file; NOT_FOUND where it cannot be opened.
absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path);

// Whether it is what stands for the missing key.
bool IsDefaultGroup(const std::vector<GroupConfig>& groups);

// Every key with its value, as YAML that reads back as `config`; no `groups` where it is the default.
std::string ServerConfigText(const ServerConfig& config);

// Whether only this machine reaches the address.
bool IsLoopbackAddress(absl::string_view address);

}  // namespace tessera::server
