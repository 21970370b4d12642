#include "server/config/server_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "server/config/config_change.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLeast[] = "groups: [{model: emoji}]\n";

std::string ErrorOf(const std::string& yaml) {
  const absl::StatusOr<ServerConfig> config = ReadServerConfig(yaml);
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(ServerConfigTest, OneGroupIsEnoughAndEverythingElseHasADefaultOnLoopback) {
  const absl::StatusOr<ServerConfig> config = ReadServerConfig(kLeast);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen.http, (ListenConfig{.address = "127.0.0.1", .port = 8080}));
  EXPECT_EQ(config->groups.size(), 1u);
  EXPECT_EQ(config->groups[0].model, "emoji");
  EXPECT_EQ(config->certify, CertifyPolicy::kAuto);
}

TEST(ServerConfigTest, ReadsEveryKindOfValue) {
  const absl::StatusOr<ServerConfig> config = ReadServerConfig(R"(
listen: {http: {address: 0.0.0.0, port: 80}, grpc: off}
tls: {certificate_chain: /a.pem, private_key: /b.pem}
keys_file: keys.txt
hosts: [images.example]
public_url: https://images.example/
limits: {images_per_request: 4, queued_device_seconds: 1.5, sending_bytes: 65536, idle_time: 5m}
retention: 48h
retention_bytes: 1000000000000
committed_image_bytes: 262144
store: {dsn: "host=db dbname=tessera", password_file: /run/secrets/db, lease: 30s}
certify: require
groups:
  - {model: flux, aliases: [gpt-image-1], layout: "cfg=2,ulysses=2", devices: [cuda:0, cuda:1, cuda:2, cuda:3], dtype: bf16, count: 2}
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen.http, (ListenConfig{.address = "0.0.0.0", .port = 80}));
  EXPECT_FALSE(config->listen.grpc.enabled);
  EXPECT_EQ(config->tls.private_key, "/b.pem");
  EXPECT_EQ(config->public_url, "https://images.example");
  EXPECT_EQ(config->limits.images_per_request, 4);
  EXPECT_EQ(config->limits.queued_device_seconds, 1.5);
  EXPECT_EQ(config->limits.sending_bytes, 65536);
  EXPECT_EQ(config->limits.idle_time, absl::Minutes(5));
  EXPECT_EQ(config->retention, absl::Hours(48));
  EXPECT_EQ(config->retention_bytes, 1000000000000);
  EXPECT_EQ(config->committed_image_bytes, 262144);
  EXPECT_EQ(
      config->store,
      (StoreConfig{.dsn = "host=db dbname=tessera", .password_file = "/run/secrets/db", .lease = absl::Seconds(30)}));
  EXPECT_THAT(config->groups[0].devices, ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3"));
  EXPECT_EQ(config->groups[0].layout, "cfg=2,ulysses=2");
  EXPECT_EQ(config->groups[0].count, 2);
}

TEST(ServerConfigTest, WhatIsPrintedReadsBackAsTheSame) {
  const absl::StatusOr<ServerConfig> config = ReadServerConfig(R"(
listen: {http: {port: 1}, grpc: off}
origins: ["https://a.example"]
limits: {header_time: 1500ms}
retention_bytes: 5
store: {dsn: "host=/run user='a b'", password_file: p}
groups: [{model: "a: \"b\" # c", aliases: [x, y], count: 3}, {model: d}]
)");
  ASSERT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<ServerConfig> again = ReadServerConfig(ServerConfigText(*config));
  ASSERT_TRUE(again.ok()) << again.status() << ServerConfigText(*config);
  EXPECT_EQ(*again, *config);
}

constexpr char kEveryKeyIsSet[] = R"yaml(
listen: {http: {address: 127.0.0.2, port: 1}, grpc: off, admin: {address: "::1", port: 0}}
tls: {certificate_chain: /a.pem, private_key: "/b \"c\".pem"}
behind_proxy: true
hosts: [images.example, "*"]
origins: ["https://a.example"]
public_url: https://images.example/tessera
keys_file: keys.txt
admin_keys_file: admin.txt
allow_anonymous: true
limits: {images_per_request: 4, pixels_per_image: 5, steps_per_image: 6, queued_jobs: 7, queued_device_seconds: 1.5, max_job_seconds: 1e7, connections: 8, header_bytes: 2048, body_bytes: 4096, picture_body_bytes: 8192, receiving_bytes: 2097152, body_rate: 128, sending_bytes: 65536, picture_storage_bytes: 131072, picture_storage_bytes_per_key: 65536, uploaded_file_time: 2h, header_time: 1500ms, body_time: 1m, idle_time: 5m, write_time: 1h30m}
picture_hosts: [images.example.org, "*.cdn.example"]
input_check: {url: "http://localhost:9000/check", timeout: 3s, headers_file: i}
nodes: {listen: {address: 10.0.0.1, port: 7}, certificate_chain: a, private_key: b, authority: c, token_file: d, beat: 2s, lost_after: 9s, join_wait: 4s}
groups:
  - {model: "a: \"b\" # c", text_encoder: [t, u], vae: v, tokenizer: w, without_t5: true, name: n, aliases: [x, y], layout: "cfg=2,ulysses=2", devices: [cuda:0, node-a/cpu:1], dtype: bf16, count: 3, threads: 5, text_encoders: cpu, autoencoder: unload, stream_blocks: true, offload: never, weights: fp8, products: fp8, memory_limit: 12GiB, warmup: [64x32]}
  - {model: d}
adapter_folder: adapters
certify: require
ready_when: durable
openai_names: false
clients: [sd-cpp, sglang]
web_page: false
api_health: true
api_metrics: true
key_metrics: true
log_level: warning
tracing: {endpoint: "https://otlp.example/a", environment: true, headers_file: h, service_name: s, sampling_ratio: 0.25, key_names: true, queued_spans: 100, batch_spans: 10, interval: 1s, timeout: 2s}
data_folder: /data
store: {dsn: "host=/run user='a b'", password_file: p, lease: 30s}
retention: 48h
committed_image_bytes: 0
retention_bytes: 5
drain_time: 1s
heartbeat: 2s
)yaml";

