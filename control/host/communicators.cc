#include "control/host/communicators.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"

namespace tessera::control {

std::vector<std::string> UnionOf(const std::vector<std::string>& transports, const std::vector<std::string>& others) {
  std::vector<std::string> names;
  for (const std::string& name : base::EnumNames<Transport>()) {
    const auto has = [&](const std::vector<std::string>& of) {
      return std::find(of.begin(), of.end(), name) != of.end();
    };
    if (has(transports) || has(others)) names.push_back(name);
  }
  return names;
}

std::string ExchangeText(const std::string& communicator, const std::vector<std::string>& transports) {
  std::string text = communicator;
  for (size_t i = 0; i < transports.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? " over " : i + 1 == transports.size() ? " and " : ", ", transports[i]);
  }
  return text;
}

}  // namespace tessera::control
