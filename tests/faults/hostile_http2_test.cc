// Sends HTTP/2 frames that no gRPC client sends to the gRPC listener of a real `tessera serve`. After each of them the
// same process must still answer a real client.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tessera/v1/image_service.grpc.pb.h"
#include "tests/faults/holdings.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindow = 8,
  kContinuation = 9
};
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;
constexpr size_t kFrameBytes = 16384;  // the largest frame that every peer accepts

std::string BigEndian(uint32_t number, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(number >> (8 * i)));
  return text;
}

// Encodes a frame (RFC 9113, section 4.1).
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), std::string(1, static_cast<char>(type)),
                      std::string(1, static_cast<char>(flags)), BigEndian(stream, 4), payload);
}

// Encodes an integer with a prefix of 7 bits and `padding` redundant bytes (RFC 7541, section 5.1).
std::string Length(size_t number, size_t padding = 0) {
  if (number < 127 && padding == 0) return std::string(1, static_cast<char>(number));
  std::string text(1, 127);
  number -= 127;
  for (; number >= 128; number /= 128) text.push_back(static_cast<char>(number % 128 | 128));
  if (padding == 0) return text + static_cast<char>(number);
  text.push_back(static_cast<char>(number | 128));
  return text + std::string(padding - 1, '\x80') + std::string(1, '\0');
}

// Returns a literal header, not indexed, without Huffman coding.
std::string Header(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'), Length(name.size()), name, Length(value.size()), value);
}

std::string Call(const std::string& scheme = "http", const std::string& te = "trailers") {
  return absl::StrCat(Header(":method", "POST"), Header(":scheme", scheme),
                      Header(":path", "/tessera.v1.ImageService/GetServerInfo"), Header(":authority", "localhost"),
                      Header("content-type", "application/grpc"), Header("te", te));
}

std::string Repeated(const std::string& text, size_t count) {
  std::string whole;
  for (size_t i = 0; i < count; ++i) whole += text;
  return whole;
}

// Splits one header block into as many frames as it needs.
std::string HeaderFrames(uint32_t stream, const std::string& block) {
  std::string frames;
  for (size_t at = 0; at < block.size(); at += kFrameBytes) {
    const bool is_first = at == 0, is_last = at + kFrameBytes >= block.size();
    frames += Frame(is_first ? kHeaders : kContinuation,
                    static_cast<uint8_t>((is_first ? kEndStream : 0) | (is_last ? kEndHeaders : 0)), stream,
                    block.substr(at, kFrameBytes));
  }
  return frames;
}

class HostileHttp2Test : public ::testing::Test {
 protected:
  HostileHttp2Test() : server_({.worker = FAKE_WORKER, .script = "", .groups = {"{model: TINY}"}}) {
    server_.options().arguments = {"--no-supervisor"};
    server_.options().grpc = "{port: 0}";
    EXPECT_TRUE(server_.Start());
    server_.WaitUntilReady();
  }

  // Sends `frames` as a client that has, or has not, acknowledged the server's settings. Waits until the server has
  // read them or closed the connection.
  void Send(const std::string& frames, bool agrees = true) {
    HttpTestClient connection(server_.grpc_port(), absl::Seconds(60));
    connection.Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(kSettings, 0, 0, "")));
    const std::string header_limit("\0\6\0\0\x40\0", 6);  // SETTINGS_MAX_HEADER_LIST_SIZE is 16384
    EXPECT_THAT(connection.ReadUntil(header_limit), ::testing::HasSubstr(header_limit));
    connection.Send(absl::StrCat(agrees ? Frame(kSettings, kAck, 0, "") : "", frames, Frame(kPing, 0, 0, "tessera!")));
    connection.ReadUntil("tessera!");
  }

  // Checks that the original process answers a real client.
  void ExpectAlive(const std::string& after) {
    const auto stub = v1::ImageService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_.grpc_port()), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ServerInfo info;
    const grpc::Status status = stub->GetServerInfo(&context, {}, &info);
    EXPECT_TRUE(status.ok()) << after << ": " << status.error_message();
  }

  TestServer server_;
};

TEST_F(HostileHttp2Test, HeadersThatAbortOtherVersionsOfGrpcAreRefused) {
  const std::string large = Repeated(Header("x-large", std::string(1000, 'a')), 40);
  const std::string tiny = Repeated(Header("x", ""), 3000);
  for (const bool agrees : {true, false}) {
    for (const std::string& rest : {large, tiny}) {
      Send(HeaderFrames(1, Call("http", "x") + rest), agrees);
      Send(HeaderFrames(1, Call("x") + rest), agrees);
      Send(HeaderFrames(1, Call() + Header("grpclb_client_stats", "x") + rest), agrees);
      Send(HeaderFrames(1, Header("te", "x") + rest + Call()), agrees);
      ExpectAlive(agrees ? "limits agreed" : "limits not agreed");
    }
  }
}

