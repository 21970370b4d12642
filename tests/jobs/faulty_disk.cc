#include "tests/jobs/faulty_disk.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/jobs/faulty_disk_vfs.h"

namespace tessera {
namespace {

constexpr size_t kSector = 512;
constexpr char kResults[] = "results/";

void Put(std::string& content, size_t offset, const char* bytes, size_t size) {
  if (content.size() < offset + size) content.resize(offset + size, '\0');
  content.replace(offset, size, bytes, size);
}

std::string FolderOf(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

}  // namespace

class FaultyDisk::Files final : public server::ResultStore {
 public:
  explicit Files(FaultyDisk& disk) : disk_(disk) {}

  absl::Status Write(const std::string& name, const std::string& bytes) override {
    const std::lock_guard lock(disk_.mutex_);
    const std::string temporary = absl::StrCat(kResults, name, ".tessera-", ++temporaries_, ".tmp");
    const std::string final_name = kResults + name;
    if (disk_.dead_) return absl::UnavailableError("the machine is off");
    File& file = disk_.Named(temporary);
    file.exists = true;
    DiskFault met = DiskFault::kNone;
    if (!disk_.DoWrite(file, 0, bytes, &met)) {
      if (!disk_.dead_) file.exists = false;
      return met == DiskFault::kFull ? absl::ResourceExhaustedError("the disk is full")
                                     : absl::UnavailableError("the disk reports an error");
    }
    if (!disk_.DoSync(file, false) || !disk_.DoRename(temporary, final_name)) {
      if (!disk_.dead_) file.exists = false;
      return absl::UnavailableError("the disk reports an error");
    }
    // Syncs the folder.
    if (!disk_.DoSync(disk_.Named(final_name), true)) return absl::UnavailableError("the disk reports an error");
    return absl::OkStatus();
  }

  absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) override {
    const std::lock_guard lock(disk_.mutex_);
    if (disk_.dead_) return absl::UnavailableError("the machine is off");
    const File& file = disk_.Named(kResults + name);
    if (!file.exists) return absl::NotFoundError("no such file");
    if (file.current.size() > limit) return absl::ResourceExhaustedError("too large");
    return base::BytesOf(file.current);
  }

