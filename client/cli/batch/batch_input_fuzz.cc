// Parses any bytes as the input of a batch: items are numbered consecutively, line numbers never decrease, and each
// item is a request or an error in UTF-8.
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "base/text/utf8.h"
#include "client/cli/batch/batch_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::client::BatchFormat;
  if (size == 0) return 0;
  std::optional<BatchFormat> format;
  if (data[0] % 4 != 3) format = static_cast<BatchFormat>(data[0] % 4);
  std::istringstream input(std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  tessera::client::BatchReader reader(input, format);
  int64_t items = 0, line = 0;
  while (true) {
    const auto item = reader.Next();
    if (!item.ok() || !item->has_value()) return 0;
    if ((*item)->index != items++ || (*item)->line <= line || (*item)->digest.size() != 64) std::abort();
    line = (*item)->line;
    const absl::Status status = (*item)->request.status();
    if (!status.ok() && status.message().empty()) std::abort();
    if (tessera::base::FirstInvalidUtf8(status.message()) < status.message().size()) std::abort();
  }
}