TEST_F(HostileHttp2Test, HeadersWithoutEndAreRefused) {
  // 8 MB in one header block without an end; lengths of values and tables with 10 kB of padding.
  std::string endless = Frame(kHeaders, kEndStream, 1, Call());
  for (int i = 0; i < 500; ++i) endless += Frame(kContinuation, 0, 1, Header("x", std::string(16000, 'a')));
  Send(endless);
  ExpectAlive("8 MB of headers");
  Send(HeaderFrames(1, absl::StrCat(Call(), std::string(1, '\0'), Length(1), "x", Length(127, 10000))));
  ExpectAlive("a padded length");
  Send(HeaderFrames(1, absl::StrCat(Call(), std::string(1, '\0'), Length(1), "x", Length(size_t{1} << 32))));
  ExpectAlive("a value of 4 GB");
  Send(HeaderFrames(1, Repeated("\x3f\xe1\x1f", 5000) + Call()));
  ExpectAlive("5000 changes of the size of the table");
}

TEST_F(HostileHttp2Test, HeadersThatCannotBeDecodedEndNoMoreThanTheirConnection) {
  Send(HeaderFrames(1, Call() + Header("x-bin", "no base64!")));
  ExpectAlive("a header that is no base64");
  Send(HeaderFrames(1, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"));
  ExpectAlive("an index beyond every table");
  Send(HeaderFrames(1, absl::StrCat(Call(), std::string(1, '\0'), Length(1), "x", "\xff\xff\xff\xff\xff")));
  ExpectAlive("a value cut short");
}

TEST_F(HostileHttp2Test, StreamsThatAreResetAtOnceLeaveNothing) {
  std::string frames;
  for (uint32_t stream = 1; stream < 40000; stream += 2) {
    frames += Frame(kHeaders, kEndHeaders, stream, Call()) + Frame(kReset, 0, stream, BigEndian(8, 4));
  }
  Send(frames);
  ExpectAlive("20000 resets");
}

TEST_F(HostileHttp2Test, FramesThatAreAgainstTheProtocolEndNoMoreThanTheirConnection) {
  for (const std::string& frames :
       {Frame(kData, 0, 0, "x"), Frame(kHeaders, kEndHeaders, 2, Call()), Frame(kWindow, 0, 0, BigEndian(0, 4)),
        Frame(kWindow, 0, 0, BigEndian(0x7fffffff, 4)), Frame(kSettings, 0, 0, "x"), Frame(kSettings, kAck, 0, "x"),
        Frame(kSettings, 0, 0, absl::StrCat(BigEndian(5, 2), BigEndian(0, 4))), Frame(kContinuation, 0, 1, "x"),
        Frame(kPing, 0, 1, "x"), Frame(static_cast<FrameType>(200), 0xff, 0x7fffffff, std::string(100, 'x')),
        BigEndian(0xffffff, 3) + std::string("\1\4\0\0\0\1", 6), std::string(1000, '\xff')}) {
    Send(frames);
    ExpectAlive("a frame against the protocol");
  }
  Send(Repeated(Frame(kPing, 0, 0, "12345678"), 10000));
  Send(Repeated(Frame(kSettings, 0, 0, ""), 10000));
  ExpectAlive("floods of pings and settings");
}

TEST_F(HostileHttp2Test, ConnectionsThatComeAndGoUnusedTakeNoPlace) {
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<HttpTestClient>> connections;
    for (int i = 0; i < 200; ++i) {
      connections.push_back(std::make_unique<HttpTestClient>(server_.grpc_port(), absl::Seconds(60)));
    }
  }
  ExpectAlive("a thousand connections");
}

TEST_F(HostileHttp2Test, APeerThatAgreesToNothingAndReadsNothingBlocksNoOther) {
  const std::string nothing(5, '\0');  // an empty message
  // Opens the flow-control windows fully.
  std::string frames = absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                    Frame(kSettings, 0, 0, absl::StrCat(BigEndian(4, 2), BigEndian(0x7fffffff, 4))),
                                    Frame(kWindow, 0, 0, BigEndian(0x7fffffff - 65535, 4)));
  for (uint32_t stream = 1; stream < 6000; stream += 2) {
    frames += Frame(kHeaders, kEndHeaders, stream, Call()) + Frame(kData, kEndStream, stream, nothing);
  }
  for (int round = 0; round < 10; ++round) {
    HttpTestClient connection(server_.grpc_port(), absl::Seconds(60));
    EXPECT_TRUE(connection.Send(frames));
    ExpectAlive("3000 calls whose answers are not read");
  }
}

TEST_F(HostileHttp2Test, MoreConnectionsThanThereAreDescriptorsTakeNoneFromOthersAndAreGoneWhenTheyAre) {
  const auto open_files = [this] {
    const std::optional<Holdings> holdings = HoldingsOf(server_.process().pid());
    return holdings.has_value() ? static_cast<rlim_t>(holdings->descriptors) : 0;
  };
  const rlim_t most = open_files() + 80;
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  ASSERT_EQ(prlimit(server_.process().pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  std::vector<std::unique_ptr<HttpTestClient>> connections;
  for (int i = 0; i < 200; ++i) connections.push_back(std::make_unique<HttpTestClient>(server_.grpc_port()));
  // The server has closed the last connection for lack of descriptors.
  EXPECT_TRUE(connections.back()->WaitForEnd());
  EXPECT_LT(open_files(), most - 10);
  EXPECT_EQ(server_.Call("GET", "/v1/models").status, 200);
  connections.clear();
  WaitUntil("their descriptors are free", [&] { return open_files() < most - 70; });
  ExpectAlive("more connections than descriptors");
}

}  // namespace
}  // namespace tessera
