// Fuzz test: any bytes of a row yield either an error or a job within the limits that serializes to the same job.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "server/jobs/stored_job.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<tessera::server::StoredJob> job = tessera::server::ParseStoredJob(bytes);
  if (job.ok()) {
    const absl::StatusOr<std::string> written = tessera::server::SerializeJob(*job);
    if (!written.ok()) std::abort();
    const absl::StatusOr<tessera::server::StoredJob> again = tessera::server::ParseStoredJob(*written);
    if (!again.ok() || tessera::server::SerializeJob(*again).value_or("") != *written) std::abort();
  }
  const absl::StatusOr<tessera::server::StoredImage> image = tessera::server::ParseStoredImage(bytes);
  if (image.ok() && !tessera::server::ParseStoredImage(tessera::server::SerializeImage(*image)).ok()) std::abort();
  return 0;
}
