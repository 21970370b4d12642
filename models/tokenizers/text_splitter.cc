#include "models/tokenizers/text_splitter.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/bert_text.h"
#include "models/tokenizers/byte_characters.h"
#include "models/tokenizers/newer_characters.h"
#include "models/tokenizers/text_pattern.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {
namespace {

using Text = std::vector<TracedChar>;
using Span = std::span<const TracedChar>;
using Match = TextPattern::Match;
using Splitting = std::function<absl::StatusOr<TextPieces>(const TextPieces&)>;

// The pattern of GPT-2's words.
constexpr char kByteLevelWords[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Includes the joiners, which are word characters in the engine that the reference uses for this pattern.
constexpr char kWords[] = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";
constexpr int64_t kLongestPiece = 1 << 20;  // characters of a piece of fixed length

// The treatment of the matches that a text is cut at.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Cut {
  size_t begin, end;
  bool matched;
};

// Returns the matches and the parts between them, in order.
std::vector<Cut> Cuts(size_t size, const std::vector<Match>& matches, bool invert) {
  std::vector<Cut> cuts;
  size_t begin = 0;
  for (const Match& match : matches) {
    if (begin < match.begin) cuts.push_back({begin, match.begin, invert});
    cuts.push_back({match.begin, match.end, !invert});
    begin = match.end;
  }
  if (begin < size) cuts.push_back({begin, size, invert});
  return cuts;
}

void AppendCuts(Span text, const std::vector<Match>& matches, bool invert, Behavior behavior, TextPieces& pieces) {
  const std::vector<Cut> cuts = Cuts(text.size(), matches, invert);
  for (size_t i = 0; i < cuts.size();) {
    if (behavior == Behavior::kRemoved && cuts[i].matched) {
      ++i;
      continue;
    }
    size_t last = i;
    const auto next_is = [&](bool matched) { return last + 1 < cuts.size() && cuts[last + 1].matched == matched; };
    if (behavior == Behavior::kContiguous) {
      while (next_is(cuts[i].matched)) ++last;
    } else if (behavior == Behavior::kMergedWithPrevious) {
      if (!cuts[i].matched && next_is(true)) ++last;
    } else if (behavior == Behavior::kMergedWithNext) {
      if (cuts[i].matched && next_is(false)) ++last;
    }
    pieces.Append(text.subspan(cuts[i].begin, cuts[last].end - cuts[i].begin));
    i = last + 1;
  }
}

// Returns a step that cuts every piece at the characters for which `is_cut` is true.
Splitting SplitAt(std::function<bool(char32_t)> is_cut, Behavior behavior) {
  return [is_cut = std::move(is_cut), behavior](const TextPieces& pieces) -> absl::StatusOr<TextPieces> {
    TextPieces result;
    std::vector<Match> matches;
    for (size_t i = 0; i < pieces.ends.size(); ++i) {
      const Span piece = pieces[i];
      matches.clear();
      for (size_t c = 0; c < piece.size(); ++c) {
        if (is_cut(piece[c].code)) matches.push_back({c, c + 1});
      }
      AppendCuts(piece, matches, /*invert=*/false, behavior, result);
    }
    return result;
  };
}

Splitting SplitAt(TextPattern pattern, bool invert, Behavior behavior) {
  return [pattern = std::move(pattern), invert, behavior](const TextPieces& pieces) -> absl::StatusOr<TextPieces> {
    TextPieces result;
    TextPattern::Finder finder(pattern);
    std::vector<Match> matches;
    for (size_t i = 0; i < pieces.ends.size(); ++i) {
      RETURN_IF_ERROR(finder.Find(pieces[i], matches));
      AppendCuts(pieces[i], matches, invert, behavior, result);
    }
    return result;
  };
}

// Returns a step that rewrites every piece and drops pieces that become empty.
Splitting Rewrite(std::function<void(Text&)> rewrite) {
  return [rewrite = std::move(rewrite)](const TextPieces& pieces) -> absl::StatusOr<TextPieces> {
    TextPieces result;
    Text piece;
    for (size_t i = 0; i < pieces.ends.size(); ++i) {
      piece.assign(pieces[i].begin(), pieces[i].end());
      rewrite(piece);
      result.Append(piece);
    }
    return result;
  };
}

absl::StatusOr<Behavior> ReadBehavior(TokenizerPart& part) {
  const std::string name = part.fields.Choice(
      "behavior", "Isolated", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
  RETURN_IF_ERROR(part.fields.status());
  return name == "Removed"              ? Behavior::kRemoved
         : name == "MergedWithPrevious" ? Behavior::kMergedWithPrevious
         : name == "MergedWithNext"     ? Behavior::kMergedWithNext
         : name == "Contiguous"         ? Behavior::kContiguous
                                        : Behavior::kIsolated;
}

// Reads a field that is one character.
absl::StatusOr<char32_t> ReadCharacter(TokenizerPart& part, const char* key) {
  const Text text = TraceText(part.fields.RequiredString(key), 0);
  if (text.size() != 1) return part.Refuse(absl::StrCat("the field \"", key, "\" is one character"));
  return text.front().code;
}

absl::Status ReadSplit(TokenizerPart& part, std::vector<Splitting>& steps) {
  absl::StatusOr<TextPattern> pattern = TextPattern::Read(part.fields.json().Find("pattern"));
  if (!pattern.ok()) return part.Refuse(std::string(pattern.status().message()));
  part.fields.Ignore({"pattern"});
  ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(part));
  steps.push_back(SplitAt(*std::move(pattern), part.fields.RequiredBool("invert"), behavior));
  return absl::OkStatus();
}

absl::Status ReadByteLevel(TokenizerPart& part, std::vector<Splitting>& steps) {
  part.fields.Ignore({"trim_offsets"});
  if (part.fields.RequiredBool("add_prefix_space")) {
    steps.push_back(Rewrite([](Text& piece) {
      if (piece.front().code != ' ') piece.insert(piece.begin(), {' ', piece.front().origin});
    }));
  }
  if (part.fields.Bool("use_regex", true)) {
    ASSIGN_OR_RETURN(TextPattern words, TextPattern::Regex(kByteLevelWords));
    steps.push_back(SplitAt(std::move(words), /*invert=*/false, Behavior::kIsolated));
  }
  steps.push_back(Rewrite([](Text& piece) {
    constexpr std::array<char32_t, 256> kCharacters = ByteCharacters();
    Text result;
    NormalizedText bytes;
    for (const TracedChar& c : piece) bytes.Append(c);
    for (size_t i = 0; i < bytes.text.size(); ++i) {
      result.push_back({kCharacters[static_cast<unsigned char>(bytes.text[i])], bytes.origins[i]});
    }
    piece = std::move(result);
  }));
  return absl::OkStatus();
}

absl::Status ReadMetaspace(TokenizerPart& part, std::vector<Splitting>& steps) {
  part.fields.Ignore({"str_rep"});
  ASSIGN_OR_RETURN(const char32_t replacement, ReadCharacter(part, "replacement"));
  std::string scheme = part.fields.Choice("prepend_scheme", "always", {"always", "first", "never"});
  if (!part.fields.Bool("add_prefix_space", true)) {
    if (part.fields.Has("prepend_scheme") && scheme != "never") {
      return part.Refuse("add_prefix_space is false, and prepend_scheme is not \"never\"");
    }
    scheme = "never";
  }
  const bool always = scheme == "always", first = scheme == "first";
  const char32_t space = replacement;
  steps.push_back(Rewrite([always, first, space](Text& piece) {
    for (TracedChar& c : piece) {
      if (c.code == ' ') c.code = space;
    }
    const TracedChar begin = piece.front();
    if (begin.code != space && (always || (first && begin.origin == 0))) {
      piece.insert(piece.begin(), {space, begin.origin});
    }
  }));
  if (part.fields.Bool("split", true)) {
    steps.push_back(SplitAt([space](char32_t code) { return code == space; }, Behavior::kMergedWithNext));
  }
  return absl::OkStatus();
}

absl::Status ReadBert(TokenizerPart& part, std::vector<Splitting>& steps) {
  steps.push_back(SplitAt(IsWhiteSpace, Behavior::kRemoved));
  steps.push_back(SplitAt(IsBertPunctuation, Behavior::kIsolated));
  return absl::OkStatus();
}

absl::Status ReadPunctuation(TokenizerPart& part, std::vector<Splitting>& steps) {
  ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(part));
  steps.push_back(SplitAt(IsBertPunctuation, behavior));
  return absl::OkStatus();
}

