// SmallFiles is a result store with a size limit for each file; it forwards everything else to another store.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "server/jobs/result_store.h"

namespace tessera {

// Thread-safe if the other store is.
class SmallFiles final : public server::ResultStore {
 public:
  explicit SmallFiles(server::ResultStore& files) : files_(files) {}

  void SetRoom(uint64_t bytes) { room_ = bytes; }

  absl::Status Open() override { return files_.Open(); }
  absl::Status CheckPlace() const override { return files_.CheckPlace(); }
  absl::Status Write(const std::string& name, const std::string& bytes) override {
    if (bytes.size() > room_) return absl::ResourceExhaustedError("the disk is full");
    return files_.Write(name, bytes);
  }
  absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) override {
    return files_.OpenFile(name, limit);
  }
  absl::Status Remove(const std::string& name) override { return files_.Remove(name); }
  absl::StatusOr<std::vector<std::string>> List() override { return files_.List(); }

 private:
  server::ResultStore& files_;
  std::atomic<uint64_t> room_ = UINT64_MAX;
};

}  // namespace tessera
