// LoadMeter measures how much of a model's weight files has been read while the model is loaded. A rank may read only
// its part of a component; the component then counts in proportion.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::models {

// Thread-safe.
class LoadMeter final {
 public:
  // `read` never decreases and is at most `total`, which is always the same. Both are bytes of files.
  using Report = std::function<void(uint64_t read, uint64_t total)>;

  // `expected` has the size of the files of every component that will be read, by its name. Calls `report` at once and
  // from the methods.
  LoadMeter(std::map<std::string, uint64_t, std::less<>> expected, Report report);

  // Notes that `done` of the `whole` bytes that this rank reads of a component have been read. Ignored for a component
  // that is not expected, and after Finish: components that are not kept in memory are read again for every use.
  void OnRead(std::string_view component, uint64_t done, uint64_t whole);

  // Reports everything as read.
  void Finish();
  bool is_finished() const;
  uint64_t total() const { return total_; }  // bytes of the files of all components

 private:
  struct Component {
    uint64_t bytes = 0;
    uint64_t read = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Component, std::less<>> components_;
  uint64_t read_ = 0, total_ = 0;
  bool finished_ = false;
  const Report report_;  // called with mutex_ held
};

}  // namespace tessera::models
