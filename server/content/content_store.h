// ContentStore holds bytes under their SHA-256: adapters, and the pictures that callers send. A request holds digests,
// never paths or bytes.
//
// Each content has an owner: an API key, or the server itself, whose adapters every caller may use. An owner finds only
// what it has put itself. The same bytes of two owners are two files, so neither learns what the other has.
//
// A content is the file FOLDER/OWNER/DIGEST, where OWNER is the SHA-256 of the key's name, or OWN_FOLDER/DIGEST with a
// suffix. PEFT's adapters are folders of two files. There are no records apart from that: the name is the digest, the
// size is the file's, and the time of the last use is its modification time. A content is written under a temporary
// name, and gets its name after its bytes are durable, so a process may be killed at any moment.
//
// Contents that no unfinished job names expire some time after their last use. Several servers may share the folders.
// Thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files/file_descriptor.h"
#include "base/files/sha256.h"
#include "base/log/log_line.h"

namespace tessera::server {

// The files of a content that is a folder, in the order in which its digest covers them.
inline constexpr std::array kContentParts = {"adapter_model.safetensors", "adapter_config.json"};

// The payload of an error about a bound of what keys store, which a full disk does not have.
inline constexpr char kContentBound[] = "tessera.content_bound";

// Who may use a content.
class ContentOwner final {
 public:
  static ContentOwner Server() { return ContentOwner(""); }
  static ContentOwner Key(std::string_view name);  // the name of an API key; empty: callers without keys

  // The name of the owner's folder; empty for the server.
  const std::string& folder() const { return folder_; }
  bool is_server() const { return folder_.empty(); }
  auto operator<=>(const ContentOwner&) const = default;

 private:
  friend class ContentStore;
  explicit ContentOwner(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

struct Content {
  std::string digest;  // 64 hexadecimal digits
  uint64_t bytes = 0;
  std::string path;  // absolute; of its file or folder

  bool operator==(const Content&) const = default;
};

struct ContentStoreOptions {
  std::string folder = {};      // of the contents of keys, created on demand; empty: keys have none
  std::string own_folder = {};  // of the server's own contents, created on demand; empty: it has none
  std::string own_suffix = {};  // of the names in own_folder
  bool is_shared = false;       // other processes use the folders at the same time
  // How long contents that no job needs are kept after their last use.
  absl::Duration retention = absl::Hours(1);
  absl::Duration own_retention = absl::Minutes(10);
  // Bounds of what keys store, for one key and for all of them. The server's own contents do not count.
  uint64_t most_bytes_of_key = std::numeric_limits<uint64_t>::max();
  uint64_t most_bytes = std::numeric_limits<uint64_t>::max();
  base::EventLog log = nullptr;  // may be null
};

class ContentStore;

// One content while it is put. The destructor removes what was not committed. Movable; one thread at a time; the store
// must outlive it.
class ContentWriter final {
 public:
  ContentWriter(ContentWriter&&) noexcept;
  ContentWriter& operator=(ContentWriter&&) = delete;
  ~ContentWriter();

  // Makes the content a folder and begins the next of kContentParts, to which Append then writes. INVALID_ARGUMENT
  // unless `name` is that part.
  absl::Status BeginPart(std::string_view name);
  // INVALID_ARGUMENT if the content becomes larger than it may be. RESOURCE_EXHAUSTED, naming the bound: the bytes that
  // keys are putting exceed what they may store, or the disk is full. UNAVAILABLE: any other disk error.
  absl::Status Append(std::string_view bytes);
  // The file or folder that has been written so far. It is moved by Commit.
  const std::string& path() const { return path_; }
  // Returns after the content is durable under its digest. If the owner has put it before, that content is kept, and
  // its retention begins again. Errors of Append. At most once.
  absl::StatusOr<Content> Commit();

 private:
  friend class ContentStore;
  ContentWriter(ContentStore& store, ContentOwner owner, std::string path, uint64_t most_bytes);

  absl::Status OpenFile(const std::string& path);
  absl::Status SyncFile();

  ContentStore* store_;  // null: moved from
  ContentOwner owner_;
  std::string path_;
  uint64_t most_bytes_;
  uint64_t bytes_ = 0;
  size_t parts_ = 0;     // begun
  absl::Status status_;  // of the first call that failed
  base::FileDescriptor file_;
  base::Sha256 digest_;
};

class ContentStore final {
 public:
  // Removes what puts left that were killed; in shared folders RemoveUnused does, once it is old.
  static absl::StatusOr<std::unique_ptr<ContentStore>> Open(ContentStoreOptions options);

  // Starts a put of at most `most_bytes`. RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: any other disk error.
  absl::StatusOr<ContentWriter> Begin(const ContentOwner& owner, uint64_t most_bytes);

  // Returns an owner's content, whose retention begins again. The first call for a content in this process reads all of
  // it, and removes and logs a content whose bytes are not those of its digest. INVALID_ARGUMENT: that is no digest.
  // NOT_FOUND; DATA_LOSS: it was damaged. UNAVAILABLE: a disk error.
  absl::StatusOr<Content> Find(const ContentOwner& owner, const std::string& digest);

  // Removes contents that are older than their retention and not among the digests that unfinished jobs and this server
  // need.
  void RemoveUnused(const std::set<std::string>& needed);

  // Bytes that keys have stored. A content counts for at least kLeastBytes.
  uint64_t stored_bytes() const;
  static constexpr uint64_t kLeastBytes = 4096;

 private:
  friend class ContentWriter;
  // What one key has stored.
  struct Stored {
    std::map<std::string, uint64_t> sizes;  // by digest
    uint64_t bytes = 0;
  };
  struct Entry;

  explicit ContentStore(ContentStoreOptions options);

  std::string FolderOf(const ContentOwner& owner) const;
  std::string PathOf(const ContentOwner& owner, const std::string& digest) const;
  absl::StatusOr<Content> Commit(const ContentWriter& writer, const std::string& digest);
  absl::Status Place(const ContentWriter& writer, const Content& content);
  // Counts bytes that an owner is putting.
  absl::Status Reserve(const ContentOwner& owner, uint64_t bytes);
  void Release(const ContentWriter& writer);
  absl::Status CheckBounds(uint64_t of_key, uint64_t of_all) const;
  absl::Status CheckBytes(const ContentOwner& owner, const Content& content);
  // Calls `visit` for each content and each put's left-over in the folders.
  void ForEachEntry(const std::function<void(const Entry&)>& visit) const;
  // Counts a stored content, or one that is gone (no bytes). Requires mutex_.
  void Count(const ContentOwner& owner, const std::string& digest, uint64_t bytes);

  const ContentStoreOptions options_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::string, uint64_t> verified_;  // sizes of the contents whose bytes were checked, by path
  std::set<std::string> writing_;             // paths of puts that have not ended
  std::map<ContentOwner, Stored> stored_;
  std::map<ContentOwner, uint64_t> being_put_;  // bytes of puts that have not ended
  uint64_t stored_bytes_ = 0, all_being_put_ = 0;
};

// Returns the files of the content at `path` in the order of its digest: the file itself, or the parts of the folder.
// DATA_LOSS for a folder that has other files.
absl::StatusOr<std::vector<std::string>> FilesOfContent(const std::string& path);

}  // namespace tessera::server
