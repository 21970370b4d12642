#include "control/parameters/adapter_use.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fields/field_error.h"

namespace tessera::control {
namespace {

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' || c == '+';
}

bool IsFirstByte(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace

bool IsAdapterName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxAdapterNameBytes && IsFirstByte(name.front()) &&
         std::all_of(name.begin(), name.end(), IsNameByte);
}

std::string AdapterNameOf(std::string_view path) {
  std::string_view last = path.substr(path.find_last_of('/') + 1);
  const size_t dot = last.find_last_of('.');
  std::string name(last.substr(0, dot == 0 ? last.npos : dot));
  name.resize(std::min(name.size(), kMaxAdapterNameBytes));
  for (char& c : name) {
    if (!IsNameByte(c)) c = '_';
  }
  if (name.empty()) return "_";
  if (!IsFirstByte(name.front())) name.front() = '_';
  return name;
}

absl::Status CheckRules(const AdapterUse& adapter) {
  if (!IsAdapterName(adapter.name)) {
    return base::ErrorOfField("name", absl::StrCat(" is not valid; ", kAdapterNameRule));
  }
  if (!adapter.file.empty() && adapter.file.front() != '/') {
    return base::ErrorOfField("file", " is not an absolute path");
  }
  return absl::OkStatus();
}

absl::Status CheckRules(const std::vector<AdapterUse>& adapters) {
  for (auto adapter = adapters.begin(); adapter != adapters.end(); ++adapter) {
    const auto same = [&](const AdapterUse& other) { return other.name == adapter->name; };
    if (std::find_if(adapters.begin(), adapter, same) != adapter) {
      return base::ErrorOfField("loras", absl::StrCat(" has '", adapter->name,
                                                      "' twice; give each adapter once, with the sum of the scales"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAdapters(const std::vector<AdapterUse>& adapters) {
  return base::CheckValue("loras", std::nullopt, adapters, base::List<base::Nested>{.most = kMaxAdapters});
}

std::string AdapterKey(const std::vector<AdapterUse>& adapters) {
  std::string key;
  for (const AdapterUse& adapter : adapters) {
    if (adapter.scale != 0) absl::StrAppend(&key, adapter.digest, absl::StrFormat("*%.17g;", adapter.scale));
  }
  return key;
}

}  // namespace tessera::control