  absl::Status Remove(const std::string& name) override {
    const std::lock_guard lock(disk_.mutex_);
    if (disk_.dead_) return absl::UnavailableError("the machine is off");
    disk_.Named(kResults + name).exists = false;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List() override {
    const std::lock_guard lock(disk_.mutex_);
    if (disk_.dead_) return absl::UnavailableError("the machine is off");
    std::vector<std::string> names;
    for (const auto& [name, file] : disk_.named_) {
      if (file->exists && absl::StartsWith(name, kResults)) names.push_back(name.substr(sizeof(kResults) - 1));
    }
    return names;
  }

 private:
  FaultyDisk& disk_;
  int64_t temporaries_ = 0;
};

struct FaultyDisk::Registration {
  explicit Registration(FaultyDisk& disk, const std::string& name) : vfs(RegisterVfs(disk, name)) {}
  ~Registration() { UnregisterVfs(vfs); }
  sqlite3_vfs* vfs;
};

FaultyDisk::FaultyDisk()
    : vfs_name_(absl::StrCat("faulty-", absl::Hex(reinterpret_cast<uintptr_t>(this)))),
      files_(std::make_unique<Files>(*this)),
      registration_(std::make_unique<Registration>(*this, vfs_name_)) {}

FaultyDisk::~FaultyDisk() = default;

server::ResultStore& FaultyDisk::files() { return *files_; }

void FaultyDisk::Plan(DiskFault fault, int64_t operation, int64_t every) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  fault_at_ = operation;
  fault_every_ = every;
  operations_ = 0;
  full_ = false;
}

int64_t FaultyDisk::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

int64_t FaultyDisk::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

bool FaultyDisk::dead() const {
  const std::lock_guard lock(mutex_);
  return dead_;
}

void FaultyDisk::SetSyncsAreLies(bool lies) {
  const std::lock_guard lock(mutex_);
  lies_ = lies;
}

std::string* FaultyDisk::BytesOf(const std::string& name) {
  const std::lock_guard lock(mutex_);
  File& file = Named(name);
  return file.exists ? &file.current : nullptr;
}

std::string* FaultyDisk::MakeFile(const std::string& name) {
  const std::lock_guard lock(mutex_);
  File& file = Named(name);
  file.exists = true;
  return &file.current;
}

void FaultyDisk::Restart(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  for (auto& [name, file] : named_) {
    std::string content = file->durable;
    for (const Write& write : file->unsynced) {
      if (write.truncates) {
        if (random() % 2 == 0) content.resize(std::min(content.size(), write.offset));
        continue;
      }
      for (size_t done = 0; done < write.bytes.size();) {
        const size_t sector_end = ((write.offset + done) / kSector + 1) * kSector - write.offset;
        const size_t size = std::min(sector_end, write.bytes.size()) - done;
        if (random() % 2 == 0) Put(content, write.offset + done, write.bytes.data() + done, size);
        done += size;
      }
    }
    // A name whose creation or removal was not made durable may or may not exist.
    const bool exists = file->durable_exists == file->exists ? file->exists : random() % 2 == 0;
    file->exists = file->durable_exists = exists;
    file->current = file->durable = exists ? content : "";
    file->unsynced.clear();
    file->shared = file->reserved = file->exclusive = {};
    for (Locks& locks : file->shared_memory_locks) locks = {};
    file->shared_memory.clear();
    file->shared_memory_users = 0;
  }
  dead_ = false;
  full_ = false;
  fault_ = DiskFault::kNone;
}

FaultyDisk::File& FaultyDisk::Named(const std::string& name) {
  std::unique_ptr<File>& file = named_[name];
  if (file == nullptr) {
    file = std::make_unique<File>();
    file->name = name;
  }
  return *file;
}

DiskFault FaultyDisk::Meet(bool needs_room) {
  if (dead_) return DiskFault::kPowerCut;
  const int64_t operation = operations_++;
  bool met = fault_ != DiskFault::kNone && operation == fault_at_;
  if (fault_ != DiskFault::kNone && fault_every_ > 0 && operation > fault_at_) {
    met = (operation - fault_at_) % fault_every_ == 0;
  }
  if (met && fault_ == DiskFault::kFull) full_ = true;
  if (full_) return needs_room ? DiskFault::kFull : DiskFault::kNone;
  if (!met) return DiskFault::kNone;
  if (fault_ == DiskFault::kPowerCut) dead_ = true;
  return fault_;
}

bool FaultyDisk::DoWrite(File& file, size_t offset, const std::string& bytes, DiskFault* met) {
  const bool was_dead = dead_;
  // Overwriting needs no space.
  *met = Meet(offset + bytes.size() > file.current.size());
  if (was_dead) return false;
  size_t size = bytes.size();
  if (*met == DiskFault::kTorn || *met == DiskFault::kPowerCut) size /= 2;
  if (*met == DiskFault::kError || *met == DiskFault::kFull) size = 0;
  if (size > 0) {
    Put(file.current, offset, bytes.data(), size);
    file.unsynced.push_back({.offset = offset, .bytes = bytes.substr(0, size)});
  }
  return *met == DiskFault::kNone;
}

bool FaultyDisk::DoTruncate(File& file, size_t size) {
  if (Meet(false) != DiskFault::kNone) return false;
  file.current.resize(std::min(size, file.current.size()));
  file.unsynced.push_back({.offset = size, .truncates = true});
  return true;
}

bool FaultyDisk::DoSync(File& file, bool makes_name_durable) {
  if (Meet(false) != DiskFault::kNone) return false;
  if (lies_) return true;
  file.durable = file.current;
  file.unsynced.clear();
  // The first sync of a new file also syncs its folder, so names created and removed there become durable as well.
  if (makes_name_durable && !file.durable_exists) SyncNames(FolderOf(file.name));
  return true;
}

void FaultyDisk::SyncNames(const std::string& folder) {
  for (auto& [name, file] : named_) {
    if (FolderOf(name) != folder) continue;
    if (!file->exists) {
      file->durable.clear();
      file->unsynced.clear();
    }
    file->durable_exists = file->exists;
  }
}

bool FaultyDisk::DoRename(const std::string& from, const std::string& to) {
  if (Meet(false) != DiskFault::kNone) return false;
  File& source = Named(from);
  File& target = Named(to);
  target.current = source.current;
  target.durable = source.durable;
  target.unsynced = source.unsynced;
  target.exists = true;
  source.exists = false;
  return true;
}

}  // namespace tessera
