// ServerConfig holds tessera.yaml, the configuration of `tessera serve`. Every key has a default; unknown and duplicate
// keys are refused with the line, the valid keys and the nearest one.
//
// The structs below describe their keys with FieldsOf: reading, writing and the table of docs/serve.md walk these
// fields. Reading checks everything that needs no disk, model or device. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/fields/duration_field.h"
#include "base/fields/fields.h"
#include "base/log/log_line.h"
#include "control/parameters/component_files.h"
#include "control/parameters/placement.h"
#include "server/api/request_limits.h"
#include "server/config/input_check_config.h"
#include "server/config/tracing_config.h"
#include "server/verification/certify_policy.h"

namespace tessera::server {

inline constexpr size_t kMaxConfigBytes = 1 << 20;
inline constexpr base::Text kConfigPath = {.is_path = true};

// In the file "off", or a mapping of the fields.
struct ListenConfig {
  bool enabled = true;
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port

  bool operator==(const ListenConfig&) const = default;
};

constexpr auto FieldsOf(const ListenConfig*) {
  using base::Field;
  using L = ListenConfig;
  return std::tuple(Field("address", &L::address), Field("port", &L::port, base::Integer{0, 65535}));
}

struct ListenersConfig {
  ListenConfig http = {.port = 8080};
  ListenConfig grpc = {.port = 8081};
  ListenConfig admin = {.port = 9090};

  bool operator==(const ListenersConfig&) const = default;
};

constexpr auto FieldsOf(const ListenersConfig*) {
  using base::Field;
  using L = ListenersConfig;
  return std::tuple(Field("http", &L::http, "Where HTTP listens, or `off`; port 0: any free port"),
                    Field("grpc", &L::grpc, "Where gRPC listens, or `off`"),
                    Field("admin", &L::admin, "Where the admin listener listens, or `off`"));
}

struct TlsConfig {
  std::string certificate_chain;
  std::string private_key;

  bool operator==(const TlsConfig&) const = default;
};

constexpr auto FieldsOf(const TlsConfig*) {
  using base::Field;
  using T = TlsConfig;
  return std::tuple(Field("certificate_chain", &T::certificate_chain, kConfigPath,
                          "PEM file for HTTP; new connections use the newest contents. Without both: plain HTTP"),
                    Field("private_key", &T::private_key, kConfigPath, "PEM file of its key"));
}

// `count` replicas of one layout of one model.
struct GroupConfig {
  std::string model;  // empty: the default model
  control::ComponentFiles files;
  std::string name;
  std::vector<std::string> aliases;
  std::string layout = "auto";
  std::vector<std::string> devices = {"cpu"};
  std::string dtype;
  int64_t count = 1;
  control::Placement placement;
  std::vector<std::string> warmup = {};

  bool operator==(const GroupConfig&) const = default;
};

constexpr auto FieldsOf(const GroupConfig*) {
  using base::Field;
  using G = GroupConfig;
  return std::tuple(
      Field("model", &G::model, kConfigPath, "Folder of the model, file of its transformer, or its known name"),
      base::Inline(&G::files), Field("name", &G::name, "The model's name in requests; without it, the folder's name"),
      Field("aliases", &G::aliases,
            "Other names in requests. Groups of one name or alias are replicas, so each name stands for one folder and "
            "one dtype; a configuration that gives a name two of either is refused at start, at SIGHUP and by `tessera "
            "doctor`"),
      Field("layout", &G::layout, "How ranks share an image: `auto`, or a layout such as `cfg=2,ulysses=2`"),
      Field("devices", &G::devices,
            "The ranks' devices, with the names of `--device`; the file must always use the same name for a device"),
      Field("dtype", &G::dtype, "`fp64`, `fp32` or `bf16`; without it, fp32 on cpu and bf16 on cuda"),
      Field("count", &G::count, base::Integer{1, 64}, "Replicas"), base::Inline(&G::placement),
      Field("warmup", &G::warmup,
            "Sizes, such as `[1024x1024, 768x1344]`: two steps of each are made before the group, and so `/readyz`, is "
            "ready, so that the first request does not wait for preparation; a size that the model does not support "
            "refuses the group, with the reason. Applies from the group's next start"));
}

// The database of a job queue that several servers share.
struct StoreConfig {
  std::string dsn;  // empty: the queue is in data_folder and belongs to this server alone
  std::string password_file;
  absl::Duration lease = absl::Seconds(15);

