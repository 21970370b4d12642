#include "client/cli/batch/batch_plan.h"

#include "absl/strings/str_cat.h"
#include "client/cli/batch/disk_estimate.h"
#include "client/cli/option_text.h"

namespace tessera::client {

bool IsToBeMade(const RunEntry* entry, bool retry_failed) {
  if (entry == nullptr || entry->state() == RunState::kLost) return true;
  return entry->state() == RunState::kFailed && retry_failed;
}

void BatchPlan::Add(const BatchItem& item, const absl::Status& error) {
  ++items_;
  if (!error.ok()) ++wrong_;
  if (!shard_.Has(item.index)) return;
  if (!error.ok()) {
    planned_.push_back(nullptr);
    return;
  }
  const server::ImageRequest& request = *item.request;
  const std::string format = request.output_format.empty() ? "png" : request.output_format;
  planned_.push_back(&*wishes_
                           .insert({.size = request.size == "auto" ? "" : request.size,
                                    .format = server::FormatFromPath("." + format).value_or(server::ImageFormat::kPng),
                                    .images = request.count.value_or(1)})
                           .first);
}

BatchPlan::Rest BatchPlan::RestAfter(const std::map<int64_t, RunEntry>& entries, bool retry_failed,
                                     ImageSize usual) const {
  Rest rest;
  DiskEstimate estimate;
  for (const auto& [index, entry] : entries) {
    for (const RunImage& image : entry.images) estimate.Learn(image);
  }
  for (size_t i = 0; i < planned_.size(); ++i) {
    const auto entry = entries.find(static_cast<int64_t>(i) * shard_.count + shard_.index);
    if (!IsToBeMade(entry == entries.end() ? nullptr : &entry->second, retry_failed)) continue;
    ++rest.items;
    if (planned_[i] == nullptr) continue;
    const Wish& wish = *planned_[i];
    TypedSize size = {.width = usual.width, .height = usual.height};
    if (!wish.size.empty()) size = ParseSize("size", wish.size).value_or(TypedSize());
    estimate.Add(size.width, size.height, wish.format, wish.images);
  }
  rest.bytes = estimate.bytes();
  return rest;
}

}  // namespace tessera::client
