#include "models/tokenizers/stored_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "base/paths/path_text.h"
#include "base/text/utf8.h"
#include "models/tokenizers/byte_characters.h"
#include "models/weights/gguf.h"
#include "models/weights/safetensors.h"

namespace tessera::models {
namespace {

constexpr int64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4;
constexpr std::string_view kTekkenTensor = "tekken_model";
constexpr size_t kMaxTekkenBytes = size_t{64} << 20, kMaxTokenBytes = 256;
constexpr int64_t kMaxSpecials = 65536;

// Source: tokenizer.json of Qwen/Qwen2.5-VL-7B-Instruct, and of mistralai/Mistral-Small-3.2-24B-Instruct-2506.
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The parts of a tokenizer.json.
struct Parts {
  std::string normalizer = "null", pre_tokenizer, post_processor, model;
  std::string added_tokens;  // a list
};

std::string FileOf(const Parts& parts) {
  base::JsonWriter writer;
  writer.BeginObject().Key("version").String("1.0").Key("truncation").Json("null").Key("padding").Json("null");
  writer.Key("added_tokens").Json(parts.added_tokens).Key("normalizer").Json(parts.normalizer);
  writer.Key("pre_tokenizer").Json(parts.pre_tokenizer).Key("post_processor").Json(parts.post_processor);
  writer.Key("decoder").Json("null").Key("model").Json(parts.model).EndObject();
  return writer.text();
}

// One token that is searched in the text before it is cut.
void AddToken(base::JsonWriter& list, int64_t id, std::string_view text, bool is_special) {
  list.BeginObject().Key("id").Int(id).Key("content").String(text);
  for (const char* field : {"single_word", "lstrip", "rstrip", "normalized"}) list.Key(field).Bool(false);
  list.Key("special").Bool(is_special).EndObject();
}

std::string ByteLevelCut(std::string_view pattern) {
  base::JsonWriter writer;
  writer.BeginObject().Key("type").String("Sequence").Key("pretokenizers").BeginArray();
  writer.BeginObject().Key("type").String("Split").Key("pattern");
  writer.BeginObject().Key("Regex").String(pattern).EndObject();
  writer.Key("behavior").String("Isolated").Key("invert").Bool(false).EndObject();
  writer.Json(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})");
  writer.EndArray().EndObject();
  return writer.text();
}

constexpr std::string_view kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})";

// A template with one special token before or after the text.
std::string TemplateWith(std::string_view token, int64_t id, bool is_before) {
  base::JsonWriter special, sequence;
  special.BeginObject().Key("SpecialToken").BeginObject().Key("id").String(token).Key("type_id").Int(0).EndObject();
  special.EndObject();
  sequence.Json(R"({"Sequence": {"id": "A", "type_id": 0}})");
  base::JsonWriter writer;
  writer.BeginObject().Key("type").String("TemplateProcessing").Key("single").BeginArray();
  for (const std::string* part :
       {is_before ? &special.text() : &sequence.text(), is_before ? &sequence.text() : &special.text()}) {
    writer.Json(*part);
  }
  writer.EndArray().Key("pair").BeginArray().EndArray().Key("special_tokens").BeginObject().Key(token);
  writer.BeginObject()
      .Key("id")
      .String(token)
      .Key("ids")
      .Ints({id})
      .Key("tokens")
      .BeginArray()
      .String(token)
      .EndArray();
  writer.EndObject().EndObject().EndObject();
  return writer.text();
}

// A BPE model. `vocabulary` and `merges` are JSON texts.
std::string BpeModel(const std::string& vocabulary, const std::string& merges, bool ignores_merges) {
  base::JsonWriter writer;
  writer.BeginObject().Key("type").String("BPE").Key("dropout").Json("null").Key("unk_token").Json("null");
  writer.Key("continuing_subword_prefix").String("").Key("end_of_word_suffix").String("");
  writer.Key("fuse_unk").Bool(false).Key("byte_fallback").Bool(false).Key("ignore_merges").Bool(ignores_merges);
  writer.Key("vocab").Json(vocabulary).Key("merges").Json(merges).EndObject();
  return writer.text();
}

