// BatchPlan counts the items of an input and estimates their output before any item is made. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/batch/batch_input.h"
#include "client/cli/batch/run_folder.h"
#include "server/image/image_format.h"

namespace tessera::client {

struct ImageSize {
  int32_t width = 0;
  int32_t height = 0;
};

// Whether an item with this entry is to be made; null: it has no entry yet.
bool IsToBeMade(const RunEntry* entry, bool retry_failed);

class BatchPlan {
 public:
  explicit BatchPlan(Shard shard) : shard_(shard) {}

  // Adds the next item of the input, with the error if it cannot be made.
  void Add(const BatchItem& item, const absl::Status& error);

  int64_t items() const { return items_; }  // of all shards
  int64_t wrong() const { return wrong_; }  // items that cannot be made
  int64_t items_of_shard() const { return static_cast<int64_t>(planned_.size()); }

  struct Rest {
    int64_t items = 0;
    uint64_t bytes = 0;  // rough estimate for their images
  };
  // Returns the shard's items that remain to be made, given that `entries` have ended. `usual` is the size of items
  // that do not name one.
  Rest RestAfter(const std::map<int64_t, RunEntry>& entries, bool retry_failed, ImageSize usual) const;

 private:
  struct Wish {
    std::string size;  // empty: the usual size
    server::ImageFormat format = server::ImageFormat::kPng;
    int64_t images = 1;

    auto operator<=>(const Wish&) const = default;
  };

  const Shard shard_;
  int64_t items_ = 0;
  int64_t wrong_ = 0;
  std::set<Wish> wishes_;
  std::vector<const Wish*> planned_;  // one per item of the shard; null: it cannot be made
};

}  // namespace tessera::client