  bool operator==(const StoreConfig&) const = default;
};

constexpr auto FieldsOf(const StoreConfig*) {
  using base::Field;
  using S = StoreConfig;
  return std::tuple(
      Field("dsn", &S::dsn,
            "Libpq connection string, without a password, of a database that several servers share; without it, the "
            "queue is in `data_folder`, for this server alone"),
      Field("password_file", &S::password_file, kConfigPath, "A file whose first line is the password"),
      Field("lease", &S::lease, "How long the tasks of a server that is gone stay assigned to it, at least 1s"));
}

// The listener for hosts that provide devices to groups; off without the key.
struct NodesConfig {
  bool enabled = false;
  ListenConfig listen = {.port = 8082};
  std::string certificate_chain, private_key;
  std::string authority;
  std::string token_file;
  absl::Duration beat = absl::Seconds(1);
  absl::Duration lost_after = absl::Seconds(5);
  absl::Duration join_wait = absl::Seconds(5);

  bool operator==(const NodesConfig&) const = default;
};

constexpr auto FieldsOf(const NodesConfig*) {
  using base::Field;
  using N = NodesConfig;
  return std::tuple(
      Field("listen", &N::listen, "Where other hosts that lend devices join; without `nodes`, nowhere"),
      Field("certificate_chain", &N::certificate_chain, kConfigPath,
            "PEM file with which the server authenticates itself to nodes. It and the files below are read again for "
            "every connection"),
      Field("private_key", &N::private_key, kConfigPath, "PEM file of its key"),
      Field("authority", &N::authority, kConfigPath, "PEM file of the authority of the nodes' certificates"),
      Field("token_file", &N::token_file, kConfigPath, "File with the token that nodes must present as well"),
      Field("beat", &N::beat, "Interval of heartbeats in both directions"),
      Field("lost_after", &N::lost_after, "Silence after which a node is lost, at least two beats"),
      Field("join_wait", &N::join_wait, "How long a group waits for its nodes at each attempt to start"));
}

enum class ReadyWhen : uint8_t {
  kGroups,   // every model has a warm group
  kDurable,  // jobs can be accepted
};
constexpr auto NamesOf(ReadyWhen) { return std::array{"groups", "durable"}; }

struct LimitsConfig {
  int64_t images_per_request = 10;
  int64_t pixels_per_image = 1 << 24;
  int64_t steps_per_image = 1000;
  int64_t queued_jobs = 10000;
  double queued_device_seconds = 0;
  double max_job_seconds = 3600;
  int64_t connections = 1024;
  int64_t header_bytes = 16 << 10;
  int64_t body_bytes = 1 << 20;
  int64_t picture_body_bytes = 256 << 20;
  int64_t receiving_bytes = 512 << 20;
  int64_t body_rate = 64 << 10;
  int64_t sending_bytes = 4 << 20;
  int64_t picture_storage_bytes = int64_t{32} << 30;
  int64_t picture_storage_bytes_per_key = int64_t{4} << 30;
  absl::Duration uploaded_file_time = absl::Hours(24);
  absl::Duration header_time = absl::Seconds(10);
  absl::Duration body_time = absl::Seconds(30);
  absl::Duration idle_time = absl::Seconds(75);
  absl::Duration write_time = absl::Seconds(30);

