// FaultyProxy is a TCP proxy between two processes on loopback. It can delay, stall and cut the traffic.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

class FaultyProxy {
 public:
  // Listens on a free port of `address` and connects to `port` of 127.0.0.1.
  FaultyProxy(const std::string& address, uint16_t port);
  ~FaultyProxy();

  uint16_t port() const { return port_; }

  void Delay(std::chrono::milliseconds time) { delay_ = time; }  // for all later traffic
  void Stall() { stalled_ = true; }                              // passes nothing until Pass
  void Pass() { stalled_ = false; }
  void Cut();  // closes every open connection

 private:
  void Accept();
  void Serve(int client);
  void Pump(int from, int to);

  int listener_ = -1;
  uint16_t port_ = 0;
  const uint16_t target_;
  std::atomic<bool> ending_ = false, stalled_ = false;
  std::atomic<std::chrono::milliseconds> delay_ = std::chrono::milliseconds(0);
  std::mutex mutex_;
  std::set<int> sockets_;             // guarded by mutex_
  std::vector<std::thread> threads_;  // guarded by mutex_
  std::thread accepting_;
};

}  // namespace tessera
