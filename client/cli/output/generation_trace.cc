#include "client/cli/output/generation_trace.h"

#include <utility>

#include "base/macros/status_macros.h"

namespace tessera::client {

absl::Status GenerationTrace::Open(const std::string& path, int ranks, std::function<void(const std::string&)> log) {
  if (path.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(file_, server::TraceFile::Create(path, std::move(log)));
  group_.emplace(file_.get(), "generate", ranks);
  return absl::OkStatus();
}

void GenerationTrace::OnState(const std::string& state) {
  if (group_.has_value()) group_->OnState(state);
}

void GenerationTrace::OnWorkers(std::vector<pid_t> pids) {
  if (group_.has_value()) group_->OnWorkers(std::move(pids));
}

void GenerationTrace::OnImage(int64_t image) {
  if (!group_.has_value()) return;
  image_ = {.job = "generate", .index = static_cast<int32_t>(image)};
  begun_ = group_->Now();
  file_->Begin(image_, "image", begun_);
}

void GenerationTrace::OnStarted(const control::JobStarted& started) {
  if (!group_.has_value()) return;
  group_->OnEncoded(kTask, image_, begun_, started);
  begun_ = group_->Now();
}

void GenerationTrace::OnStepped() {
  if (!group_.has_value()) return;
  group_->OnStepped({kTask}, begun_, absl::InfiniteFuture(), server::GroupTrace::kAllTheTime);
  begun_ = group_->Now();
}

void GenerationTrace::OnPreview() {
  if (!group_.has_value()) return;
  group_->OnDecoded(kTask, "preview", begun_, server::GroupTrace::kAllTheTime);
  begun_ = group_->Now();
}

void GenerationTrace::OnDecoded() {
  if (!group_.has_value()) return;
  group_->OnDecoded(kTask, "decode", begun_, server::GroupTrace::kAllTheTime);
  group_->OnEnded(kTask);
  begun_ = group_->Now();
}

void GenerationTrace::OnWritten() {
  if (!group_.has_value()) return;
  const absl::Time now = group_->Now();
  file_->Stage(image_, {.name = "image encode", .start = begun_, .end = now});
  file_->End(image_, "image", now, {{"outcome", "done"}});
}

}  // namespace tessera::client
