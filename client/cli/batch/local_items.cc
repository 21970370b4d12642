#include "client/cli/batch/local_items.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"
#include "client/cli/batch/run_store.h"
#include "client/cli/exit_code.h"
#include "client/cli/models/model_files.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/picture_files.h"
#include "client/cli/option_text.h"
#include "client/cli/serve/served_group.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "server/api/field_checks.h"
#include "server/api/image_request.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/stored_picture.h"
#include "server/serving/durable_image_service.h"
#include "server/verification/certify.h"

namespace tessera::client {
namespace {

constexpr int64_t kMaxReplicas = 64;
// Enough for each group to have its next batch waiting, whatever the batch's shape.
constexpr int64_t kItemsOfAReplica = 64;
constexpr char kTenant[] = "batch";

class LocalItems final : public ItemMaker {
 public:
  LocalItems(server::ServedGroupOptions group, server::CertifyPolicy certify, std::string adapter_folder)
      : group_(std::move(group)), certify_(certify), adapter_folder_(std::move(adapter_folder)) {}

  absl::StatusOr<RunIdentity> Identity(const std::function<absl::Status()>& proceed) const override {
    ASSIGN_OR_RETURN(const std::string files, At(Stage::kModel, DigestOfModelFiles(group_.load.model, proceed)));
    return RunIdentity{
        .seed = std::nullopt, .model = group_.name, .files = files, .dtype = base::EnumName(group_.load.dtype)};
  }
  int64_t items_in_flight() const override { return kItemsOfAReplica * group_.count; }

  absl::Status Start(RunFolder& folder, Events events) override {
    folder_ = &folder;
    RETURN_IF_ERROR(MakePictureFolder());
    server::ServedGroupOptions group = group_;
    group.next_prompts = [this] {
      std::vector<control::JobParameters> jobs = store_->NextJobs();
      // The adapter's file, which may affect the encoded prompt, is only known when the job starts.
      std::erase_if(jobs, [](const control::JobParameters& job) { return !job.adapters.empty(); });
      return jobs;
    };
    server::DurableServiceOptions options = {
        .data_folder = folder.service_folder(), .adapter_folder = adapter_folder_, .groups = {group}};
    options.limits.max_queued_jobs = 1 << 20;
    options.certify = certify_;
    options.certificates = server::CertificateFolder::DefaultPath();
    options.host_memory = MemoryOfHost;
    options.picture_key = PictureKey;
    options.log = [say = events.say](const base::LogLine& line) {
      if (line.level >= base::LogLevel::kWarning && line.event != "image_failed") say(line.text);
    };
    options.open_store = [this, &folder, events]() -> absl::StatusOr<std::unique_ptr<server::JobStore>> {
      auto store = std::make_unique<RunStore>(
          folder, RunStore::Events{
                      .ended =
                          [this, events](const std::string& key, const std::vector<RunImage>& images,
                                         const absl::Status& error) {
                            int64_t index = 0;
                            if (!absl::SimpleAtoi(key, &index)) return absl::InternalError("a key is not an index");
                            const absl::Status kept = events.ended(index, images, error);
                            if (kept.ok()) DropPictures(index);
                            return kept;
                          },
                      .disk = [events](const absl::Status& failure) { events.stop(At(Stage::kOutput, failure)); }});
      store_ = store.get();
      return store;
    };
    absl::StatusOr<std::unique_ptr<server::DurableImageService>> service = server::DurableImageService::Start(options);
    if (!service.ok()) return At(Stage::kModel, service.status());
    service_ = *std::move(service);
    models_ = service_->ListModels();
    return absl::OkStatus();
  }

  ImageSize default_size() const override {
    if (models_.empty()) return {};
    return {.width = models_[0].description->default_width, .height = models_[0].description->default_height};
  }

