#include "client/cli/train/config_output.h"

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "client/cli/exit_code.h"

namespace tessera::client {
namespace {

constexpr char kDefaultOutput[] = "train.yaml";
constexpr char kStandardOutput[] = "-";

}  // namespace

absl::StatusOr<std::string> ConfigOutput(const std::string& typed) {
  const std::string output = typed.empty() ? kDefaultOutput : typed;
  std::error_code ignored;
  if (output != kStandardOutput && std::filesystem::exists(output, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("--output is ", base::QuotedValue(output),
                                                   ", which exists; name a new file, or - for standard output"));
  }
  return output;
}

absl::Status WriteConfig(const std::string& output, const std::string& text, const std::string& summary) {
  if (output == kStandardOutput) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(At(Stage::kOutput, base::WriteFileAtomically(output, text, {.overwrite = false})));
  std::fprintf(stderr, "%s: %s\n", output.c_str(), summary.c_str());
  return absl::OkStatus();
}

}  // namespace tessera::client
