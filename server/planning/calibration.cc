#include "server/planning/calibration.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"
#include "base/files/sha256.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "parallel/plan/layout.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxText = 64 << 10, kMaxName = 256;
constexpr int64_t kFormat = 1;
// Values outside of these bounds are implausible for any machine.
constexpr double kLeastRate = 1e3, kMostRate = 1e18, kLeastSeconds = 1e-10, kMostSeconds = 1e3, kMostBytes = 1e15;
// The number of operators in a block: norms, products, attention, residuals (models/flux/flux_transformer.cc has 16 to
// 24).
constexpr double kOperatorsOfBlock = 20;

void ReadExchange(base::ConfigReader& reader, LinkRate& link) {
  link.seconds = reader.RequiredNumber("seconds", kLeastSeconds, kMostSeconds);
  link.bytes_per_second = reader.RequiredNumber("bytes_second", kLeastRate, kMostRate);
  link.sum_bytes_per_second = reader.RequiredNumber("sum_bytes_second", kLeastRate, kMostRate);
}

void WriteExchange(base::JsonWriter& writer, const LinkRate& link) {
  writer.Key("exchange").BeginObject().Key("seconds").Number(link.seconds);
  writer.Key("bytes_second").Number(link.bytes_per_second);
  writer.Key("sum_bytes_second").Number(link.sum_bytes_per_second).EndObject();
}

absl::StatusOr<ProcessorShare> ShareOf(int ranks, const base::Json& json) {
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromJson(json, "calibration"));
  ProcessorShare share = {.ranks = ranks};
  share.busy = static_cast<int>(reader.RequiredInt("busy", 1, ranks));
  share.product_flops = reader.RequiredNumber("product_flops", kLeastRate, kMostRate);
  share.attention_flops = reader.RequiredNumber("attention_flops", kLeastRate, kMostRate);
  share.memory_bytes_second = reader.RequiredNumber("memory_bytes_second", kLeastRate, kMostRate);
  share.operator_seconds = reader.RequiredNumber("operator_seconds", kLeastSeconds, kMostSeconds);
  share.block_seconds = kOperatorsOfBlock * share.operator_seconds;
  RETURN_IF_ERROR(reader.status());
  return share;
}

absl::StatusOr<std::vector<ProcessorShare>> GroupShares(int ranks, const base::Json& json) {
  const base::Json* compute = json.Find("compute");
  if (compute == nullptr || !compute->is_array()) {
    return absl::InvalidArgumentError("calibration: there is no list \"compute\"");
  }
  std::vector<ProcessorShare> shares;
  int busy = 0;
  for (const base::Json& one : compute->items()) {
    do ++busy;
    while (busy <= ranks && ranks % busy != 0);
    ASSIGN_OR_RETURN(shares.emplace_back(), ShareOf(ranks, one));
    if (shares.back().busy != busy) {
      return absl::InvalidArgumentError(
          absl::StrCat("calibration: ", shares.back().busy, " of ", ranks, " ranks; expected ", busy));
    }
  }
  if (busy != ranks)
    return absl::InvalidArgumentError(absl::StrCat("calibration: it does not have all of ", ranks, " ranks"));
  if (json.Find("device") != nullptr) {
    ASSIGN_OR_RETURN(base::ConfigReader own, base::ConfigReader::FromJson(json, "calibration"));
    const std::string device = own.RequiredString("device");
    const double memory = own.RequiredNumber("memory_bytes", 1, kMostBytes);
    RETURN_IF_ERROR(own.status());
    if (device.empty() || device.size() > kMaxName) {
      return absl::InvalidArgumentError("calibration: a device without a name");
    }
    for (ProcessorShare& share : shares) {
      share.device = device;
      share.memory_bytes = memory;
    }
  }
  if (ranks == 1) return shares;
  const base::Json* exchange = json.Find("exchange");
  if (exchange == nullptr) return absl::InvalidArgumentError("calibration: there is no \"exchange\"");
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromJson(*exchange, "calibration"));
  LinkRate link;
  ReadExchange(reader, link);
  RETURN_IF_ERROR(reader.status());
  link.hidden = !shares.front().device.empty();  // a device sends while it computes; a processor copies instead
  for (ProcessorShare& share : shares) share.link = link;
  return shares;
}

void WriteKey(base::JsonWriter& writer, const CalibrationKey& key) {
  writer.Key("worker").String(key.worker).Key("processor").String(key.processor).Key("threads").Int(key.threads);
  writer.Key("dtype").String(base::EnumName(key.dtype)).Key("width").Int(key.width).Key("heads").Int(key.heads);
}