absl::Status ReadWhitespaceSplit(TokenizerPart& part, std::vector<Splitting>& steps) {
  steps.push_back(SplitAt(IsWhiteSpace, Behavior::kRemoved));
  return absl::OkStatus();
}

absl::Status ReadWhitespace(TokenizerPart& part, std::vector<Splitting>& steps) {
  ASSIGN_OR_RETURN(TextPattern words, TextPattern::Regex(kWords));
  steps.push_back(SplitAt(std::move(words), /*invert=*/true, Behavior::kRemoved));
  return absl::OkStatus();
}

absl::Status ReadDelimiter(TokenizerPart& part, std::vector<Splitting>& steps) {
  ASSIGN_OR_RETURN(const char32_t delimiter, ReadCharacter(part, "delimiter"));
  steps.push_back(SplitAt([wanted = delimiter](char32_t code) { return code == wanted; }, Behavior::kRemoved));
  return absl::OkStatus();
}

absl::Status ReadDigits(TokenizerPart& part, std::vector<Splitting>& steps) {
  const auto is_number = [](char32_t code) {
    // The reference uses a different table here than for patterns; it includes these characters of Unicode 17.
    if ((code >= 0x11DE0 && code <= 0x11DE9) || (code >= 0x16FF4 && code <= 0x16FF6)) return true;
    return (U_GET_GC_MASK(static_cast<UChar32>(code)) & U_GC_N_MASK) != 0 || IsNewerCharacter(code, 'N');
  };
  const bool single = part.fields.RequiredBool("individual_digits");
  steps.push_back(SplitAt(is_number, single ? Behavior::kIsolated : Behavior::kContiguous));
  return absl::OkStatus();
}