TEST(ServerConfigTest, EveryKeyIsWrittenInItsPlace) {
  const absl::StatusOr<ServerConfig> config = ReadServerConfig(kEveryKeyIsSet);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ("\n" + ServerConfigText(*config), R"yaml(
listen:
  http: {address: "127.0.0.2", port: 1}
  grpc: off
  admin: {address: "::1", port: 0}
tls:
  certificate_chain: "/a.pem"
  private_key: "/b \"c\".pem"
behind_proxy: true
hosts: ["images.example", "*"]
origins: ["https://a.example"]
public_url: "https://images.example/tessera"
keys_file: "keys.txt"
admin_keys_file: "admin.txt"
allow_anonymous: true
limits:
  images_per_request: 4
  pixels_per_image: 5
  steps_per_image: 6
  queued_jobs: 7
  queued_device_seconds: 1.5
  max_job_seconds: 10000000
  connections: 8
  header_bytes: 2048
  body_bytes: 4096
  picture_body_bytes: 8192
  receiving_bytes: 2097152
  body_rate: 128
  sending_bytes: 65536
  picture_storage_bytes: 131072
  picture_storage_bytes_per_key: 65536
  uploaded_file_time: 2h
  header_time: 1.5s
  body_time: 1m
  idle_time: 5m
  write_time: 1h30m
picture_hosts: ["images.example.org", "*.cdn.example"]
input_check:
  url: "http://localhost:9000/check"
  timeout: 3s
  headers_file: "i"
nodes:
  listen: {address: "10.0.0.1", port: 7}
  certificate_chain: "a"
  private_key: "b"
  authority: "c"
  token_file: "d"
  beat: 2s
  lost_after: 9s
  join_wait: 4s
groups:
  - model: "a: \"b\" # c"
    text_encoder: ["t", "u"]
    vae: "v"
    tokenizer: "w"
    without_t5: true
    name: "n"
    aliases: ["x", "y"]
    layout: "cfg=2,ulysses=2"
    devices: ["cuda:0", "node-a/cpu:1"]
    dtype: "bf16"
    count: 3
    threads: 5
    text_encoders: "cpu"
    autoencoder: "unload"
    stream_blocks: true
    offload: "never"
    weights: "fp8"
    products: "fp8"
    memory_limit: "12GiB"
    warmup: ["64x32"]
  - model: "d"
    text_encoder: []
    vae: ""
    tokenizer: ""
    without_t5: false
    name: ""
    aliases: []
    layout: "auto"
    devices: ["cpu"]
    dtype: ""
    count: 1
    threads: 0
    text_encoders: "rank0"
    autoencoder: "rank0"
    stream_blocks: false
    offload: "auto"
    weights: "stored"
    products: "plain"
    memory_limit: ""
    warmup: []
adapter_folder: "adapters"
certify: "require"
ready_when: "durable"
openai_names: false
clients: ["sd-cpp", "sglang"]
web_page: false
api_health: true
api_metrics: true
key_metrics: true
log_level: "warning"
tracing:
  endpoint: "https://otlp.example/a"
  environment: true
  headers_file: "h"
  service_name: "s"
  sampling_ratio: 0.25
  key_names: true
  queued_spans: 100
  batch_spans: 10
  interval: 1s
  timeout: 2s
data_folder: "/data"
store:
  dsn: "host=/run user='a b'"
  password_file: "p"
  lease: 30s
retention: 48h
committed_image_bytes: 0
retention_bytes: 5
drain_time: 1s
heartbeat: 2s
)yaml");
  EXPECT_EQ("\n" + ServerConfigText(*ReadServerConfig("")), R"yaml(
listen:
  http: {address: "127.0.0.1", port: 8080}
  grpc: {address: "127.0.0.1", port: 8081}
  admin: {address: "127.0.0.1", port: 9090}
tls:
  certificate_chain: ""
  private_key: ""
behind_proxy: false
hosts: []
origins: []
public_url: ""
keys_file: ""
admin_keys_file: ""
allow_anonymous: false
limits:
  images_per_request: 10
  pixels_per_image: 16777216
  steps_per_image: 1000
  queued_jobs: 10000
  queued_device_seconds: 0
  max_job_seconds: 3600
  connections: 1024
  header_bytes: 16384
  body_bytes: 1048576
  picture_body_bytes: 268435456
  receiving_bytes: 536870912
  body_rate: 65536
  sending_bytes: 4194304
  picture_storage_bytes: 34359738368
  picture_storage_bytes_per_key: 4294967296
  uploaded_file_time: 24h
  header_time: 10s
  body_time: 30s
  idle_time: 1m15s
  write_time: 30s
picture_hosts: []
input_check:
  url: ""
  timeout: 10s
  headers_file: ""
adapter_folder: ""
certify: "auto"
ready_when: "groups"
openai_names: true
clients: []
web_page: true
api_health: true
api_metrics: false
key_metrics: false
log_level: "info"
tracing:
  endpoint: ""
  environment: false
  headers_file: ""
  service_name: ""
  sampling_ratio: 1
  key_names: false
  queued_spans: 4096
  batch_spans: 512
  interval: 5s
  timeout: 10s
data_folder: "tessera-data"
store:
  dsn: ""
  password_file: ""
  lease: 15s
retention: 24h
committed_image_bytes: 262144
retention_bytes: 0
drain_time: 1m
heartbeat: 15s
)yaml");
}

