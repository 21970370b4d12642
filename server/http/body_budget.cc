#include "server/http/body_budget.h"

#include <algorithm>
#include <utility>

namespace tessera::server {

bool BodyBudget::Claim::has_room() const {
  const std::lock_guard lock(budget_->mutex_);
  return has_room_;
}

std::unique_ptr<BodyBudget::Claim> BodyBudget::Ask(size_t bytes, std::function<void()> has_room) {
  std::unique_ptr<Claim> claim(new Claim(shared_from_this(), bytes, std::move(has_room)));
  const std::lock_guard lock(mutex_);
  if (waiting_.empty() && bytes <= bytes_ - held_) {
    Give(*claim);
  } else {
    waiting_.push_back(claim.get());
  }
  return claim;
}

BodyBudgetUse BodyBudget::use() const {
  const std::lock_guard lock(mutex_);
  return {.held = held_, .most_held = most_held_, .waiting = waiting_.size()};
}

void BodyBudget::Return(Claim& claim) {
  std::deque<std::function<void()>> notices;
  {
    const std::lock_guard lock(mutex_);
    if (claim.has_room_) {
      held_ -= claim.bytes_;
    } else {
      std::erase(waiting_, &claim);
    }
    notices = GiveToWaiting();
  }
  for (const auto& notify : notices) notify();
}

void BodyBudget::Shrink(Claim& claim, size_t bytes) {
  std::deque<std::function<void()>> notices;
  {
    const std::lock_guard lock(mutex_);
    held_ -= claim.bytes_ - std::min(bytes, claim.bytes_);
    claim.bytes_ = std::min(bytes, claim.bytes_);
    notices = GiveToWaiting();
  }
  for (const auto& notify : notices) notify();
}

void BodyBudget::Give(Claim& claim) {
  claim.has_room_ = true;
  held_ += claim.bytes_;
  most_held_ = std::max(most_held_, held_);
}

std::deque<std::function<void()>> BodyBudget::GiveToWaiting() {
  std::deque<std::function<void()>> notices;
  while (!waiting_.empty() && waiting_.front()->bytes_ <= bytes_ - held_) {
    Give(*waiting_.front());
    notices.push_back(std::move(waiting_.front()->notify_));
    waiting_.pop_front();
  }
  return notices;
}

}  // namespace tessera::server