absl::Status ReadFixedLength(TokenizerPart& part, std::vector<Splitting>& steps) {
  const auto length = static_cast<size_t>(part.fields.Int("length", 5, 1, kLongestPiece));
  steps.push_back([length](const TextPieces& pieces) -> absl::StatusOr<TextPieces> {
    TextPieces result;
    for (size_t i = 0; i < pieces.ends.size(); ++i) {
      for (Span rest = pieces[i]; !rest.empty(); rest = rest.subspan(std::min(length, rest.size()))) {
        result.Append(rest.first(std::min(length, rest.size())));
      }
    }
    return result;
  });
  return absl::OkStatus();
}

constexpr struct {
  std::string_view type;
  absl::Status (*read)(TokenizerPart&, std::vector<Splitting>&);
} kSplittings[] = {{"BertPreTokenizer", ReadBert},        {"ByteLevel", ReadByteLevel},
                   {"CharDelimiterSplit", ReadDelimiter}, {"Digits", ReadDigits},
                   {"FixedLength", ReadFixedLength},      {"Metaspace", ReadMetaspace},
                   {"Punctuation", ReadPunctuation},      {"Split", ReadSplit},
                   {"Whitespace", ReadWhitespace},        {"WhitespaceSplit", ReadWhitespaceSplit}};

}  // namespace

void TextPieces::Append(std::span<const TracedChar> piece) {
  if (piece.empty()) return;
  text.insert(text.end(), piece.begin(), piece.end());
  ends.push_back(text.size());
}

std::span<const TracedChar> TextPieces::operator[](size_t i) const {
  const size_t begin = i == 0 ? 0 : ends[i - 1];
  return std::span(text).subspan(begin, ends[i] - begin);
}

absl::StatusOr<TextSplitter> TextSplitter::Read(const base::Json* json, const std::string& name) {
  ASSIGN_OR_RETURN(std::vector<TokenizerPart> parts, ReadParts(json, name, "pretokenizers"));
  TextSplitter splitter;
  std::vector<std::string> known;
  for (const auto& entry : kSplittings) known.emplace_back(entry.type);
  for (TokenizerPart& part : parts) {
    const auto entry = std::find_if(std::begin(kSplittings), std::end(kSplittings),
                                    [&](const auto& candidate) { return candidate.type == part.type; });
    if (entry == std::end(kSplittings)) return UnknownPart(part, known);
    RETURN_IF_ERROR(entry->read(part, splitter.steps_));
    RETURN_IF_ERROR(part.Finish());
  }
  return splitter;
}

absl::StatusOr<TextPieces> TextSplitter::Run(std::vector<TracedChar> text) const {
  TextPieces pieces;
  if (!text.empty()) pieces.ends.push_back(text.size());
  pieces.text = std::move(text);
  for (const Splitting& step : steps_) {
    absl::StatusOr<TextPieces> next = step(pieces);
    if (!next.ok()) return next;
    pieces = *std::move(next);
  }
  return pieces;
}

}  // namespace tessera::models
