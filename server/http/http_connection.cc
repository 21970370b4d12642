#include "server/http/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/request_reader.h"

namespace tessera {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<tcp::socket>;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while a request is under way
constexpr size_t kMaxLingeringBytes = 4 << 20;   // read and thrown away after a refusal, so that the client sees it
constexpr auto kLingeringTime = std::chrono::seconds(2);

// What a reply tells the connection it belongs to.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void PostSend(uint64_t serial, HttpResponse response) = 0;
  virtual void PostStart(uint64_t serial, HttpResponse head, HttpReply::Heartbeat heartbeat) = 0;
  virtual void PostWrite(uint64_t serial, std::string part) = 0;
  virtual void PostFinish(uint64_t serial) = 0;
  virtual void PostAbandon(uint64_t serial) = 0;
  virtual void PostOnClosed(uint64_t serial, std::function<void()> closed) = 0;
  virtual size_t pending_bytes() const = 0;
};

class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<ReplySink> sink, uint64_t serial) : sink_(std::move(sink)), serial_(serial) {}
  ~Reply() override {
    if (!ended_) sink_->PostAbandon(serial_);
  }

  void Send(HttpResponse response) override {
    ended_ = true;
    sink_->PostSend(serial_, std::move(response));
  }
  void StartStream(HttpResponse head, Heartbeat heartbeat) override {
    sink_->PostStart(serial_, std::move(head), std::move(heartbeat));
  }
  void Write(std::string part) override { sink_->PostWrite(serial_, std::move(part)); }
  void Finish() override {
    ended_ = true;
    sink_->PostFinish(serial_);
  }
  size_t pending_bytes() const override { return sink_->pending_bytes(); }
  void OnClosed(std::function<void()> closed) override { sink_->PostOnClosed(serial_, std::move(closed)); }

 private:
  const std::shared_ptr<ReplySink> sink_;
  const uint64_t serial_;
  std::atomic<bool> ended_ = false;
};

