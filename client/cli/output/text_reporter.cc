#include "client/cli/output/text_reporter.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "control/parameters/job_parameters.h"
#include "server/metadata/parameters_text.h"

namespace tessera::client {
namespace {

constexpr int kMostBarCells = 24, kLeastBarCells = 8;
constexpr int kUsualColumns = 80;

// The width of the terminal at standard error, which may change while a command runs.
int TerminalColumns() {
  winsize size;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

// Returns "[####....] " with at most `room` characters; empty if a bar does not fit.
std::string Bar(const Progress& progress, int room) {
  const int cells = std::min(room - 3, kMostBarCells);
  if (cells < kLeastBarCells) return "";
  const int filled = progress.steps > 0 ? cells * progress.step / progress.steps : 0;
  return absl::StrCat("[", std::string(filled, '#'), std::string(cells - filled, '.'), "] ");
}

// Returns ", Clip skip 1" for the options that are set, without prompts, which may be long.
std::string OptionText(control::PromptOptions options) {
  options.prompt_2 = options.prompt_3 = options.negative_prompt_2 = options.negative_prompt_3 = "";
  std::string text;
  for (const auto& [key, value] : server::OptionPairs(options)) absl::StrAppend(&text, ", ", key, " ", value);
  return text;
}

}  // namespace

std::string DurationText(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::fmax(seconds, 0)));
  if (whole >= 3600) return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrCat(whole, "s");
}

std::string ProgressText(const Progress& progress, int columns) {
  const std::string image =
      progress.images > 1 ? absl::StrCat("image ", progress.image + 1, "/", progress.images, " ") : "";
  const bool decodes = progress.steps > 0 && progress.step >= progress.steps;
  const std::string step = decodes ? "decoding the image" : absl::StrCat("step ", progress.step, "/", progress.steps);
  std::string seconds, left;
  const double steps_left = static_cast<double>(progress.images - progress.image) * progress.steps - progress.step;
  if (progress.step_seconds > 0 && steps_left > 0) {
    seconds = absl::StrFormat(", %.2f s/step", progress.step_seconds);
    left = absl::StrCat(", ", DurationText(steps_left * progress.step_seconds), " left");
  }
  const int room = columns - 1;  // some terminals wrap at the last column
  // Use the first text that leaves room for a bar, or else the first that fits.
  const std::string texts[] = {step + seconds + left, step + left, step};
  for (const std::string& text : texts) {
    const std::string bar = Bar(progress, room - static_cast<int>(image.size() + text.size()));
    if (!bar.empty()) return absl::StrCat(image, bar, text);
  }
  for (const std::string& text : {absl::StrCat(image, step), step}) {
    if (static_cast<int>(text.size()) <= room) return text;
  }
  return step.substr(0, static_cast<size_t>(std::max(room, 0)));
}

TextReporter::TextReporter(const ReporterOptions& options)
    : options_(options), has_bar_(!options.quiet && isatty(STDERR_FILENO) == 1) {
  if (has_bar_) DrawBar("loading the model");
}

TextReporter::~TextReporter() { ClearBar(); }

void TextReporter::OnLoaded(const LoadedEvent&) {}

void TextReporter::OnStarted(int64_t image, const control::JobParameters&, const control::JobStarted& started) {
  for (const std::string& warning : started.warnings) OnWarning(warning);
  OnStep(image, started.steps, {});
}

void TextReporter::OnStep(int64_t image, int32_t steps, const control::Stepped& stepped) {
  if (!has_bar_) return;
  if (stepped.completed > 0) step_seconds_ = stepped.seconds;
  DrawBar(ProgressText({.image = image,
                        .images = options_.images,
                        .step = stepped.completed,
                        .steps = steps,
                        .step_seconds = step_seconds_},
                       TerminalColumns()));
}

void TextReporter::OnPreview(int64_t, int32_t, const std::string&) {}

void TextReporter::OnImage(const PictureEvent& event) {
  ClearBar();
  if (options_.quiet) {
    std::printf("%s\n", event.path.c_str());
  } else {
    std::printf("%s (seed %lu, %dx%d, %d steps%s%s, %.2f s)\n", event.path.c_str(), event.seed, event.width,
                event.height, event.steps, (event.options == nullptr ? "" : OptionText(*event.options)).c_str(),
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
  std::string line = absl::StrCat("tessera: ", std::string(status.message()), "\n");
  if (options_.errors) return options_.errors(std::move(line));
  std::fputs(line.c_str(), stderr);
}

void TextReporter::DrawBar(const std::string& text) {
  // A line wider than the terminal could not be overwritten.
  const std::string line = text.substr(0, static_cast<size_t>(TerminalColumns() - 1));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void TextReporter::ClearBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace tessera::client
