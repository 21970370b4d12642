#include "tests/layout/source_rules.h"

#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::layout {
namespace {

constexpr size_t kMaxFunctionLines = 80;
constexpr int kMaxFilesAtTheTop = 12;
constexpr std::string_view kInstalledHeaders = "client/sdk/include/";

// The rooms that a header can be in, those within another before it.
constexpr std::string_view kRooms[] = {"client/sdk",
                                       "models/adapters/plan",
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

// base below everything; the front end (client → server) and the worker (runtime → models → parallel → kernels) meet in
// control and in what of parallel and models knows no tensors. tests/ and bench/ may include everything, and unit tests
// may use what lies in tests/.
const std::map<std::string_view, std::set<std::string>>& MayInclude() {
  static const auto* rooms = new std::map<std::string_view, std::set<std::string>>{
      {"base", {"base"}},
      {"parallel/plan", {"parallel/plan", "base"}},
      {"parallel/segment", {"parallel/segment", "parallel/plan", "base"}},
      {"parallel/remote", {"parallel/remote", "parallel/segment", "base"}},
      {"control", {"control", "parallel/plan", "base"}},
      {"kernels", {"kernels", "base"}},
      {"parallel", {"parallel", "parallel/segment", "parallel/plan", "kernels", "base"}},
      {"models/weights", {"models/weights", "control", "base"}},
      {"models/adapters/plan", {"models/adapters/plan", "models/weights", "base"}},
      {"models",
       {"models", "models/adapters/plan", "models/weights", "control", "parallel", "parallel/segment", "parallel/plan",
        "kernels", "base"}},
      {"runtime",
       {"runtime", "models", "models/adapters/plan", "models/weights", "control", "parallel", "parallel/segment",
        "parallel/plan", "kernels", "base"}},
      {"server",
       {"server", "models/adapters/plan", "control", "parallel/remote", "parallel/segment", "parallel/plan", "base"}},
      // Others get it installed, without the rest.
      {"client/sdk", {"client/sdk", "base"}},
      {"client", {"client", "client/sdk", "server", "control", "parallel/segment", "parallel/plan", "base"}},
  };
  return *rooms;
}

// Rooms whose every file must stay free of LibTorch.
bool MustBeFreeOfLibTorch(std::string_view file) {
  for (std::string_view room : {"base/", "client/", "control/", "models/adapters/plan/", "models/weights/",
                                "parallel/plan/", "parallel/remote/", "parallel/segment/", "proto/", "server/"}) {
    if (file.starts_with(room)) return true;
  }
  return false;
}

// gRPC itself: the front end alone.
bool MayIncludeGrpc(std::string_view file) {
  for (std::string_view place : {"client/", "server/", "tests/"}) {
    if (file.starts_with(place)) return true;
  }
  return false;
}

// Generated messages and protobuf itself: also a job's parameters, which are stored as a message.
bool MayIncludeProtobuf(std::string_view file) {
  for (std::string_view place : {"control/job_parameters_wire", "control/message_fields"}) {
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

bool IsCpp(std::string_view file) {
  for (std::string_view extension : {".h", ".cc", ".cu", ".cuh"}) {
    if (file.ends_with(extension)) return true;
  }
  return false;
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

bool IsTest(const std::string& file) {
  return file.starts_with("tests/") || file.ends_with("_test.cc") || file.ends_with("_fuzz.cc");
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
        absl::StrCat(at, include.header, ": in the worker only both ends of the control channel include protobuf"));
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

bool IsProduct(const std::filesystem::path& name) {
  static const auto* names =
      new std::set<std::string>{".git", ".deps", "build", "dist", "output", "shared", "__pycache__"};
  return names->contains(name.string()) || name.string().starts_with("build-");
}

}  // namespace

SourceTree ReadSourceTree(const std::filesystem::path& root) {
  SourceTree tree;
  auto entry = std::filesystem::recursive_directory_iterator(root);
  for (; entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    if (entry.depth() == 0 && IsProduct(entry->path().filename())) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file() || entry->is_symlink()) continue;
    std::ifstream in(entry->path(), std::ios::binary);
    std::ostringstream buffer;
    buffer << in.rdbuf();
    const std::string content = std::move(buffer).str();
    if (content.find('\0') != std::string::npos) continue;
    std::vector<std::string> lines;
    std::istringstream text(content);
    for (std::string line; std::getline(text, line);) lines.push_back(std::move(line));
    tree[entry->path().lexically_relative(root).generic_string()] = std::move(lines);
  }
  return tree;
}

std::vector<std::string> CheckIncludes(const SourceTree& tree) {
  IncludeGraph graph;
  for (const auto& [file, lines] : tree) {
    if (IsCpp(file)) graph[file] = Includes(lines);
  }
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

std::vector<std::string> CheckNamespaces(const SourceTree& tree) {
  static const auto* opening = new std::regex(R"(^namespace tessera(::(\w+))?.*\{$)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    const std::string room = file.substr(0, file.find('/'));
    if (!IsCpp(file) || room == "tests" || room == "bench" || room == "examples") continue;
    std::set<std::string> opened;
    for (const std::string& line : lines) {
      if (std::smatch match; std::regex_match(line, match, *opening)) opened.insert(match[2]);
    }
    const std::string own = file.starts_with(kInstalledHeaders) ? "" : room;
    if (!opened.empty() && !opened.contains(own)) {
      findings.push_back(
          absl::StrCat(file, ":1: it declares nothing in its own namespace, tessera", own.empty() ? "" : "::", own));
    }
    if (!own.empty() && opened.contains("")) {
      findings.push_back(absl::StrCat(file, ":1: it declares in tessera, not in tessera::", own));
    }
  }
  return findings;
}

std::vector<std::string> CheckFunctions(const SourceTree& tree) {
  // As clang-format sets it: the closing brace stands below the beginning of the head, whose last line ends with the
  // opening one and whose other lines are further in.
  static const auto* beginning = new std::regex(R"(^ {0,4}[A-Za-z~].*)");
  static const auto* no_function = new std::regex(
      R"(^ *(if|for|while|switch|do|else|return|case|namespace|class|struct|enum|union|public|private)\b.*)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    if (!IsCpp(file) || IsTest(file)) continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (!std::regex_match(lines[i], *beginning) || std::regex_match(lines[i], *no_function)) continue;
      const size_t indent = lines[i].find_first_not_of(' ');
      const auto is_inside = [&](size_t line) {
        return line < lines.size() &&
               (lines[line].empty() || lines[line].starts_with('#') || lines[line].find_first_not_of(' ') > indent);
      };
      size_t head = i;
      while (!lines[head].ends_with('{') && !lines[head].ends_with(';') && is_inside(head + 1)) ++head;
      if (!lines[head].ends_with(" {") || lines[head].ends_with("= {")) continue;
      size_t last = head + 1;
      while (is_inside(last)) ++last;
      if (last - head - 1 > kMaxFunctionLines) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": a function of ", last - head - 1, " lines, more than ",
                                        kMaxFunctionLines, ": it is two functions"));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckTopLevels(const SourceTree& tree) {
  std::map<std::string, int> files;
  for (const auto& [file, lines] : tree) {
    for (const char* room : {"client", "models", "runtime", "server"}) {
      if (std::filesystem::path(file).parent_path() == room) ++files[room];
    }
  }
  std::vector<std::string> findings;
  for (const auto& [room, count] : files) {
    if (count > kMaxFilesAtTheTop) {
      findings.push_back(absl::StrCat(room, "/ has ", count, " files at its top, more than ", kMaxFilesAtTheTop,
                                      ": give those that make one idea a folder"));
    }
  }
  return findings;
}

std::vector<std::string> CheckMachinePaths(const SourceTree& tree) {
  // Where people and build services keep their checkouts.
  static const auto* pattern =
      new std::regex(R"((^|[^A-Za-z0-9_.\-}/])/(home|root|Users|work|workspace|builds|mnt)/[A-Za-z0-9._\-])");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].find('/') != std::string::npos && lines[i].size() < 4000 && std::regex_search(lines[i], *pattern)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": names a place on somebody's machine: ", lines[i]));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckPlantedBugs(const SourceTree& tree) {
  static const auto* pattern = new std::regex(R"re(\bPlanted\("(\w+)"\))re");
  std::string tests;
  for (const auto& [file, lines] : tree) {
    if (file.ends_with("_planted_test.cc")) absl::StrAppend(&tests, absl::StrJoin(lines, "\n"));
  }
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    if (!IsCpp(file) || RoomOf(file) == "tests" || file.starts_with("base/")) continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(lines[i], match, *pattern)) continue;
      if (tests.find(absl::StrCat("\"", match[1].str(), "\"")) != std::string::npos) continue;
      findings.push_back(absl::StrCat(file, ":", i + 1, ": no test plants ", match[1].str()));
    }
  }
  return findings;
}

