#include "runtime/engine/loaded_contents.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/file_identity.h"
#include "runtime/group/heartbeat.h"
#include "runtime/group/model_contents.h"
#include "runtime/training/checkpoints/agreement.h"

namespace tessera::runtime {
namespace {

// A thread of this niceness gets a tenth of a processor that a thread of the usual one wants, too.
constexpr int kNiceness = 10;

constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";

// Includes the boot id, because files of two machines may have the same numbers.
std::string IdentityOnThisMachine(const std::string& folder) {
  return absl::StrCat(base::ReadSmallFile(kBootId, 64).value_or(""), base::FolderIdentity(folder));
}

}  // namespace

LoadedContents::LoadedContents(const models::ModelFolder& folder, control::ModelDescription description,
                               parallel::Communicator& ranks)
    : folder_(folder), description_(std::move(description)), before_(IdentityOnThisMachine(folder.path())) {
  const std::vector<std::string> identities = GatherTexts(before_, ranks);
  if (std::ranges::find(identities, before_) - identities.begin() != ranks.rank()) return;
  digest_ = std::async(std::launch::async, [this] {
    // Threads inherit it. On Linux it is a property of a thread, and no privilege is needed to raise it.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
    return Read();
  });
}

LoadedContents::~LoadedContents() { ending_ = true; }

absl::StatusOr<std::string> LoadedContents::Read() const {
  absl::StatusOr<ModelContents> contents = DigestContents(folder_, description_, [this]() -> absl::Status {
    SignOfLife();
    return ending_ ? absl::CancelledError("the model is no longer loaded") : absl::OkStatus();
  });
  if (!contents.ok()) return contents.status();
  return std::move(contents->model);
}

absl::StatusOr<std::string> LoadedContents::Finish() {
  if (finished_) return *finished_;
  absl::StatusOr<std::string> digest = "";
  if (digest_.valid()) digest = digest_.get();
  if (digest.ok() && IdentityOnThisMachine(folder_.path()) != before_) {
    digest = absl::AbortedError("files of the model were written or replaced while it was loaded");
  }
  return finished_.emplace(std::move(digest));
}

}  // namespace tessera::runtime
