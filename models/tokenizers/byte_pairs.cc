#include "models/tokenizers/byte_pairs.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "models/tokenizers/tokenizer_folder.h"
#include "models/weights/json.h"

namespace tessera {
namespace {

constexpr char kEndOfWord[] = "</w>";
constexpr std::string_view kVersionLine = "#version";
constexpr int32_t kNone = -1;

// Bytes that are written as the character of the same number; the others get the characters from U+0100 on.
bool IsPrintable(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

std::array<std::string, 256> ByteTexts() {
  std::array<std::string, 256> texts;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = IsPrintable(byte) ? byte : next++;
    if (code < 0x80) {
      texts[byte] = std::string(1, static_cast<char>(code));
    } else {
      texts[byte] = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
  }
  return texts;
}

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t id;
  int32_t begin;
  int32_t previous, next;  // kNone at the ends
  bool joined = false;     // has become part of the one before
};

struct Candidate {
  int32_t rank, left, joined_id;
  bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

}  // namespace

absl::StatusOr<BytePairs> BytePairs::Parse(std::string_view vocab_json, std::string_view merges_txt,
                                           const std::string& component) {
  BytePairs pairs;
  const std::string vocabulary_name = absl::StrCat(component, "/vocab.json");
  if (absl::Status status = pairs.ReadVocabulary(vocab_json, vocabulary_name); !status.ok()) return status;
  const std::string merges_name = absl::StrCat(component, "/merges.txt");
  if (absl::Status status = pairs.ReadMerges(merges_txt, merges_name, vocabulary_name); !status.ok()) return status;
  return pairs;
}

absl::Status BytePairs::ReadVocabulary(std::string_view text, const std::string& name) {
  const absl::StatusOr<Json> json = ParseJson(text, name);
  if (!json.ok()) return json.status();
  const size_t count = json->members().size();
  if (count == 0 || count > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", json->Describe(), "; it is an object that gives every token its id"));
  }
  std::vector<const std::string*> tokens(count);
  for (const JsonMember& member : json->members()) {
    const std::optional<int64_t> id = member.value.AsInt();
    if (!id || *id < 0 || *id >= static_cast<int64_t>(count)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the id of ", Quote(member.key), " is ",
                                                     member.value.Describe(), "; with ", count,
                                                     " tokens the ids are the whole numbers from 0 to ", count - 1));
    }
    if (const std::string* other = tokens[*id]) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", Quote(*other), " and ", Quote(member.key), " have the same id, ", *id));
    }
    tokens[*id] = &member.key;
    ids_.emplace(member.key, static_cast<int32_t>(*id));
  }
  const auto find = [this](const std::string& token) {
    const auto found = ids_.find(token);
    return found == ids_.end() ? kNone : found->second;
  };
  const std::array<std::string, 256> bytes = ByteTexts();
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    inner_ids_[byte] = find(bytes[byte]);
    last_ids_[byte] = find(bytes[byte] + kEndOfWord);
  }
  return absl::OkStatus();
}

absl::Status BytePairs::ReadMerges(std::string_view text, const std::string& name, const std::string& vocabulary_name) {
  int32_t line_number = 0;
  for (const std::string_view line : SplitLines(text)) {
    ++line_number;
    if (line.empty() || (line_number == 1 && line.starts_with(kVersionLine))) continue;
    const auto error = [&](auto... parts) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": line ", line_number, " ", parts...));
    };
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(std::min(space + 1, line.size()));
    if (left.empty() || right.empty() || right.find(' ') != right.npos) {
      return error("is ", Quote(line), "; every line has two tokens with one space between them");
    }
    for (const std::string_view token : {left, right}) {
      if (!ids_.contains(token)) return error("joins ", Quote(token), ", which ", vocabulary_name, " does not have");
    }
    std::string joined(left);
    joined += right;
    const auto id = ids_.find(joined);
    if (id == ids_.end()) return error("makes ", Quote(joined), ", which ", vocabulary_name, " does not have");
    const Merge merge{.rank = line_number, .joined_id = id->second};
    if (!merges_.emplace(PairKey(ids_.find(left)->second, ids_.find(right)->second), merge).second) {
      return error("repeats the merge ", Quote(line), " of a line above");
    }
  }
  return absl::OkStatus();
}

std::optional<int64_t> BytePairs::Find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const BytePairs::Merge* BytePairs::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::Encode(std::string_view word, int64_t unknown_id, std::vector<Piece>& pieces) const {
  const auto size = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const bool last = i + 1 == size;
    const int32_t id = last ? last_ids_[byte] : inner_ids_[byte];
    symbols[i] = {.id = id == kNone ? static_cast<int32_t>(unknown_id) : id,
                  .begin = i,
                  .previous = i - 1,
                  .next = last ? kNone : i + 1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t left) {
    const Merge* const merge = FindMerge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != nullptr) queue.push({.rank = merge->rank, .left = left, .joined_id = merge->joined_id});
  };
  for (int32_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[candidate.left];
    if (left.joined || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Merge* const merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->rank != candidate.rank) continue;  // one of the two has changed since
    left.id = candidate.joined_id;
    left.next = right.next;
    right.joined = true;
    if (right.next != kNone) symbols[right.next].previous = candidate.left;
    if (left.previous != kNone) offer(left.previous);
    if (left.next != kNone) offer(candidate.left);
  }
  for (const Symbol& symbol : symbols) {
    if (!symbol.joined) pieces.push_back({.id = symbol.id, .begin = static_cast<size_t>(symbol.begin)});
  }
}

}  // namespace tessera
