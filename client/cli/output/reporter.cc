#include "client/cli/output/reporter.h"

#include "client/cli/output/json_reporter.h"
#include "client/cli/output/text_reporter.h"

namespace tessera {

std::unique_ptr<Reporter> MakeReporter(const ReporterOptions& options) {
  if (options.json) return std::make_unique<JsonReporter>();
  return std::make_unique<TextReporter>(options);
}

ExitCode ReportError(Reporter& reporter, const Interrupts& interrupts, Stage stage, const absl::Status& status) {
  const absl::Status shown = interrupts.requested() ? absl::CancelledError("interrupted") : status;
  const ExitCode code = ExitCodeFor(stage, shown);
  reporter.OnError(shown, code);
  return code;
}

}  // namespace tessera