std::vector<std::string> CheckSleeps(const SourceTree& tree) {
  static const auto* sleep =
      new std::regex(R"(\b(SleepFor|sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(|^\s*(do )?sleep\b.*[0-9$])");
  static const auto* bound = new std::regex(R"(_L[TE]\((absl::\w+\()?[\w:]*[Nn]ow\(\) -)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    const bool is_test = file.starts_with("tests/") && (IsCpp(file) || file.ends_with(".sh"));
    if (!is_test && !file.ends_with("_test.cc")) continue;
    if (file.starts_with("tests/support/wait_until.")) continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (std::regex_search(lines[i], *sleep)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": sleeps: wait for what must happen with WaitUntil"));
      }
      if (std::regex_search(lines[i], *bound)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": bounds the time that passes: count, or wait"));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckProcessorCounts(const SourceTree& tree) {
  static const auto* pattern = new std::regex(
      R"(\b(hardware_concurrency|_SC_NPROCESSORS_(ONLN|CONF)|get_nprocs|sched_getaffinity|omp_get_num_procs)\b)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    if (!IsCpp(file) || IsTest(file) || RoomOf(file) == "bench" || file == "base/machine_processors.cc") continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (std::smatch match; std::regex_search(lines[i], match, *pattern)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": ", match.str(),
                                        " knows no control group: base/machine_processors.h does"));
      }
    }
  }
  return findings;
}

}  // namespace tessera::layout
