// Rules about the source tree that no compiler checks: which room may include which, that folders do not include each
// other in cycles, how many files a header of control/ reaches, which files may include LibTorch and gRPC, how long a
// function may be, how many test programs there are, that no file names a place on one person's machine, that no test
// sleeps, that processors are counted in one place, that prose is plain English, and that the code which prose names
// exists.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::layout {

// Path relative to the root, with forward slashes → the file's lines.
using SourceTree = std::map<std::string, std::vector<std::string>>;

// Reads every text file below `root`, except version control, fetched dependencies and build outputs.
SourceTree ReadSourceTree(const std::filesystem::path& root);

bool IsCpp(std::string_view file);
bool IsTest(std::string_view file);

// Each Check function returns one line per violation, "FILE:LINE: what is wrong"; an empty result means that the rule
// holds.

// Checks the directions of #include lines in C++ files. LibTorch is followed through the project's own headers: it must
// not reach the front end by a detour either.
std::vector<std::string> CheckIncludes(const SourceTree& tree);
// Files of the product include each other without a cycle between folders. A folder does not contain its sub-folders.
// The message names one include of each folder of the cycle.
std::vector<std::string> CheckCycles(const SourceTree& tree);
// Checks how many .cc files reach each header of control/, which front end and worker share.
std::vector<std::string> CheckFanIn(const SourceTree& tree);
// A file of base/ declares in namespace tessera::base, and so on for every room with a namespace. The installed headers
// of the client library declare in tessera.
std::vector<std::string> CheckNamespaces(const SourceTree& tree);
// Checks the length of functions of the product. Tests are exempt, since their tables may be long.
std::vector<std::string> CheckFunctions(const SourceTree& tree);
// Checks how many files the rooms with folders have outside these folders.
std::vector<std::string> CheckTopLevels(const SourceTree& tree);
// Checks how many test programs there are: each is linked once, and CTest runs one source of a program by itself.
std::vector<std::string> CheckTestPrograms(const SourceTree& tree);
std::vector<std::string> CheckMachinePaths(const SourceTree& tree);
// Every bug that the code can plant is named in a *_planted_test.cc.
std::vector<std::string> CheckPlantedBugs(const SourceTree& tree);
// Tests sleep in tests/support/wait_until.* alone, and have no upper bound on the time that passes.
std::vector<std::string> CheckSleeps(const SourceTree& tree);
// In the product base/machine/machine_processors.cc alone counts processors, since only it knows what a container
// grants.
std::vector<std::string> CheckProcessorCounts(const SourceTree& tree);
// Comments of C++, of scripts and of style sheets, string literals of the product, and documents without their code
// blocks hold few words of the project's former dialect. Returns at most one line for each of these groups, with the
// files that have the most.
std::vector<std::string> CheckDialect(const SourceTree& tree);
// Files, types, functions and members that // comments, or documents in backquotes, name exist in the tree.
std::vector<std::string> CheckNames(const SourceTree& tree);

}  // namespace tessera::layout
