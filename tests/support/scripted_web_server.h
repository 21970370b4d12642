// ScriptedWebServer answers HTTP or HTTPS on a free port of this machine as a test says, byte by byte if it must be.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

class ScriptedWebServer {
 public:
  struct Request {
    std::string head;  // request line and header lines
    std::string body;
  };

  // One connection, during its script.
  class Peer {
   public:
    virtual ~Peer() = default;
    virtual bool Send(const std::string& bytes) = 0;  // false: the client has closed
    virtual void WaitUntilClosed() = 0;               // or until the server ends
  };

  using Script = std::function<void(const Request& request, Peer& peer)>;

  // With a certificate and its key, PEM files, the server speaks TLS. The script is called for each request, on a
  // thread for each connection; afterwards the connection is closed.
  explicit ScriptedWebServer(Script script, const std::string& certificate = "", const std::string& key = "");
  ~ScriptedWebServer();

  ScriptedWebServer(const ScriptedWebServer&) = delete;
  ScriptedWebServer& operator=(const ScriptedWebServer&) = delete;

  uint16_t port() const { return port_; }
  int connections() const { return connections_; }  // accepted so far
  std::vector<Request> Requests() const;            // in the order of their arrival

 private:
  void Accept();
  void Serve(int connection);

  const Script script_;
  void* tls_ = nullptr;  // SSL_CTX; null: plain
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<int> connections_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;     // guarded by mutex_
  std::vector<std::thread> serving_;  // used by accepting_ alone, until it has ended
  std::thread accepting_;
};

// Returns a script that sends these bytes.
ScriptedWebServer::Script Sending(std::string bytes);

// Returns a complete answer with status 200.
std::string OkAnswer(const std::string& body);

}  // namespace tessera
