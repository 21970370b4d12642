#include "client/text_reporter.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/image/parameters_text.h"

namespace tessera {
namespace {

constexpr int kBarCells = 24;

// ", Clip skip 1": what was set, without the prompts, which may be long.
std::string OptionText(PromptOptions options) {
  options.prompt_2 = options.prompt_3 = options.negative_prompt_2 = options.negative_prompt_3 = "";
  std::string text;
  for (const auto& [key, value] : OptionPairs(options)) absl::StrAppend(&text, ", ", key, " ", value);
  return text;
}

}  // namespace

std::string DurationText(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::fmax(seconds, 0)));
  if (whole >= 3600) return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrCat(whole, "s");
}

TextReporter::TextReporter(const ReporterOptions& options)
    : options_(options), has_bar_(!options.quiet && isatty(STDERR_FILENO) == 1) {
  if (has_bar_) DrawBar("loading the model");
}

TextReporter::~TextReporter() { ClearBar(); }

void TextReporter::OnLoaded(const LoadedEvent&) {}

void TextReporter::OnStarted(int64_t image, const JobParameters& job, const JobStarted& started) {
  for (const std::string& warning : started.warnings) OnWarning(warning);
  OnStep(image, job.steps, {});
}

void TextReporter::OnStep(int64_t image, int32_t steps, const Stepped& stepped) {
  if (!has_bar_) return;
  if (stepped.completed > 0) step_seconds_ = stepped.seconds;
  const int filled = steps > 0 ? kBarCells * stepped.completed / steps : 0;
  std::string line;
  if (options_.images > 1) absl::StrAppend(&line, "image ", image + 1, "/", options_.images, " ");
  absl::StrAppend(&line, "[", std::string(filled, '#'), std::string(kBarCells - filled, '.'), "] step ",
                  stepped.completed, "/", steps);
  if (step_seconds_ > 0) {
    const double steps_left = (options_.images - image) * static_cast<double>(steps) - stepped.completed;
    absl::StrAppend(&line, absl::StrFormat(", %.2f s/step, ", step_seconds_), DurationText(steps_left * step_seconds_),
                    " left");
  }
  DrawBar(line);
}

void TextReporter::OnPreview(int64_t, int32_t, const std::string&) {}

void TextReporter::OnImage(const PictureEvent& event) {
  ClearBar();
  if (options_.quiet) {
    std::printf("%s\n", event.path.c_str());
  } else {
    std::printf("%s (seed %lu, %dx%d, %d steps%s%s, %.2f s)\n", event.path.c_str(), event.seed, event.width,
                event.height, event.steps, OptionText(event.options).c_str(),
                event.cached ? ", prompt from the cache" : "", event.seconds);
  }
  std::fflush(stdout);
}

void TextReporter::OnActivity(const std::string& text) {
  if (options_.quiet) return;
  ClearBar();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void TextReporter::OnWarning(const std::string& message) {
  if (options_.quiet) return;
  ClearBar();
  std::fprintf(stderr, "tessera: warning: %s\n", message.c_str());
}

void TextReporter::OnDone(int64_t, double, uint64_t) { ClearBar(); }

void TextReporter::OnError(const absl::Status& status, ExitCode) {
  ClearBar();
  std::fprintf(stderr, "tessera: %s\n", std::string(status.message()).c_str());
}

void TextReporter::DrawBar(const std::string& text) {
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void TextReporter::ClearBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace tessera
