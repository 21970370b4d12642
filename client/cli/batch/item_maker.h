// Who makes the items of a batch: groups of workers of this process (local_items.h), or a server (remote_items.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/batch/batch_input.h"
#include "client/cli/batch/batch_plan.h"
#include "client/cli/batch/run_folder.h"

namespace tessera::client {

class ItemMaker {
 public:
  // Called on any thread.
  struct Events {
    // All images of the item are in the folder, or it has failed. Returns once that is durable; it is called again
    // after an error.
    std::function<absl::Status(int64_t index, const std::vector<RunImage>& images, const absl::Status& error)> ended;
    // The run cannot go on, for this reason, which has its stage.
    std::function<void(const absl::Status& reason)> stop;
    // What the user should know.
    std::function<void(const std::string& text)> say;
  };

  // Gives up what still runs; no event comes afterwards. What has ended is kept.
  virtual ~ItemMaker() = default;

  // What decides the images of its runs, without a seed; the model is that of items that name none. An error of
  // `proceed`, which is asked while files are read, ends it; errors have their stage.
  virtual absl::StatusOr<RunIdentity> Identity(const std::function<absl::Status()>& proceed) const = 0;
  virtual int64_t items_in_flight() const = 0;  // that keep it busy

  // Before all else. The folder outlives it. Errors have their stage.
  virtual absl::Status Start(RunFolder& folder, Events events) = 0;

  virtual ImageSize default_size() const = 0;  // of items that name none

  // An item whose request could be read; its end is reported. After an error no end is reported: UNAVAILABLE where
  // nobody can make any item at present, else what is wrong with this one.
  virtual absl::Status Submit(const BatchItem& item) = 0;

  // Whether there is anybody who could make items, now or later.
  virtual absl::Status Check() = 0;
};

}  // namespace tessera::client
