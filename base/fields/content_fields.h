// ForEachContent finds the contents that a described struct names (the kind Content of base/fields/fields.h), also in
// nested structs and in lists. A new field of that kind therefore needs no other registration.
#pragma once

#include "base/fields/fields.h"

namespace tessera::base {

template <class T, class Valid, class Visit>
void VisitContents(const T& value, const Valid& valid, const Visit& visit);

// Calls visit(digest) for every content, in the order of the fields.
template <Described T, class Visit>
void ForEachContent(const T& value, const Visit& visit) {
  ForEachField([&visit](const auto& field, const auto& member) { VisitContents(member, field.valid, visit); }, value);
}

template <class T, class Valid, class Visit>
void VisitContents([[maybe_unused]] const T& value, [[maybe_unused]] const Valid& valid,
                   [[maybe_unused]] const Visit& visit) {
  if constexpr (kIsOptional<T>) {
    if (value.has_value()) VisitContents(*value, valid, visit);
  } else if constexpr (kIsList<T>) {
    for (const auto& item : value) VisitContents(item, valid.each, visit);
  } else if constexpr (Described<T>) {
    ForEachContent(value, visit);
  } else if constexpr (std::is_same_v<Valid, Content>) {
    visit(value);
  }
}

}  // namespace tessera::base