  bool operator==(const LimitsConfig&) const = default;
};

constexpr auto FieldsOf(const LimitsConfig*) {
  using base::Field, base::Integer, base::Number;
  using L = LimitsConfig;
  return std::tuple(
      Field("images_per_request", &L::images_per_request, Integer{1, kMaxImageCount}, "Images of one request"),
      Field("pixels_per_image", &L::pixels_per_image, Integer{1, 1 << 29}, "Pixels of one image"),
      Field("steps_per_image", &L::steps_per_image, Integer{1, 100000}, "Steps of one image"),
      Field("queued_jobs", &L::queued_jobs, Integer{1, 100000000}, "Waiting images, of all keys"),
      Field("queued_device_seconds", &L::queued_device_seconds, Number{0, 1e12},
            "Predicted seconds of remaining work of a model's groups; above it, no further job of that model is "
            "accepted; 0: no bound"),
      Field("max_job_seconds", &L::max_job_seconds, Number{0, 1e12},
            "Predicted seconds of one job on one group; 0: no bound"),
      Field("connections", &L::connections, Integer{1, 1000000}, "HTTP connections"),
      Field("header_bytes", &L::header_bytes, Integer{1024, 1 << 20}, "Bytes of an HTTP request's header"),
      Field("body_bytes", &L::body_bytes, Integer{1024, 1 << 28}, "Bytes of an HTTP request's body"),
      Field("picture_body_bytes", &L::picture_body_bytes, Integer{1024, 1 << 30},
            "Bytes of an HTTP request's body that may have pictures"),
      Field("receiving_bytes", &L::receiving_bytes, Integer{1 << 20, int64_t{1} << 40},
            "Bytes of bodies larger than `body_bytes` that all HTTP connections together hold in memory; no single one "
            "may have more"),
      Field("body_rate", &L::body_rate, Integer{1, 1 << 30},
            "Bytes a second that a client must send of such a body, on average over each `body_time`"),
      Field("sending_bytes", &L::sending_bytes, Integer{1 << 16, 1 << 30},
            "Bytes of pictures that all HTTP connections together hold in memory while sending"),
      Field("picture_storage_bytes", &L::picture_storage_bytes, Integer{1 << 16, int64_t{1} << 60},
            "Bytes of callers' pictures that are stored for all keys together"),
      Field("picture_storage_bytes_per_key", &L::picture_storage_bytes_per_key, Integer{1 << 16, int64_t{1} << 60},
            "Bytes of callers' pictures that are stored for one key"),
      Field("uploaded_file_time", &L::uploaded_file_time, "How long a file of `POST /v1/files` can be named"),
      Field("header_time", &L::header_time, "Time for a header, after which the connection is closed"),
      Field("body_time", &L::body_time, "Time for a body of at most `body_bytes`, and for the wait of a larger one"),
      Field("idle_time", &L::idle_time, "Time between requests"),
      Field("write_time", &L::write_time, "Time in which a client must accept some bytes of its answer"));
}

struct ServerConfig {
  ListenersConfig listen;
  TlsConfig tls;
  bool behind_proxy = false;
  std::vector<std::string> hosts;
  std::vector<std::string> origins;
  std::string public_url;

  std::string keys_file;
  std::string admin_keys_file;
  bool allow_anonymous = false;

  LimitsConfig limits;
  std::vector<std::string> picture_hosts;
  InputCheckConfig input_check;

  NodesConfig nodes;
  std::vector<GroupConfig> groups;  // without the key: one group of the default model on this machine
  CertifyPolicy certify = CertifyPolicy::kAuto;
  ReadyWhen ready_when = ReadyWhen::kGroups;
  bool openai_names = true;
  std::vector<std::string> clients;  // names of ForeignClient
  std::string adapter_folder;
  bool web_page = true;
  bool api_health = true;
  bool api_metrics = false;
  bool key_metrics = false;
  base::LogLevel log_level = base::LogLevel::kInfo;
  TracingConfig tracing;
  std::string data_folder = "tessera-data";
  StoreConfig store;
  absl::Duration retention = absl::Hours(24);
  int64_t committed_image_bytes = 1 << 18;
  int64_t retention_bytes = 0;
  absl::Duration drain_time = absl::Seconds(60);
  absl::Duration heartbeat = absl::Seconds(15);

