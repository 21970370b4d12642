#include "tests/support/fake_cuda/fake_cuda_log.h"

#include <cxxabi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

bool IsOperation(const FakeCudaEvent& event) {
  static const std::set<std::string> kinds = {"kernel", "product", "attention", "convolution",
                                              "copy",   "memset",  "nccl"};
  return kinds.contains(event.kind);
}

std::string Demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? std::string(text.get()) : name;
}

// Returns the short name of an operation. Products include dtype and library, copies include their direction.
std::string NameOf(const FakeCudaEvent& event, const std::map<int64_t, std::string>& kernels) {
  if (event.kind == "kernel") return kernels.at(event.Number(1));
  if (event.kind == "copy") return absl::StrCat("copy ", event.fields[1]);
  if (event.kind == "memset") return event.kind;
  if (event.kind == "nccl") return absl::StrCat("nccl ", event.fields[1]);
  return absl::StrCat(event.kind, " ", event.fields[1], " ", event.fields[2]);
}

// Returns the bytes that one call sends, by ncclDataType_t.
int64_t GivenBytes(const FakeCudaEvent& transfer) {
  constexpr std::array<int64_t, 10> kTypeBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return transfer.fields.at(0) == "ncclRecv"
             ? 0
             : transfer.Number(1) * kTypeBytes.at(static_cast<size_t>(transfer.Number(2)));
}

void AddOperation(FakeCudaStep& step, const FakeCudaEvent& event, const std::map<int64_t, std::string>& kernels) {
  ++step.count;
  ++step.operations[NameOf(event, kernels)];
  if (event.kind == "copy") {
    if (event.fields[3] == "pageable") ++step.pageable_copies;
    if (event.fields[1] == "D2H") step.bytes_to_host += event.Number(2);
  }
  if (event.kind == "nccl") ++step.exchanges;
  if (event.kind == "product") {
    if (event.fields[2] == "fp32") ++step.fp32_products;
    step.product_rows[event.fields[2]][event.Number(5)] += event.Number(3);
  }
}

void AddGraph(FakeCudaStep& step, const FakeCudaStep& graph) {
  step.count += graph.count;
  for (const auto& [name, count] : graph.operations) step.operations[name] += count;
  step.fp32_products += graph.fp32_products;
  step.exchanges += graph.exchanges;
  for (const auto& [call, bytes] : graph.given_bytes) step.given_bytes[call] += bytes;
  step.bytes_to_host += graph.bytes_to_host;
  for (const auto& [dtype, rows_by_length] : graph.product_rows) {
    for (const auto& [length, rows] : rows_by_length) step.product_rows[dtype][length] += rows;
  }
}

// Begin and end times in ascending order; overlapping intervals are merged.
using Intervals = std::vector<std::pair<int64_t, int64_t>>;

Intervals Merged(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  Intervals merged;
  for (const auto& [begin, end] : intervals) {
    if (!merged.empty() && begin <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, end);
    } else {
      merged.emplace_back(begin, end);
    }
  }
  return merged;
}

}  // namespace

FakeCudaLog FakeCudaLog::Read(const std::string& path) {
  FakeCudaLog log;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> words = absl::StrSplit(line, ' ');
    FakeCudaEvent event;
    if (words.size() < 3 || !absl::SimpleAtoi(words[0], &event.microseconds) ||
        !absl::SimpleAtoi(words[1], &event.thread)) {
      ADD_FAILURE() << path << " has the line '" << line << "'";
      continue;
    }
    event.kind = words[2];
    event.fields.assign(words.begin() + 3, words.end());
    if (event.kind == "name") {
      log.names_[event.Number(0)] = ShortName(event.fields.at(1));
    } else {
      log.events_.push_back(std::move(event));
    }
  }
  return log;
}

