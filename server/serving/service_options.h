// Options with which the service is started.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "control/parameters/load_parameters.h"
#include "server/api/picture_size.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/job_store.h"
#include "server/jobs/postgres.h"
#include "server/jobs/result_store.h"
#include "server/trace/image_spans.h"
#include "server/trace/trace_file.h"
#include "server/verification/certify_policy.h"
#include "server/workers/layout_choice.h"
#include "server/workers/worker_group.h"

namespace tessera::server {

// The options of `count` equal groups.
struct ServedGroupOptions {
  std::string name;  // the model's name in requests
  // Returns the model's current folder, of which `load` has the configured one; called for every lookup. Null: `load`
  // has the folder.
  std::function<absl::StatusOr<std::string>()> find_model = nullptr;
  std::vector<std::string> aliases;  // other names for the model in requests
  control::LoadParameters load;  // includes the model's folder; threads are the total of all ranks, 0: an equal share
  std::vector<std::string> devices;  // one per rank if there are several
  // FilesIdentity of the model, set by the service; a group with other files is a different group.
  std::string files = {};
  LayoutRequest layout;
  int64_t count = 1;
  std::vector<PictureSize> warmup = {};  // a group makes steps of these sizes before it is ready
  // Returns known upcoming jobs of this model in any order. Where text encoders are read for each use, their prompts
  // are encoded together. Null: each prompt is encoded when its image starts. Called on the groups' threads.
  std::function<std::vector<control::JobParameters>()> next_prompts = nullptr;
};

// Memory in bytes.
struct HostMemory {
  double total = 0;       // of the machine, or the limit of its control group (container)
  double available = 0;   // currently free part of total
  double in_use = 0;      // part of total used by this server, its workers and others under the same limit
  bool is_limit = false;  // whether total is the limit of a control group
};

// Limits for new jobs; jobs already accepted are not affected by changes.
struct ServiceLimits {
  int64_t max_queued_jobs = 10000;
  absl::Duration max_expected_wait = absl::ZeroDuration();  // until a new job would start; zero: no bound
  absl::Duration max_job_time = absl::ZeroDuration();       // predicted time of one job on one group; zero: no bound

  bool operator==(const ServiceLimits&) const = default;
};

// The store of jobs that several servers share.
struct SharedQueueOptions {
  PostgresAddress address;
  absl::Duration lease = absl::Seconds(15);  // see PostgresJobStoreOptions
};

struct DurableServiceOptions {
  std::string data_folder;                         // created if it does not exist
  std::string certificates;                        // folder of certificates; empty: inside data_folder
  std::string picture_decoder;                     // path of tessera-picture-decoder; empty: next to this program
  std::string adapter_folder;                      // folder of the adapters that requests may name; empty: none
  std::optional<SharedQueueOptions> shared_queue;  // servers that share it also share the data folder
  std::vector<ServedGroupOptions> groups;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  // Returns the key that names the pictures of an image in its metadata (PictureNames), on any thread. Null: each
  // API key has one of the data folder.
  std::function<std::string()> picture_key = nullptr;
  bool may_start_without_models = false;  // starts even if no model can be read at present
  bool ready_when_durable = false;        // reports ready while jobs can be accepted, even without ready groups
  absl::Duration retention = absl::Hours(24);
  int64_t committed_image_bytes = 0;  // up to this size an image is committed with its job; unused in a shared queue
  // Bounds of the pictures of callers, for all API keys together and for one.
  uint64_t picture_storage_bytes = std::numeric_limits<uint64_t>::max();
  uint64_t picture_storage_bytes_per_key = std::numeric_limits<uint64_t>::max();
  absl::Duration uploaded_file_time = absl::Hours(24);  // how long an uploaded file can be named
  int64_t retention_bytes = 0;  // bytes of ended jobs' images to keep; the oldest jobs are removed first; 0: no bound
  ServiceLimits limits;
  absl::Duration first_back_off = absl::Seconds(1);  // pause before a dead group restarts; it doubles
  ProgressBounds progress;
  // Opens the store to use instead of the database in data_folder; null: that database. Called once.
  std::function<absl::StatusOr<std::unique_ptr<JobStore>>()> open_store = nullptr;
  std::string vfs;                 // name of SQLite's file layer for the job store; empty: the system default
  ResultStore* results = nullptr;  // replaces the files in data_folder; outlives the service
  // See DiskResultStore; null: any.
  std::function<int()> highest_result_descriptor = nullptr;
  absl::Duration disk_timeout = absl::Seconds(5);  // after a disk has failed this long, waiting callers get an error
  std::function<HostMemory()> host_memory;  // for groups on the CPU; null: unknown, no task is refused for memory
  AtPoint at_point;                         // for the job store and the groups' records; may be empty
  TraceFile* trace = nullptr;               // outlives the service
  const ImageSpans* spans = nullptr;        // likewise; null: no spans are exported
  bool key_metrics = false;                 // the metrics have the usage of keys, by their names
  bool openai_names = true;                 // the first model also has the names of OpenAI's image models
  RemoteHosts* hosts = nullptr;             // for groups on devices of nodes; outlives the service
  base::EventLog log;                       // messages for operators
};

}  // namespace tessera::server
