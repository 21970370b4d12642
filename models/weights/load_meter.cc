#include "models/weights/load_meter.h"

#include <algorithm>
#include <utility>

namespace tessera::models {

LoadMeter::LoadMeter(std::map<std::string, uint64_t, std::less<>> expected, Report report)
    : report_(std::move(report)) {
  for (const auto& [name, bytes] : expected) {
    components_[name].bytes = bytes;
    total_ += bytes;
  }
  report_(0, total_);
}

void LoadMeter::OnRead(std::string_view component, uint64_t done, uint64_t whole) {
  const std::lock_guard lock(mutex_);
  const auto found = components_.find(component);
  if (finished_ || found == components_.end() || whole == 0) return;
  Component& of = found->second;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(whole));
  const uint64_t read = std::min(of.bytes, static_cast<uint64_t>(part * static_cast<double>(of.bytes)));
  if (read <= of.read) return;
  read_ += read - of.read;
  of.read = read;
  report_(read_, total_);
}

void LoadMeter::Finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  read_ = total_;
  report_(read_, total_);
}

bool LoadMeter::is_finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

}  // namespace tessera::models
