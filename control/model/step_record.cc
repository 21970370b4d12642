#include "control/model/step_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"

namespace tessera::control {
namespace {

constexpr char kMagic[] = "tessera record 1\n";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr int64_t kMostTokens = int64_t{1} << 24;  // of one state; a file with more is not a valid record

static_assert(std::endian::native == std::endian::little, "records are little-endian");

struct StateHeader {
  uint64_t job;
  int32_t step, branch, block, text;
  int64_t first, count;
};
static_assert(sizeof(StateHeader) == 40 && std::is_trivially_copyable_v<StateHeader>);

std::string FileOf(const std::string& folder, int rank) { return absl::StrCat(folder, "/rank-", rank, ".record"); }

struct RankTokens {
  int64_t first = 0;
  std::vector<TokenDigest> tokens;
};

using RankRecord = std::map<StatePlace, std::vector<RankTokens>>;

absl::Status NoRecord(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::filesystem::path(path).filename().string(), " is not a complete record"));
}

absl::Status OfAnotherRun() {
  return absl::InvalidArgumentError("the records are of runs that computed different things");
}

absl::StatusOr<RankRecord> ReadRecord(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::error_code error;
  uint64_t left = std::filesystem::file_size(path, error);
  char magic[kMagicBytes];
  if (error || left < kMagicBytes || !file.read(magic, kMagicBytes) || std::memcmp(magic, kMagic, kMagicBytes) != 0) {
    return NoRecord(path);
  }
  left -= kMagicBytes;
  RankRecord record;
  while (left > 0) {
    StateHeader header;
    if (left < sizeof(header) || !file.read(reinterpret_cast<char*>(&header), sizeof(header))) return NoRecord(path);
    left -= sizeof(header);
    if (header.first < 0 || header.first > kMostTokens || header.count < 0 || header.count > kMostTokens) {
      return NoRecord(path);
    }
    const uint64_t bytes = static_cast<uint64_t>(header.count) * sizeof(TokenDigest);
    if (left < bytes) return NoRecord(path);
    RankTokens tokens{.first = header.first, .tokens = std::vector<TokenDigest>(static_cast<size_t>(header.count))};
    if (!file.read(reinterpret_cast<char*>(tokens.tokens.data()), static_cast<std::streamsize>(bytes))) {
      return NoRecord(path);
    }
    left -= bytes;
    record[{header.job, header.step, header.branch, header.block, header.text != 0}].push_back(std::move(tokens));
  }
  return record;
}

// Returns the records by rank, which count from 0 without a gap.
absl::StatusOr<std::vector<RankRecord>> ReadFolder(const std::string& folder) {
  std::vector<RankRecord> ranks;
  while (ranks.empty() || std::filesystem::exists(FileOf(folder, static_cast<int>(ranks.size())))) {
    ASSIGN_OR_RETURN(RankRecord record, ReadRecord(FileOf(folder, static_cast<int>(ranks.size()))));
    ranks.push_back(std::move(record));
  }
  return ranks;
}

// Joins the tokens of each place from all ranks.
std::map<StatePlace, std::map<int64_t, TokenDigest>> Join(const std::vector<RankRecord>& ranks) {
  std::map<StatePlace, std::map<int64_t, TokenDigest>> joined;
  for (const RankRecord& rank : ranks) {
    for (const auto& [place, runs] : rank) {
      std::map<int64_t, TokenDigest>& tokens = joined[place];
      for (const RankTokens& run : runs) {
        for (size_t i = 0; i < run.tokens.size(); ++i) tokens[run.first + static_cast<int64_t>(i)] = run.tokens[i];
      }
    }
  }
  return joined;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRecordWriter>> StepRecordWriter::Create(const std::string& folder, int rank) {
  const std::string path = FileOf(folder, rank);
  // std::ofstream cannot refuse an existing file.
  base::FileDescriptor created(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!created.valid()) {
    if (errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(folder, " holds the record of another run"));
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot record in ", folder));
  }
  created.Close();
  std::ofstream file(path, std::ios::binary);
  file.write(kMagic, kMagicBytes);
  if (!file) return absl::UnavailableError(absl::StrCat("cannot record in ", folder));
  return std::unique_ptr<StepRecordWriter>(new StepRecordWriter(std::move(file)));
}

void StepRecordWriter::Write(const StatePlace& place, int64_t first, std::span<const TokenDigest> tokens) {
  const StateHeader header{.job = place.job,
                           .step = place.step,
                           .branch = place.branch,
                           .block = place.block,
                           .text = place.text ? 1 : 0,
                           .first = first,
                           .count = static_cast<int64_t>(tokens.size())};
  file_.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file_.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size_bytes()));
  if (!file_) throw std::runtime_error("the record of the run cannot be written");
}

absl::StatusOr<RecordComparison> CompareRecords(const std::string& run, const std::string& reference, double bound) {
  ASSIGN_OR_RETURN(const std::vector<RankRecord> ranks, ReadFolder(run));
  ASSIGN_OR_RETURN(const std::vector<RankRecord> reference_ranks, ReadFolder(reference));
  const auto expected = Join(reference_ranks);
  RecordComparison comparison{.complete = Join(ranks).size() == expected.size()};
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    for (const auto& [place, runs] : ranks[static_cast<size_t>(rank)]) {
      const auto states = expected.find(place);
      if (states == expected.end()) return OfAnotherRun();
      double apart = 0, square = 0;
      for (const RankTokens& tokens : runs) {
        for (size_t i = 0; i < tokens.tokens.size(); ++i) {
          const auto state = states->second.find(tokens.first + static_cast<int64_t>(i));
          if (state == states->second.end()) return OfAnotherRun();
          const double product = tokens.tokens[i].product - state->second.product;
          apart += product * product;
          square += state->second.square;
        }
      }
      ++comparison.states;
      double distance = apart == 0 ? 0 : std::sqrt(apart / square);
      if (std::isnan(distance)) distance = std::numeric_limits<double>::infinity();
      comparison.farthest = std::max(comparison.farthest, distance);
      if (distance <= bound) continue;
      std::optional<Parting>& first = comparison.parting;
      if (!first.has_value() || place < first->place || (place == first->place && distance > first->distance)) {
        first = Parting{.place = place, .rank = rank, .distance = distance};
      }
    }
  }
  return comparison;
}

}  // namespace tessera::control