  bool operator==(const ServerConfig&) const = default;
};

constexpr auto FieldsOf(const ServerConfig*) {
  using base::Field, base::Integer;
  using S = ServerConfig;
  return std::tuple(
      Field("listen", &S::listen), Field("tls", &S::tls),
      Field("behind_proxy", &S::behind_proxy, "Whether a proxy is in front, so that grpc may listen beyond loopback"),
      Field("hosts", &S::hosts,
            "Host names the server accepts in addition to localhost, `\"*\"`: all; beyond loopback, none means all"),
      Field("origins", &S::origins,
            "Origins whose scripts may call, in the form that browsers send: `https://studio.example`, "
            "`http://localhost:3000`; no path and no wildcard. Scripts may send any header, and read `Location`, "
            "`Retry-After`, `x-should-retry`, `x-request-id`, `Allow` and `WWW-Authenticate`"),
      Field("public_url", &S::public_url,
            "The URL prefix of links, with the port and the path of a proxy in front, whose pages may call; without "
            "it, the caller's `Host`"),
      Field("keys_file", &S::keys_file, kConfigPath,
            "Keys of the API; beyond loopback, this or `allow_anonymous` is required"),
      Field("admin_keys_file", &S::admin_keys_file, kConfigPath,
            "Keys for the admin calls that use the devices or change what is served; without it, these calls need no "
            "key on loopback and are refused beyond it"),
      Field("allow_anonymous", &S::allow_anonymous, "Whether callers beyond loopback need no key"),
      Field("limits", &S::limits),
      Field(
          "picture_hosts", &S::picture_hosts,
          "Hosts from which the server fetches [pictures that requests name by URL](pictures.md#pictures-by-url): "
          "names "
          "such as `images.example.org`, and `\"*.example.org\"` for all that end so; without any, no URL is fetched"),
      Field("input_check", &S::input_check), Field("nodes", &S::nodes), Field("groups", &S::groups),
      Field("adapter_folder", &S::adapter_folder, kConfigPath,
            "A folder of [low-rank adapters](adapters.md) that requests may name"),
      Field("certify", &S::certify, "A layout without a certificate is verified first, refused, or used"),
      Field("ready_when", &S::ready_when, "The server is ready when every model has a group, or jobs can be accepted"),
      Field("openai_names", &S::openai_names, "Whether the first model answers to the names of OpenAI's image models"),
      Field("clients", &S::clients,
            "Other image servers, of `sglang`, `vllm-omni` and `sd-cpp`, whose clients' fields generations may have as "
            "well ([which](clients.md#clients-of-other-image-servers))"),
      Field("web_page", &S::web_page, "Whether HTTP serves [the page](web-page.md) at `/`"),
      Field("api_health", &S::api_health, "Whether HTTP answers `GET /health` on the API's port"),
      Field("api_metrics", &S::api_metrics, "Whether HTTP answers `GET /metrics` on the API's port"),
      Field("key_metrics", &S::key_metrics,
            "Whether the metrics have the [usage](operations.md#usage-of-keys) of each API key, by its name"),
      Field("log_level", &S::log_level, "The lowest level that is written"), Field("tracing", &S::tracing),
      Field("data_folder", &S::data_folder, kConfigPath, "Folder of the queue and the images"),
      Field("store", &S::store),
      Field("retention", &S::retention,
            "How long ended jobs are kept, in [time that a server runs](#times-and-clocks)"),
      Field("committed_image_bytes", &S::committed_image_bytes, Integer{0, 1 << 30},
            "Images of at most so many bytes are made durable together with the end of their job, in one sync of the "
            "disk instead of the three of a separate file; they are moved to files within seconds, and when the server "
            "ends; 0: none. Not with a queue in PostgreSQL"),
      Field("retention_bytes", &S::retention_bytes, Integer{0, uint64_t{1} << 60},
            "While the images have more bytes than that, the oldest ended jobs are removed early, with their "
            "`Idempotency-Key`, but never the last one; it should be many times the bytes made in a minute; 0: no "
            "bound"),
      Field("drain_time", &S::drain_time, "How long running jobs may continue after SIGTERM"),
      Field("heartbeat", &S::heartbeat, "Interval of comments in event streams"));
}

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
