#include "client/cli/train/training_log.h"

#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/private_files.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxPictureBytes = size_t{256} << 20;

}  // namespace

TrainingLog::TrainingLog(Options options) : options_(std::move(options)) {
  const absl::Status made = base::MakeFolder(options_.folder);
  if (!made.ok()) {
    Report(made);
    return;
  }
  absl::StatusOr<control::MetricsLog> lines =
      control::MetricsLog::Open(absl::StrCat(options_.folder, "/log.jsonl"), options_.first_step);
  absl::StatusOr<control::EventFile> events =
      control::EventFile::Create(options_.folder, options_.now(), options_.first_step + 1);
  absl::Status status = lines.status();
  status.Update(events.status());
  if (lines.ok()) lines_.emplace(*std::move(lines));
  if (events.ok()) events_.emplace(*std::move(events));
  Report(status);
}

void TrainingLog::OnTrained(const control::Trained& trained) {
  Add(trained.step, {{"loss", trained.loss},
                     {"grad_norm", trained.gradient_norm},
                     {"lr", trained.learning_rate},
                     {"images_per_second", static_cast<double>(options_.images_of_a_step) / trained.seconds},
                     {"skipped", trained.skipped ? 1.0 : 0.0}});
}

void TrainingLog::OnEvaluated(int64_t step, const control::TrainingEvaluated& evaluated) {
  const std::vector<double>& losses = evaluated.losses;
  if (losses.empty()) return;
  std::vector<control::Metric> metrics = {
      {"validation_loss", std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size())}};
  for (size_t i = 0; i < losses.size(); ++i) metrics.push_back({absl::StrCat("validation_loss/", i), losses[i]});
  Add(step, metrics);
}

void TrainingLog::OnSample(int64_t step, size_t prompt, const std::string& path) {
  if (lines_) Report(lines_->Append(step, options_.now(), {}, absl::StrCat("sample ", path)));
  AddPicture(step, absl::StrCat("samples/", prompt), path);
}

void TrainingLog::OnGrid(int64_t step, const std::string& path) {
  if (lines_) Report(lines_->Append(step, options_.now(), {}, absl::StrCat("grid ", path)));
  AddPicture(step, "grid", path);
}

void TrainingLog::OnSaved(int64_t step, const control::TrainingSaved& saved) {
  if (!lines_) return;
  for (const std::string* path : {&saved.checkpoint, &saved.exported}) {
    if (!path->empty()) Report(lines_->Append(step, options_.now(), {}, absl::StrCat("saved ", *path)));
  }
}

void TrainingLog::Add(int64_t step, const std::vector<control::Metric>& metrics) {
  absl::Status status;
  if (lines_) status.Update(lines_->Append(step, options_.now(), metrics));
  if (events_) status.Update(events_->AddScalars(step, options_.now(), metrics));
  Report(status);
}

void TrainingLog::AddPicture(int64_t step, const std::string& tag, const std::string& path) {
  if (!events_) return;
  const absl::StatusOr<std::string> png = base::ReadWholeFile(path, path, kMaxPictureBytes);
  Report(png.ok() ? events_->AddImage(step, options_.now(), tag, *png) : png.status());
}

void TrainingLog::Report(const absl::Status& status) {
  if (!status.ok() && !warned_) {
    options_.warn(absl::StrCat("the log of the run is not complete: ", std::string(status.message())));
  }
  warned_ = !status.ok();
}

}  // namespace tessera::client
