#include "server/content/content_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <optional>
#include <span>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/private_files.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr char kIncoming[] = ".incoming-";
constexpr size_t kBlockBytes = size_t{4} << 20;
constexpr size_t kOverlappedBytes = size_t{1} << 20;  // of a block that is written while it is digested

absl::Status ContentDiskError(int error) {
  const std::string text = absl::StrCat("a content cannot be stored: ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

// Without the path, which no caller may see.
absl::Status WithoutPath(const absl::Status& status) {
  if (status.ok()) return status;
  return ContentDiskError(absl::IsResourceExhausted(status) ? ENOSPC : EIO);
}

std::string Absolute(const std::string& folder) {
  std::error_code error;
  const fs::path absolute = folder.empty() ? fs::path() : fs::absolute(folder, error);
  return error ? folder : absolute.lexically_normal().string();
}

absl::StatusOr<uint64_t> SizeOfContent(const std::string& path) {
  struct stat about = {};
  if (::stat(path.c_str(), &about) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? absl::NotFoundError("there is no such content")
                                               : ContentDiskError(errno);
  }
  if (!S_ISDIR(about.st_mode)) return static_cast<uint64_t>(about.st_size);
  uint64_t bytes = 0;
  for (const char* part : kContentParts) {
    if (::stat(absl::StrCat(path, "/", part).c_str(), &about) == 0) bytes += static_cast<uint64_t>(about.st_size);
  }
  return bytes;
}

absl::StatusOr<std::string> DigestOfContent(const Content& content) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOfContent(content.path));
  base::Sha256 digest;
  std::string block;
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, content.digest));
    for (uint64_t at = 0; at < file.size(); at += block.size()) {
      block.resize(std::min<uint64_t>(kBlockBytes, file.size() - at));
      RETURN_IF_ERROR(file.Read(at, std::as_writable_bytes(std::span(block))));
      digest.Update(block);
    }
  }
  return digest.Finish();
}

// Restarts the age of a content. Returns whether it is there.
bool Touch(const std::string& path) { return ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0 || errno != ENOENT; }

absl::Duration AgeOf(const std::string& path) {
  struct stat about = {};
  if (::stat(path.c_str(), &about) != 0) return absl::ZeroDuration();
  return absl::Now() - absl::TimeFromTimespec(about.st_mtim);
}

bool RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return !error;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FilesOfContent(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (const char* part : kContentParts) files.push_back(absl::StrCat(path, "/", part));
  const auto exists = [](const std::string& file) { return ::access(file.c_str(), F_OK) == 0; };
  const auto entries = std::distance(fs::directory_iterator(path, error), fs::directory_iterator());
  if (std::ranges::all_of(files, exists) && entries == std::ssize(files)) return files;
  return absl::DataLossError("the files of a content are not those with which it was put");
}

ContentOwner ContentOwner::Key(std::string_view name) {
  return ContentOwner(absl::BytesToHexString(base::Sha256Of({name.data(), name.size()})));
}

ContentWriter::ContentWriter(ContentStore& store, ContentOwner owner, std::string path, uint64_t most_bytes)
    : store_(&store), owner_(std::move(owner)), path_(std::move(path)), most_bytes_(most_bytes) {}

ContentWriter::ContentWriter(ContentWriter&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      owner_(std::move(other.owner_)),
      path_(std::move(other.path_)),
      most_bytes_(other.most_bytes_),
      bytes_(other.bytes_),
      parts_(other.parts_),
      status_(std::move(other.status_)),
      file_(std::move(other.file_)),
      digest_(std::move(other.digest_)) {}

ContentWriter::~ContentWriter() {
  if (store_ == nullptr) return;
  RemoveAll(path_);
  store_->Release(*this);
}

absl::Status ContentWriter::OpenFile(const std::string& path) {
  file_ = base::FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400));
  return file_.valid() ? absl::OkStatus() : ContentDiskError(errno);
}

