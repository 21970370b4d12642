// Rules about the source tree that no compiler checks: which room may include which, who may include LibTorch and
// gRPC, how long a function may be, that no file names a place on somebody's machine, that
// no test sleeps, and that processors are counted in one place.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::layout {

// Path relative to the root, with forward slashes → the file's lines.
using SourceTree = std::map<std::string, std::vector<std::string>>;

// Every text file below `root`, without version control, fetched dependencies and what builds produce.
SourceTree ReadSourceTree(const std::filesystem::path& root);

// Each returns one line per violation, "FILE:LINE: what is wrong"; empty where all is well.
//
// Of C++ files, by their #include lines. LibTorch is followed through the project's own headers: it must not reach
// the front end by a detour either.
std::vector<std::string> CheckIncludes(const SourceTree& tree);
// That a file of base/ declares in namespace tessera::base, and so for every other room with a namespace. The installed
// headers of the client library declare in tessera.
std::vector<std::string> CheckNamespaces(const SourceTree& tree);
// Of the product, not of its tests, whose tables may be long.
std::vector<std::string> CheckFunctions(const SourceTree& tree);
// Of the rooms that have folders: how many files lie beside these.
std::vector<std::string> CheckTopLevels(const SourceTree& tree);
std::vector<std::string> CheckMachinePaths(const SourceTree& tree);
// Of the bugs that tests plant: that one of *_planted_test.cc names each of them.
std::vector<std::string> CheckPlantedBugs(const SourceTree& tree);
// Of tests: that they sleep in tests/support/wait_until.* alone, and have no upper bound on the time that passes.
std::vector<std::string> CheckSleeps(const SourceTree& tree);
// Of the product: that base/machine_processors.cc alone counts processors, since only it knows what a container grants.
std::vector<std::string> CheckProcessorCounts(const SourceTree& tree);

}  // namespace tessera::layout
