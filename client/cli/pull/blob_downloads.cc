#include "client/cli/pull/blob_downloads.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/time/steady_time.h"

namespace tessera::client {
namespace {

constexpr int kMaxHops = 5;      // redirects from one address to the next
constexpr int kMaxRefusals = 5;  // addresses of a file that were refused without a byte in between
constexpr absl::Duration kTickOfDownloads = absl::Milliseconds(100);
constexpr size_t kDigestBytes = 1 << 20;

// What is asked for again after it was refused at the address of a redirect: signed addresses expire.
bool MayHaveExpired(int status) {
  return status == 400 || status == 401 || status == 403 || status == 404 || status == 410;
}

bool HasSize(const std::string& path, uint64_t size) {
  struct stat state;
  return ::stat(path.c_str(), &state) == 0 && S_ISREG(state.st_mode) && static_cast<uint64_t>(state.st_size) == size;
}

}  // namespace

std::string BlobName(const HubFile& file) { return file.git_sha1.empty() ? file.sha256 : file.git_sha1; }

struct BlobDownloads::File {
  File(const HubFile& of, BlobFile opened) : wanted(of), blob(std::move(opened)), digest(of) {}

  const HubFile wanted;
  BlobFile blob;
  ContentDigest digest;   // of the thread of the digests
  uint64_t digested = 0;  // bytes that were passed to it
  std::string location;   // to which the endpoint redirects; empty: not known
  int hops = 0;           // redirects that led there
  int refusals = 0;
  size_t active = 0;           // requests
  bool has_ranges = true;      // false: the whole file is requested at once
  bool was_continued = false;  // an earlier run downloaded some bytes
  bool is_finished = false;
};

struct BlobDownloads::Piece {
  File* file = nullptr;
  size_t index = 0;
  Backoff backoff = {};
  absl::Duration not_before = absl::ZeroDuration();  // of the steady clock
};

struct BlobDownloads::Transfer {
  Piece piece;
  WebUrl url;
  uint64_t next = 0, end = 0;  // bytes that are still wanted
  bool is_accepted = false;    // the body is that of the file
  bool lacks_ranges = false;   // all of the file was returned in place of a range

