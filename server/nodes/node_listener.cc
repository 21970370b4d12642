#include "server/nodes/node_listener.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/macros/status_macros.h"
#include "server/api/generation_request.h"
#include "server/grpc/grpc_log.h"
#include "server/nodes/silence_watch.h"
#include "server/nodes/stream_writer.h"
#include "tessera/internal/node.grpc.pb.h"

namespace tessera::server {
namespace {

using internal::FromNode;
using internal::ToNode;
using ListenerStream = grpc::ServerReaderWriter<ToNode, FromNode>;

constexpr int kMostMessageBytes = 16 << 20;
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
constexpr std::chrono::seconds kEndTimeout{1};

// One connection. Its users may hold it longer than its stream lives.
class StreamLink final : public NodeLink {
 public:
  StreamLink(grpc::ServerContext& context, ListenerStream& stream)
      : context_(&context),
        writer_(std::make_unique<StreamWriter<ListenerStream, ToNode>>(stream, [this] { Cancel(); })) {}

  void Send(ToNode message) override {
    const std::lock_guard lock(mutex_);
    if (writer_ != nullptr) writer_->Push(std::move(message));
  }
  void Cancel() override {
    const std::lock_guard lock(context_mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
  // Must be called before the stream is destroyed.
  void End() {
    std::unique_ptr<StreamWriter<ListenerStream, ToNode>> writer;
    {
      const std::lock_guard lock(mutex_);
      writer = std::move(writer_);
    }
    writer.reset();
    const std::lock_guard lock(context_mutex_);
    context_ = nullptr;
  }

 private:
  std::mutex context_mutex_;
  grpc::ServerContext* context_;  // guarded by context_mutex_; null: the stream has ended
  std::mutex mutex_;
  std::unique_ptr<StreamWriter<ListenerStream, ToNode>> writer_;  // guarded by mutex_; null: the stream has ended
};

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

class ListenerImpl final : public NodeListener, public internal::NodeController::Service {
 public:
  ListenerImpl(NodeListenerOptions options, NodeRegistry& registry)
      : options_(std::move(options)), registry_(registry) {}
  ~ListenerImpl() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kEndTimeout);
  }

  absl::Status Listen() {
    KeepGrpcQuiet();
    grpc::ServerBuilder builder;
    int port = 0;
    const bool is_ipv6 = absl::StrContains(options_.address, ':');
    builder.AddListeningPort(absl::StrCat(is_ipv6 ? "[" : "", options_.address, is_ipv6 ? "]:" : ":", options_.port),
                             NodeServerCredentials(options_.files), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(
          absl::StrCat("nodes.listen: ", options_.address, " port ", options_.port, " cannot be listened on"));
    }
    port_ = static_cast<uint16_t>(port);
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

  grpc::Status Join(grpc::ServerContext* context, ListenerStream* stream) override {
    FromNode first;
    absl::Status status = CheckPeer(*context->auth_context(), options_.files, absl::Now());
    if (status.ok()) status = ReadHello(*context, *stream, first);
    if (!status.ok()) return Refuse(*context, first.hello().name(), status);
    const auto link = std::make_shared<StreamLink>(*context, *stream);
    internal::NodeWelcome welcome;
    welcome.set_beat_ms(absl::ToInt64Milliseconds(options_.beat));
    welcome.set_lost_after_ms(absl::ToInt64Milliseconds(options_.lost_after));
    const absl::StatusOr<uint64_t> epoch = registry_.Admit(first.hello(), link, welcome);
    if (!epoch.ok()) {
      link->End();
      return Refuse(*context, first.hello().name(), epoch.status());
    }
    status = Serve(*stream, *link, first.hello().name(), *epoch);
    registry_.Lose(first.hello().name(), *epoch, std::string(status.message()));
    link->Cancel();
    link->End();
    return ToGrpc(status);
  }

 private:
  grpc::Status Refuse(const grpc::ServerContext& context, const std::string& name, const absl::Status& status) {
    const std::string who = name.empty() ? "a node" : absl::StrCat("node ", QuotedValue(name.substr(0, kMostShown)));
    base::LogLine line(base::LogLevel::kWarning, absl::StrCat(who, " is refused: ", std::string(status.message())),
                       {{"peer", context.peer()}, {"reason", std::string(status.message())}});
    line.event = "node";
    options_.log(line);
    return ToGrpc(status);
  }

  absl::Status ReadHello(grpc::ServerContext& context, ListenerStream& stream, FromNode& first) {
    bool read = false;
    {
      const SilenceWatch watch(
          kHelloTimeout / 10, kHelloTimeout, [] {}, [&] { context.TryCancel(); });
      read = stream.Read(&first);
    }
    if (!read || !first.has_hello()) return absl::InvalidArgumentError("its first message does not identify it");
    const absl::StatusOr<std::string> token = ReadNodeToken(options_.files);
    if (!token.ok()) return absl::UnavailableError("the server's own token cannot be read");
    if (!SameSecret(*token, first.hello().token())) {
      return absl::UnauthenticatedError(first.hello().token().empty() ? "it sent no token"
                                                                      : "its token is not the server's");
    }
    return absl::OkStatus();
  }

  // Serves until the connection ends; returns why it ended.
  absl::Status Serve(ListenerStream& stream, StreamLink& link, const std::string& name, uint64_t epoch) {
    const auto beat = [&] {
      ToNode message;
      message.set_epoch(epoch);
      message.mutable_beat();
      link.Send(std::move(message));
    };
    SilenceWatch watch(options_.beat, options_.lost_after, beat, [&] {
      registry_.Lose(name, epoch, Silence());
      link.Cancel();
    });
    FromNode message;
    while (stream.Read(&message)) {
      watch.Heard();
      if (message.epoch() != epoch) return absl::InvalidArgumentError("its message has the wrong epoch");
      RETURN_IF_ERROR(registry_.Receive(name, message));
    }
    return absl::UnavailableError(watch.is_silent() ? Silence() : "its connection has ended");
  }

  std::string Silence() const {
    return absl::StrCat("it sent nothing for ", absl::FormatDuration(options_.lost_after));
  }

  const NodeListenerOptions options_;
  NodeRegistry& registry_;
  std::unique_ptr<grpc::Server> server_;
  uint16_t port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeListener>> NodeListener::Start(const NodeListenerOptions& options,
                                                                  NodeRegistry& registry) {
  RETURN_IF_ERROR(CheckNodeFiles(options.files));
  auto listener = std::make_unique<ListenerImpl>(options, registry);
  RETURN_IF_ERROR(listener->Listen());
  return listener;
}

}  // namespace tessera::server
