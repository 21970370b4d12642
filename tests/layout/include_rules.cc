// The rules about #include lines.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/layout/source_rules.h"

namespace tessera::layout {
namespace {

// The most .cc files that a header of control/ may reach. Every one of them is compiled again after an edit of it.
constexpr int kMostUnits = 150;

// The rooms that a header can be in; a room within another comes before it.
constexpr std::string_view kRooms[] = {"client/sdk",
                                       "kernels/quantized",
                                       "models/adapters/plan",
                                       "models/keymaps",
                                       "models/weights",
                                       "parallel/plan",
                                       "parallel/remote",
                                       "parallel/segment",
                                       "base",
                                       "bench",
                                       "client",
                                       "control",
                                       "kernels",
                                       "models",
                                       "parallel",
                                       "runtime",
                                       "server",
                                       "tests"};

// base is below everything. The front end (client → server) and the worker (runtime → models → parallel → kernels) meet
// in control and in the parts of parallel and models that know no tensors. tests/ and bench/ may include everything,
// and unit tests may include tests/.
const std::map<std::string_view, std::set<std::string>>& MayInclude() {
  static const auto* rooms = new std::map<std::string_view, std::set<std::string>>{
      {"base", {"base"}},
      {"parallel/plan", {"parallel/plan", "base"}},
      {"parallel/segment", {"parallel/segment", "parallel/plan", "base"}},
      {"parallel/remote", {"parallel/remote", "parallel/segment", "base"}},
      {"control", {"control", "parallel/plan", "base"}},
      {"kernels/quantized", {"kernels/quantized", "base"}},
      {"kernels", {"kernels", "kernels/quantized", "base"}},
      {"parallel", {"parallel", "parallel/segment", "parallel/plan", "kernels", "kernels/quantized", "base"}},
      {"models/keymaps", {"models/keymaps", "base"}},
      {"models/weights", {"models/weights", "models/keymaps", "kernels/quantized", "control", "base"}},
      {"models/adapters/plan", {"models/adapters/plan", "models/keymaps", "models/weights", "base"}},
      {"models",
       {"models", "models/adapters/plan", "models/keymaps", "models/weights", "control", "parallel", "parallel/segment",
        "parallel/plan", "kernels", "kernels/quantized", "base"}},
      {"runtime",
       {"runtime", "models", "models/adapters/plan", "models/keymaps", "models/weights", "control", "parallel",
        "parallel/segment", "parallel/plan", "kernels", "kernels/quantized", "base"}},
      {"server",
       {"server", "models/adapters/plan", "control", "parallel/remote", "parallel/segment", "parallel/plan", "base"}},
      // It is installed without the rest, for other programs.
      {"client/sdk", {"client/sdk", "base"}},
      {"client",
       {"client", "client/sdk", "server", "control", "models/weights", "parallel/segment", "parallel/plan", "base"}},
  };
  return *rooms;
}

// Rooms whose every file must stay free of LibTorch.
bool MustBeFreeOfLibTorch(std::string_view file) {
  for (std::string_view room :
       {"base/", "client/", "control/", "kernels/quantized/", "models/adapters/plan/", "models/keymaps/",
        "models/weights/", "parallel/plan/", "parallel/remote/", "parallel/segment/", "proto/", "server/"}) {
    if (file.starts_with(room)) return true;
  }
  return false;
}

// Only the front end includes gRPC itself.
bool MayIncludeGrpc(std::string_view file) {
  for (std::string_view place : {"client/", "server/", "tests/"}) {
    if (file.starts_with(place)) return true;
  }
  return false;
}

// Generated messages and protobuf itself: also a job's parameters, which are stored as a message.
bool MayIncludeProtobuf(std::string_view file) {
  for (std::string_view place : {"control/parameters/job_parameters_wire", "control/parameters/message_fields"}) {
    if (file.starts_with(place)) return true;
  }
  return MayIncludeGrpc(file);
}

bool IsLibTorch(std::string_view header) {
  for (std::string_view prefix : {"ATen/", "torch/", "c10/", "caffe2/", "torch_"}) {
    if (header.starts_with(prefix)) return true;
  }
  return false;
}

bool IsGrpc(std::string_view header) {
  for (std::string_view prefix : {"grpc/", "grpcpp/", "grpc++/"}) {
    if (header.starts_with(prefix)) return true;
  }
  return header.ends_with(".grpc.pb.h");
}

bool IsProtobuf(std::string_view header) {
  for (std::string_view prefix : {"google/protobuf/", "tessera/internal/", "tessera/v1/"}) {
    if (header.starts_with(prefix)) return true;
  }
  return header.ends_with(".pb.h");
}

// The room that the path lies in; empty for none.
std::string_view RoomOf(std::string_view path) {
  for (std::string_view room : kRooms) {
    if (path.starts_with(room) && path.substr(room.size()).starts_with('/')) return room;
  }
  return "";
}

struct Include {
  std::string header;
  bool quoted;
  int line;
};

std::vector<Include> Includes(const std::vector<std::string>& lines) {
  static const auto* pattern = new std::regex(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> includes;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (std::regex_search(lines[i], match, *pattern)) {
      includes.push_back({.header = match[2], .quoted = match[1] == "\"", .line = static_cast<int>(i) + 1});
    }
  }
  return includes;
}

using IncludeGraph = std::map<std::string, std::vector<Include>>;

// The chain of headers from `file` to a LibTorch header, both ends included.
std::optional<std::vector<std::string>> PathToLibTorch(const IncludeGraph& graph, const std::string& file,
                                                       std::set<std::string>& visited) {
  if (!visited.insert(file).second) return std::nullopt;
  const auto node = graph.find(file);
  if (node == graph.end()) return std::nullopt;
  for (const Include& include : node->second) {
    if (IsLibTorch(include.header)) return std::vector<std::string>{file, include.header};
    if (auto rest = PathToLibTorch(graph, include.header, visited)) {
      rest->insert(rest->begin(), file);
      return rest;
    }
  }
  return std::nullopt;
}

void CheckDirections(const std::string& file, const Include& include, std::vector<std::string>& findings) {
  const std::string at = absl::StrCat(file, ":", include.line, ": ");
  if (include.header == "torch/torch.h" || include.header == "torch/all.h" || include.header == "torch/extension.h") {
    findings.push_back(absl::StrCat(at, include.header, " costs 15 s a file: include what is used"));
  }
  if (include.header.starts_with('.')) {
    findings.push_back(absl::StrCat(at, include.header, " is relative to the file: name it from the root"));
  }
  if (IsGrpc(include.header) && !MayIncludeGrpc(file)) {
    findings.push_back(absl::StrCat(at, include.header, ": gRPC is the front end's alone"));
  } else if (IsProtobuf(include.header) && !MayIncludeProtobuf(file)) {
    findings.push_back(
        absl::StrCat(at, include.header, ": in the worker only the parameters of jobs include protobuf"));
  }
  const std::string_view from = RoomOf(file), to = RoomOf(include.header);
  const auto rule = MayInclude().find(from);
  if (rule == MayInclude().end() || to.empty()) return;
  if (to == "tests" && IsTest(file)) return;
  if (!rule->second.contains(std::string(to))) {
    findings.push_back(absl::StrCat(at, std::string(from), "/ must not include ", include.header, "; it may include ",
                                    absl::StrJoin(rule->second, ", ")));
  }
}

IncludeGraph GraphOf(const SourceTree& tree) {
  IncludeGraph graph;
  for (const auto& [file, lines] : tree) {
    if (IsCpp(file) || file.ends_with(".inc")) graph[file] = Includes(lines);
  }
  return graph;
}

// Folder → folder that it includes → one such include.
using FolderGraph = std::map<std::string, std::map<std::string, std::string>>;

FolderGraph FoldersOf(const IncludeGraph& graph) {
  FolderGraph folders;
  for (const auto& [file, includes] : graph) {
    if (IsTest(file)) continue;
    const std::string from = std::filesystem::path(file).parent_path().generic_string();
    for (const Include& include : includes) {
      const std::string to = std::filesystem::path(include.header).parent_path().generic_string();
      if (from == to || !graph.contains(include.header)) continue;
      folders[from].emplace(to, absl::StrCat(file, ":", include.line, " includes ", include.header));
    }
  }
  return folders;
}

// Returns a shortest cycle through `folder`, which is its first element; empty if there is none.
std::vector<std::string> CycleThrough(const FolderGraph& folders, const std::string& folder) {
  std::map<std::string, std::string> previous;
  std::deque<std::string> open = {folder};
  while (!open.empty()) {
    const std::string from = std::move(open.front());
    open.pop_front();
    const auto node = folders.find(from);
    if (node == folders.end()) continue;
    for (const auto& [to, include] : node->second) {
      if (!previous.emplace(to, from).second) continue;
      if (to != folder) {
        open.push_back(to);
        continue;
      }
      std::vector<std::string> cycle = {from};
      while (cycle.back() != folder) cycle.push_back(previous.at(cycle.back()));
      std::reverse(cycle.begin(), cycle.end());
      return cycle;
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> CheckIncludes(const SourceTree& tree) {
  const IncludeGraph graph = GraphOf(tree);
  std::vector<std::string> findings;
  for (const auto& [file, includes] : graph) {
    for (const Include& include : includes) CheckDirections(file, include, findings);
    if (!MustBeFreeOfLibTorch(file)) continue;
    std::set<std::string> visited;
    if (const auto path = PathToLibTorch(graph, file, visited)) {
      findings.push_back(absl::StrCat(file, ":1: LibTorch must not be included here: ", absl::StrJoin(*path, " → ")));
    }
  }
  return findings;
}

std::vector<std::string> CheckCycles(const SourceTree& tree) {
  const FolderGraph folders = FoldersOf(GraphOf(tree));
  std::vector<std::string> findings;
  std::set<std::string> reported;
  for (const auto& [folder, includes] : folders) {
    if (reported.contains(folder)) continue;
    const std::vector<std::string> cycle = CycleThrough(folders, folder);
    if (cycle.empty()) continue;
    reported.insert(cycle.begin(), cycle.end());
    std::vector<std::string> examples;
    for (size_t i = 0; i < cycle.size(); ++i) {
      examples.push_back(folders.at(cycle[i]).at(cycle[(i + 1) % cycle.size()]));
    }
    findings.push_back(
        absl::StrCat(absl::StrJoin(cycle, "/, "), "/ include each other in a cycle: ", absl::StrJoin(examples, ", ")));
  }
  return findings;
}

std::vector<std::string> CheckFanIn(const SourceTree& tree) {
  const IncludeGraph graph = GraphOf(tree);
  std::map<std::string, int> units;  // by header
  for (const auto& [file, includes] : graph) {
    if (!file.ends_with(".cc")) continue;
    std::set<std::string> seen;
    std::vector<std::string> open = {file};
    while (!open.empty()) {
      const auto node = graph.find(open.back());
      open.pop_back();
      if (node == graph.end()) continue;
      for (const Include& include : node->second) {
        if (seen.insert(include.header).second) open.push_back(include.header);
      }
    }
    for (const std::string& header : seen) {
      if (header.starts_with("control/")) ++units[header];
    }
  }
  std::vector<std::string> findings;
  for (const auto& [header, count] : units) {
    if (count <= kMostUnits) continue;
    findings.push_back(absl::StrCat(header, ":1: ", count, " .cc files include it, directly or through other headers, ",
                                    "more than ", kMostUnits, ": include it in fewer headers"));
  }
  return findings;
}

}  // namespace tessera::layout
