// GroupRecord is what a server writes down about a group that it has started, so that the next server on the same data
// folder can adopt the group after a crash: the group's description and the identities of its worker processes. Each
// group has one small JSON file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/host/device_memory.h"
#include "control/parameters/load_parameters.h"
#include "server/verification/certificate.h"
#include "server/workers/worker_identity.h"

namespace tessera::server {

struct GroupRecord {
  CertificateSubject subject;
  std::string load;                                    // LoadText
  std::string files;                                   // see ServedGroupOptions
  std::string contents;                                // Loaded::contents; empty until the model is loaded
  std::vector<WorkerIdentity> workers;                 // by rank
  bool loaded = false;                                 // whether the workers have loaded the model
  std::optional<control::MemoryBudget> memory_budget;  // memory budget right after loading

  bool operator==(const GroupRecord&) const = default;
};

// Returns a text that is equal for equal load parameters.
std::string LoadText(const control::LoadParameters& load);

std::string GroupRecordText(const GroupRecord& record);
// INVALID_ARGUMENT if the text is not a record. The function does not check whether the record is true.
absl::StatusOr<GroupRecord> ParseGroupRecord(const std::string& text);

// Returns the workers of all groups recorded in a folder.
std::vector<WorkerIdentity> RecordedWorkers(const std::string& folder);

// Reads and writes the record file of one group.
class GroupRecordFile {
 public:
  GroupRecordFile(const std::string& folder, const std::string& group);

  absl::StatusOr<GroupRecord> Find() const;  // NOT_FOUND, INVALID_ARGUMENT
  absl::Status Keep(const GroupRecord& record) const;
  void Remove() const;  // a missing file is no error

 private:
  std::string folder_;  // empty: no record is ever kept
  std::string path_;
};

}  // namespace tessera::server