// Returns the valid values of a field as the table in docs/serve.md shows them.
template <class T, class Valid>
std::string ValidText(const Valid& valid) {
  if constexpr (std::is_same_v<Valid, base::Integer> || std::is_same_v<Valid, base::Number>) {
    return absl::StrCat(valid.low, " to ", valid.high);
  } else if constexpr (base::NamedEnum<T>) {
    return absl::StrCat("`", absl::StrJoin(base::EnumNames<T>(), "`, `"), "`");
  } else if constexpr (std::is_same_v<T, bool>) {
    return "`true`, `false`";
  } else {
    return "";
  }
}

std::string WrittenText(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar().empty() ? "none" : absl::StrCat("`", node.Scalar(), "`");
  if (node.size() == 0) return "none";
  YAML::Emitter out;
  out << YAML::Flow << node;
  return absl::StrCat("`", out.c_str(), "`");
}

// Adds a line for each key of `value`, which is written as `written`.
template <class T>
void AddKeys(const std::string& path, const T& value, const YAML::Node& written, std::string& table) {
  const auto add = [&]<class Member>(const auto& field, const Member& member) {
    const std::string name = path + field.name;
    const YAML::Node node = written[field.name];
    if constexpr (std::is_same_v<Member, std::vector<GroupConfig>>) {
      AddKeys(name + "[].", member[0], node[0], table);
    } else if constexpr (base::Described<Member> && !std::is_same_v<Member, ListenConfig>) {
      AddKeys(name + ".", member, node, table);
    } else {
      EXPECT_STRNE(field.help, "") << name;
      absl::StrAppend(&table, "| `", name, "` | ", field.help, " | ", ValidText<Member>(field.valid), " | ",
                      WrittenText(node), " |\n");
    }
  };
  base::ForEachField(add, value);
}

