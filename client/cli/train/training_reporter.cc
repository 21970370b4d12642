#include "client/cli/train/training_reporter.h"

#include <unistd.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/text_reporter.h"

namespace tessera::client {
namespace {

constexpr int64_t kLineEvery = 10;    // steps between lines where lines cannot be overwritten
constexpr double kNewestShare = 0.1;  // weight of the newest step in the moving average

// JSON cannot represent infinity and NaN.
boost::json::value Number(double value) { return std::isfinite(value) ? boost::json::value(value) : nullptr; }

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::string TrainingText(const control::Trained& trained, int64_t steps, int64_t images_of_a_step,
                         double step_seconds) {
  std::string text =
      absl::StrFormat("step %d/%d, loss %.4f, lr %.3g", trained.step, steps, trained.loss, trained.learning_rate);
  if (trained.skipped) absl::StrAppend(&text, ", not finite and skipped");
  if (step_seconds <= 0) return text;
  absl::StrAppendFormat(&text, ", %.3g images/s", static_cast<double>(images_of_a_step) / step_seconds);
  const int64_t left = steps - trained.step;
  if (left > 0) absl::StrAppend(&text, ", ", DurationText(static_cast<double>(left) * step_seconds), " left");
  return text;
}

std::string PreparedText(const control::SamplesPrepared& prepared) {
  std::string text = absl::StrCat("encoding images and captions: ", prepared.prepared, " of ", prepared.samples);
  if (prepared.cached_pictures + prepared.cached_captions == 0) return text;
  absl::StrAppend(&text, ", ", prepared.cached_pictures, " images and ", prepared.cached_captions,
                  " captions from the cache");
  return text;
}

TrainingReporter::TrainingReporter(const Options& options, Reporter& reporter)
    : options_(options),
      reporter_(reporter),
      has_line_(!options.json && !options.quiet && isatty(STDERR_FILENO) == 1) {}

TrainingReporter::~TrainingReporter() { Clear(); }

void TrainingReporter::OnStarted(const control::TrainingStarted& started, double load_seconds) {
  for (const std::string& warning : started.warnings) reporter_.OnWarning(warning);
  if (options_.json) {
    PrintJsonLine({{"event", "training"},
                   {"step", started.step},
                   {"steps", options_.steps},
                   {"samples", started.samples},
                   {"trained_parameters", started.trained_parameters},
                   {"checkpoint", JsonText(started.checkpoint)},
                   {"load_seconds", load_seconds}});
    return;
  }
  if (!started.checkpoint.empty()) Say(absl::StrCat("resuming from ", started.checkpoint));
  Say(absl::StrCat(started.samples, " images, ", started.trained_parameters, " trained parameters, steps ",
                   started.step + 1, " to ", options_.steps));
}

void TrainingReporter::OnPrepared(const control::SamplesPrepared& prepared) {
  for (const std::string& warning : prepared.warnings) reporter_.OnWarning(warning);
  if (options_.json) {
    PrintJsonLine({{"event", "prepared"},
                   {"prepared", prepared.prepared},
                   {"samples", prepared.samples},
                   {"cached_pictures", prepared.cached_pictures},
                   {"cached_captions", prepared.cached_captions}});
  } else {
    Draw(PreparedText(prepared));
  }
}

void TrainingReporter::OnTrained(const control::Trained& trained) {
  step_seconds_ =
      step_seconds_ > 0 ? (1 - kNewestShare) * step_seconds_ + kNewestShare * trained.seconds : trained.seconds;
  if (options_.json) {
    PrintJsonLine({{"event", "trained"},
                   {"step", trained.step},
                   {"loss", Number(trained.loss)},
                   {"gradient_norm", Number(trained.gradient_norm)},
                   {"lr", trained.learning_rate},
                   {"seconds", trained.seconds},
                   {"images_per_second", static_cast<double>(options_.images_of_a_step) / trained.seconds},
                   {"skipped", trained.skipped}});
    return;
  }
  const std::string text = TrainingText(trained, options_.steps, options_.images_of_a_step, step_seconds_);
  if (has_line_) return Draw(text);
  if (trained.step == 1 || trained.step == options_.steps || trained.step % kLineEvery == 0 || trained.skipped) {
    Say(text);
  }
}

void TrainingReporter::OnEvaluated(int64_t step, const control::TrainingEvaluated& evaluated) {
  if (evaluated.losses.empty()) return;
  if (options_.json) {
    boost::json::array losses;
    for (const double loss : evaluated.losses) losses.push_back(Number(loss));
    PrintJsonLine({{"event", "evaluated"},
                   {"step", step},
                   {"loss", Number(Mean(evaluated.losses))},
                   {"losses", std::move(losses)}});
    return;
  }
  Say(absl::StrFormat("step %d: loss at fixed timesteps %.4f", step, Mean(evaluated.losses)));
}

void TrainingReporter::OnSample(int64_t step, const std::string& path) { OnPicture("sample", step, path); }

void TrainingReporter::OnGrid(int64_t step, const std::string& path) { OnPicture("grid", step, path); }

void TrainingReporter::OnPicture(const char* event, int64_t step, const std::string& path) {
  if (options_.json) {
    PrintJsonLine({{"event", event}, {"step", step}, {"path", JsonText(path)}});
  } else {
    Say(path);
  }
}

void TrainingReporter::OnSaved(int64_t step, const control::TrainingSaved& saved) {
  Clear();
  for (const std::string& warning : saved.warnings) reporter_.OnWarning(warning);
  if (options_.json) {
    PrintJsonLine({{"event", "saved"},
                   {"step", step},
                   {"checkpoint", JsonText(saved.checkpoint)},
                   {"exported", JsonText(saved.exported)},
                   {"seconds", saved.seconds}});
    return;
  }
  for (const std::string* path : {&saved.checkpoint, &saved.exported}) {
    if (path->empty()) continue;
    std::printf("%s\n", path->c_str());
    std::fflush(stdout);
  }
}

void TrainingReporter::OnPublished(int64_t step, const std::string& name, const Publication& published) {
  if (options_.json) {
    PrintJsonLine({{"event", "published"},
                   {"step", step},
                   {"name", name},
                   {"model", JsonText(published.model)},
                   {"digest", JsonText(published.digest)},
                   {"seconds", published.seconds}});
  } else {
    Say(absl::StrCat("step ", step, " is served as ", name));
  }
}

void TrainingReporter::OnDone(int64_t step, double seconds, uint64_t peak_memory_bytes) {
  Clear();
  if (options_.json) {
    PrintJsonLine({{"event", "done"}, {"step", step}, {"seconds", seconds}, {"peak_memory_bytes", peak_memory_bytes}});
  }
}

void TrainingReporter::Draw(const std::string& line) {
  if (!has_line_) return;
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void TrainingReporter::Clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void TrainingReporter::Say(const std::string& line) {
  if (options_.json || options_.quiet) return;
  Clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace tessera::client
