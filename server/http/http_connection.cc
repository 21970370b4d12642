#include "server/http/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/request_reader.h"
#include "server/http/write_queue.h"

namespace tessera::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<tcp::socket>;

constexpr char kStatusLineBegin[] = "HTTP/1.1 ";  // of every answer
constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while a request is running
constexpr size_t kTlsPieceBytes = 16 << 10;      // what TLS writes at a time
constexpr size_t kMaxJoinedBytes = 64 << 10;     // up to this size a body is appended to its head to arrive with it
constexpr size_t kMaxDiscardedBytes = 4 << 20;   // read and discarded after a refusal, so that the client sees it
constexpr absl::Duration kDiscardTime = absl::Seconds(2);

// The phases of a connection. An answer begins after a request that was read completely or that cannot be read.
enum class Phase : uint8_t {
  kStarting,    // nothing was read yet; the TLS handshake may be in progress
  kIdle,        // between two requests
  kReading,     // a request has begun to arrive
  kHandling,    // the handler has the request
  kStreaming,   // the handler has begun a stream
  kFlushing,    // the answer is complete but not fully written
  kDiscarding,  // no answer will follow, and the client has not closed its side
  kEnded,
};

template <typename Stream>
class ConnectionOn final : public HttpConnection, public std::enable_shared_from_this<ConnectionOn<Stream>> {
 public:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  template <typename... StreamArguments>
  ConnectionOn(std::shared_ptr<HttpConnectionHost> host, std::shared_ptr<asio::ssl::context> tls,
               std::function<void(HttpConnection*)> ended, StreamArguments&&... stream)
      : host_(std::move(host)),
        tls_(std::move(tls)),
        ended_(std::move(ended)),
        stream_(std::forward<StreamArguments>(stream)...),
        deadline_(stream_.get_executor()),
        write_deadline_(stream_.get_executor()),
        heartbeat_timer_(stream_.get_executor()),
        reader_(host_->limits) {}

  void Start() override {
    Post([](ConnectionOn& self) { self.StartOnStrand(); });
  }
  void Drain() override {
    Post([](ConnectionOn& self) {
      if (self.phase_ == Phase::kIdle) self.End();
    });
  }
  void Close() override {
    Post([](ConnectionOn& self) { self.End(); });
  }

