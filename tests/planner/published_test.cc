// Compares the planner with the latencies that xDiT publishes, row by row, with one efficiency fitted to the single-GPU
// row of each table. This test computes the table in docs/planner.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "server/planning/layout_time.h"
#include "tests/planner/known_models.h"

namespace tessera::server {
namespace {

struct Row {
  std::string table, source, model, gpu, link;
  PlannedImage work;
  parallel::Layout layout;
  double seconds = 0;
};

struct HeldRow {
  Row row;
  double predicted = 0;
  double error() const { return predicted / row.seconds - 1; }
};

// Also accepts "…,warmup=0" as in xDiT: patches from the first step on.
absl::StatusOr<parallel::Layout> LayoutOf(const std::string& text) {
  constexpr absl::string_view kNoWarmup = ",warmup=0";
  if (!absl::EndsWith(text, kNoWarmup)) return parallel::ParseLayout(text);
  absl::StatusOr<parallel::Layout> layout = parallel::ParseLayout(text.substr(0, text.size() - kNoWarmup.size()));
  if (layout.ok()) layout->warmup = 0;
  return layout;
}

// The length of a FLUX.1 prompt in xDiT's examples/flux_example.py.
constexpr int64_t kFluxTextTokens = 256;

// Returns an empty list if a line is invalid.
std::vector<Row> PublishedRows() {
  std::vector<Row> rows;
  std::ifstream file("tests/planner/published.csv");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string> cells = absl::StrSplit(line, ';');
    if (cells.size() != 11) return {};
    Row row{.table = cells[0],
            .source = cells[1],
            .model = cells[2],
            .gpu = cells[3],
            .link = cells[4],
            .work = {},
            .layout = {}};
    const absl::StatusOr<parallel::Layout> layout = LayoutOf(cells[9]);
    if (!layout.ok() || !absl::SimpleAtoi(cells[5], &row.work.width) || !absl::SimpleAtoi(cells[6], &row.work.height) ||
        !absl::SimpleAtoi(cells[7], &row.work.steps) || !absl::SimpleAtod(cells[10], &row.seconds)) {
      return {};
    }
    row.layout = *layout;
    row.work.decodes = cells[8] == "image";
    row.work.splits_decoding = false;  // xDiT's default
    if (row.model == "flux") row.work.text_tokens = kFluxTextTokens;
    rows.push_back(row);
  }
  return rows;
}

// Returns the number of operators that a block of diffusers 0.42.1 dispatches in PyTorch, including views. They were
// counted with a TorchDispatchMode as the difference between models of three blocks and one block. For FLUX it is the
// mean of 19 double and 38 single blocks (158 and 83). The blocks of HunyuanVideo are those of FLUX; the blocks of
// ConsisID were not counted, and those of Stable Diffusion 3 are used instead.
double OperatorsOfBlock(const std::string& model) {
  static const std::map<std::string, double> kCounted = {{"flux", 108},  {"hunyuanvideo", 108}, {"sd3", 119},
                                                         {"pixart", 83}, {"hunyuandit", 234},   {"consisid", 119}};
  return kCounted.at(model);
}
// A rough time per operator in eager PyTorch, including Python.
constexpr double kOperatorSeconds = 10e-6;

double Predict(const Row& row, double efficiency) {
  Machine machine = *MachineOf(*FindGpu(row.gpu), *base::EnumOf<Link>(row.link), control::Dtype::kBf16,
                               {.products = efficiency, .attention = efficiency});
  machine.block_seconds = OperatorsOfBlock(row.model) * kOperatorSeconds;
  return TimeOf(row.layout, KnownModel(row.model), row.work, machine)->image();
}

// Returns the efficiency at which the prediction for the single-GPU row equals the measurement. The predicted latency
// falls as the efficiency rises.
double Fit(const Row& one_gpu) {
  double low = 1e-3, high = 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (Predict(one_gpu, middle) > one_gpu.seconds ? low : high) = middle;
  }
  return low;
}

