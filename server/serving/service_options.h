// What the service is started with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/api/picture_size.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/job_store.h"
#include "server/jobs/postgres.h"
#include "server/jobs/result_store.h"
#include "server/trace/trace_file.h"
#include "server/verification/certify.h"
#include "server/workers/layout_choice.h"
#include "server/workers/worker_group.h"

namespace tessera::server {

// count equal replicas.
struct ServedGroupOptions {
  std::string name;  // of the model, as requests call it
  // Where the folder of the model is now, as `load` has it; null: where `load` says. Asked whenever it is looked for.
  std::function<absl::StatusOr<std::string>()> find_model = nullptr;
  std::vector<std::string> aliases;  // what they may call it too
  control::LoadParameters load;      // with the model's folder; threads are those of all ranks together, 0: its share
  std::vector<std::string> devices;  // one a rank where there are several
  // base::FolderIdentity of the model's folder, by the service itself: with other files it is another group.
  std::string files = {};
  LayoutRequest layout;
  int64_t count = 1;
  std::vector<PictureSize> warmup = {};  // of which a step is made before a group is ready
  // The next jobs of this model that somebody knows of, in any order; their prompts are encoded together where text
  // encoders are read for each use. Null: each is encoded when its image starts. On the threads of the groups.
  std::function<std::vector<control::JobParameters>()> next_prompts = nullptr;
};

// Bytes.
struct HostMemory {
  double total = 0;       // of the machine, or what its control group (container) may have of it
  double available = 0;   // of it, now
  double in_use = 0;      // of it, by this server, its workers and what else has the same limit
  bool is_limit = false;  // of a control group
};

// Of what is accepted; what was accepted before is made whatever they become.
struct ServiceLimits {
  int64_t max_queued_jobs = 10000;
  absl::Duration max_expected_wait = absl::ZeroDuration();  // until a new job would start; zero: no bound
  absl::Duration max_job_time = absl::ZeroDuration();       // predicted, of one job on one group; zero: no bound

  bool operator==(const ServiceLimits&) const = default;
};

// Where the jobs are kept that several servers share.
struct SharedQueueOptions {
  PostgresAddress address;
  absl::Duration lease = absl::Seconds(15);  // as in PostgresJobStoreOptions
};

struct DurableServiceOptions {
  std::string data_folder;                         // made if need be
  std::string certificates;                        // folder of them; empty: in data_folder
  std::string adapter_folder;                      // that requests may name adapters of; empty: none
  std::optional<SharedQueueOptions> shared_queue;  // the servers that share it share the data folder too
  std::vector<ServedGroupOptions> groups;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  bool may_start_without_models = false;  // where none of them can be read at present
  bool ready_when_durable = false;        // ready while jobs can be accepted, warm groups or not
  absl::Duration retention = absl::Hours(24);
  int64_t committed_image_bytes = 0;  // of an image that is committed with its job; in a shared queue none is
  int64_t retention_bytes = 0;        // of the images of ended jobs; the oldest jobs go first; 0: no bound
  ServiceLimits limits;
  absl::Duration first_back_off = absl::Seconds(1);  // before a group that died starts again; it doubles
  ProgressBounds progress;
  // In place of the database in data_folder; null: that one. Called once.
  std::function<absl::StatusOr<std::unique_ptr<JobStore>>()> open_store = nullptr;
  std::string vfs;                 // SQLite's name of the job store's file layer; empty: the system's own
  ResultStore* results = nullptr;  // in place of files in data_folder; outlives the service
  // As DiskResultStore has it; null: any.
  std::function<int()> highest_result_descriptor = nullptr;
  absl::Duration disk_timeout = absl::Seconds(5);  // of a disk that takes nothing: then those who wait are told
  std::function<HostMemory()> host_memory;         // for groups on the CPU; null: not known, nothing is refused for it
  AtPoint at_point;                                // of the job store and of the groups' records; may be empty
  TraceFile* trace = nullptr;                      // outlives the service
  bool openai_names = true;                        // the first model answers to the names of OpenAI's image models
  RemoteHosts* hosts = nullptr;                    // of groups on devices of nodes; outlives the service
  base::EventLog log;                              // what operators should know
};

}  // namespace tessera::server
