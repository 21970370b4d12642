// What a server writes down of a group that it has started, so that the next one on the same data folder can
// adopt it after a crash: what the group is, and which processes its workers are. One small JSON file a group.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/load_parameters.h"
#include "server/verification/certificate.h"
#include "server/workers/worker_identity.h"

namespace tessera::server {

struct GroupRecord {
  CertificateSubject subject;
  std::string load;                                    // LoadText
  std::string files;                                   // as in ServedGroupOptions
  std::string contents;                                // Loaded::contents; empty until they have their model
  std::vector<WorkerIdentity> workers;                 // by rank
  bool loaded = false;                                 // they have their model
  std::optional<control::MemoryBudget> memory_budget;  // as it was when they had loaded it

  bool operator==(const GroupRecord&) const = default;
};

// One text for one way of loading.
std::string LoadText(const control::LoadParameters& load);

std::string GroupRecordText(const GroupRecord& record);
// INVALID_ARGUMENT for what is no such text. Whether it tells the truth is another question.
absl::StatusOr<GroupRecord> ParseGroupRecord(const std::string& text);

// The workers of all groups of a folder of records.
std::vector<WorkerIdentity> RecordedWorkers(const std::string& folder);

// The file of one group.
class GroupRecordFile {
 public:
  GroupRecordFile(const std::string& folder, const std::string& group);

  absl::StatusOr<GroupRecord> Find() const;  // NOT_FOUND, INVALID_ARGUMENT
  absl::Status Keep(const GroupRecord& record) const;
  void Remove() const;  // one that is not there is no error

 private:
  std::string folder_;  // empty: there is never one
  std::string path_;
};

}  // namespace tessera::server
