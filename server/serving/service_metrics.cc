#include "server/serving/service_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

namespace tessera::server {
namespace {

// Bucket bounds in seconds: a step of a small model takes milliseconds, an image or a wait takes minutes.
const prometheus::Histogram::BucketBoundaries& SecondsBuckets() {
  static const auto* buckets =
      new prometheus::Histogram::BucketBoundaries{0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000};
  return *buckets;
}

// These series are exported from the start, so that the first event is a rise from 0 that an alert sees; a series that
// first appears with value 1 shows no rise.
constexpr const char* kOutcomes[] = {"done", "failed", "cancelled", "quarantined"};
constexpr const char* kRejectReasons[] = {"queue_full", "key_queue_full", "rate_limit_exceeded", "no_group",
                                          "draining",   "storage_full",   "storage_unavailable"};
constexpr ImageStage kStages[] = {ImageStage::kQueue, ImageStage::kEncode, ImageStage::kStep, ImageStage::kDecode,
                                  ImageStage::kImage};

const char* StageName(ImageStage stage) {
  switch (stage) {
    case ImageStage::kQueue:
      return "queue";
    case ImageStage::kEncode:
      return "encode";
    case ImageStage::kStep:
      return "step";
    case ImageStage::kDecode:
      return "decode";
    case ImageStage::kImage:
      return "image";
  }
  return "";
}

prometheus::Family<prometheus::Gauge>& Gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

struct ServiceMetrics::Families {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Histogram>& stages =
      prometheus::BuildHistogram()
          .Name("tessera_stage_seconds")
          .Help("Parts of an image's time: queue, encode, each step, decode, and the whole image from its acceptance.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& images = prometheus::BuildCounter()
                                                        .Name("tessera_images_total")
                                                        .Help("Images that have ended, by outcome.")
                                                        .Register(registry);
  prometheus::Family<prometheus::Counter>& rejects = prometheus::BuildCounter()
                                                         .Name("tessera_rejected_jobs_total")
                                                         .Help("Jobs that were not accepted, by reason.")
                                                         .Register(registry);
  prometheus::Family<prometheus::Counter>& cache = prometheus::BuildCounter()
                                                       .Name("tessera_prompt_cache_hits_total")
                                                       .Help("Images whose prompts had been encoded before.")
                                                       .Register(registry);
  prometheus::Family<prometheus::Counter>& usage_images =
      prometheus::BuildCounter()
          .Name("tessera_usage_images_total")
          .Help("Finished images by the name of the API key and the model.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& usage_steps =
      prometheus::BuildCounter()
          .Name("tessera_usage_steps_total")
          .Help("Steps of finished, failed and cancelled images by the name of the API key and the model.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& usage_seconds =
      prometheus::BuildCounter()
          .Name("tessera_usage_device_seconds_total")
          .Help("Time of these images on every rank of their layouts, by the name of the API key and the model.")
          .Register(registry);
  std::mutex keys_mutex;
  std::optional<std::set<std::string>> keys;  // guarded by keys_mutex; absent: no usage is counted
};

ServiceMetrics::ServiceMetrics() : families_(std::make_unique<Families>()) {
  families_->cache.Add({});
  for (const char* outcome : kOutcomes) families_->images.Add({{"outcome", outcome}});
  for (const char* reason : kRejectReasons) families_->rejects.Add({{"reason", reason}});
  for (const ImageStage stage : kStages) families_->stages.Add({{"stage", StageName(stage)}}, SecondsBuckets());
}
ServiceMetrics::~ServiceMetrics() = default;

void ServiceMetrics::Observe(ImageStage stage, absl::Duration time) {
  families_->stages.Add({{"stage", StageName(stage)}}, SecondsBuckets()).Observe(absl::ToDoubleSeconds(time));
}

void ServiceMetrics::CountImage(const std::string& outcome) {
  families_->images.Add({{"outcome", outcome}}).Increment();
}

int64_t ServiceMetrics::images(const std::string& outcome) const {
  return static_cast<int64_t>(families_->images.Add({{"outcome", outcome}}).Value());
}

void ServiceMetrics::CountReject(const std::string& reason) {
  families_->rejects.Add({{"reason", reason}}).Increment();
}

void ServiceMetrics::NameKeys(const std::set<std::string>& keys) {
  const std::lock_guard lock(families_->keys_mutex);
  // The names that are counted stay, so that the number of series is bounded over all reloads.
  if (!families_->keys.has_value()) families_->keys.emplace();
  for (const std::string& key : keys) {
    if (families_->keys->size() < kMaxNamedKeys) families_->keys->insert(key);
  }
}

void ServiceMetrics::CountUsage(const KeyUsage& usage) {
  if (usage.key.empty()) return;
  std::string key = usage.key;
  {
    const std::lock_guard lock(families_->keys_mutex);
    if (!families_->keys.has_value()) return;
    if (!families_->keys->contains(key)) key = "other";
  }
  const prometheus::Labels labels = {{"key", key}, {"model", usage.model}};
  families_->usage_images.Add(labels).Increment(static_cast<double>(usage.images));
  families_->usage_steps.Add(labels).Increment(static_cast<double>(usage.steps));
  // A counter that was NaN or infinite once would stay so.
  if (std::isfinite(usage.device_seconds)) families_->usage_seconds.Add(labels).Increment(usage.device_seconds);
}

void ServiceMetrics::CountCachedPrompt() { families_->cache.Add({}).Increment(); }

std::string ServiceMetrics::Text(const ServerInfo& info) const {
  prometheus::Registry now;
  const auto set = [&](const char* name, const char* help, double value) {
    Gauges(now, name, help).Add({}).Set(value);
  };
  auto& queued = Gauges(now, "tessera_queued_jobs", "Jobs that wait for a group of the model.");
  auto& running = Gauges(now, "tessera_running_jobs", "Jobs that a group of the model works on.");
  auto& work = Gauges(now, "tessera_queued_device_seconds", "Predicted time of the model's jobs that wait or run.");
  auto& oldest = Gauges(now, "tessera_oldest_wait_seconds", "How long the job that waits longest has waited.");
  for (const ModelQueue& queue : info.queues) {
    const prometheus::Labels labels = {{"model", queue.model}};
    queued.Add(labels).Set(static_cast<double>(queue.queued_jobs));
    running.Add(labels).Set(static_cast<double>(queue.running_jobs));
    work.Add(labels).Set(queue.device_seconds);
    oldest.Add(labels).Set(absl::ToDoubleSeconds(queue.oldest_wait));
  }
  set("tessera_draining", "1 while no more jobs are accepted.", info.draining ? 1 : 0);
  set("tessera_unstored_images", "Images that have left their workers and are not on the disk yet.",
      static_cast<double>(info.unstored_images));
  set("tessera_result_bytes", "Size of the files of all stored finished images.",
      static_cast<double>(info.result_bytes));
  auto& storage =
      Gauges(now, "tessera_storage_state", "1 for the state that the disk of jobs and images is in, 0 for the others.");
  for (const absl::string_view state : kStorageStates) {
    storage.Add({{"state", std::string(state)}}).Set(StorageStateName(info.storage) == state ? 1 : 0);
  }
  auto& ready = Gauges(now, "tessera_group_ready", "1 for a group that has its model loaded and its workers alive.");
  auto& states = Gauges(now, "tessera_group_state", "1 for the state that a group is in, 0 for the others.");
  auto& loaded = Gauges(now, "tessera_group_loaded_ratio",
                        "Part of the weight files that a group which is loading has read; 1 if it is ready, else 0.");
  auto& restarts = prometheus::BuildCounter()
                       .Name("tessera_group_restarts_total")
                       .Help("How often a group was started again.")
                       .Register(now);
  auto& memory = Gauges(now, "tessera_device_memory_bytes",
                        "Memory of a rank's device: total, free, used by the rank's tensors, and cached by the rank.");
  for (const GroupInfo& group : info.groups) {
    for (size_t rank = 0; rank < group.device_memories.size(); ++rank) {
      if (!group.device_memories[rank].has_value()) continue;
      const control::DeviceMemory& bytes = *group.device_memories[rank];
      for (const auto& [kind, value] :
           {std::pair{"total", bytes.total}, {"free", bytes.free}, {"used", bytes.used}, {"cached", bytes.cached}}) {
        memory.Add({{"group", group.name}, {"rank", std::to_string(rank)}, {"kind", kind}})
            .Set(static_cast<double>(value));
      }
    }
    const prometheus::Labels labels = {{"group", group.name}, {"model", group.model}, {"layout", group.layout}};
    ready.Add(labels).Set(group.state == GroupState::kReady ? 1 : 0);
    loaded.Add(labels).Set(group.loaded);
    restarts.Add(labels).Increment(static_cast<double>(group.restarts));
    for (const absl::string_view state : kGroupStates) {
      states.Add({{"group", group.name}, {"state", std::string(state)}})
          .Set(GroupStateName(group.state) == state ? 1 : 0);
    }
  }
  auto& nodes = Gauges(now, "tessera_nodes", "Hosts that have lent their devices since the start, by state.");
  for (const absl::string_view state : kNodeStates) {
    const auto count =
        std::ranges::count_if(info.nodes, [&](const NodeInfo& node) { return NodeStateName(node.state) == state; });
    nodes.Add({{"state", std::string(state)}}).Set(static_cast<double>(count));
  }
  return prometheus::TextSerializer().Serialize(families_->registry.Collect()) +
         prometheus::TextSerializer().Serialize(now.Collect());
}

}  // namespace tessera::server