std::vector<FakeCudaLog> FakeCudaLog::ReadAll(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
    if (entry.path().filename().string().starts_with(path.filename().string() + ".")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<FakeCudaLog> logs;
  for (const std::string& file : files) {
    FakeCudaLog log = Read(file);
    if (log.Count("kernel") > 0) logs.push_back(std::move(log));
  }
  return logs;
}

int FakeCudaLog::Count(const std::string& kind) const {
  return static_cast<int>(
      std::count_if(events_.begin(), events_.end(), [&](const FakeCudaEvent& event) { return event.kind == kind; }));
}

std::vector<FakeCudaEvent> FakeCudaLog::Of(const std::string& kind) const {
  std::vector<FakeCudaEvent> of;
  std::copy_if(events_.begin(), events_.end(), std::back_inserter(of),
               [&](const FakeCudaEvent& event) { return event.kind == kind; });
  return of;
}

std::vector<std::string> FakeCudaLog::Faults() const {
  std::set<std::string> faults;
  for (const FakeCudaEvent& event : events_) {
    if (event.kind == "stub" || event.kind == "error" || event.kind == "default_stream" ||
        event.kind == "load_in_capture") {
      faults.insert(absl::StrCat(event.kind, " ", absl::StrJoin(event.fields, " ")));
    }
  }
  return {faults.begin(), faults.end()};
}

bool FakeCudaLog::EndsStep(const FakeCudaEvent& event) {
  return event.kind == "copy" && event.fields[1] == "D2H" && event.fields[2] == "16" && event.fields[3] == "pinned";
}

bool FakeCudaLog::Attends(const FakeCudaEvent& event, int64_t queries) {
  if (event.kind != "attention") return false;
  const std::vector<std::string> shape = absl::StrSplit(event.fields.at(3), 'x');
  return shape.size() == 4 && std::stoll(shape[2]) >= queries;
}

int64_t FakeCudaLog::PeakBytes() const {
  int64_t peak = 0;
  for (const FakeCudaEvent& event : events_) {
    if (event.kind == "malloc") peak = std::max(peak, event.Number(1));
  }
  return peak;
}

int64_t FakeCudaLog::PeakHostBytes() const {
  int64_t peak = 0;
  for (const FakeCudaEvent& event : events_) {
    if (event.kind == "resident") peak = std::max(peak, event.Number(0));
  }
  return peak;
}

FakeCudaLog::Busy FakeCudaLog::BusyWith(const std::string& engine, const std::string& after) const {
  std::map<std::string, Intervals> by_engine;
  bool loads = true;
  for (const FakeCudaEvent& event : events_) {
    const bool begins = after.empty() ? event.kind == "product"
                                      : event.kind == "kernel" && absl::StrContains(names_.at(event.Number(1)), after);
    loads = loads && !begins;
    if (event.kind == "busy" && !loads) by_engine[event.fields.at(1)].emplace_back(event.Number(2), event.Number(3));
  }
  const Intervals computing = Merged(by_engine["compute"]);
  Busy busy;
  for (const auto& [begin, end] : Merged(by_engine[engine])) {
    busy.all += end - begin;
    for (const auto& [from, to] : computing)
      busy.computing += std::max<int64_t>(0, std::min(end, to) - std::max(begin, from));
  }
  return busy;
}

FakeCudaLog::Span FakeCudaLog::Between(int64_t begin, int64_t end) const {
  Span span{.all = end - begin};
  for (const FakeCudaEvent& event : events_) {
    if (event.kind != "busy" || event.Number(2) < begin || event.Number(2) >= end) continue;
    const int64_t duration = event.Number(3) - event.Number(2);
    span.computing += event.fields[1] == "compute" ? duration : 0;
    span.copying += event.fields[1] == "H2D" ? duration : 0;
  }
  return span;
}

std::vector<FakeCudaStep> FakeCudaLog::Steps() const { return Divide().first; }

FakeCudaStep FakeCudaLog::AfterSteps() const { return Divide().second; }

std::pair<std::vector<FakeCudaStep>, FakeCudaStep> FakeCudaLog::Divide() const {
  std::vector<FakeCudaStep> steps;
  FakeCudaStep step;
  std::map<int64_t, FakeCudaStep> graphs;  // operations recorded in each graph
  std::vector<FakeCudaEvent> waits;
  std::map<int, std::vector<FakeCudaEvent>> transfers;  // by thread, of the next exchange
  int64_t begin = -1;                                   // of the step; -1: not begun
  for (const FakeCudaEvent& event : events_) {
    if (event.kind == "wait") waits.push_back(event);
    if (event.kind == "malloc") ++step.mallocs;
    if (event.kind == "transfer") transfers[event.thread].push_back(event);
    if (event.kind == "graph") AddGraph(step, graphs[event.Number(0)]);
    if (IsOperation(event)) {
      if (begin < 0) begin = event.microseconds;
      FakeCudaStep& of = event.fields[0] == "0" ? step : graphs[event.Number(0)];
      AddOperation(of, event, names_);
      if (event.kind == "nccl") {
        for (const FakeCudaEvent& transfer : std::exchange(transfers[event.thread], {})) {
          of.given_bytes[{transfer.fields.at(0), transfer.fields.at(4)}] += GivenBytes(transfer);
        }
      }
    }
    if (!EndsStep(event)) continue;
    // The wait for the reply is in a separate thread.
    step.waits = static_cast<int>(std::count_if(
        waits.begin(), waits.end(), [&](const FakeCudaEvent& wait) { return wait.thread == event.thread; }));
    step.issue_milliseconds = static_cast<double>(event.microseconds - begin) / 1000;
    steps.push_back(std::exchange(step, {}));
    waits.clear();
    begin = -1;
  }
  return {std::move(steps), std::move(step)};
}

// Each of LibTorch's elementwise and reduction kernels is an instance of one template. The type argument says what it
// computes.
std::string FakeCudaLog::ShortName(const std::string& mangled) {
  const std::string name = Demangled(mangled);
  static const std::regex own(R"((\w+)(<|\(|$))");
  std::smatch match;
  std::string kernel = std::regex_search(name, match, own) ? match[1].str() : name;
  for (const char* wrapper : {"_elementwise_kernel", "elementwise_kernel_with_index", "reduce_kernel"}) {
    const size_t at = name.find(wrapper);
    if (at != std::string::npos) kernel = std::string(wrapper).substr(wrapper[0] == '_' ? 1 : 0);
  }
  static const std::regex inner(
      R"(\b(direct_copy_kernel\w*|bfloat16_copy\w*|\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|\w+Ops\b|FillFunctor|compare_\w+|arange\w*|Gelu\w*|CatArray\w*)\b)");
  for (std::sregex_iterator it(name.begin(), name.end(), inner), end; it != end; ++it) {
    const std::string found = (*it)[1].str();
    if (found != kernel && found.find("gpu_kernel_impl") == std::string::npos &&
        found.find("AUnaryFunctor") == std::string::npos && found.find("BUnaryFunctor") == std::string::npos &&
        found.find("BinaryFunctor") == std::string::npos) {
      return kernel + " " + found;
    }
  }
  return kernel;
}

std::string FakeCudaTable(const FakeCudaLog& log) {
  const std::vector<FakeCudaStep> steps = log.Steps();
  if (steps.size() < 3) return absl::StrCat("no three steps, and ", log.Count("product"), " products\n");
  const FakeCudaStep& step = steps[steps.size() - 2];
  std::vector<std::pair<int, std::string>> rows;
  for (const auto& [name, count] : step.operations) rows.emplace_back(-count, name);
  std::sort(rows.begin(), rows.end());
  std::string text;
  for (const auto& [count, name] : rows) absl::StrAppendFormat(&text, "%6d  %s\n", -count, name);
  absl::StrAppendFormat(&text,
                        "%6d  operations; %d host waits, %d pageable copies, %d cudaMalloc, %d fp32 products, %d bytes "
                        "to the host\n",
                        step.count, step.waits, step.pageable_copies, step.mallocs, step.fp32_products,
                        step.bytes_to_host);
  std::vector<double> times;
  for (size_t i = 1; i + 1 < steps.size(); ++i) times.push_back(steps[i].issue_milliseconds);
  std::sort(times.begin(), times.end());
  absl::StrAppendFormat(&text,
                        "%6.1f  ms to issue a step at least, %.1f in the median; device memory %.2f GiB at most\n",
                        times.front(), times[times.size() / 2], static_cast<double>(log.PeakBytes()) / (1 << 30));
  return text;
}

}  // namespace tessera