TEST(ServerConfigTest, TheTableOfKeysIsMadeFromTheFields) {
  ServerConfig config;
  config.nodes.enabled = true;
  config.groups.resize(2);
  std::string table = "| key | meaning | valid | default |\n|---|---|---|---|\n";
  AddKeys("", config, YAML::Load(ServerConfigText(config)), table);
  const char* path = "docs/serve.md";
  const std::string begin =
      "<!-- Made from server/config/server_config.h: TESSERA_UPDATE_DOCUMENTS=1 config_test. -->\n";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t start = text.find(begin), end = text.find("\n\n", start);
  ASSERT_NE(start, std::string::npos);
  const std::string made = text.substr(0, start) + begin + table + text.substr(end + 1);
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream(path) << made;
  EXPECT_TRUE(made == text) << "set TESSERA_UPDATE_DOCUMENTS=1 and run this test again";
}

TEST(ServerConfigTest, WithoutGroupsThereIsOneOfTheDefaultModelOnThisMachine) {
  for (const char* yaml : {"", "# nothing\n", "listen: {http: {port: 8000}}\n"}) {
    SCOPED_TRACE(yaml);
    const absl::StatusOr<ServerConfig> config = ReadServerConfig(yaml);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(IsDefaultGroup(config->groups));
    EXPECT_EQ(config->groups[0].model, "");
    EXPECT_THAT(config->groups[0].devices, ElementsAre("cpu"));
    const absl::StatusOr<ServerConfig> again = ReadServerConfig(ServerConfigText(*config));
    ASSERT_TRUE(again.ok()) << again.status() << ServerConfigText(*config);
    EXPECT_EQ(*again, *config);
  }
}

TEST(ServerConfigTest, AChangedConfigurationIsHeldToWhatAFileIs) {
  ServerConfig config = *ReadServerConfig("");
  EXPECT_TRUE(CheckServerConfig(config).ok());
  config.listen.http.address = "0.0.0.0";
  EXPECT_THAT(std::string(CheckServerConfig(config).message()), HasSubstr("without API keys"));
  config.allow_anonymous = true;
  EXPECT_TRUE(CheckServerConfig(config).ok());
}