absl::Status ContentWriter::SyncFile() {
  if (base::Planted("content_is_not_synced")) return file_.Close(), absl::OkStatus();
  if (file_.valid() && ::fsync(file_.get()) != 0) return ContentDiskError(errno);
  return file_.Close() == 0 ? absl::OkStatus() : ContentDiskError(errno);
}

absl::Status ContentWriter::BeginPart(std::string_view name) {
  RETURN_IF_ERROR(status_);
  if (parts_ == kContentParts.size() || name != kContentParts[parts_] || (parts_ == 0 && file_.valid())) {
    return absl::InvalidArgumentError("the files of a content are not those that it may have");
  }
  if (parts_++ == 0) status_.Update(WithoutPath(base::MakePrivateFolder(path_)));
  status_.Update(SyncFile());
  if (status_.ok()) status_.Update(OpenFile(absl::StrCat(path_, "/", std::string(name))));
  return status_;
}

absl::Status ContentWriter::Append(std::string_view bytes) {
  RETURN_IF_ERROR(status_);
  if (bytes.size() > most_bytes_ - bytes_) {
    return status_ = absl::InvalidArgumentError(
               absl::StrCat("the content has more than ", most_bytes_, " bytes, the most that are valid"));
  }
  if (!file_.valid()) status_.Update(OpenFile(path_));
  if (status_.ok()) status_.Update(store_->Reserve(owner_, bytes.size()));
  if (!status_.ok()) return status_;
  bytes_ += bytes.size();
  std::future<int> written = std::async(bytes.size() < kOverlappedBytes ? std::launch::deferred : std::launch::async,
                                        base::WriteBytes, file_.get(), bytes);
  digest_.Update(bytes);
  if (const int error = written.get(); error != 0) status_ = ContentDiskError(error);
  return status_;
}

absl::StatusOr<Content> ContentWriter::Commit() {
  RETURN_IF_ERROR(status_);
  status_ = absl::FailedPreconditionError("the put has ended");
  if (parts_ != 0 && parts_ != kContentParts.size()) return absl::InvalidArgumentError("a content lacks a file");
  if (!file_.valid()) RETURN_IF_ERROR(OpenFile(path_));  // a content of no bytes
  RETURN_IF_ERROR(SyncFile());
  if (parts_ != 0) RETURN_IF_ERROR(WithoutPath(base::SyncFolder(path_)));
  return store_->Commit(*this, digest_.Finish());
}

// One name in the folders.
struct ContentStore::Entry {
  ContentOwner owner;
  std::string path;
  std::string digest;  // empty: a put that has not ended
};

ContentStore::ContentStore(ContentStoreOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<ContentStore>> ContentStore::Open(ContentStoreOptions options) {
  // Workers may have another working directory.
  options.folder = Absolute(options.folder);
  options.own_folder = Absolute(options.own_folder);
  if (!options.log) options.log = [](const base::LogLine&) {};
  std::unique_ptr<ContentStore> store(new ContentStore(std::move(options)));
  const std::lock_guard lock(store->mutex_);
  store->ForEachEntry([&](const Entry& entry) {
    if (!entry.digest.empty()) {
      const absl::StatusOr<uint64_t> bytes = SizeOfContent(entry.path);
      if (bytes.ok()) store->Count(entry.owner, entry.digest, *bytes);
    } else if (!store->options_.is_shared) {
      RemoveAll(entry.path);
    }
  });
  return store;
}

std::string ContentStore::FolderOf(const ContentOwner& owner) const {
  if (owner.is_server()) return options_.own_folder;
  return options_.folder.empty() ? "" : absl::StrCat(options_.folder, "/", owner.folder());
}

std::string ContentStore::PathOf(const ContentOwner& owner, const std::string& digest) const {
  return absl::StrCat(FolderOf(owner), "/", digest, owner.is_server() ? options_.own_suffix : "");
}

void ContentStore::ForEachEntry(const std::function<void(const Entry&)>& visit) const {
  const auto each = [&](const ContentOwner& owner, const std::string& suffix) {
    std::error_code error;
    const std::string folder = FolderOf(owner);
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename();
      std::string digest(absl::StripSuffix(name, suffix));
      const bool is_content = base::IsSha256Text(digest) && digest.size() + suffix.size() == name.size();
      if (!is_content && !absl::StartsWith(name, kIncoming)) continue;
      if (!is_content) digest.clear();
      visit({.owner = owner, .path = entry->path().string(), .digest = std::move(digest)});
    }
  };
  each(ContentOwner::Server(), options_.own_suffix);
  std::error_code error;
  for (fs::directory_iterator entry(options_.folder, error), end; !error && entry != end; entry.increment(error)) {
    if (base::IsSha256Text(entry->path().filename().string())) each(ContentOwner(entry->path().filename()), "");
  }
}