absl::Status CheckVocabulary(const GgufVocabulary& vocabulary) {
  const size_t count = vocabulary.tokens.size();
  if (count == 0) return absl::InvalidArgumentError("tokenizer.ggml.tokens is empty");
  if (!vocabulary.types.empty() && vocabulary.types.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.token_type has ", vocabulary.types.size(), " values for ", count, " tokens"));
  }
  for (const int64_t id : {vocabulary.begin, vocabulary.end, vocabulary.unknown, vocabulary.padding}) {
    if (id >= static_cast<int64_t>(count)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the id ", id, " of a special token is outside the vocabulary of ", count, " tokens"));
    }
  }
  for (const std::string& token : vocabulary.tokens) {
    if (base::FirstInvalidUtf8(token) != token.size())
      return absl::InvalidArgumentError("a token of tokenizer.ggml.tokens is no UTF-8");
  }
  for (const std::string& merge : vocabulary.merges) {
    if (base::FirstInvalidUtf8(merge) != merge.size())
      return absl::InvalidArgumentError("an entry of tokenizer.ggml.merges is no UTF-8");
  }
  return absl::OkStatus();
}

int64_t TypeOf(const GgufVocabulary& vocabulary, size_t id) {
  return vocabulary.types.empty() ? kNormal : vocabulary.types[id];
}

// The names of special tokens, as tokenizer_config.json has them.
std::string ConfigOf(const GgufVocabulary& vocabulary) {
  base::JsonWriter writer;
  writer.BeginObject();
  for (const auto& [name, id] :
       {std::pair("bos_token", vocabulary.begin), std::pair("eos_token", vocabulary.end),
        std::pair("unk_token", vocabulary.unknown), std::pair("pad_token", vocabulary.padding)}) {
    if (id >= 0) writer.Key(name).String(vocabulary.tokens[static_cast<size_t>(id)]);
  }
  // Decoders of Mistral are padded on the left; other classes determine their side.
  if (vocabulary.pre == "tekken") writer.Key("padding_side").String("left");
  return writer.EndObject(), writer.text();
}

absl::StatusOr<Parts> ByteLevelParts(const GgufVocabulary& vocabulary) {
  const bool is_tekken = vocabulary.pre == "tekken";
  if (!is_tekken && vocabulary.pre != "qwen2") {
    return absl::UnimplementedError(absl::StrCat("the tokenizer cuts texts as ", base::Quote(vocabulary.pre),
                                                 "; valid are \"qwen2\" and \"tekken\""));
  }
  base::JsonWriter added, tokens, merges;
  size_t normal_end = vocabulary.tokens.size();  // after the last normal token
  while (normal_end > 0 && TypeOf(vocabulary, normal_end - 1) != kNormal) --normal_end;
  added.BeginArray();
  tokens.BeginObject();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = TypeOf(vocabulary, id);
    if (type == kControl || type == kUserDefined || type == kUnknown) {
      AddToken(added, static_cast<int64_t>(id), vocabulary.tokens[id], type != kUserDefined);
    }
    // The model's own ids have no gaps: special tokens before its last one are in its vocabulary as well.
    if (type == kNormal || id < normal_end) tokens.Key(vocabulary.tokens[id]).Int(static_cast<int64_t>(id));
  }
  merges.BeginArray();
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == merge.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the merge ", base::Quote(merge), " is no pair"));
    }
    merges.BeginArray().String(merge.substr(0, space)).String(merge.substr(space + 1)).EndArray();
  }
  Parts parts{.normalizer = is_tekken ? "null" : R"({"type": "NFC"})",
              .pre_tokenizer = ByteLevelCut(is_tekken ? kTekkenPattern : kQwenPattern),
              .post_processor = std::string(kByteLevel),
              .model = BpeModel((tokens.EndObject(), tokens.text()), (merges.EndArray(), merges.text()), is_tekken),
              .added_tokens = (added.EndArray(), added.text())};
  if (vocabulary.adds_begin && vocabulary.begin >= 0) {
    parts.post_processor =
        TemplateWith(vocabulary.tokens[static_cast<size_t>(vocabulary.begin)], vocabulary.begin, /*is_before=*/true);
  }
  return parts;
}

absl::StatusOr<Parts> UnigramParts(const GgufVocabulary& vocabulary) {
  if (vocabulary.scores.size() != vocabulary.tokens.size() || vocabulary.unknown < 0 || vocabulary.end < 0) {
    return absl::InvalidArgumentError("a unigram vocabulary needs a score of each token, an unknown and an end token");
  }
  base::JsonWriter added, tokens;
  added.BeginArray();
  tokens.BeginArray();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    tokens.BeginArray().String(vocabulary.tokens[id]).Number(vocabulary.scores[id]).EndArray();
    const int64_t type = TypeOf(vocabulary, id);
    if (type == kNormal) continue;
    AddToken(added, static_cast<int64_t>(id), vocabulary.tokens[id], type != kUserDefined);
  }
  base::JsonWriter model;
  model.BeginObject().Key("type").String("Unigram").Key("unk_id").Int(vocabulary.unknown).Key("vocab");
  model.Json((tokens.EndArray(), tokens.text())).Key("byte_fallback").Bool(false).EndObject();
  Parts parts{
      .pre_tokenizer = R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
      .post_processor = TemplateWith(vocabulary.tokens[static_cast<size_t>(vocabulary.end)], vocabulary.end,
                                     /*is_before=*/false),
      .model = model.text(),
      .added_tokens = (added.EndArray(), added.text())};
  if (!vocabulary.characters.empty()) {
    base::JsonWriter normalizer;
    normalizer.BeginObject().Key("type").String("Precompiled").Key("precompiled_charsmap");
    parts.normalizer = normalizer.String(absl::Base64Escape(vocabulary.characters)).EndObject().text();
  }
  return parts;
}