  File& file() const { return *piece.file; }
};

BlobDownloads::BlobDownloads(HttpClient& http, const HubRequests& requests, const HubSettings& settings,
                             const HubModel& model, const PullHooks& hooks, Target target)
    : http_(http),
      requests_(requests),
      settings_(settings),
      model_(model),
      hooks_(hooks),
      target_(std::move(target)),
      digests_(/*threads=*/1) {
  if (const absl::StatusOr<WebUrl> endpoint = ParseWebUrl(settings.endpoint); endpoint.ok()) {
    endpoint_origin_ = endpoint->origin;
    endpoint_is_secure_ = endpoint->is_secure;
  }
}

BlobDownloads::~BlobDownloads() {
  stopping_ = true;
  http_.CancelAll();
}

absl::StatusOr<std::map<std::string, std::string>> BlobDownloads::Run(const std::vector<HubFile>& files) {
  size_t opened = 0;
  while (names_.size() < files.size()) {
    RETURN_IF_ERROR(hooks_.proceed());
    // Later files are opened when there are connections for them.
    while (opened < files.size() && waiting_.size() + http_.active() < 2 * kConnections) {
      RETURN_IF_ERROR(OpenFile(files[opened++]));
    }
    StartRequests();
    RETURN_IF_ERROR(http_.Run(kTickOfDownloads));
    RETURN_IF_ERROR(error_);
    std::vector<std::pair<File*, absl::Status>> digested;
    {
      const std::lock_guard lock(mutex_);
      digested.swap(digested_);
    }
    for (const auto& [file, status] : digested) RETURN_IF_ERROR(OnDigest(*file, status));
    std::erase_if(files_, [](const std::unique_ptr<File>& file) { return file->is_finished && file->active == 0; });
  }
  return names_;
}

absl::Status BlobDownloads::OpenFile(const HubFile& wanted) {
  const std::string name = BlobName(wanted);
  if (!name.empty() && HasSize(absl::StrCat(target_.blobs, "/", name), wanted.size)) {
    names_[wanted.path] = name;
    return absl::OkStatus();
  }
  // Without a digest the blob is named when its bytes are known.
  const std::string key =
      name.empty() ? absl::BytesToHexString(base::Sha256Of(absl::StrCat(target_.commit, "/", wanted.path))) : name;
  // Two files with the same bytes have one blob.
  for (const std::unique_ptr<File>& file : files_) {
    if (!name.empty() && !file->is_finished && BlobName(file->wanted) == name) {
      names_[wanted.path] = name;
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(BlobFile blob, BlobFile::Open(target_.blobs, key, wanted.size));
  File& file = *files_.emplace_back(std::make_unique<File>(wanted, std::move(blob)));
  file.was_continued = file.blob.Present() > 0;
  target_.on_bytes(file.blob.Present());
  QueuePieces(file);
  return absl::OkStatus();
}

void BlobDownloads::QueuePieces(File& file) {
  for (size_t piece = 0; piece < file.blob.pieces(); ++piece) {
    if (file.blob.Next(piece) < file.blob.End(piece)) waiting_.push_back({.file = &file, .index = piece});
  }
  AdvanceDigest(file);
}

void BlobDownloads::StartRequests() {
  const absl::Duration now = base::SteadyNow();
  for (auto piece = waiting_.begin(); piece != waiting_.end() && http_.active() < kConnections;) {
    const File& file = *piece->file;
    // One request finds out where the file is, and one returns all of a file without ranges.
    const bool must_wait = file.active > 0 && (file.location.empty() || !file.has_ranges);
    if (must_wait || piece->not_before > now) {
      ++piece;
      continue;
    }
    Piece started = *piece;
    piece = waiting_.erase(piece);
    Start(std::move(started));
  }
}

void BlobDownloads::Start(Piece piece) {
  File& file = *piece.file;
  const std::string address =
      file.location.empty() ? requests_.FileUrl(target_.commit, file.wanted.path) : file.location;
  absl::StatusOr<WebUrl> url = ParseWebUrl(address);
  if (!url.ok()) {
    error_ = url.status();
    return;
  }
  const auto transfer = std::make_shared<Transfer>();
  transfer->piece = piece;
  transfer->url = *std::move(url);
  transfer->next = file.has_ranges ? file.blob.Next(piece.index) : 0;
  transfer->end = file.has_ranges ? file.blob.End(piece.index) : file.wanted.size;
  HttpRequest request = {.url = transfer->url.text};
  if (transfer->url.origin == endpoint_origin_) request.token = settings_.token;
  if (transfer->next > 0 || transfer->end < file.wanted.size) {
    request.range = {.first = transfer->next, .last = transfer->end - 1};
  }
  request.on_head = [this, transfer](const HttpHead& head) { return OnHead(*transfer, head); };
  request.on_body = [this, transfer](std::string_view bytes) { return OnBody(*transfer, bytes); };
  ++file.active;
  http_.Start(std::move(request), [this, transfer](const HttpResult& result) {
    --transfer->file().active;
    error_.Update(OnDone(*transfer, result));
  });
}

absl::Status BlobDownloads::OnHead(Transfer& transfer, const HttpHead& head) {
  const uint64_t size = transfer.file().wanted.size;
  if (head.status == 206) {
    const std::string expected = absl::StrCat("bytes ", transfer.next, "-", transfer.end - 1, "/", size);
    if (head.Field("content-range") != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat(transfer.url.host, " returns ", base::QuotedValue(head.Field("content-range")), " of the file ",
                       base::QuotedValue(transfer.file().wanted.path), " in place of '", expected, "'"));
    }
    transfer.is_accepted = true;
  } else if (head.status == 200) {
    uint64_t announced = size;
    if (absl::SimpleAtoi(head.Field("content-length"), &announced) && announced != size) {
      return absl::FailedPreconditionError(absl::StrCat("the file ", base::QuotedValue(transfer.file().wanted.path),
                                                        " has ", announced, " bytes at ", transfer.url.host,
                                                        " and must have ", size));
    }
    transfer.lacks_ranges = transfer.next > 0 || transfer.end < size;
    if (transfer.lacks_ranges) return absl::CancelledError("the server has no ranges");
    transfer.is_accepted = true;
  }
  return absl::OkStatus();
}

absl::Status BlobDownloads::OnBody(Transfer& transfer, std::string_view bytes) {
  if (!transfer.is_accepted) return absl::OkStatus();
  File& file = transfer.file();
  if (bytes.size() > transfer.end - transfer.next) {
    return absl::FailedPreconditionError(absl::StrCat(transfer.url.host, " returns more bytes of the file ",
                                                      base::QuotedValue(file.wanted.path), " than it has"));
  }
  const uint64_t before = file.blob.Frontier();
  const uint64_t present = file.has_ranges ? 0 : file.blob.Present();
  RETURN_IF_ERROR(file.blob.Write(transfer.next, bytes));
  target_.on_bytes(file.has_ranges ? bytes.size() : file.blob.Present() - present);
  transfer.next += bytes.size();
  transfer.piece.backoff.Reset();
  file.refusals = 0;
  if (file.blob.Frontier() / BlobFile::kPieceBytes > before / BlobFile::kPieceBytes) AdvanceDigest(file);
  return absl::OkStatus();
}

absl::Status BlobDownloads::OnDone(Transfer& transfer, const HttpResult& result) {
  File& file = transfer.file();
  if (transfer.lacks_ranges) {
    file.has_ranges = false;
    Requeue({.file = &file});
    return absl::OkStatus();
  }
  if (absl::IsUnavailable(result.status)) return Retry(transfer, result.status, {});
  RETURN_IF_ERROR(result.status);
  const HttpHead& head = result.head;
  if (transfer.is_accepted) {
    if (transfer.next < transfer.end) {
      return Retry(transfer, absl::UnavailableError(absl::StrCat(transfer.url.host, " ends the answer too early")), {});
    }
    AdvanceDigest(file);
    return absl::OkStatus();
  }
  if (head.status >= 300 && head.status < 400) {
    if (++file.hops > kMaxHops) {
      return absl::FailedPreconditionError(absl::StrCat(transfer.url.host, " redirects in circles"));
    }
    ASSIGN_OR_RETURN(const WebUrl target, ResolveRedirect(transfer.url, head.Field("location"), !endpoint_is_secure_));
    file.location = target.text;
    Requeue(transfer.piece);
    return absl::OkStatus();
  }
  return OnRefusal(transfer, head);
}

absl::Status BlobDownloads::OnRefusal(Transfer& transfer, const HttpHead& head) {
  File& file = transfer.file();
  const bool is_redirected = transfer.url.text != requests_.FileUrl(target_.commit, file.wanted.path);
  if (is_redirected && MayHaveExpired(head.status)) {
    if (file.location == transfer.url.text) {
      file.location.clear();
      file.hops = 0;
      ++file.refusals;
    }
    if (file.refusals > kMaxRefusals) {
      return absl::FailedPreconditionError(
          absl::StrCat(transfer.url.host, ", to which ", settings_.endpoint, " redirects, refuses the file ",
                       base::QuotedValue(file.wanted.path), " with status ", head.status));
    }
    Requeue(transfer.piece);
    return absl::OkStatus();
  }
  if (MayPass(head.status)) {
    return Retry(transfer, absl::UnavailableError(absl::StrCat(transfer.url.host, " answers ", head.status)), head);
  }
  return RefusalOf(head, settings_, model_, base::QuotedValue(file.wanted.path));
}

void BlobDownloads::Requeue(const Piece& piece) {
  // One request is enough for a file that is returned as a whole.
  if (!piece.file->has_ranges) {
    std::erase_if(waiting_, [&piece](const Piece& other) { return other.file == piece.file; });
  }
  waiting_.push_front(piece);
}

absl::Status BlobDownloads::Retry(Transfer& transfer, const absl::Status& error, const HttpHead& head) {
  ASSIGN_OR_RETURN(const absl::Duration pause, transfer.piece.backoff.Next(error, head));
  hooks_.on_event(absl::StrCat(std::string(error.message()), "; continuing at byte ", transfer.next, " of ",
                               base::QuotedValue(transfer.file().wanted.path)));
  transfer.piece.not_before = base::SteadyNow() + pause;
  Requeue(transfer.piece);
  return absl::OkStatus();
}

void BlobDownloads::AdvanceDigest(File& file) {
  const uint64_t from = file.digested, to = file.blob.Frontier();
  const bool is_complete = to == file.wanted.size;
  if (from == to && (!is_complete || to > 0)) return;
  file.digested = to;
  digests_.Post([this, &file, from, to, is_complete] {
    std::vector<char> buffer(std::min<uint64_t>(kDigestBytes, to - from));
    absl::Status status;
    for (uint64_t at = from; status.ok() && !stopping_ && at < to; at += buffer.size()) {
      buffer.resize(std::min<uint64_t>(kDigestBytes, to - at));
      status = file.blob.Read(at, buffer);
      file.digest.Update({buffer.data(), buffer.size()});
    }
    if (stopping_ || (status.ok() && !is_complete)) return;
    if (status.ok()) status = file.digest.Check();
    if (status.ok()) status = file.blob.Commit(file.digest.name());
    const std::lock_guard lock(mutex_);
    digested_.emplace_back(&file, status);
  });
}

absl::Status BlobDownloads::OnDigest(File& file, const absl::Status& status) {
  if (status.ok()) {
    names_[file.wanted.path] = file.digest.name();
    file.is_finished = true;
    return absl::OkStatus();
  }
  if (!absl::IsDataLoss(status)) return status;
  // Of what an earlier run left, some may have been lost in a power cut.
  RETURN_IF_ERROR(file.blob.Clear());
  if (!std::exchange(file.was_continued, false)) return status;
  hooks_.on_event(absl::StrCat("what an earlier run left of ", base::QuotedValue(file.wanted.path),
                               " is damaged; downloading it again"));
  file.digest = ContentDigest(file.wanted);
  file.digested = 0;
  QueuePieces(file);
  return absl::OkStatus();
}

}  // namespace tessera::client
