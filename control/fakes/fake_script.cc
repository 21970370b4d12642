#include "control/fakes/fake_script.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/fields/enum_names.h"
#include "control/pictures/picture_input.h"

namespace tessera::control {
namespace {

constexpr int64_t kMaxMilliseconds = 60000;

bool IsOneOf(absl::string_view word, std::initializer_list<absl::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

bool IsNumber(absl::string_view text, int64_t least, int64_t most) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) && number >= least && number <= most;
}

bool IsCall(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "step")) return IsNumber(name, 1, std::numeric_limits<int32_t>::max());
  return IsOneOf(name, {"describe", "load", "start", "decode", "decode-probe", "end"});
}

bool IsValid(absl::string_view instruction, absl::string_view value) {
  const absl::string_view name = instruction.substr(0, instruction.find("-of-"));
  if (IsCall(name)) {
    return IsOneOf(value, {"error", "throw", "exhausted", "die", "hang", "spin", "spin-in-call"}) ||
           (name == "start" && IsOneOf(value, {"warn", "refuse"}));
  }
  if (name == "drift") return IsNumber(value, 0, std::numeric_limits<int32_t>::max());
  if (IsOneOf(instruction, {"mute", "mute-if-adoptable", "no-device", "no-room", "batch-drift", "any-model", "silent"}))
    return value.empty();
  if (IsOneOf(instruction,
              {"contents", "gate", "load-gate", "permits", "loads", "sizes", "encoders", "when", "faults", "version"}))
    return !value.empty();
  if (IsOneOf(instruction, {"step-time", "encode-time", "decode-time", "load-time"})) {
    return IsNumber(value, 0, kMaxMilliseconds);
  }
  if (IsOneOf(instruction, {"error-every", "die-every"}))
    return IsNumber(value, 1, std::numeric_limits<int32_t>::max());
  if (IsOneOf(instruction, {"memory", "memory-free"})) return IsNumber(value, 1, std::numeric_limits<int64_t>::max());
  if (instruction == "identity") return std::ranges::count(value, ',') == 4;
  if (instruction == "device-memory") {
    const std::vector<absl::string_view> numbers = absl::StrSplit(value, ',');
    return numbers.size() == 4 && std::ranges::all_of(numbers, [](absl::string_view number) {
             return IsNumber(number, 0, std::numeric_limits<int64_t>::max());
           });
  }
  if (instruction == "pictures") return base::EnumOf<PictureInput>({value.data(), value.size()}).has_value();
  if (instruction == "exit") return IsNumber(value, 0, 255);
  return IsOneOf(instruction, {"salt", "layout-drift", "first-step"}) &&
         IsNumber(value, 0, std::numeric_limits<int32_t>::max());
}

}  // namespace

absl::StatusOr<FakeScript> FakeScript::Read(absl::string_view text, int64_t rank) {
  FakeScript script;
  for (const absl::string_view whole : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    absl::string_view instruction = whole;
    int64_t of_rank = rank;
    if (absl::ConsumePrefix(&instruction, "rank")) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(instruction, absl::MaxSplits(':', 1));
      if (!absl::SimpleAtoi(parts.first, &of_rank)) of_rank = -1;
      instruction = parts.second;
    }
    const std::pair<std::string, std::string> parts = absl::StrSplit(instruction, absl::MaxSplits('=', 1));
    if (of_rank < 0 || !IsValid(parts.first, parts.second)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", whole, "' is not an instruction that a fake worker understands"));
    }
    if (of_rank == rank) script.instructions_.insert(parts);
  }
  return script;
}

std::string FakeScript::Text(const std::string& name) const {
  const auto instruction = instructions_.find(name);
  return instruction == instructions_.end() ? "" : instruction->second;
}

int64_t FakeScript::Number(const std::string& name) const {
  int64_t number = 0;
  return absl::SimpleAtoi(Text(name), &number) ? number : 0;
}

std::string FakeScript::Fault(const std::string& call, const std::string& prompt) const {
  const std::string fault = Text(absl::StrCat(call, "-of-", prompt));
  return fault.empty() ? Text(call) : fault;
}

}  // namespace tessera::control