void ContentStore::Count(const ContentOwner& owner, const std::string& digest, uint64_t bytes) {
  if (owner.is_server()) return;
  if (bytes > 0) bytes = std::max(bytes, kLeastBytes);
  Stored& stored = stored_[owner];
  uint64_t& size = stored.sizes[digest];
  stored.bytes += bytes - size;
  stored_bytes_ += bytes - size;
  size = bytes;
  if (bytes == 0) stored.sizes.erase(digest);
}

absl::Status ContentStore::CheckBounds(uint64_t of_key, uint64_t of_all) const {
  const auto exceeds = [](const char* whose, uint64_t bytes, uint64_t most) {
    absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("the stored contents of ", whose, " would have ", bytes, " bytes; at most ", most, " are valid"));
    status.SetPayload(kContentBound, absl::Cord());
    return status;
  };
  if (of_key > options_.most_bytes_of_key) return exceeds("this API key", of_key, options_.most_bytes_of_key);
  if (of_all > options_.most_bytes) return exceeds("all API keys", of_all, options_.most_bytes);
  return absl::OkStatus();
}

absl::Status ContentStore::Reserve(const ContentOwner& owner, uint64_t bytes) {
  if (owner.is_server()) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  uint64_t& of_key = being_put_[owner];
  RETURN_IF_ERROR(CheckBounds(of_key + bytes, all_being_put_ + bytes));
  of_key += bytes;
  all_being_put_ += bytes;
  return absl::OkStatus();
}

void ContentStore::Release(const ContentWriter& writer) {
  const std::lock_guard lock(mutex_);
  writing_.erase(writer.path_);
  const auto put = being_put_.find(writer.owner_);
  if (put == being_put_.end()) return;
  all_being_put_ -= writer.bytes_;
  put->second -= writer.bytes_;
  if (put->second == 0) being_put_.erase(put);
}

absl::StatusOr<ContentWriter> ContentStore::Begin(const ContentOwner& owner, uint64_t most_bytes) {
  const std::string folder = FolderOf(owner);
  if (folder.empty()) return absl::FailedPreconditionError("this server stores no contents");
  RETURN_IF_ERROR(WithoutPath(base::MakePrivateFolder(folder)));
  std::string path = absl::StrCat(folder, "/", base::RandomId(kIncoming));
  const std::lock_guard lock(mutex_);
  writing_.insert(path);
  return ContentWriter(*this, owner, std::move(path), most_bytes);
}

absl::Status ContentStore::Place(const ContentWriter& writer, const Content& content) {
  const std::lock_guard lock(mutex_);
  if (verified_.contains(content.path) && SizeOfContent(content.path).ok()) return absl::OkStatus();  // just placed
  if (!writer.owner_.is_server()) {
    const Stored& stored = stored_[writer.owner_];
    const auto before = stored.sizes.find(content.digest);
    const uint64_t more = std::max(content.bytes, kLeastBytes) - (before == stored.sizes.end() ? 0 : before->second);
    RETURN_IF_ERROR(CheckBounds(stored.bytes + more, stored_bytes_ + more));
  }
  if (std::rename(writer.path_.c_str(), content.path.c_str()) != 0) return ContentDiskError(errno);
  verified_[content.path] = content.bytes;
  Count(writer.owner_, content.digest, std::max<uint64_t>(content.bytes, 1));
  return absl::OkStatus();
}

