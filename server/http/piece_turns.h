// PieceTurns limits how many pieces of bodies all connections of a server hold in memory together: a connection asks
// for a turn before it reads a piece, and holds the turn until it is destroyed. Turns are given in the order of the
// requests.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera::server {

class PieceTurns final : public std::enable_shared_from_this<PieceTurns> {
 public:
  using Turn = std::shared_ptr<const void>;
  using Begin = std::function<void(Turn)>;

  // `turns` at a time, at least one.
  explicit PieceTurns(size_t turns) : free_(turns > 0 ? turns : 1) {}

  // Calls `begin` with a turn: before this returns, or on the thread that returns one. It must not block.
  void Ask(Begin begin) {
    {
      const std::lock_guard lock(mutex_);
      if (free_ == 0) return waiting_.push_back(std::move(begin));
      --free_;
    }
    begin(MakeTurn());
  }

 private:
  Turn MakeTurn() {
    return Turn(this, [turns = shared_from_this()](const void*) { turns->GiveBack(); });
  }

  void GiveBack() {
    Begin next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        ++free_;
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next(MakeTurn());
  }

  std::mutex mutex_;
  size_t free_;                // guarded by mutex_
  std::deque<Begin> waiting_;  // guarded by mutex_
};

}  // namespace tessera::server