  std::optional<std::chrono::steady_clock::time_point> idle_since() const override {
    const int64_t since = idle_since_;
    if (since == kBusy || since == kGivesWay) return std::nullopt;
    return std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(since));
  }
  bool gives_way() const override { return idle_since_ == kGivesWay; }
  void CloseIfIdle() override {
    idle_since_ = kGivesWay;
    Post([](ConnectionOn& self) {
      if (!self.IsAnswering()) return self.End();
      self.idle_since_ = kBusy;
    });
  }

 private:
  static constexpr int64_t kBusy = 0;
  static constexpr int64_t kGivesWay = -1;

  // The answer to one request. Its calls reach the strand in order, and are dropped once another answer is due.
  class Reply final : public HttpReply {
   public:
    explicit Reply(std::shared_ptr<ConnectionOn> connection)
        : connection_(std::move(connection)), serial_(connection_->answer_.serial) {}
    ~Reply() override {
      if (!ended_) Post([](ConnectionOn& connection) { connection.End(); });
    }

    void Send(HttpResponse response) override {
      ended_ = true;
      const uint64_t bytes = response.BodyBytes();
      PostBytes(bytes, [response = std::move(response)](ConnectionOn& connection) mutable {
        if (connection.phase_ == Phase::kHandling) connection.SendResponse(std::move(response));
      });
    }
    void StartStream(HttpResponse head, Heartbeat heartbeat) override {
      Post([head = std::move(head), heartbeat = std::move(heartbeat)](ConnectionOn& connection) mutable {
        if (connection.phase_ == Phase::kHandling) connection.StartStreaming(std::move(head), std::move(heartbeat));
      });
    }
    void Write(std::string part) override {
      const uint64_t bytes = part.size();
      PostBytes(bytes, [bytes, part = std::move(part)](ConnectionOn& connection) mutable {
        if (connection.phase_ == Phase::kStreaming) connection.WritePart(bytes, std::move(part));
      });
    }
    void Write(base::SharedBytes part) override {
      const uint64_t bytes = part->size();
      PostBytes(bytes, [bytes, part = std::move(part)](ConnectionOn& connection) mutable {
        if (connection.phase_ == Phase::kStreaming) connection.WritePart(bytes, std::move(part));
      });
    }
    void Finish() override {
      ended_ = true;
      Post([](ConnectionOn& connection) {
        if (connection.phase_ == Phase::kStreaming) connection.FinishStreaming();
      });
    }
    uint64_t pending_bytes() const override { return connection_->pending_ + connection_->output_.bytes(); }
    void OnClosed(std::function<void()> closed) override {
      Post([closed = std::move(closed)](ConnectionOn& connection) mutable {
        if (connection.phase_ == Phase::kEnded) return closed();
        connection.answer_.on_closed = std::move(closed);
      });
    }

   private:
    template <typename Task>
    void Post(Task task) const {
      connection_->Post([serial = serial_, task = std::move(task)](ConnectionOn& connection) mutable {
        if (connection.answer_.serial == serial) task(connection);
      });
    }
    template <typename Task>
    void PostBytes(uint64_t bytes, Task task) const {
      connection_->pending_ += bytes;
      connection_->Post([bytes, serial = serial_, task = std::move(task)](ConnectionOn& connection) mutable {
        if (connection.answer_.serial == serial) task(connection);
        connection.pending_ -= bytes;
      });
    }

    const std::shared_ptr<ConnectionOn> connection_;
    const uint64_t serial_;
    std::atomic<bool> ended_ = false;
  };

  template <typename Task>
  void Post(Task task) {
    host_->Post(stream_.get_executor(),
                [self = this->shared_from_this(), task = std::move(task)]() mutable { task(*self); });
  }

  tcp::socket& Socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  // Returns an empty text if the client has disconnected.
  std::string Peer() {
    error_code error;
    const tcp::endpoint peer = Socket().remote_endpoint(error);
    return error ? "" : peer.address().to_string();
  }

  static int64_t SteadyTicks() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  bool IsAnswering() const { return phase_ >= Phase::kHandling && phase_ <= Phase::kFlushing; }

  // `time`: closes the connection unless it enters another phase first.
  void Enter(Phase phase, std::optional<absl::Duration> time = std::nullopt) {
    phase_ = phase;
    idle_since_ = IsAnswering() ? kBusy : SteadyTicks();
    if (time.has_value()) {
      Arm(deadline_, *time);
    } else {
      deadline_.cancel();
    }
  }

  // Closes the connection unless the timer is cancelled or armed again first.
  void Arm(asio::steady_timer& timer, absl::Duration time) {
    timer.expires_after(absl::ToChronoNanoseconds(time));
    timer.async_wait([self = this->shared_from_this(), &timer](error_code error) {
      // A timer that was armed again after this wait was queued has not expired.
      if (!error && timer.expiry() <= asio::steady_timer::clock_type::now()) self->OnTimeout();
    });
  }

  void OnTimeout() {
    if (phase_ != Phase::kReading || !output_.empty()) return End();
    if (large_body_.room != nullptr && !large_body_.is_read) {
      if (large_body_.room->has_room()) return OnRoom();
      return Refuse(503, "other requests' bodies occupy the memory for large bodies");
    }
    if (!KeepsRate()) return Refuse(408, "the request took too long to arrive");
  }

  // Whether a large body is arriving and its client has sent enough of it since the last check; then checks again
  // later.
  bool KeepsRate() {
    if (large_body_.room == nullptr) return false;
    const size_t received = reader_.body_bytes() - std::exchange(large_body_.checked_bytes, reader_.body_bytes());
    const double least = static_cast<double>(host_->limits.body_rate) * absl::ToDoubleSeconds(host_->limits.body_time);
    if (static_cast<double>(received) < std::floor(least)) return false;
    Enter(Phase::kReading, host_->limits.body_time);  // it is not idle
    return true;
  }

  void StartOnStrand() {
    if (phase_ != Phase::kStarting) return;
    if constexpr (kTls) {
      Arm(deadline_, host_->limits.header_time);
      stream_.async_handshake(asio::ssl::stream_base::server, [self = this->shared_from_this()](error_code error) {
        if (self->phase_ != Phase::kStarting) return;
        if (error) return self->End();
        self->BecomeIdle(self->host_->limits.header_time);
      });
    } else {
      error_code ignored;
      stream_.non_blocking(true, ignored);
      BecomeIdle(host_->limits.header_time);
    }
  }

  void BecomeIdle(absl::Duration time) {
    if (host_->draining()) return End();
    Enter(Phase::kIdle, time);
    reader_.Reset();
    sent_continue_ = false;
    Advance();
  }

  void ReadMore() {
    if (input_.pending || phase_ == Phase::kEnded) return;
    if (input_.ended) return IsAnswering() ? void() : End();
    if (IsAnswering() && input_.unread.size() >= kMaxPipelinedBytes) return;
    input_.pending = true;
    stream_.async_read_some(asio::buffer(input_.buffer),
                            [self = this->shared_from_this()](error_code error, size_t bytes) {
                              self->input_.pending = false;
                              self->OnRead(error, bytes);
                            });
  }

  void OnRead(error_code error, size_t bytes) {
    if (phase_ == Phase::kEnded) return;
    if (error == asio::error::eof && IsAnswering()) return OnInputEnd();
    if (error) return End();
    if (phase_ == Phase::kDiscarding) {
      input_.discarded_bytes += bytes;
      return input_.discarded_bytes > kMaxDiscardedBytes ? End() : ReadMore();
    }
    input_.unread.append(input_.buffer.data(), bytes);
    if (IsAnswering()) return ReadMore();
    Advance();
  }

  // The client has closed its sending side while an answer is due: it is either waiting or gone. Only its host's
  // reaction to written bytes shows which, so the common beginning of every answer is written at once.
  void OnInputEnd() {
    input_.ended = true;
    Socket().async_wait(tcp::socket::wait_error, [self = this->shared_from_this()](error_code error) {
      if (!error) self->End();
    });
    if (phase_ == Phase::kHandling) {
      answer_.begun_bytes = sizeof(kStatusLineBegin) - 1;
      QueueWrite(kStatusLineBegin);
    } else if (phase_ == Phase::kStreaming) {
      WriteHeartbeat();
    }
  }

  // Returns whether the client may send another request after the one that is being answered.
  bool MayKeepAlive() const {
    return answer_.keep_alive && !host_->draining() && !(input_.ended && input_.unread.empty());
  }

  // Returns the head of the answer without the part that was already written.
  std::string HeadOf(const HttpResponse& response, BodyFraming framing) const {
    return ResponseHead(response, framing, answer_.keep_alive).substr(answer_.begun_bytes);
  }

  // Reads as much of a request as has arrived.
  void Advance() {
    if (input_.unread.empty()) return ReadMore();
    if (phase_ == Phase::kIdle) Enter(Phase::kReading, host_->limits.header_time);
    const bool had_header = reader_.has_header();
    switch (reader_.Read(input_.unread)) {
      case RequestReader::Progress::kMore:
        if (!had_header && reader_.has_header()) return OnHeader();
        return ReadMore();
      case RequestReader::Progress::kLarge:
        return OnLargeBody();
      case RequestReader::Progress::kComplete:
        return OnRequest();
      case RequestReader::Progress::kRefused:
        return Refuse(reader_.refusal_status(), reader_.refusal_reason());
    }
  }

  void OnHeader() {
    Arm(deadline_, host_->limits.body_time);
    if (reader_.expects_continue()) {
      HttpRequest head = Head();
      if (!host_->handler.MostBodyBytes(head).has_value()) return Dispatch(std::move(head));
      SendContinue();
    }
    ReadMore();
  }

  void SendContinue() {
    if (!std::exchange(sent_continue_, true)) QueueWrite(ContinueHead());
  }

  HttpRequest Head() {
    HttpRequest head = reader_.Head();
    head.secure = kTls;
    head.peer = Peer();
    head.has_body = false;
    return head;
  }

  // A body above the ordinary limit is read if the handler allows it, once there is room for all of it.
  void OnLargeBody() {
    HttpRequest head = Head();
    const std::optional<size_t> most = host_->handler.MostBodyBytes(head);
    if (!most.has_value()) return Dispatch(std::move(head));
    const std::optional<size_t> bytes = reader_.AllowLarge(std::min(*most, host_->limits.receiving_bytes));
    if (!bytes.has_value()) return Refuse(reader_.refusal_status(), reader_.refusal_reason());
    large_body_.room = host_->body_budget->Ask(*bytes, [connection = this->weak_from_this()] {
      const auto self = connection.lock();
      if (self != nullptr) self->Post([](ConnectionOn& self) { self.OnRoom(); });
    });
    Arm(deadline_, host_->limits.body_time);
    if (large_body_.room->has_room()) OnRoom();
  }

  void OnRoom() {
    if (phase_ != Phase::kReading || large_body_.is_read) return;
    reader_.ReserveLarge();
    large_body_.is_read = true;
    large_body_.checked_bytes = reader_.body_bytes();
    Enter(Phase::kReading, host_->limits.body_time);
    if (reader_.expects_continue()) SendContinue();
    Advance();
  }

  void OnRequest() {
    HttpRequest request = reader_.TakeRequest();
    request.secure = kTls;
    request.peer = Peer();
    if (large_body_.room != nullptr) {
      large_body_.room->Shrink(request.body.size());
      request.body_room = std::move(large_body_.room);
      large_body_ = {};
    }
    Dispatch(std::move(request));
  }

  void Dispatch(HttpRequest request) {
    Enter(Phase::kHandling);
    answer_.keep_alive = request.has_body && reader_.keep_alive();
    answer_.framing = request.http_1_1 ? BodyFraming::kChunked : BodyFraming::kUntilClose;
    answer_.is_head = request.method == "HEAD";
    auto reply = std::make_shared<Reply>(this->shared_from_this());
    if (host_->handler.AnswersAtOnce(request)) {
      host_->handler.Handle(std::move(request), std::move(reply));
    } else {
      asio::post(host_->handlers, [host = host_, request = std::move(request), reply = std::move(reply)]() mutable {
        host->handler.Handle(std::move(request), std::move(reply));
      });
    }
    ReadMore();  // to notice that the client disconnects or stops sending
  }

  // Answers a request that could not be read, and closes.
  void Refuse(int status, const std::string& reason) {
    Enter(Phase::kHandling);
    answer_.keep_alive = answer_.is_head = false;
    HttpResponse response = host_->handler.Refusal(status, reason, Peer());
    FreeBody();
    SendResponse(std::move(response));
  }

  void FreeBody() {
    reader_.Reset();
    large_body_ = {};
  }

  void SendResponse(HttpResponse response) {
    answer_.keep_alive = MayKeepAlive();
    std::string bytes = HeadOf(response, BodyFraming::kLength);
    const bool has_body = !answer_.is_head && response.status != 204 && response.status != 304;
    if (has_body && response.pieces == nullptr && response.body.size() <= kMaxJoinedBytes) {
      bytes += std::exchange(response.body, {});
    }
    QueueWrite(std::move(bytes));
    if (has_body) response.pieces == nullptr ? QueueWrite(std::move(response.body)) : QueueWrite(response.pieces);
    CompleteReply();
  }

  void StartStreaming(HttpResponse head, HttpReply::Heartbeat heartbeat) {
    phase_ = Phase::kStreaming;
    answer_.heartbeat = std::move(heartbeat);
    answer_.keep_alive = MayKeepAlive() && answer_.framing == BodyFraming::kChunked;
    QueueWrite(HeadOf(head, answer_.framing));
    const uint64_t bytes = head.body.size();
    WritePart(bytes, std::move(head.body));
    ArmHeartbeat();
  }

  // Writes a text, or a body that is read while it is sent.
  template <typename Part>
  void WritePart(uint64_t bytes, Part part) {
    if (bytes == 0 || answer_.is_head) return;
    const bool chunked = answer_.framing == BodyFraming::kChunked;
    if constexpr (std::is_same_v<Part, std::string>) {
      if (chunked) part = absl::StrCat(ChunkHead(bytes), part, kChunkEnd);
      QueueWrite(std::move(part));
    } else {
      if (chunked) QueueWrite(ChunkHead(bytes));
      QueueWrite(std::move(part));
      if (chunked) QueueWrite(kChunkEnd);
    }
    ArmHeartbeat();
    if (output_.bytes() > host_->limits.pending_bytes) End();
  }

  void WriteHeartbeat() { WritePart(answer_.heartbeat.text.size(), answer_.heartbeat.text); }

  void FinishStreaming() {
    heartbeat_timer_.cancel();
    if (answer_.framing == BodyFraming::kChunked && !answer_.is_head) QueueWrite(LastChunk());
    CompleteReply();
  }

  // The next write restarts the timer.
  void ArmHeartbeat() {
    if (answer_.heartbeat.text.empty()) return;
    heartbeat_timer_.expires_after(absl::ToChronoNanoseconds(answer_.heartbeat.interval));
    heartbeat_timer_.async_wait([self = this->shared_from_this(), serial = answer_.serial](error_code error) {
      if (error || serial != self->answer_.serial || self->phase_ != Phase::kStreaming) return;
      if (self->output_.empty() && !self->answer_.is_head) return self->WriteHeartbeat();
      self->ArmHeartbeat();
    });
  }

  void CompleteReply() {
    phase_ = Phase::kFlushing;
    ++answer_.serial;
    answer_.on_closed = nullptr;
    answer_.begun_bytes = 0;
    if (output_.empty()) OnAllWritten();
  }

  void QueueWrite(std::string bytes) {
    if (bytes.empty() || phase_ == Phase::kEnded) return;
    if (output_.Add(std::move(bytes))) WriteSome();
  }
  void QueueWrite(base::SharedBytes bytes) {
    if (bytes->size() == 0 || phase_ == Phase::kEnded) return;
    if (output_.Add(std::move(bytes))) WriteSome();
  }

  // Writes what the socket accepts immediately, so that a client that has read the end of an answer finds the
  // connection idle even if one thread serves both. TLS may hold bytes back. Errors are reported later in either case.
  void WriteSome() {
    if (output_.source() != nullptr) return AwaitRoom();
    if constexpr (!kTls) {
      error_code error;
      output_.Remove(stream_.write_some(asio::buffer(output_.held()), error));
      if (output_.empty()) return;
      if (output_.source() != nullptr) return AwaitRoom();
    }
    WriteLater(output_.held());
  }

  void WriteLater(std::string_view bytes) {
    Arm(write_deadline_, host_->limits.write_time);
    stream_.async_write_some(asio::buffer(bytes), [self = this->shared_from_this()](error_code error, size_t written) {
      self->piece_ = std::string();
      self->OnWritten(error, written);
    });
  }

  // A piece is read only when the socket accepts bytes, so a client that reads nothing occupies no memory.
  void AwaitRoom() {
    Arm(write_deadline_, host_->limits.write_time);
    Socket().async_wait(tcp::socket::wait_write, [self = this->shared_from_this()](error_code error) {
      if (self->phase_ == Phase::kEnded) return;
      if (error) return self->End();
      self->write_deadline_.cancel();
      self->host_->piece_turns->Ask([self](PieceTurns::Turn turn) {
        self->Post(
            [turn = std::move(turn)](ConnectionOn& connection) mutable { connection.ReadPiece(std::move(turn)); });
      });
    });
  }

  void ReadPiece(PieceTurns::Turn turn) {
    if (phase_ == Phase::kEnded) return;
    asio::post(host_->handlers, [self = this->shared_from_this(), source = output_.source(), offset = output_.offset(),
                                 turn = std::move(turn)]() mutable {
      absl::StatusOr<std::string> piece = source->Read(offset, kTls ? kTlsPieceBytes : kPieceBytes);
      self->Post([piece = std::move(piece), turn = std::move(turn)](ConnectionOn& connection) mutable {
        connection.WritePiece(std::move(piece));
      });
    });
  }

  // Bytes that the socket does not accept are read again later. TLS keeps its piece until it is written.
  void WritePiece(absl::StatusOr<std::string> piece) {
    if (phase_ == Phase::kEnded) return;
    if (!piece.ok()) return Reset();
    if constexpr (kTls) {
      piece_ = *std::move(piece);
      WriteLater(piece_);
    } else {
      error_code error;
      const size_t bytes = stream_.write_some(asio::buffer(*piece), error);
      OnWritten(error == asio::error::would_block ? error_code() : error, bytes);
    }
  }

  // Resets the connection, so that the client cannot mistake a partial body for a complete one, even if the end of the
  // connection ends the body.
  void Reset() {
    error_code ignored;
    Socket().set_option(asio::socket_base::linger(true, 0), ignored);
    End();
  }

  void OnWritten(error_code error, size_t bytes) {
    if (phase_ == Phase::kEnded) return;
    if (error) return End();
    output_.Remove(bytes);
    if (!output_.empty()) WriteSome();
    if (!output_.empty()) return;
    write_deadline_.cancel();
    if (phase_ == Phase::kFlushing) OnAllWritten();
  }

  void OnAllWritten() {
    if (answer_.keep_alive && !host_->draining()) return BecomeIdle(host_->limits.idle_time);
    Enter(Phase::kDiscarding, kDiscardTime);
    input_.unread.clear();
    if constexpr (kTls) {
      stream_.async_shutdown([self = this->shared_from_this()](error_code) { self->End(); });
    } else {
      error_code ignored;
      Socket().shutdown(tcp::socket::shutdown_send, ignored);
      ReadMore();
    }
  }

  void End() {
    if (phase_ == Phase::kEnded) return;
    Enter(Phase::kEnded);
    error_code ignored;
    Socket().close(ignored);
    FreeBody();
    write_deadline_.cancel();
    heartbeat_timer_.cancel();
    if (const auto closed = std::exchange(answer_.on_closed, nullptr)) closed();
    std::exchange(ended_, nullptr)(this);
  }

  const std::shared_ptr<HttpConnectionHost> host_;
  const std::shared_ptr<asio::ssl::context> tls_;
  std::function<void(HttpConnection*)> ended_;
  Stream stream_;
  asio::steady_timer deadline_;  // for the current phase
  asio::steady_timer write_deadline_;
  asio::steady_timer heartbeat_timer_;
  RequestReader reader_;
  bool sent_continue_ = false;  // to the client of the current request
  struct {
    std::unique_ptr<BodyBudget::Claim> room;  // null: the body is not large
    bool is_read = false;                     // there is room
    size_t checked_bytes = 0;                 // received when the rate was last checked
  } large_body_;

  Phase phase_ = Phase::kStarting;
  // Time on the steady clock; kBusy while a request is running, kGivesWay once the connection is to close for another.
  std::atomic<int64_t> idle_since_ = SteadyTicks();
  struct {
    bool pending = false;  // a read is pending
    bool ended = false;    // the client has closed its sending side
    std::array<char, kReadBytes> buffer;
    std::string unread;  // not yet consumed
    size_t discarded_bytes = 0;
  } input_;
  struct {
    uint64_t serial = 0;  // number of completed answers, which is the number of the current one
    bool keep_alive = false, is_head = false;
    size_t begun_bytes = 0;  // bytes of the head that were written before the rest is known
    BodyFraming framing = BodyFraming::kChunked;
    HttpReply::Heartbeat heartbeat;
    std::function<void()> on_closed;
  } answer_;
  WriteQueue output_;
  std::string piece_;                  // piece that TLS is writing
  std::atomic<uint64_t> pending_ = 0;  // bytes posted to the strand
};

}  // namespace

std::shared_ptr<HttpConnection> HttpConnection::Create(std::shared_ptr<HttpConnectionHost> host, tcp::socket socket,
                                                       std::shared_ptr<asio::ssl::context> tls,
                                                       std::function<void(HttpConnection*)> ended) {
  if (tls == nullptr) {
    return std::make_shared<ConnectionOn<tcp::socket>>(std::move(host), nullptr, std::move(ended), std::move(socket));
  }
  asio::ssl::context& context = *tls;
  return std::make_shared<ConnectionOn<TlsStream>>(std::move(host), std::move(tls), std::move(ended), std::move(socket),
                                                   context);
}

}  // namespace tessera::server
