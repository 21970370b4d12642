// Measures the memory that a rank needs for each sample of its run.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "control/training/dataset.h"
#include "models/families/families.h"
#include "models/loading/load_options.h"
#include "models/weights/model_folder.h"
#include "parallel/communicator.h"
#include "runtime/training/data/data_order.h"
#include "runtime/training/training_samples.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

// For each further sample.
constexpr double kMostBytes = 400;

// Bytes that operator new has returned, as the allocator rounds them, and their maximum.
std::atomic<int64_t> new_bytes = 0, most_new_bytes = 0;

void CountNew(void* memory) {
  const int64_t now = new_bytes += static_cast<int64_t>(::malloc_usable_size(memory) + sizeof(size_t));
  int64_t most = most_new_bytes;
  while (most < now && !most_new_bytes.compare_exchange_weak(most, now)) {
  }
}
void CountDelete(void* memory) {
  if (memory != nullptr) new_bytes -= static_cast<int64_t>(::malloc_usable_size(memory) + sizeof(size_t));
}

// HeapBytes returns the bytes that the program has allocated, ResidentBytes those of its memory that are resident.
int64_t HeapBytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}
int64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    int64_t kibibytes = 0;
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "VmRSS:") && absl::ConsumeSuffix(&rest, "kB") &&
        absl::SimpleAtoi(rest, &kibibytes)) {
      return kibibytes << 10;
    }
  }
  return 0;
}

// Samples with names and captions of typical lengths; all have the same content, and therefore the same entries of the
// cache.
class TrainingMemoryTest : public ::testing::Test {
 protected:
  // The data that a run of that many samples holds between two steps of its second epoch, and the most of it while they
  // are listed and scanned, and until then.
  struct Held {
    std::unique_ptr<TrainingSamples> samples;
    std::unique_ptr<DataOrder> order;
    int64_t peak_of_scan = 0, peak = 0;
  };

  void SetUp() override {
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open("tests/golden/pipelines/pixart_sigma");
    ASSERT_TRUE(folder.ok()) << folder.status();
    const absl::StatusOr<const models::FamilyEntry*> entry = models::FindFamily(folder->class_name());
    ASSERT_TRUE(entry.ok()) << entry.status();
    absl::StatusOr<std::unique_ptr<models::Family>> family =
        (*entry)->load(*folder, {.dtype = at::kFloat, .for_training = true});
    ASSERT_TRUE(family.ok()) << family.status();
    family_ = *std::move(family);
  }

  absl::StatusOr<control::TrainingSet> Scan(int64_t count) const {
    const std::string images = files_ / absl::StrCat("images", count);
    std::filesystem::create_directories(images);
    std::filesystem::copy_file("tests/pictures/source.png", images + "/a.png");
    std::ofstream lines(images + "/metadata.jsonl");
    for (int64_t i = 0; i < count; ++i) {
      lines << R"({"file_name": "picture-)" << 1000000 + i << R"(.png", "text": "two small houses by the sea"})"
            << "\n";
    }
    lines.close();
    const std::vector<control::TrainDataset> datasets = {{.folder_path = images, .resolution = {64}}};
    const control::DatasetOptions options{
        .datasets = datasets, .trigger_word = "zzz", .default_resolution = 64, .rule = {}};
    ASSIGN_OR_RETURN(control::DatasetListing listing, control::DatasetListing::Create(options));
    const absl::StatusOr<control::PictureContent> content = control::LookAtPicture(images + "/a.png");
    const std::vector<absl::StatusOr<control::PictureContent>> contents(listing.paths().size(), content);
    absl::StatusOr<control::TrainingSet> set = std::move(listing).Scan(contents);
    // The picture that is encoded for all samples.
    if (set.ok()) set->samples[0].path = images + "/a.png";
    return set;
  }

  absl::StatusOr<Held> Hold(int64_t count) {
    const int64_t before = new_bytes;
    most_new_bytes = before;
    ASSIGN_OR_RETURN(control::TrainingSet set, Scan(count));
    const int64_t peak_of_scan = most_new_bytes - before;
    ::malloc_trim(0);  // as Trainer does
    std::vector<OrderedSample> ordered;
    ordered.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) ordered.push_back({.id = i, .bucket = 0, .repeats = 1});
    ASSIGN_OR_RETURN(DataOrder order, DataOrder::Create(ordered, 1, 7));
    Held held{.samples = std::make_unique<TrainingSamples>(
                  std::move(set), *family_, groups_,
                  SampleOptions{.max_sequence_length = 37, .cache = files_ / "cache", .base = {}}),
              .order = std::make_unique<DataOrder>(std::move(order)),
              .peak_of_scan = peak_of_scan};
    ordered = {};
    while (held.samples->prepared() < count) RETURN_IF_ERROR(held.samples->Prepare(8));
    for (const int64_t cursor : {int64_t{0}, count - 1, count, count + 1}) {
      RETURN_IF_ERROR(held.samples->Fetch({held.order->Batch(cursor).visits[0].id}, {0}));
    }
    held.peak = most_new_bytes - before;
    return held;
  }

  struct Bytes {
    double heap = 0, resident = 0, peak_of_scan = 0, peak = 0;
  };
  Bytes OfEachFurtherSample(int64_t few, int64_t many) {
    Bytes bytes[2];
    for (const int i : {0, 1}) {
      ::malloc_trim(0);
      const int64_t heap = HeapBytes(), resident = ResidentBytes();
      EXPECT_GT(resident, 0);
      const absl::StatusOr<Held> held = Hold(i == 0 ? few : many);
      EXPECT_TRUE(held.ok()) << held.status();
      bytes[i] = {.heap = static_cast<double>(HeapBytes() - heap),
                  .resident = static_cast<double>(ResidentBytes() - resident),
                  .peak_of_scan = static_cast<double>(held->peak_of_scan),
                  .peak = static_cast<double>(held->peak)};
    }
    const auto samples = static_cast<double>(many - few);
    const Bytes each = {.heap = (bytes[1].heap - bytes[0].heap) / samples,
                        .resident = (bytes[1].resident - bytes[0].resident) / samples,
                        .peak_of_scan = (bytes[1].peak_of_scan - bytes[0].peak_of_scan) / samples,
                        .peak = (bytes[1].peak - bytes[0].peak) / samples};
    std::cout << "between " << few << " and " << many << " samples, each further one takes " << each.heap << " bytes, "
              << each.resident << " of resident memory, " << each.peak_of_scan << " while the data are scanned, and "
              << each.peak << " at most\n";
    return each;
  }

  const TestFolder files_;
  parallel::SingleRank one_;
  const TrainingGroups groups_ = TrainingGroups::Alone(one_);
  std::unique_ptr<models::Family> family_;
};

TEST_F(TrainingMemoryTest, GrowsByAFewHundredBytesWithEachSample) {
  ASSERT_TRUE(Hold(10).ok());  // allocations that are made only once
  const bool is_long = std::getenv("TESSERA_LONG") != nullptr;
  const Bytes each = OfEachFurtherSample(1000, is_long ? 100000 : 4000);
  EXPECT_LE(each.heap, kMostBytes);
  EXPECT_LE(each.peak_of_scan, kMostBytes);
  EXPECT_LE(each.peak, kMostBytes);
  // Of few samples the pages of all else are too many.
  EXPECT_LE(is_long ? each.resident : 0, kMostBytes);
}

}  // namespace
}  // namespace tessera::runtime

void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  tessera::runtime::CountNew(memory);
  return memory;
}
void operator delete(void* memory) noexcept {
  tessera::runtime::CountDelete(memory);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { ::operator delete(memory); }
