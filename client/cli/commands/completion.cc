#include <cstdio>
#include <memory>
#include <string>

#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/reference/shell_completion.h"

namespace tessera::client {
namespace {

constexpr struct {
  const char* shell;
  std::string (*script)(const ProgramText& program);
} kShells[] = {{"bash", BashCompletion}, {"zsh", ZshCompletion}, {"fish", FishCompletion}};

std::string Problem(const std::string& typed) {
  for (const auto& known : kShells) {
    if (typed == known.shell) return "";
  }
  return "the shell is '" + typed + "'; valid values are bash, zsh and fish";
}

}  // namespace

CommandRun AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  AddText(app,
          {.names = "shell",
           .help = "Shell that the script is for",
           .type = "bash|zsh|fish",
           .required = true,
           .problem = Problem},
          *shell);
  SetFooter(app,
            "\nbash: eval \"$(tessera completion bash)\" in ~/.bashrc.\n"
            "zsh: tessera completion zsh > _tessera, in a folder of $fpath.\n"
            "fish: tessera completion fish > ~/.config/fish/completions/tessera.fish");
  return [shell, &app](Interrupts&) {
    for (const auto& known : kShells) {
      if (*shell == known.shell) std::fputs(known.script(DescribeProgram(app)).c_str(), stdout);
    }
    return std::fflush(stdout) == 0 ? ExitCode::kOk : ExitCode::kOutput;
  };
}

}  // namespace tessera::client
