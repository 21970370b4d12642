#include "client/cli/models/adapter_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/adapters/adapter_file.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

struct Opened {
  std::string path, digest;
};

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::StatusOr<Opened> Open(const std::string& path) {
  const std::string name = absl::StrCat("lora ", server::QuotedValue(path));
  ASSIGN_OR_RETURN(const server::AdapterFile file, server::CheckAdapterFile(path, name));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(name, ": ", error.message()));
  return Opened{.path = absolute.lexically_normal(), .digest = file.digest};
}

}  // namespace

server::AdapterNames AdapterNamesOf(const std::vector<server::AdapterRequest>& adapters) {
  server::AdapterNames names;
  for (const server::AdapterRequest& adapter : adapters) {
    names.emplace(control::AdapterNameOf(WithoutSlashes(adapter.name)), adapter.name);
  }
  return names;
}

absl::Status OpenAdapterFiles(std::vector<control::AdapterUse>& adapters) {
  for (auto adapter = adapters.begin(); adapter != adapters.end(); ++adapter) {
    const std::string path = WithoutSlashes(adapter->name);
    ASSIGN_OR_RETURN(const Opened opened, Open(path));
    adapter->file = opened.path;
    adapter->digest = opened.digest;
    adapter->name = control::AdapterNameOf(path);
    const auto same = [&](const control::AdapterUse& other) { return other.name == adapter->name; };
    if (std::find_if(adapters.begin(), adapter, same) == adapter) continue;
    return absl::InvalidArgumentError(absl::StrCat("lora ", server::QuotedValue(path), " has the name '", adapter->name,
                                                   "' of another one; give each adapter once, or rename a file"));
  }
  return absl::OkStatus();
}

absl::Status FindAdapterFiles(const std::vector<std::string>& paths, std::vector<control::AdapterUse>& adapters) {
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const Opened opened, Open(path));
    const auto adapter = std::ranges::find(adapters, opened.digest, &control::AdapterUse::digest);
    if (adapter == adapters.end()) {
      return absl::InvalidArgumentError(absl::StrCat("lora ", server::QuotedValue(path),
                                                     " is not one that the image was made with: it has SHA-256 ",
                                                     opened.digest));
    }
    adapter->file = opened.path;
  }
  for (const control::AdapterUse& adapter : adapters) {
    if (!adapter.file.empty()) continue;
    return absl::NotFoundError(absl::StrCat("the image was made with the adapter '", adapter.name, "' (SHA-256 ",
                                            adapter.digest, "); name its file with --lora"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::client
