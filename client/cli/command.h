// Declares the commands of `tessera`, one source file each. main.cc has the table.
#pragma once

#include <functional>

#include "client/cli/exit_code.h"
#include "client/cli/interrupts.h"

namespace CLI {
class App;
}

namespace tessera::client {

// Runs a command after its options have been parsed.
using CommandRun = std::function<ExitCode(Interrupts&)>;

// Each adds the options of one command to `app` and returns the function that runs the command; that function owns the
// option values.
CommandRun AddGenerate(CLI::App& app);
CommandRun AddInspect(CLI::App& app);
CommandRun AddReplay(CLI::App& app);
CommandRun AddModels(CLI::App& app);
CommandRun AddPull(CLI::App& app);
CommandRun AddBatch(CLI::App& app);
CommandRun AddTrain(CLI::App& app);
CommandRun AddBench(CLI::App& app);
CommandRun AddVerify(CLI::App& app);
CommandRun AddLayouts(CLI::App& app);
CommandRun AddPlan(CLI::App& app);
CommandRun AddServe(CLI::App& app);
CommandRun AddNode(CLI::App& app);
CommandRun AddDoctor(CLI::App& app);
CommandRun AddBackup(CLI::App& app);
CommandRun AddRestore(CLI::App& app);
CommandRun AddKeys(CLI::App& app);
CommandRun AddJobs(CLI::App& app);
CommandRun AddCancel(CLI::App& app);
CommandRun AddUsage(CLI::App& app);
CommandRun AddCompletion(CLI::App& app);
CommandRun AddManual(CLI::App& app);

}  // namespace tessera::client
