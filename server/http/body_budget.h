// BodyBudget bounds the memory of all large request bodies that the connections of a server hold together. A connection
// claims room for a whole body before it reads it, so that no two bodies can wait for each other. Room is given in the
// order of the claims.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace tessera::server {

// What a budget is used for, in bytes.
struct BodyBudgetUse {
  size_t held = 0;       // by claims that have room
  size_t most_held = 0;  // at one time since the beginning
  size_t waiting = 0;    // claims without room
};

class BodyBudget final : public std::enable_shared_from_this<BodyBudget> {
 public:
  // Room for a body, or a place in the queue for it. Its destruction returns either. It may outlive the owner of the
  // budget.
  class Claim final {
   public:
    ~Claim() { budget_->Return(*this); }

    bool has_room() const;
    // Returns the room above `bytes`. Requires room.
    void Shrink(size_t bytes) { budget_->Shrink(*this, bytes); }

   private:
    friend class BodyBudget;
    Claim(std::shared_ptr<BodyBudget> budget, size_t bytes, std::function<void()> has_room)
        : budget_(std::move(budget)), notify_(std::move(has_room)), bytes_(bytes) {}

    const std::shared_ptr<BodyBudget> budget_;
    // Guarded by the budget's mutex.
    std::function<void()> notify_;
    size_t bytes_;
    bool has_room_ = false;
  };

  explicit BodyBudget(size_t bytes) : bytes_(bytes) {}

  // Requires at most the budget's bytes. If there is no room yet, calls `has_room` once there is, on the thread that
  // returns it; it must not block, and may be called after the claim has been destroyed.
  std::unique_ptr<Claim> Ask(size_t bytes, std::function<void()> has_room);

  size_t bytes() const { return bytes_; }
  BodyBudgetUse use() const;

 private:
  void Return(Claim& claim);
  void Shrink(Claim& claim, size_t bytes);
  void Give(Claim& claim);                            // requires mutex_ and that it fits
  std::deque<std::function<void()>> GiveToWaiting();  // requires mutex_; returns what to call without it

  const size_t bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  size_t held_ = 0, most_held_ = 0;
  std::deque<Claim*> waiting_;
};

}  // namespace tessera::server
