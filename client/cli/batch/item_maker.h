// ItemMaker generates the items of a batch, with worker groups of this process (local_items.h) or on a server
// (remote_items.h).
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
    // All images of the item are in the folder, or the item has failed. Returns once that is durable; called again
    // after an error.
    std::function<absl::Status(int64_t index, const std::vector<RunImage>& images, const absl::Status& error)> ended;
    // The run cannot continue, for this reason, which is marked with its stage.
    std::function<void(const absl::Status& reason)> stop;
    // A message for the user.
    std::function<void(const std::string& text)> say;
  };

  // Abandons running items; no event follows. Items that have ended are kept.
  virtual ~ItemMaker() = default;

  // Returns what determines the images of its runs, without a seed; the model is the one for items that do not name
  // one. An error of `proceed`, which is called while files are read, stops the call. Errors are marked with their
  // stage.
  virtual absl::StatusOr<RunIdentity> Identity(const std::function<absl::Status()>& proceed) const = 0;
  virtual int64_t items_in_flight() const = 0;  // number of items that keep it busy

  // Call it before the methods below. The folder outlives the maker. Errors are marked with their stage.
  virtual absl::Status Start(RunFolder& folder, Events events) = 0;

  virtual ImageSize default_size() const = 0;  // of items without a size

  // Submits an item with a valid request; its end is reported. If this call fails, no end is reported: UNAVAILABLE if
  // no item can be made at present, another error if this item is invalid.
  virtual absl::Status Submit(const BatchItem& item) = 0;

  // Checks whether items can be made, now or later.
  virtual absl::Status Check() = 0;
};

}  // namespace tessera::client
