#include "server/serving/group_record.h"

#include <unistd.h>

#include <boost/json.hpp>
#include <exception>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/fields/json_fields.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"
#include "server/verification/subject_json.h"

namespace tessera::server {
namespace {

namespace json = boost::json;

constexpr int kVersion = 2;
constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxWorkers = 64;

std::string ReadText(const json::object& object, const char* name) { return std::string(object.at(name).as_string()); }

}  // namespace

std::string LoadText(const control::LoadParameters& load) {
  std::string text;
  base::ForEachField(
      [&text]<class Value>(const auto& field, const Value& value) {
        absl::StrAppend(&text, text.empty() ? "" : ", ", field.name, " ");
        if constexpr (std::is_same_v<Value, std::string>) {
          absl::StrAppend(&text, absl::CHexEscape(value));
        } else {
          absl::StrAppend(&text, base::JsonOfFields(value));
        }
      },
      load);
  return text;
}

std::string GroupRecordText(const GroupRecord& record) {
  json::array workers;
  for (const WorkerIdentity& worker : record.workers) {
    workers.push_back({{"pid", worker.pid}, {"start_time", worker.start_time}, {"socket", worker.socket}});
  }
  json::object object = {{"version", kVersion}};
  AddSubject(record.subject, object);
  object["load"] = record.load;
  object["files"] = record.files;
  object["contents"] = record.contents;
  object["loaded"] = record.loaded;
  if (record.memory_budget.has_value())
    object["room"] = {{"most", record.memory_budget->most}, {"free", record.memory_budget->free}};
  object["workers"] = std::move(workers);
  return json::serialize(object) + "\n";
}

absl::StatusOr<GroupRecord> ParseGroupRecord(const std::string& text) {
  absl::Status none = absl::InvalidArgumentError("the record of the group is malformed");
  if (text.size() > kMaxBytes) return none;
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return none;
  try {
    const json::object& object = value.as_object();
    if (object.at("version").to_number<int>() != kVersion) return none;
    GroupRecord record;
    record.subject = ReadSubject(object);
    record.load = ReadText(object, "load");
    record.files = ReadText(object, "files");
    record.contents = ReadText(object, "contents");
    record.loaded = object.at("loaded").as_bool();
    if (object.contains("room")) {
      const json::object& room = object.at("room").as_object();
      record.memory_budget = {.most = room.at("most").to_number<uint64_t>(),
                              .free = room.at("free").to_number<uint64_t>()};
      if (record.memory_budget->most < 1 || record.memory_budget->free > record.memory_budget->most) return none;
    }
    for (const json::value& entry : object.at("workers").as_array()) {
      const json::object& worker = entry.as_object();
      record.workers.push_back({.pid = worker.at("pid").to_number<pid_t>(),
                                .start_time = worker.at("start_time").to_number<uint64_t>(),
                                .socket = ReadText(worker, "socket")});
    }
    if (record.workers.empty() || record.workers.size() > kMaxWorkers) return none;
    return record;
  } catch (const std::exception&) {
    return none;
  }
}

std::vector<WorkerIdentity> RecordedWorkers(const std::string& folder) {
  std::vector<WorkerIdentity> workers;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::optional<std::string> text = base::ReadSmallFile(it->path(), kMaxBytes);
    const absl::StatusOr<GroupRecord> record = ParseGroupRecord(text.value_or(""));
    if (record.ok()) workers.insert(workers.end(), record->workers.begin(), record->workers.end());
  }
  return workers;
}

GroupRecordFile::GroupRecordFile(const std::string& folder, const std::string& group) : folder_(folder) {
  std::string name = group;  // unique even when cut, because it ends in the group's number
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  }
  path_ = absl::StrCat(folder, "/", name, ".json");
}

absl::StatusOr<GroupRecord> GroupRecordFile::Find() const {
  const std::optional<std::string> text = base::ReadSmallFile(path_, kMaxBytes);
  if (folder_.empty() || !text) return absl::NotFoundError("there is no record of the group");
  return ParseGroupRecord(*text);
}

absl::Status GroupRecordFile::Keep(const GroupRecord& record) const {
  if (folder_.empty()) return absl::FailedPreconditionError("there is no folder for the record of the group");
  RETURN_IF_ERROR(base::MakePrivateFolder(folder_));
  return base::WriteFileAtomically(path_, GroupRecordText(record), {.owner_only = true});
}

void GroupRecordFile::Remove() const {
  if (!folder_.empty()) unlink(path_.c_str());
}

}  // namespace tessera::server