// Bytes as the printable characters of byte-level vocabularies.
std::string ByteText(std::string_view bytes) {
  static constexpr std::array<char32_t, 256> kCharacters = ByteCharacters();
  std::string text;
  for (const char byte : bytes) {
    const char32_t character = kCharacters[static_cast<unsigned char>(byte)];  // below U+0800
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | (character >> 6));
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

using Ranks = std::unordered_map<std::string, int64_t>;

// Returns the two parts that are merged last when the token is made of its bytes by merges of lower rank; nothing if
// it cannot be made so.
std::optional<std::pair<std::string, std::string>> LastMerge(const std::string& token, int64_t rank,
                                                             const Ranks& ranks) {
  std::vector<std::string> parts;
  for (const char byte : token) parts.emplace_back(1, byte);
  while (parts.size() > 2) {
    int64_t best = rank;
    size_t at = parts.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (at == parts.size()) return std::nullopt;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  if (parts.size() != 2) return std::nullopt;
  return std::pair(parts[0], parts[1]);
}

template <class T>
void TakeList(const GgufFile& file, const char* key, std::vector<T>& to) {
  if (const auto* list = file.Metadata<std::vector<T>>(key)) to = *list;
}

void TakeInt(const GgufFile& file, const char* key, int64_t& to) {
  if (const auto* value = file.Metadata<int64_t>(key)) to = *value;
}

absl::StatusOr<JsonTokenizerFiles> OfGgufFile(const std::string& path) {
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path, base::QuotePath(path)));
  GgufVocabulary vocabulary;
  const auto* model = file.Metadata<std::string>("tokenizer.ggml.model");
  if (model == nullptr) return absl::NotFoundError(absl::StrCat(base::QuotePath(path), " holds no tokenizer"));
  vocabulary.model = *model;
  if (const auto* pre = file.Metadata<std::string>("tokenizer.ggml.pre")) vocabulary.pre = *pre;
  TakeList(file, "tokenizer.ggml.tokens", vocabulary.tokens);
  TakeList(file, "tokenizer.ggml.token_type", vocabulary.types);
  TakeList(file, "tokenizer.ggml.merges", vocabulary.merges);
  TakeList(file, "tokenizer.ggml.scores", vocabulary.scores);
  std::vector<int64_t> characters;
  TakeList(file, "tokenizer.ggml.precompiled_charsmap", characters);
  for (const int64_t byte : characters) vocabulary.characters += static_cast<char>(byte);
  TakeInt(file, "tokenizer.ggml.bos_token_id", vocabulary.begin);
  TakeInt(file, "tokenizer.ggml.eos_token_id", vocabulary.end);
  TakeInt(file, "tokenizer.ggml.unknown_token_id", vocabulary.unknown);
  TakeInt(file, "tokenizer.ggml.padding_token_id", vocabulary.padding);
  if (const auto* adds = file.Metadata<bool>("tokenizer.ggml.add_bos_token")) vocabulary.adds_begin = *adds;
  absl::StatusOr<JsonTokenizerFiles> files = TokenizerOfGguf(vocabulary);
  if (files.ok()) return files;
  return absl::Status(files.status().code(),
                      absl::StrCat(base::QuotePath(path), ": ", std::string(files.status().message())));
}

}  // namespace

absl::StatusOr<JsonTokenizerFiles> TokenizerOfGguf(const GgufVocabulary& vocabulary) {
  RETURN_IF_ERROR(CheckVocabulary(vocabulary));
  if (vocabulary.model != "gpt2" && vocabulary.model != "t5") {
    return absl::UnimplementedError(absl::StrCat("the tokenizer is of the kind ", base::Quote(vocabulary.model),
                                                 "; valid are \"gpt2\" and \"t5\""));
  }
  ASSIGN_OR_RETURN(const Parts parts, vocabulary.model == "t5" ? UnigramParts(vocabulary) : ByteLevelParts(vocabulary));
  return JsonTokenizerFiles{.tokenizer_json = FileOf(parts),
                            .tokenizer_config_json = ConfigOf(vocabulary),
                            .special_tokens_map_json = std::nullopt,
                            .added_tokens_json = std::nullopt};
}