  absl::Status Submit(const BatchItem& item) override {
    PictureFiles files({.parent = PictureFolder(), .image = "image", .mask = "mask"});
    ASSIGN_OR_RETURN(const server::JobRequest request, RequestOf(item, files));
    if (!request.parameters.images.empty()) {
      const std::lock_guard lock(pictures_mutex_);
      pictures_.emplace(item.index, std::move(files));
    }
    const absl::Status submitted =
        service_
            ->Submit({.tenant = kTenant}, request,
                     server::IdempotencyKey{.key = absl::StrCat(item.index), .digest = item.digest})
            .status();
    if (!submitted.ok()) DropPictures(item.index);
    return submitted;
  }

  absl::Status Check() override {
    const server::ServerInfo info = service_->Info();
    const bool refused = !info.groups.empty() && std::ranges::all_of(info.groups, [](const server::GroupInfo& group) {
      return group.state == server::GroupState::kRefused;
    });
    if (!refused) return absl::OkStatus();
    return At(Stage::kModel, absl::FailedPreconditionError(info.groups[0].reason));
  }

 private:
  // Returns the job of an item, for whose workers `files` receives the pictures.
  absl::StatusOr<server::JobRequest> RequestOf(const BatchItem& item, PictureFiles& files) const {
    server::RequestLimits limits;
    limits.max_steps = limits.max_pixels = INT32_MAX;
    server::ImageRequest request = *item.request;
    ASSIGN_OR_RETURN(const server::ServedModel* model, server::FindModel(request.model, models_));
    RETURN_IF_ERROR(model->unreadable);
    ASSIGN_OR_RETURN(GivenPictures pictures, files.Read(item.pictures, model->description->pictures));
    request.strength = pictures.strength;
    return server::ValidateImageRequest(request, models_, limits, SeedOfItem(folder_->seed(), item.index),
                                        {.images = std::move(pictures.images), .mask = std::move(pictures.mask)});
  }

  std::string PictureFolder() const { return folder_->service_folder() + "/pictures"; }
  // Makes an empty folder for the pictures of the items that are being made.
  absl::Status MakePictureFolder() const {
    std::error_code error;
    std::filesystem::remove_all(PictureFolder(), error);  // of a process that was killed
    return At(Stage::kOutput, base::MakePrivateFolder(PictureFolder()));
  }
  void DropPictures(int64_t index) {
    const std::lock_guard lock(pictures_mutex_);
    pictures_.erase(index);
  }

  const server::ServedGroupOptions group_;
  const server::CertifyPolicy certify_;
  const std::string adapter_folder_;
  RunFolder* folder_ = nullptr;
  std::vector<server::ServedModel> models_;
  std::mutex pictures_mutex_;
  std::map<int64_t, PictureFiles> pictures_;  // of the items that are being made, by index; guarded by pictures_mutex_
  const RunStore* store_ = nullptr;           // owned by the service
  std::unique_ptr<server::DurableImageService> service_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ItemMaker>> MakeLocalItems(const ModelOptions& options, const std::string& replicas,
                                                          const std::string& adapter_folder) {
  ASSIGN_OR_RETURN(const server::CertifyPolicy certify, server::ParseCertifyPolicy(options.certify));
  ASSIGN_OR_RETURN(const std::string model, At(Stage::kModel, FindModel(options.model, options.model_folders)));
  ASSIGN_OR_RETURN(control::LoadParameters load, RequestedLoad(options, model));
  ASSIGN_OR_RETURN(const server::LayoutRequest layout, RequestedLayout(options));
  int64_t count = 1;
  if (!replicas.empty()) {
    ASSIGN_OR_RETURN(count, ParseInteger("replicas", replicas));
    if (count < 1 || count > kMaxReplicas) {
      return server::FieldError("replicas", absl::StrCat(" is ", count, "; valid values are 1 to ", kMaxReplicas));
    }
  }
  return std::make_unique<LocalItems>(
      server::ServedGroupOptions{
          .name = ModelName(model), .load = load, .devices = {load.device}, .layout = layout, .count = count},
      certify, adapter_folder);
}

}  // namespace tessera::client