template <typename Stream>
class ConnectionOn final : public HttpConnection,
                           public ReplySink,
                           public std::enable_shared_from_this<ConnectionOn<Stream>> {
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
      if (self.state_ == State::kIdle) self.End();
    });
  }
  void Close() override {
    Post([](ConnectionOn& self) { self.End(); });
  }

  std::optional<std::chrono::steady_clock::time_point> idle_since() const override {
    const int64_t since = idle_since_;
    if (since == kBusy || making_room_) return std::nullopt;
    return std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(since));
  }
  void CloseIfIdle() override {
    making_room_ = true;
    Post([](ConnectionOn& self) {
      self.making_room_ = false;
      if (self.idle_since_ != kBusy) self.End();
    });
  }

  void PostSend(uint64_t serial, HttpResponse response) override {
    pending_ += response.body.size();
    Post([serial, response = std::move(response)](ConnectionOn& self) mutable {
      const size_t bytes = response.body.size();
      if (self.IsCurrent(serial) && !self.streaming_) self.SendResponse(std::move(response));
      self.pending_ -= bytes;
    });
  }
  void PostStart(uint64_t serial, HttpResponse head, HttpReply::Heartbeat heartbeat) override {
    Post([serial, head = std::move(head), heartbeat = std::move(heartbeat)](ConnectionOn& self) mutable {
      if (self.IsCurrent(serial) && !self.streaming_) self.StartStreaming(std::move(head), std::move(heartbeat));
    });
  }
  void PostWrite(uint64_t serial, std::string part) override {
    pending_ += part.size();
    Post([serial, part = std::move(part)](ConnectionOn& self) mutable {
      const size_t bytes = part.size();
      if (self.IsCurrent(serial) && self.streaming_) self.WritePart(std::move(part));
      self.pending_ -= bytes;
    });
  }
  void PostFinish(uint64_t serial) override {
    Post([serial](ConnectionOn& self) {
      if (self.IsCurrent(serial) && self.streaming_) self.FinishStreaming();
    });
  }
  void PostAbandon(uint64_t serial) override {
    Post([serial](ConnectionOn& self) {
      if (self.IsCurrent(serial)) self.End();
    });
  }
  void PostOnClosed(uint64_t serial, std::function<void()> closed) override {
    Post([serial, closed = std::move(closed)](ConnectionOn& self) mutable {
      if (self.state_ == State::kEnded && self.serial_ == serial && !self.reply_complete_) {
        closed();
      } else if (self.IsCurrent(serial)) {
        self.on_closed_ = std::move(closed);
      }
    });
  }
  size_t pending_bytes() const override { return pending_ + queued_; }

 private:
  static constexpr int64_t kBusy = 0;
  enum class State : uint8_t { kStarting, kIdle, kReading, kHandling, kLingering, kEnded };

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

  // Empty once the client is gone.
  std::string Peer() {
    error_code error;
    const tcp::endpoint peer = Socket().remote_endpoint(error);
    return error ? "" : peer.address().to_string();
  }

  static int64_t SteadyTicks() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  bool IsCurrent(uint64_t serial) const { return state_ == State::kHandling && serial == serial_ && !reply_complete_; }

  // Closes the connection unless it is disarmed or armed again first.
  void Arm(asio::steady_timer& timer, std::chrono::nanoseconds time) {
    timer.expires_after(time);
    timer.async_wait([self = this->shared_from_this(), &timer](error_code error) {
      // A timer that was armed anew after this wait had been queued has not expired.
      if (!error && timer.expiry() <= asio::steady_timer::clock_type::now()) self->OnTimeout();
    });
  }
  void Arm(asio::steady_timer& timer, absl::Duration time) { Arm(timer, absl::ToChronoNanoseconds(time)); }

  void OnTimeout() {
    if (state_ == State::kReading && write_queue_.empty()) return Refuse(408, "the request took too long to arrive");
    End();
  }

  void StartOnStrand() {
    if (state_ != State::kStarting) return;
    if constexpr (kTls) {
      Arm(deadline_, host_->limits.header_time);
      stream_.async_handshake(asio::ssl::stream_base::server, [self = this->shared_from_this()](error_code error) {
        if (self->state_ != State::kStarting) return;
        if (error) return self->End();
        self->BecomeIdle(self->host_->limits.header_time);
      });
    } else {
      BecomeIdle(host_->limits.header_time);
    }
  }

  void BecomeIdle(absl::Duration patience) {
    if (host_->draining()) return End();
    state_ = State::kIdle;
    idle_since_ = SteadyTicks();
    reader_.Reset();
    Arm(deadline_, patience);
    Advance();
  }

  void ReadMore() {
    if (read_pending_ || state_ == State::kEnded) return;
    if (state_ == State::kHandling && input_.size() >= kMaxPipelinedBytes) return;
    read_pending_ = true;
    stream_.async_read_some(asio::buffer(read_buffer_),
                            [self = this->shared_from_this()](error_code error, size_t bytes) {
                              self->read_pending_ = false;
                              self->OnRead(error, bytes);
                            });
  }

  void OnRead(error_code error, size_t bytes) {
    if (state_ == State::kEnded) return;
    if (error) return End();
    if (state_ == State::kLingering) {
      lingered_ += bytes;
      return lingered_ > kMaxLingeringBytes ? End() : ReadMore();
    }
    input_.append(read_buffer_.data(), bytes);
    if (state_ == State::kHandling) return ReadMore();
    Advance();
  }

  // Reads as much of a request as there is.
  void Advance() {
    if (input_.empty()) return ReadMore();
    if (state_ == State::kIdle) {
      state_ = State::kReading;
      idle_since_ = SteadyTicks();
      Arm(deadline_, host_->limits.header_time);
    }
    const bool had_header = reader_.has_header();
    switch (reader_.Read(input_)) {
      case RequestReader::Progress::kMore:
        if (!had_header && reader_.has_header()) OnHeader();
        return ReadMore();
      case RequestReader::Progress::kComplete:
        return Dispatch();
      case RequestReader::Progress::kRefused:
        return Refuse(reader_.refusal_status(), reader_.refusal_reason());
    }
  }

  void OnHeader() {
    Arm(deadline_, host_->limits.body_time);
    if (reader_.expects_continue()) QueueWrite("HTTP/1.1 100 Continue\r\n\r\n");
  }

  void Dispatch() {
    deadline_.cancel();
    state_ = State::kHandling;
    idle_since_ = kBusy;
    ++serial_;
    streaming_ = reply_complete_ = false;
    keep_alive_ = reader_.keep_alive();
    can_chunk_ = reader_.is_http_1_1();
    HttpRequest request = reader_.TakeRequest();
    is_head_ = request.method == "HEAD";
    request.secure = kTls;
    request.peer = Peer();
    auto reply = std::make_shared<Reply>(this->shared_from_this(), serial_);
    if (host_->handler.AnswersAtOnce(request)) {
      host_->handler.Handle(std::move(request), std::move(reply));
    } else {
      asio::post(host_->handlers, [host = host_, request = std::move(request), reply = std::move(reply)]() mutable {
        host->handler.Handle(std::move(request), std::move(reply));
      });
    }
    ReadMore();  // to notice that the client goes away
  }

  // Answers what could not be read, and closes.
  void Refuse(int status, const std::string& reason) {
    deadline_.cancel();
    state_ = State::kHandling;
    idle_since_ = kBusy;
    ++serial_;
    streaming_ = reply_complete_ = false;
    keep_alive_ = is_head_ = false;
    SendResponse(host_->handler.Refusal(status, reason, Peer()));
  }

  void SendResponse(HttpResponse response) {
    keep_alive_ = keep_alive_ && !host_->draining();
    QueueWrite(ResponseHead(response, BodyFraming::kLength, keep_alive_));
    if (!is_head_ && response.status != 204 && response.status != 304) QueueWrite(std::move(response.body));
    CompleteReply();
  }

  void StartStreaming(HttpResponse head, HttpReply::Heartbeat heartbeat) {
    streaming_ = true;
    heartbeat_ = std::move(heartbeat);
    keep_alive_ = keep_alive_ && !host_->draining() && can_chunk_;
    QueueWrite(ResponseHead(head, can_chunk_ ? BodyFraming::kChunked : BodyFraming::kUntilClose, keep_alive_));
    WritePart(std::move(head.body));
    ArmHeartbeat();
  }

  void WritePart(std::string part) {
    if (part.empty() || is_head_) return;
    if (can_chunk_) {
      QueueWrite(absl::StrCat(absl::Hex(part.size()), "\r\n"));
      part.append("\r\n");
    }
    QueueWrite(std::move(part));
    if (queued_ > host_->limits.pending_bytes) End();
  }

  void FinishStreaming() {
    heartbeat_timer_.cancel();
    if (can_chunk_ && !is_head_) QueueWrite("0\r\n\r\n");
    CompleteReply();
  }

  void ArmHeartbeat() {
    if (heartbeat_.text.empty()) return;
    heartbeat_timer_.expires_after(absl::ToChronoNanoseconds(heartbeat_.interval));
    heartbeat_timer_.async_wait([self = this->shared_from_this(), serial = serial_](error_code error) {
      if (error || !self->IsCurrent(serial)) return;
      if (self->write_queue_.empty() && !self->wrote_since_heartbeat_) self->WritePart(self->heartbeat_.text);
      self->wrote_since_heartbeat_ = false;
      self->ArmHeartbeat();
    });
  }

  void CompleteReply() {
    reply_complete_ = true;
    on_closed_ = nullptr;
    if (write_queue_.empty()) OnAllWritten();
  }

  void QueueWrite(std::string bytes) {
    if (bytes.empty() || state_ == State::kEnded) return;
    wrote_since_heartbeat_ = true;
    queued_ += bytes.size();
    write_queue_.push_back(std::move(bytes));
    if (write_queue_.size() == 1) WriteSome();
  }

  void WriteSome() {
    Arm(write_deadline_, host_->limits.write_time);
    const std::string& front = write_queue_.front();
    stream_.async_write_some(
        asio::buffer(front.data() + written_, front.size() - written_),
        [self = this->shared_from_this()](error_code error, size_t bytes) { self->OnWritten(error, bytes); });
  }

  void OnWritten(error_code error, size_t bytes) {
    if (state_ == State::kEnded) return;
    if (error) return End();
    written_ += bytes;
    queued_ -= bytes;
    if (written_ == write_queue_.front().size()) {
      write_queue_.pop_front();
      written_ = 0;
    }
    if (!write_queue_.empty()) return WriteSome();
    write_deadline_.cancel();
    if (state_ == State::kHandling && reply_complete_) OnAllWritten();
  }

  void OnAllWritten() {
    if (keep_alive_ && !host_->draining()) return BecomeIdle(host_->limits.idle_time);
    state_ = State::kLingering;
    idle_since_ = SteadyTicks();
    input_.clear();
    Arm(deadline_, kLingeringTime);
    if constexpr (kTls) {
      stream_.async_shutdown([self = this->shared_from_this()](error_code) { self->End(); });
    } else {
      error_code ignored;
      Socket().shutdown(tcp::socket::shutdown_send, ignored);
      ReadMore();
    }
  }

  void End() {
    if (state_ == State::kEnded) return;
    state_ = State::kEnded;
    error_code ignored;
    Socket().close(ignored);
    deadline_.cancel();
    write_deadline_.cancel();
    heartbeat_timer_.cancel();
    if (const auto closed = std::exchange(on_closed_, nullptr)) closed();
    std::exchange(ended_, nullptr)(this);
  }

  const std::shared_ptr<HttpConnectionHost> host_;
  const std::shared_ptr<asio::ssl::context> tls_;
  std::function<void(HttpConnection*)> ended_;
  Stream stream_;
  asio::steady_timer deadline_;  // of the phase the connection is in
  asio::steady_timer write_deadline_;
  asio::steady_timer heartbeat_timer_;
  RequestReader reader_;

  State state_ = State::kStarting;
  std::atomic<int64_t> idle_since_ = SteadyTicks();  // of the steady clock; kBusy while a request is under way
  std::atomic<bool> making_room_ = false;
  bool read_pending_ = false;
  std::array<char, kReadBytes> read_buffer_;
  std::string input_;  // read and not yet consumed
  size_t lingered_ = 0;

  uint64_t serial_ = 0;  // of the request under way
  bool keep_alive_ = false, is_head_ = false, can_chunk_ = false;
  bool streaming_ = false, reply_complete_ = false, wrote_since_heartbeat_ = false;
  HttpReply::Heartbeat heartbeat_;
  std::function<void()> on_closed_;

  std::deque<std::string> write_queue_;
  size_t written_ = 0;               // of the first in the queue
  std::atomic<size_t> queued_ = 0;   // bytes in the queue
  std::atomic<size_t> pending_ = 0;  // bytes on their way to the strand
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

}  // namespace tessera