absl::StatusOr<JsonTokenizerFiles> TokenizerOfTekken(std::string_view json) {
  ASSIGN_OR_RETURN(const base::Json file, base::ParseJson(json, "tekken.json", kMaxTekkenBytes));
  const base::Json* config = file.Find("config");
  const auto count = [&](const char* key, int64_t usual) {
    const base::Json* value = config == nullptr ? nullptr : config->Find(key);
    return value == nullptr ? usual : value->AsInt().value_or(-1);
  };
  // Source: mistral-common, tokens/tokenizers/tekken.py.
  const int64_t specials = count("default_num_special_tokens", 1000), size = count("default_vocab_size", 131072);
  const base::Json *list = file.Find("vocab"), *named = file.Find("special_tokens");
  if (list == nullptr || specials < 0 || specials > kMaxSpecials || size < specials) {
    return absl::InvalidArgumentError("tekken.json: it must have a vocabulary and the numbers of its tokens");
  }
  GgufVocabulary vocabulary{.model = "gpt2", .pre = "tekken", .begin = 1, .end = 2, .unknown = 0, .adds_begin = true};
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  if (named != nullptr) {
    for (const base::Json& token : named->items()) {
      const base::Json *rank = token.Find("rank"), *text = token.Find("token_str");
      if (rank == nullptr || text == nullptr || text->AsString() == nullptr || rank->AsInt().value_or(-1) < 0 ||
          *rank->AsInt() >= specials) {
        return absl::InvalidArgumentError("tekken.json: a special token has no rank or text");
      }
      if (static_cast<size_t>(*rank->AsInt()) >= vocabulary.tokens.size()) {
        vocabulary.tokens.resize(static_cast<size_t>(*rank->AsInt()) + 1);
      }
      vocabulary.tokens[static_cast<size_t>(*rank->AsInt())] = *text->AsString();
    }
  }
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].empty()) vocabulary.tokens[id] = absl::StrCat("<SPECIAL_", id, ">");
    if (vocabulary.tokens[id] == "<pad>") vocabulary.padding = static_cast<int64_t>(id);
  }
  for (int64_t id = std::ssize(vocabulary.tokens); id < specials; ++id) {
    vocabulary.tokens.push_back(absl::StrCat("<SPECIAL_", id, ">"));
  }
  vocabulary.types.assign(vocabulary.tokens.size(), kControl);
  Ranks ranks;
  for (const base::Json& token : list->items()) {
    if (std::ssize(ranks) >= size - specials) break;  // the file has more than the model uses
    const base::Json* encoded = token.Find("token_bytes");
    std::string bytes;
    if (encoded == nullptr || encoded->AsString() == nullptr || !absl::Base64Unescape(*encoded->AsString(), &bytes) ||
        bytes.empty() || bytes.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tekken.json: token ", ranks.size(), " has no bytes"));
    }
    const int64_t rank = std::ssize(ranks);
    if (!ranks.emplace(bytes, rank).second) {
      return absl::InvalidArgumentError(absl::StrCat("tekken.json: token ", rank, " occurs twice"));
    }
    vocabulary.tokens.push_back(ByteText(bytes));
    vocabulary.types.push_back(kNormal);
    if (bytes.size() < 2) continue;
    if (const auto merge = LastMerge(bytes, rank, ranks)) {
      vocabulary.merges.push_back(absl::StrCat(ByteText(merge->first), " ", ByteText(merge->second)));
    }
  }
  return TokenizerOfGguf(vocabulary);
}

absl::StatusOr<JsonTokenizerFiles> ReadStoredTokenizer(const std::string& path) {
  const std::string shown = base::QuotePath(path);
  ASSIGN_OR_RETURN(const base::ReadOnlyFile beginning, base::ReadOnlyFile::Open(path, shown));
  std::string magic(static_cast<size_t>(std::min<uint64_t>(beginning.size(), 4)), '\0');
  RETURN_IF_ERROR(beginning.Read(0, std::as_writable_bytes(std::span(magic))));
  if (IsGguf(magic)) return OfGgufFile(path);
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path, shown));
  for (const StoredTensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kTekkenTensor) || tensor.bytes() > kMaxTekkenBytes) continue;
    std::string json(static_cast<size_t>(tensor.bytes()), '\0');
    RETURN_IF_ERROR(file.Read(tensor, 0, std::as_writable_bytes(std::span(json))));
    return TokenizerOfTekken(json);
  }
  return absl::NotFoundError(absl::StrCat(shown, " holds no tokenizer"));
}

}  // namespace tessera::models
