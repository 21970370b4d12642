#include "server/serving/group_describer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/file_identity.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

}  // namespace

std::string FilesIdentity(const control::LoadParameters& load) {
  const std::string model = base::FolderIdentity(load.model);
  if (load.files.empty()) return model;
  base::Sha256 digest;
  digest.UpdatePart(model);
  for (const std::string& path : load.files.text_encoders) digest.UpdatePart(base::FolderIdentity(path));
  for (const std::string* path : {&load.files.autoencoder, &load.files.tokenizer}) {
    digest.UpdatePart(path->empty() ? "" : base::FolderIdentity(*path));
  }
  if (load.files.without_t5) digest.UpdatePart("without_t5");
  return digest.Finish();
}

absl::StatusOr<control::ModelDescription> GroupDescriber::DescribeModel(const control::LoadParameters& load) {
  ASSIGN_OR_RETURN(const std::shared_ptr<WorkerGroup> group,
                   WorkerGroup::Start({.progress = progress_, .owner = owner_}));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return absl::CancelledError("the server is stopping");
    group_ = group;
  }
  absl::Status connected = group->Connect(kTimeout);
  absl::StatusOr<control::ModelDescription> description =
      connected.ok() ? group->Describe(load.model, load.files) : absl::StatusOr<control::ModelDescription>(connected);
  if (description.ok()) group->Shutdown().IgnoreError();
  const std::lock_guard lock(mutex_);
  group_ = nullptr;
  return description;
}

absl::StatusOr<DescribedGroup> GroupDescriber::Describe(const ServedGroupOptions& group) {
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("model ", group.name, ": ", std::string(status.message())));
  };
  DescribedGroup described = {.options = group};
  if (group.find_model) {
    absl::StatusOr<std::string> folder = group.find_model();
    if (!folder.ok()) return named(folder.status());
    described.options.load.model = *std::move(folder);
  }
  described.options.files = FilesIdentity(described.options.load);
  absl::StatusOr<control::ModelDescription> model = DescribeModel(described.options.load);
  if (!model.ok()) return named(model.status());
  described.model = *std::move(model);
  const absl::StatusOr<parallel::Layout> layout = ChooseLayout(
      group.layout, LayoutModelOf(described.model, described.options.load.dtype), described.options.load.device);
  if (!layout.ok()) return named(layout.status());
  described.layout = *layout;
  return described;
}

void GroupDescriber::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  if (group_ != nullptr) group_->Kill();
}

}  // namespace tessera::server