absl::StatusOr<Content> ContentStore::Commit(const ContentWriter& writer, const std::string& digest) {
  const Content content = {.digest = digest, .bytes = writer.bytes_, .path = PathOf(writer.owner_, digest)};
  if (!Find(writer.owner_, digest).ok()) {
    const absl::Status placed = Place(writer, content);
    // Another process may have placed a folder of the same bytes.
    if (!placed.ok() && !Find(writer.owner_, digest).ok()) return placed;
  }
  // The name may be that of a put whose process was killed before it was durable.
  if (!base::Planted("content_is_not_synced")) {
    RETURN_IF_ERROR(WithoutPath(base::SyncFolder(FolderOf(writer.owner_))));
  }
  return content;
}

absl::Status ContentStore::CheckBytes(const ContentOwner& owner, const Content& content) {
  const absl::StatusOr<std::string> digest = DigestOfContent(content);
  if (digest.ok() && (*digest == content.digest || base::Planted("kept_bytes_are_not_checked"))) {
    return absl::OkStatus();
  }
  if (!digest.ok() && !absl::IsDataLoss(digest.status())) return WithoutPath(digest.status());
  options_.log({base::LogLevel::kWarning,
                absl::StrCat("content ", content.digest, " was damaged on the disk: it is removed and not used")});
  const std::lock_guard lock(mutex_);
  if (RemoveAll(content.path)) Count(owner, content.digest, 0);
  verified_.erase(content.path);
  return absl::DataLossError(absl::StrCat("content ", content.digest, " was damaged on the disk"));
}

absl::StatusOr<Content> ContentStore::Find(const ContentOwner& owner, const std::string& digest) {
  if (!base::IsSha256Text(digest)) {
    return absl::InvalidArgumentError("a content is named by 64 hexadecimal digits in lower case");
  }
  Content content = {.digest = digest, .path = PathOf(owner, digest)};
  ASSIGN_OR_RETURN(content.bytes, SizeOfContent(content.path));
  {
    const std::lock_guard lock(mutex_);
    const auto verified = verified_.find(content.path);
    if (verified != verified_.end() && verified->second == content.bytes && Touch(content.path)) return content;
  }
  RETURN_IF_ERROR(CheckBytes(owner, content));
  const std::lock_guard lock(mutex_);
  if (!Touch(content.path)) return absl::NotFoundError("there is no such content");
  verified_[content.path] = content.bytes;
  Count(owner, digest, std::max<uint64_t>(content.bytes, 1));
  return content;
}

void ContentStore::RemoveUnused(const std::set<std::string>& needed) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Entry, uint64_t>> kept;
  ForEachEntry([&](const Entry& entry) {
    const absl::Duration retention = entry.owner.is_server() ? options_.own_retention : options_.retention;
    const bool is_used = entry.digest.empty()
                             ? writing_.contains(entry.path)
                             : needed.contains(entry.digest) && !base::Planted("needed_content_expires");
    if (!is_used && AgeOf(entry.path) > retention && RemoveAll(entry.path)) {
      verified_.erase(entry.path);
    } else if (const absl::StatusOr<uint64_t> bytes = SizeOfContent(entry.path); bytes.ok() && !entry.digest.empty()) {
      kept.emplace_back(entry, *bytes);
    }
  });
  // Other servers may have put and removed contents too.
  stored_.clear();
  stored_bytes_ = 0;
  for (const auto& [entry, bytes] : kept) Count(entry.owner, entry.digest, std::max<uint64_t>(bytes, 1));
}

uint64_t ContentStore::stored_bytes() const {
  const std::lock_guard lock(mutex_);
  return stored_bytes_;
}

}  // namespace tessera::server
