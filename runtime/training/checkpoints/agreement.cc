#include "runtime/training/checkpoints/agreement.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>

namespace tessera::runtime {

std::vector<std::string> GatherTexts(const std::string& text, parallel::Communicator& ranks) {
  const at::Tensor sizes = at::empty({ranks.size()}, at::kLong);
  ranks.Gather(at::full({1}, static_cast<int64_t>(text.size()), at::kLong), sizes);
  const std::vector<int64_t> rows(sizes.data_ptr<int64_t>(), sizes.data_ptr<int64_t>() + ranks.size());
  const at::Tensor own = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(own.data_ptr(), text.data(), text.size());
  const at::Tensor all = ranks.AllGather(own, rows);
  std::vector<std::string> texts;
  const char* at = static_cast<const char*>(all.data_ptr());
  for (const int64_t size : rows) {
    texts.emplace_back(at, static_cast<size_t>(size));
    at += size;
  }
  return texts;
}

absl::Status Agree(const absl::Status& status, parallel::Communicator& ranks) {
  std::string text;
  if (!status.ok()) text = static_cast<char>(status.code()) + std::string(status.message());
  for (const std::string& verdict : GatherTexts(text, ranks)) {
    if (!verdict.empty()) return absl::Status(static_cast<absl::StatusCode>(verdict[0]), verdict.substr(1));
  }
  return absl::OkStatus();
}

}  // namespace tessera::runtime
