// Fields<T>() lists the fields of a struct: name, member, valid values, help, first version. Every format that reads,
// writes, checks or documents the struct walks this list, so that a field is described in one line.
//
// The kinds are closed: flag, integer, number, text, content, choice, lists of these, nested struct, list of structs.
// The type of the member decides the kind, except that a std::string may also be bytes or a content; a type of no kind
// does not compile. A member that is a std::optional may be absent. A struct is described by a function FieldsOf in its
// namespace, which argument-dependent lookup finds:
//
//   constexpr auto FieldsOf(const AdapterUse*) {
//     return std::tuple(base::Field("name", &AdapterUse::name, base::Text{.most_bytes = 128}, "Name of an adapter."),
//                       base::Field("scale", &AdapterUse::scale, base::Number{-16, 16}, "Factor of its effect."));
//   }
//
// Rules between fields are a function CheckRules(const T&) next to it, which returns an absl::Status; rules between the
// items of a list are CheckRules(const std::vector<T>&).
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/fields/enum_names.h"

namespace tessera::base {

// The valid values of each kind, both ends included.
struct Flag {};
struct Integer {
  int64_t low = std::numeric_limits<int64_t>::min();
  uint64_t high = std::numeric_limits<uint64_t>::max();
};
struct Number {  // NaN is valid only where every number is
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};
struct Text {  // without NUL
  size_t most_bytes = size_t{1} << 18;
  bool is_path = false;      // any bytes, as paths have; other texts are UTF-8
  bool is_required = false;  // where an item is written by hand; others have a default
};
inline constexpr Text kPath = {.is_path = true};
struct Bytes {  // any bytes, NUL too
  size_t most_bytes = size_t{1} << 30;
};
// Bytes that are kept apart from the struct, which names them by their SHA-256 (IsSha256Text). Whatever must know which
// bytes a struct needs finds them with base/fields/content_fields.h.
struct Content {};
struct Choice {};  // a value of a NamedEnum
struct Nested {};
template <class Each>
struct List {
  Each each;
  size_t most = size_t{1} << 16;
  bool distinct = false;  // no value occurs twice
};

template <class T>
concept Described = requires(const T* type) {
  FieldsOf(type);
};

template <Described T>
constexpr auto Fields() {
  return FieldsOf(static_cast<const T*>(nullptr));
}

template <class T>
struct KindOf;
template <>
struct KindOf<bool> {
  using Type = Flag;
};
template <std::integral T>
struct KindOf<T> {
  using Type = Integer;
};
template <>
struct KindOf<double> {
  using Type = Number;
};
template <>
struct KindOf<std::string> {
  using Type = Text;
};
template <NamedEnum T>
struct KindOf<T> {
  using Type = Choice;
};
template <Described T>
struct KindOf<T> {
  using Type = Nested;
};
template <class T>
struct KindOf<std::vector<T>> {
  using Type = List<typename KindOf<T>::Type>;
};
template <class T>
struct KindOf<std::optional<T>> : KindOf<T> {};

// Whether values of T may have these bounds.
template <class T, class Valid>
inline constexpr bool kHasKind = std::is_same_v<typename KindOf<T>::Type, Valid> ||
                                 (std::is_same_v<T, std::string> &&
                                  (std::is_same_v<Valid, Bytes> || std::is_same_v<Valid, Content>));
template <class T, class Valid>
inline constexpr bool kHasKind<std::optional<T>, Valid> = kHasKind<T, Valid>;
template <class T, class Each>
inline constexpr bool kHasKind<std::vector<T>, List<Each>> = kHasKind<T, Each>;

template <class Struct, class Value, class Valid>
struct Field {
  static_assert(kHasKind<Value, Valid>, "the valid values are of another kind than the member");

  constexpr Field(const char* name, Value Struct::*member, Valid valid = {}, const char* help = "", int since = 1)
      : name(name), member(member), valid(valid), help(help), since(since) {}
  constexpr Field(const char* name, Value Struct::*member, const char* help, int since = 1)
      : Field(name, member, Valid(), help, since) {}

