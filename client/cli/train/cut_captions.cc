#include "client/cli/train/cut_captions.h"

#include <sys/mman.h>

#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files/file.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kEncodingTimeout = absl::Minutes(30);

// Paths, numbers of pictures at which the model looks, and captions, one after another. The resolutions of an image are
// consecutive and share one caption.
std::string CaptionsOf(const control::TrainingSet& set) {
  std::string captions;
  const control::TrainingSample* last = nullptr;
  for (const control::TrainingSample& sample : set.samples) {
    if (last == nullptr || last->path != sample.path || last->caption != sample.caption) {
      captions.append(sample.path).push_back('\0');
      captions.append(absl::StrCat(set.ControlsOf(sample).size())).push_back('\0');
      captions.append(sample.caption).push_back('\0');
    }
    last = &sample;
  }
  return captions;
}

}  // namespace

absl::StatusOr<std::string> FindCutCaptions(const std::string& model, const control::TrainingSet& set,
                                            Interrupts& interrupts) {
  const base::FileDescriptor file(memfd_create("tessera-captions", MFD_CLOEXEC));
  const std::string path = absl::StrCat("/proc/self/fd/", file.get()), captions = CaptionsOf(set);
  if (!file.valid() || !(std::ofstream(path) << captions).flush()) {
    return absl::UnavailableError("there is not enough memory for them");
  }
  ASSIGN_OR_RETURN(
      const std::unique_ptr<server::WorkerProcess> worker,
      server::WorkerProcess::Start({.executable = server::WorkerExecutable(),
                                    .arguments = {"--cut-captions", model, "--captions",
                                                  absl::StrCat(server::WorkerProcess::kInheritedDescriptor)},
                                    .inherited = file.get()}));
  const Interrupts::Reaction reaction(interrupts, [&] { worker->Kill(); });
  const bool ended = worker->WaitForExit(kEncodingTimeout);
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!ended) return absl::UnavailableError("reading them takes too long");
  ASSIGN_OR_RETURN(std::string answer, base::ReadWholeFile(path, "the answer", captions.size() + (1 << 20)));
  if (answer != captions) return answer;  // a reply replaces the captions in the file
  const std::string said(absl::StripAsciiWhitespace(worker->LastOutput()));
  return absl::UnavailableError(said.empty() ? "the worker ended without an answer" : said);
}

}  // namespace tessera::client