std::vector<HeldRow> Hold() {
  std::vector<HeldRow> held;
  std::map<std::string, double> fitted;
  for (const Row& row : PublishedRows()) {
    if (!fitted.contains(row.table)) {
      EXPECT_EQ(row.layout, parallel::Layout()) << row.table << " does not begin with one GPU";
      fitted[row.table] = Fit(row);
      continue;
    }
    held.push_back({.row = row, .predicted = Predict(row, fitted[row.table])});
  }
  return held;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double MedianError(const std::vector<HeldRow>& rows) {
  std::vector<double> errors;
  for (const HeldRow& held : rows) errors.push_back(std::abs(held.error()));
  return Median(errors);
}

// Returns whether the row comes from a table in a page's text rather than from the numbers on a chart's bars.
bool InText(const HeldRow& held) { return absl::EndsWith(held.row.source, ".md"); }

std::vector<HeldRow> Where(const std::vector<HeldRow>& rows, bool (*keeps)(const HeldRow&)) {
  std::vector<HeldRow> kept;
  std::ranges::copy_if(rows, std::back_inserter(kept), keeps);
  return kept;
}

std::vector<HeldRow> Texts(const std::vector<HeldRow>& rows) { return Where(rows, InText); }
std::vector<HeldRow> Charts(const std::vector<HeldRow>& rows) {
  return Where(rows, [](const HeldRow& held) { return !InText(held); });
}

std::string Table(const std::vector<HeldRow>& rows) {
  std::string table = "| rows | number | median error % |\n|---|---|---|\n";
  const auto summarize = [&](const std::string& name, const std::vector<HeldRow>& some) {
    absl::StrAppendFormat(&table, "| %s | %d | %.1f |\n", name, some.size(), 100 * MedianError(some));
  };
  summarize("tables in text", Texts(rows));
  summarize("numbers on charts", Charts(rows));
  std::map<std::string, std::vector<HeldRow>> models;
  for (const HeldRow& held : rows) models[held.row.model].push_back(held);
  for (const auto& [model, some] : models) summarize(model, some);
  summarize("all", rows);
  absl::StrAppend(&table, "\n| table | layout | published s | predicted s | error % |\n|---|---|---|---|---|\n");
  for (const HeldRow& held : rows) {
    absl::StrAppendFormat(&table, "| %s | `%s` | %.2f | %.2f | %+.0f |\n", held.row.table,
                          held.row.layout.warmup == 0
                              ? absl::StrReplaceAll(parallel::LayoutText(held.row.layout), {{",warmup=0", ""}})
                              : parallel::LayoutText(held.row.layout),
                          held.row.seconds, held.predicted, 100 * held.error());
  }
  return table;
}

TEST(PublishedTest, EveryRowIsReadAndHasATableWithARowOfOneGpu) {
  const std::vector<Row> rows = PublishedRows();
  std::set<std::string> tables;
  for (const Row& row : rows) {
    tables.insert(row.table);
    EXPECT_TRUE(FindGpu(row.gpu).ok()) << row.gpu;
    EXPECT_GT(row.seconds, 0) << row.table;
  }
  EXPECT_EQ(rows.size(), 176u);
  EXPECT_EQ(Hold().size() + tables.size(), rows.size());
}

TEST(PublishedTest, HalfOfTheRowsAreWithinFifteenPercentInTextAndOnCharts) {
  const std::vector<HeldRow> rows = Hold();
  ASSERT_EQ(Texts(rows).size(), 39u);
  ASSERT_EQ(Charts(rows).size(), 96u);
  EXPECT_LE(MedianError(Texts(rows)), 0.15);
  EXPECT_LE(MedianError(Charts(rows)), 0.15);
  EXPECT_LE(MedianError(rows), 0.15);
}

TEST(PublishedTest, TheDocumentHasTheTableThatIsComputed) {
  const std::string begin =
      "<!-- Made from tests/planner/published.csv: TESSERA_UPDATE_DOCUMENTS=1 planning_test. -->\n";
  const std::string end = "<!-- End of the table. -->\n";
  const std::string path = "docs/planner.md";
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t from = text.find(begin), to = text.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to);
  const std::string made = text.substr(0, from + begin.size()) + Table(Hold()) + text.substr(to);
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream(path) << made;
  EXPECT_TRUE(made == text) << "set TESSERA_UPDATE_DOCUMENTS=1 and run this test again";
}

}  // namespace
}  // namespace tessera::server