  const char* name;
  Value Struct::*member;
  Valid valid;
  const char* help;  // for users; empty: the field is not shown to any
  int since;         // the first version of the format that has it
};
template <class Struct, class Value>
Field(const char*, Value Struct::*) -> Field<Struct, Value, typename KindOf<Value>::Type>;
template <class Struct, class Value>
Field(const char*, Value Struct::*, const char*) -> Field<Struct, Value, typename KindOf<Value>::Type>;
template <class Struct, class Value>
Field(const char*, Value Struct::*, const char*, int) -> Field<Struct, Value, typename KindOf<Value>::Type>;

// A nested struct whose fields count as the outer one's own.
template <class Struct, Described Value>
struct Inline {
  constexpr explicit Inline(Value Struct::*member) : member(member) {}
  Value Struct::*member;
};

template <class T>
inline constexpr bool kIsInline = false;
template <class Struct, class Value>
inline constexpr bool kIsInline<Inline<Struct, Value>> = true;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;

// Whether a value has to be written, because it has no default.
constexpr bool IsRequired(const Text& valid) { return valid.is_required; }
template <class Valid>
constexpr bool IsRequired(const Valid&) {
  return false;
}

// Calls visit(field, members...) for every field, with the member of each of these structs of one type.
template <class Visit, class First, class... Rest>
constexpr void ForEachField(const Visit& visit, First& first, Rest&... rest) {
  std::apply(
      [&](const auto&... fields) {
        [[maybe_unused]] const auto one = [&](const auto& field) {
          if constexpr (kIsInline<std::remove_cvref_t<decltype(field)>>) {
            ForEachField(visit, first.*field.member, rest.*field.member...);
          } else {
            visit(field, first.*field.member, rest.*field.member...);
          }
        };
        (one(fields), ...);
      },
      Fields<std::remove_const_t<First>>());
}

// Calls visit(field) for every field of T.
template <Described T, class Visit>
constexpr void ForEachFieldOf(const Visit& visit) {
  std::apply(
      [&](const auto&... fields) {
        [[maybe_unused]] const auto one = [&]<class F>(const F& field) {
          if constexpr (kIsInline<F>) {
            [&]<class Struct, class Value>(const Inline<Struct, Value>&) { ForEachFieldOf<Value>(visit); }(field);
          } else {
            visit(field);
          }
        };
        (one(fields), ...);
      },
      Fields<T>());
}

// What is wrong with a value, as the rest of a message after its name; empty: nothing.
std::string ProblemOfInteger(int64_t value, const Integer& valid);
std::string ProblemOfInteger(uint64_t value, const Integer& valid);
std::string ProblemOf(double value, const Number& valid);
std::string ProblemOf(const std::string& text, const Text& valid);
std::string ProblemOf(const std::string& bytes, const Bytes& valid);
std::string ProblemOf(const std::string& digest, const Content& valid);
std::string ProblemOfChoice(const std::vector<std::string>& names);

template <class T>
concept HasRules = requires(const T& value) {
  { CheckRules(value) } -> std::same_as<absl::Status>;
};

// INVALID_ARGUMENT about the first field that is not valid, with its name and what is valid; then what CheckRules says.
template <Described T>
absl::Status CheckFields(const T& value);

template <class T, class Valid>
std::string ProblemOfValue(const T& value, const Valid& valid) {
  if constexpr (std::is_same_v<Valid, Flag>) {
    return "";
  } else if constexpr (std::is_same_v<Valid, Integer>) {
    return ProblemOfInteger(static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(value), valid);
  } else if constexpr (std::is_same_v<Valid, Choice>) {
    return static_cast<size_t>(value) < kEnumNames<T>.size() ? "" : ProblemOfChoice(EnumNames<T>());
  } else {
    return ProblemOf(value, valid);
  }
}

// One about `inner`, as one about a field within `field`, which may be an item of a list. Each message begins with the
// name of a field.
absl::Status ErrorWithin(absl::string_view field, std::optional<size_t> item, const absl::Status& inner);
absl::Status ErrorOfItem(absl::string_view field, std::optional<size_t> item, absl::string_view problem);
absl::Status ErrorOfCount(absl::string_view field, size_t count, size_t most);

template <class T, class Valid>
absl::Status CheckValue(absl::string_view name, std::optional<size_t> item, const T& value, const Valid& valid) {
  if constexpr (kIsOptional<T>) {
    return value.has_value() ? CheckValue(name, item, *value, valid) : absl::OkStatus();
  } else if constexpr (std::is_same_v<Valid, Nested>) {
    const absl::Status status = CheckFields(value);
    return status.ok() ? status : ErrorWithin(name, item, status);
  } else {
    const std::string problem = ProblemOfValue(value, valid);
    return problem.empty() ? absl::OkStatus() : ErrorOfItem(name, item, problem);
  }
}

template <class T, class Each>
absl::Status CheckValue(absl::string_view name, std::optional<size_t>, const std::vector<T>& values,
                        const List<Each>& valid) {
  if (values.size() > valid.most) return ErrorOfCount(name, values.size(), valid.most);
  for (size_t i = 0; i < values.size(); ++i) {
    const absl::Status status = CheckValue(name, i, values[i], valid.each);
    if (!status.ok()) return status;
    if constexpr (std::is_arithmetic_v<T>) {
      const auto item = values.begin() + static_cast<std::ptrdiff_t>(i);
      if (valid.distinct && std::find(values.begin(), item, values[i]) != item) {
        return ErrorOfItem(name, std::nullopt, "has " + std::to_string(values[i]) + " twice");
      }
    }
  }
  if constexpr (HasRules<std::vector<T>>) return CheckRules(values);
  return absl::OkStatus();
}

template <Described T>
absl::Status CheckFields(const T& value) {
  absl::Status status;
  [[maybe_unused]] const auto check = [&]<class F>(const F& field) {
    if (!status.ok()) return;
    if constexpr (kIsInline<F>) {
      status = CheckFields(value.*field.member);
    } else {
      status = CheckValue(field.name, std::nullopt, value.*field.member, field.valid);
    }
  };
  std::apply([&](const auto&... fields) { (check(fields), ...); }, Fields<T>());
  if constexpr (HasRules<T>) {
    if (status.ok()) status = CheckRules(value);
  }
  return status;
}

}  // namespace tessera::base