std::string KeyText(const CalibrationKey& key) {
  base::JsonWriter writer;
  writer.BeginObject();
  WriteKey(writer, key);
  return writer.EndObject().text();
}

}  // namespace

int MostRanks(int32_t threads) { return std::clamp<int>(threads, 1, parallel::kMaxRanks); }

absl::StatusOr<std::vector<ProcessorShare>> SharesOf(int ranks, std::string_view printed) {
  ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(printed, "calibration", kMaxText));
  return GroupShares(ranks, json);
}

std::string CalibrationText(const Calibration& calibration) {
  base::JsonWriter writer;
  writer.BeginObject().Key("format").Int(kFormat);
  WriteKey(writer, calibration.key);
  writer.Key("groups").BeginArray();
  for (size_t i = 0; i < calibration.shares.size();) {
    const int ranks = calibration.shares[i].ranks;
    const LinkRate link = calibration.shares[i].link;
    writer.BeginObject();
    if (const ProcessorShare& share = calibration.shares[i]; !share.device.empty()) {
      writer.Key("device").String(share.device).Key("memory_bytes").Number(share.memory_bytes);
    }
    writer.Key("compute").BeginArray();
    for (; i < calibration.shares.size() && calibration.shares[i].ranks == ranks; ++i) {
      const ProcessorShare& share = calibration.shares[i];
      writer.BeginObject().Key("busy").Int(share.busy).Key("product_flops").Number(share.product_flops);
      writer.Key("attention_flops").Number(share.attention_flops);
      writer.Key("memory_bytes_second").Number(share.memory_bytes_second);
      writer.Key("operator_seconds").Number(share.operator_seconds).EndObject();
    }
    writer.EndArray();
    if (ranks > 1) WriteExchange(writer, link);
    writer.EndObject();
  }
  return absl::StrCat(writer.EndArray().EndObject().text(), "\n");
}

absl::StatusOr<Calibration> ParseCalibration(std::string_view text, const CalibrationKey& key) {
  ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text, "calibration", kMaxText));
  ASSIGN_OR_RETURN(base::ConfigReader reader, base::ConfigReader::FromJson(json, "calibration"));
  const int64_t format = reader.RequiredInt("format");
  CalibrationKey found = {.worker = reader.RequiredString("worker"), .processor = reader.RequiredString("processor")};
  found.threads = static_cast<int32_t>(reader.RequiredInt("threads", 1, 1 << 20));
  const std::string dtype = reader.RequiredString("dtype");
  found.width = reader.RequiredInt("width", 1);
  found.heads = reader.RequiredInt("heads", 1);
  RETURN_IF_ERROR(reader.status());
  found.dtype = base::EnumOf<control::Dtype>(dtype).value_or(control::Dtype::kFp64);
  if (format != kFormat || dtype != base::EnumName(key.dtype) || !(found == key)) {
    return absl::FailedPreconditionError("calibration: it was made for another program, machine or model");
  }
  const base::Json* groups = json.Find("groups");
  const int most = MostRanks(key.threads);
  if (groups == nullptr || std::ssize(groups->items()) != most) {
    return absl::InvalidArgumentError(absl::StrCat("calibration: it must have groups of 1 to ", most, " ranks"));
  }
  Calibration calibration = {.key = key, .shares = {}};
  for (int ranks = 1; ranks <= most; ++ranks) {
    ASSIGN_OR_RETURN(const std::vector<ProcessorShare> shares,
                     GroupShares(ranks, groups->items()[static_cast<size_t>(ranks - 1)]));
    calibration.shares.insert(calibration.shares.end(), shares.begin(), shares.end());
  }
  return calibration;
}

std::string CalibrationFileName(const CalibrationKey& key) {
  base::Sha256 digest;
  digest.Update(KeyText(key));
  return absl::StrCat("ranks-", digest.Finish().substr(0, 16), ".json");
}

Machine MachineOf(const Calibration& calibration, double memory_bytes) {
  const ProcessorShare& alone = calibration.shares.front();
  const bool own = !alone.device.empty();
  return {.name = own ? alone.device : calibration.key.processor,
          .product_flops = alone.product_flops,
          .attention_flops = alone.attention_flops,
          .memory_bytes_second = alone.memory_bytes_second,
          .block_seconds = alone.block_seconds,
          .memory_bytes = own ? alone.memory_bytes : memory_bytes,
          .link = alone.link,
          .shares = calibration.shares};
}

}  // namespace tessera::server
