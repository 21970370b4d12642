#include "client/cli/batch/run_sheet.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/files/atomic_file.h"
#include "base/files/private_files.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "client/cli/output/contact_sheet.h"
#include "server/image/image_file.h"
#include "server/jobs/disk_result_store.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<server::DecodedImage> Read(const RunFolder& folder, const RunImage& image) {
  ASSIGN_OR_RETURN(const std::string bytes, folder.ReadImage(image));
  return server::DecodeImage(bytes);
}

// `images`: one per cell; null: the item failed.
absl::StatusOr<std::string> Draw(const RunFolder& folder, absl::Span<const RunImage* const> images,
                                 server::ImageFormat format) {
  ContactSheet sheet(static_cast<int>(images.size()));
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  absl::Status failure;  // guarded by mutex
  const auto draw = [&] {
    for (size_t cell = next++; cell < images.size(); cell = next++) {
      if (images[cell] == nullptr) {
        sheet.PutFailure(static_cast<int>(cell));
        continue;
      }
      const absl::StatusOr<server::DecodedImage> decoded = Read(folder, *images[cell]);
      if (decoded.ok()) {
        sheet.Put(static_cast<int>(cell), decoded->image);
        continue;
      }
      next = images.size();
      const std::lock_guard lock(mutex);
      failure.Update(decoded.status());
    }
  };
  const auto processors = static_cast<size_t>(std::max<int64_t>(1, base::ReadMachineProcessors().available()));
  std::vector<std::thread> threads(std::min(processors, images.size()));
  for (std::thread& thread : threads) thread = base::StartThread(draw);
  for (std::thread& thread : threads) thread.join();
  RETURN_IF_ERROR(failure);
  return server::EncodeImage(sheet.image(), format, {});
}

}  // namespace

absl::Status CheckSheetName(const std::string& file) { return server::FormatFromPath(file).status(); }

absl::StatusOr<int> WriteContactSheets(const std::string& file, const RunFolder& folder,
                                       const std::map<int64_t, RunEntry>& entries) {
  ASSIGN_OR_RETURN(const server::ImageFormat format, server::FormatFromPath(file));
  std::vector<const RunImage*> cells;
  for (const auto& [index, entry] : entries) {
    if (entry.images.empty()) cells.push_back(nullptr);
    for (const RunImage& image : entry.images) cells.push_back(&image);
  }
  const fs::path path = fs::absolute(file);
  RETURN_IF_ERROR(base::MakeFolder(path.parent_path()));
  const absl::Span<const RunImage* const> all = cells;
  int sheets = 0;
  for (size_t begin = 0; begin < all.size(); begin += ContactSheet::kMostCells) {
    ++sheets;
    ASSIGN_OR_RETURN(const std::string bytes, Draw(folder, all.subspan(begin, ContactSheet::kMostCells), format));
    const std::string name = all.size() <= ContactSheet::kMostCells
                                 ? path.string()
                                 : absl::StrFormat("%s-%03d%s", (path.parent_path() / path.stem()).string(), sheets,
                                                   path.extension().string());
    RETURN_IF_ERROR(server::AsDiskFailure(base::WriteFileAtomically(name, bytes)));
  }
  return sheets;
}

}  // namespace tessera::client