TEST(ServerConfigTest, AnUnknownKeyIsRefusedWithItsLineAndTheNearestValidOne) {
  EXPECT_THAT(ErrorOf("groups: [{model: emoji}]\nretantion: 1h\n"),
              AllOf(HasSubstr("'retantion'"), HasSubstr("did you mean 'retention'?"), HasSubstr("line 2")));
  EXPECT_THAT(ErrorOf("groups: [{model: emoji, layuot: serial}]"),
              AllOf(HasSubstr("groups[0]"), HasSubstr("did you mean 'layout'?")));
  EXPECT_THAT(ErrorOf("limits: {conections: 1}\ngroups: [{model: emoji}]"), HasSubstr("did you mean 'connections'?"));
}

TEST(ServerConfigTest, AKeyGivenTwiceIsRefused) {
  EXPECT_THAT(ErrorOf("certify: off\ncertify: auto\ngroups: [{model: emoji}]"),
              AllOf(HasSubstr("certify is given twice"), HasSubstr("line 2")));
}

TEST(ServerConfigTest, AListenerBeyondThisMachineNeedsKeysOrSaysThatItNeedsNone) {
  const std::string open = "listen: {http: {address: 0.0.0.0}}\ngroups: [{model: emoji}]\n";
  EXPECT_THAT(ErrorOf(open), HasSubstr("keys_file"));
  EXPECT_EQ(ErrorOf(open + "keys_file: k\n"), "");
  EXPECT_EQ(ErrorOf(open + "allow_anonymous: true\n"), "");
}

TEST(ServerConfigTest, GrpcBeyondThisMachineNeedsAProxy) {
  const std::string open = "listen: {grpc: {address: 0.0.0.0}}\nkeys_file: k\ngroups: [{model: emoji}]\n";
  EXPECT_THAT(ErrorOf(open), HasSubstr("behind_proxy"));
  EXPECT_EQ(ErrorOf(open + "behind_proxy: true\n"), "");
}

struct BadConfig {
  const char* yaml;
  const char* error;
};

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedWithTheReason) {
  const std::string yaml = GetParam().yaml;
  const bool whole = yaml.find("groups") != std::string::npos;
  EXPECT_THAT(ErrorOf(whole ? yaml : yaml + "\ngroups: [{model: emoji}]\n"), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigTest,
    ::testing::Values(
        BadConfig{"groups: []", "groups is missing or empty"}, BadConfig{"groups: 3", "groups is missing or empty"},
        BadConfig{"groups: [{}]", "groups[0].model is missing"},
        BadConfig{"groups: [emoji]", "groups[0] is not a mapping"},
        BadConfig{"groups: [{model: [a]}]", "groups[0].model is a list"},
        BadConfig{"groups: [{model: a, count: 0}]", "count is 0; valid values are 1 to 64, the nearest is 1"},
        BadConfig{"groups: [{model: a, dtype: fp16}]", "dtype 'fp16' is unknown; valid values are fp64, fp32, bf16"},
        BadConfig{"groups: [{model: a, devices: [gpu]}]", "device is 'gpu'; valid values are cpu, cuda"},
        BadConfig{"groups: [{model: a, devices: []}]", "devices is empty"},
        BadConfig{"groups: [{model: a, warmup: [1024x1024, 1024]}]",
                  "groups[0].warmup is '1024'; it must be WIDTHxHEIGHT in pixels"},
        BadConfig{"groups: [{model: a, layout: ''}]", "layout is empty"},
        BadConfig{"groups: [{model: a, aliases: [x]}, {model: b, aliases: [x]}]", "give the name 'x' to two models"},
        BadConfig{"listen: {http: {port: 65536}}", "listen.http.port is 65536"},
        BadConfig{"listen: {http: {port: eighty}}", "listen.http.port is 'eighty'"},
        BadConfig{"listen: {http: off, grpc: off}", "at least one of them"},
        BadConfig{"tls: {private_key: a}", "both or neither"}, BadConfig{"behind_proxy: yes", "true and false"},
        BadConfig{"hosts: images.example", "hosts is not a list"},
        BadConfig{"origins: [images.example]", "valid values are origins"},
        BadConfig{"origins: ['*']", "valid values are origins"},
        BadConfig{"origins: ['https://*.studio.example']", "no wildcard"},
        BadConfig{"origins: ['https://studio.example/']", "the nearest is https://studio.example"},
        BadConfig{"origins: ['https://studio.example:8443/app']", "the nearest is https://studio.example:8443"},
        BadConfig{"origins: ['https://me@studio.example']", "valid values are origins"},
        BadConfig{"public_url: images.example", "a URL"}, BadConfig{"public_url: 'https://'", "a URL"},
        BadConfig{"public_url: 'https://images.example/?a=b'", "no user, query or fragment"},
        BadConfig{"retention: 24", "duration above 0 with its unit"}, BadConfig{"retention: -1h", "duration above 0"},
        BadConfig{"retention: inf", "duration above 0"}, BadConfig{"retention_bytes: -1", "retention_bytes"},
        BadConfig{"committed_image_bytes: 2000000000", "committed_image_bytes"},
        BadConfig{"certify: never", "valid values are auto, require, off"},
        BadConfig{"log_level: loud", "valid values are debug, info, warning, error"},
        BadConfig{"clients: [sglang, vllm]",
                  "has the entry 'vllm' is unknown; valid values are sglang, vllm-omni, sd-cpp"},
        BadConfig{"clients: [sglang, sglang]", "has 'sglang' twice"}, BadConfig{"clients: sglang", "is not a list"},
        BadConfig{"openai_names: 1", "true and false"}, BadConfig{"web_page: on", "true and false"},
        BadConfig{"limits: {sending_bytes: 65535}", "sending_bytes"}, BadConfig{"limits: 3", "limits is not a mapping"},
        BadConfig{"limits: {connections: 1e3}", "a whole number"},
        BadConfig{"limits: {queued_device_seconds: .nan}", "a number from 0"},
        BadConfig{"picture_hosts: images.example", "is not a list"},
        BadConfig{"picture_hosts: ['*']", "picture_hosts holds '*'; valid values are host names"},
        BadConfig{"picture_hosts: [127.0.0.1]", "no address"},
        BadConfig{"picture_hosts: ['https://images.example']", "picture_hosts holds"},
        BadConfig{"input_check: 'ftp://a'", "input_check.url is no URL of http or https; it must be a URL such as"},
        BadConfig{"input_check: {url: 'http://user:secret@a'}", "input_check.url has a user"},
        BadConfig{"input_check: {url: 'http://a', timeout: 61s}", "it must be at most 1m"},
        BadConfig{"input_check: {headers_file: x}", "no url"}, BadConfig{"input_check: [a]", "is not a mapping"},
        BadConfig{"tracing: {endpoint: 'ftp://a'}", "tracing.endpoint"},
        BadConfig{"tracing: {endpoint: 'http://user:secret@a'}", "with no user"},
        BadConfig{"tracing: {sampling_ratio: 1.5}", "from 0 to 1"},
        BadConfig{"tracing: {queued_spans: 64, batch_spans: 65}", "at most queued_spans, 64"},
        BadConfig{"store: {password_file: x}", "no dsn"}, BadConfig{"store: {dsn: a=b, lease: 10ms}", "store.lease"},
        BadConfig{"store: {dns: a=b}", "dsn"}, BadConfig{"data_folder: ''", "data_folder is empty"},
        BadConfig{"nodes: {listen: off}", "leave out nodes instead"},
        BadConfig{"nodes: {private_key: a}", "nodes.certificate_chain is missing"},
        BadConfig{"nodes: {certificate_chain: a, private_key: b, authority: c, token_file: d, beat: 5s}",
                  "nodes.lost_after is 5s; it must be at least 2 heartbeats, 10s"},
        BadConfig{"groups: [{model: a, devices: [node-a/gpu]}]",
                  "groups[0].devices names 'node-a/gpu'; valid values on a node are cpu:N and cuda:N, the nearest is "
                  "node-a/cpu:0"},
        BadConfig{"groups: [{model: a, devices: [node-a/cpu:0]}]", "the server does not listen for nodes"},
        BadConfig{"? [a]\n: b", "a key that is not a text"}, BadConfig{"a: [", "not readable as YAML"},
        BadConfig{"a: b: c", "not readable as YAML"}, BadConfig{"x: &a [*a]", "'x' is unknown"},
        BadConfig{"--- {groups: 1}\n--- b", "more than one YAML document"}));

TEST(ServerConfigTest, ATildeStandsForTheHomeFolderInEveryPath) {
  const char* before = std::getenv("HOME");
  const std::string home = before == nullptr ? "" : before;
  setenv("HOME", "/srv/alice", 1);
  const auto config = ReadServerConfig(
      "groups: [{model: ~/models/flux}]\nkeys_file: ~/keys.txt\nadapter_folder: ~\ndata_folder: ~/data\n"
      "store: {dsn: 'dbname=~', password_file: ~/password}\ntls: {certificate_chain: ~/a.pem, private_key: ~/b.pem}\n");
  unsetenv("HOME");
  EXPECT_THAT(ErrorOf("keys_file: ~/keys.txt"), HasSubstr("HOME is not set"));
  if (before != nullptr) setenv("HOME", home.c_str(), 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->groups[0].model, "/srv/alice/models/flux");
  EXPECT_EQ(config->keys_file, "/srv/alice/keys.txt");
  EXPECT_EQ(config->adapter_folder, "") << "a lone tilde is YAML's null";
  EXPECT_EQ(config->data_folder, "/srv/alice/data");
  EXPECT_EQ(config->store.dsn, "dbname=~");
  EXPECT_EQ(config->store.password_file, "/srv/alice/password");
  EXPECT_EQ(config->tls.private_key, "/srv/alice/b.pem");
  EXPECT_THAT(ErrorOf("data_folder: ~alice/data"),
              HasSubstr("data_folder is '~alice/data'; it must be an absolute path"));
}

TEST(ServerConfigTest, AnUnknownListenerIsAnsweredWithEachValidOneOnce) {
  EXPECT_THAT(ErrorOf("listen: {htpt: off}"), HasSubstr("valid values are http, grpc, admin; did you mean 'http'?"));
}

TEST(ServerConfigTest, AnInputCheckMayBeItsUrlAlone) {
  const auto config = ReadServerConfig("input_check: http://localhost:9000/check\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->input_check, (InputCheckConfig{.url = "http://localhost:9000/check"}));
}

TEST(ServerConfigTest, OriginsAreKeptAsBrowsersSendThem) {
  const auto config = ReadServerConfig("origins: ['HTTPS://Studio.example:443', 'http://localhost:3000']\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->origins, (std::vector<std::string>{"https://studio.example", "http://localhost:3000"}));
}

TEST(ServerConfigTest, NodesAndTheirDevicesAreReadAndWritten) {
  constexpr char kYaml[] =
      "nodes: {listen: {address: 10.0.0.1, port: 7}, certificate_chain: a, private_key: b, authority: c, token_file: "
      "d}\n"
      "groups: [{model: m, layout: cfg=2, devices: [node-a/cuda:0, node-b/cpu:1]}]\n";
  const auto config = ReadServerConfig(kYaml);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->nodes.enabled);
  EXPECT_EQ(config->nodes.listen, (ListenConfig{.address = "10.0.0.1", .port = 7}));
  EXPECT_EQ(config->nodes.token_file, "d");
  const auto again = ReadServerConfig(ServerConfigText(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *config);
}

TEST(ServerConfigTest, ACommaAtTheBeginOfADocumentIsRefused) {
  // The parser finds endless documents in this text.
  EXPECT_THAT(ErrorOf(",groups: [{model: emoji}]"), HasSubstr("more than one YAML document"));
  EXPECT_THAT(ErrorOf("groups: [{model: emoji}]\n---\n,"), HasSubstr("more than one YAML document"));
}

TEST(ServerConfigTest, DeepNestingIsRefusedNotFollowed) {
  EXPECT_NE(ErrorOf("a: " + std::string(100000, '[')), "");
  EXPECT_NE(ErrorOf("a: " + std::string(100000, '{')), "");
}

TEST(ServerConfigTest, AnOversizedConfigurationIsRefused) {
  EXPECT_THAT(ErrorOf(std::string(kMaxConfigBytes + 1, '#')), HasSubstr("valid values are at most"));
}

TEST(ServerConfigTest, AFileThatIsNotThereIsNamed) {
  const auto config = LoadServerConfig("no-such.yaml");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("'no-such.yaml'"));
}

}  // namespace
}  // namespace tessera::server

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ServerConfig Config(const std::string& more = "", const std::string& groups = "[{model: emoji}]") {
  return ReadServerConfig("groups: " + groups + "\n" + more).value();
}

TEST(ConfigChangeTest, NothingNewChangesNothing) {
  const absl::StatusOr<ConfigChange> change = ChangeOf(Config(), Config());
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, Config());
  EXPECT_THAT(change->changed, IsEmpty());
  EXPECT_THAT(change->needs_restart, IsEmpty());
}

TEST(ConfigChangeTest, TakesKeysGroupsAndLimits) {
  const ServerConfig wanted =
      Config("keys_file: keys.txt\nlimits: {steps_per_image: 50, max_job_seconds: 7.5}\ndrain_time: 5s",
             "[{model: emoji, count: 2}]");
  const absl::StatusOr<ConfigChange> change = ChangeOf(Config(), wanted);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, wanted);
  EXPECT_THAT(change->changed,
              ElementsAre("groups", "drain_time: 1m -> 5s", HasSubstr("keys.txt"),
                          "limits.max_job_seconds: 3600 -> 7.5", "limits.steps_per_image: 1000 -> 50"));
  EXPECT_THAT(change->needs_restart, IsEmpty());
}

TEST(ConfigChangeTest, TakesPictureHostsAndTheInputCheck) {
  const ServerConfig wanted = Config("picture_hosts: [images.example]\ninput_check: http://localhost:9000/\n");
  const absl::StatusOr<ConfigChange> change = ChangeOf(Config(), wanted);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, wanted);
  EXPECT_THAT(change->changed,
              ElementsAre("input_check.url: \"\" -> http://localhost:9000/", HasSubstr("images.example")));
  EXPECT_THAT(change->needs_restart, IsEmpty());
}

TEST(ConfigChangeTest, LeavesWhatTakesANewStartAndNamesIt) {
  const absl::StatusOr<ConfigChange> change =
      ChangeOf(Config(), Config("listen: {http: {port: 8090}, grpc: off}\nlimits: {connections: 7, queued_jobs: 3}\n"
                                "data_folder: elsewhere"));
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, Config("limits: {queued_jobs: 3}"));
  EXPECT_THAT(change->changed, ElementsAre("limits.queued_jobs: 10000 -> 3"));
  EXPECT_THAT(change->needs_restart, ElementsAre("data_folder", "limits.connections", "listen.grpc", "listen.http"));
}

TEST(ConfigChangeTest, NeverLeavesListenersBeyondThisMachineWithoutTheKeysTheyHad) {
  const ServerConfig now = Config("keys_file: keys.txt\nlisten: {http: {address: 0.0.0.0}}");
  const absl::StatusOr<ConfigChange> change = ChangeOf(now, Config());
  EXPECT_EQ(change.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(change.status().message()), HasSubstr("API keys"));
}

}  // namespace
}  // namespace tessera::server
