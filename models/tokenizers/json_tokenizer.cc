#include "models/tokenizers/json_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/token_frame.h"
#include "models/tokenizers/tokenizer_folder.h"

namespace tessera::models {
namespace {

constexpr size_t kMostAdded = 100000;

// The fields of a configuration that name a token, with the default of each kind.
struct NamedToken {
  std::string_view field;
  std::string_view of[6];
};
constexpr NamedToken kNamedTokens[] = {
    {"bos_token", {"", "<|startoftext|>", "<bos>", "", "", ""}},
    {"cls_token", {"[CLS]", "", "", "", "", ""}},
    {"eos_token", {"", "<|endoftext|>", "<eos>", "", "<|endoftext|>", "</s>"}},
    {"mask_token", {"[MASK]", "", "<mask>", "", "", ""}},
    {"pad_token", {"[PAD]", "<|endoftext|>", "<pad>", "", "<|endoftext|>", "<pad>"}},
    {"sep_token", {"[SEP]", "", "", "", "", ""}},
    {"unk_token", {"[UNK]", "<|endoftext|>", "<unk>", "", "<|endoftext|>", "<unk>"}},
};

std::string_view DefaultToken(const NamedToken& token, TokenizerKind kind) {
  return token.of[static_cast<size_t>(kind)];
}

// Whether a configuration for this kind may name the class: a class of the kind, or one that belongs to no model.
bool IsClassOf(const std::string& name, TokenizerKind kind) {
  constexpr std::string_view kNeutral[] = {"", "PreTrainedTokenizerFast", "TokenizersBackend"};
  if (kind == TokenizerKind::kOther || std::ranges::count(kNeutral, name) > 0) return true;
  constexpr std::string_view kClasses[] = {"BertTokenizer",  "CLIPTokenizer", "GemmaTokenizer", "",
                                           "Qwen2Tokenizer", "T5Tokenizer"};
  const std::string plain = name.ends_with("Fast") ? name.substr(0, name.size() - 4) : name;
  return plain == kClasses[static_cast<size_t>(kind)] || (kind == TokenizerKind::kT5 && plain == "MT5Tokenizer");
}

absl::StatusOr<std::vector<AddedToken>> ReadAdded(const base::ConfigReader& file) {
  std::vector<AddedToken> tokens;
  const base::Json* const list = file.json().Find("added_tokens");
  const std::span<const base::Json> items = list == nullptr ? std::span<const base::Json>() : list->items();
  if (items.size() > kMostAdded) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": added_tokens has more than ", kMostAdded, " tokens"));
  }
  for (const base::Json& item : items) {
    const std::string name = absl::StrCat(file.name(), ": added_tokens[", tokens.size(), "]");
    ASSIGN_OR_RETURN(base::ConfigReader fields, base::ConfigReader::FromJson(item, name));
    AddedToken token;
    token.text = fields.RequiredString("content");
    token.id = fields.RequiredInt("id", 0, std::numeric_limits<int32_t>::max());
    token.strips_left = fields.RequiredBool("lstrip");
    token.strips_right = fields.RequiredBool("rstrip");
    token.single_word = fields.RequiredBool("single_word");
    token.normalized = fields.RequiredBool("normalized");
    token.special = fields.RequiredBool("special");
    RETURN_IF_ERROR(fields.status());
    if (token.text.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": the content is empty"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Gives every token its id like the reference: the id in the vocabulary, or the next one after its number of entries.
// `by` names the file that states the ids, for errors.
class IdGiver {
 public:
  explicit IdGiver(const PieceModel& model) : model_(model), next_(model.entries()) {}

  absl::Status Check(const AddedToken& token, const std::string& by) {
    const auto found = model_.vocabulary().find(token.text);
    const bool known = found != model_.vocabulary().end();
    const int64_t id = known ? found->second : next_++;
    if (id == token.id) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(by, " gives ", base::Quote(token.text), " the id ", token.id, "; ",
                     known ? absl::StrCat("in the vocabulary it is ", id) : absl::StrCat("the next free id is ", id)));
  }

 private:
  const PieceModel& model_;
  int64_t next_;
};

absl::StatusOr<std::string> Direction(const base::ConfigReader& file, const char* key) {
  const base::Json* const json = file.json().Find(key);
  if (json == nullptr || json->is_null()) return std::string();
  ASSIGN_OR_RETURN(base::ConfigReader fields,
                   base::ConfigReader::FromJson(*json, absl::StrCat(file.name(), ": ", key)));
  // The other fields here are set for every text.
  std::string direction = fields.Choice("direction", "Right", {"Right", "Left"});
  RETURN_IF_ERROR(fields.status());
  return direction;
}

// Checks the fields of the configuration that repeat the settings of a BERT normalizer.
void CheckCleaning(const BertCleaning& cleaning, base::ConfigReader& config) {
  const std::pair<const char*, bool> kFields[] = {{"do_lower_case", cleaning.lowers},
                                                  {"strip_accents", cleaning.strips_accents},
                                                  {"tokenize_chinese_chars", cleaning.spaces_chinese}};
  for (const auto& [key, value] : kFields) {
    if (config.Bool(key, value) != value) config.AddError(key, "tokenizer.json has another value; make the two agree");
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> JsonTokenizer::LoadIfThere(TokenizerKind kind, const std::string& path) {
  const TokenizerFolder folder(path);
  ASSIGN_OR_RETURN(std::optional<std::string> json, folder.ReadIfThere("tokenizer.json"));
  if (!json) return nullptr;
  ASSIGN_OR_RETURN(std::optional<std::string> config, folder.ReadIfThere("tokenizer_config.json"));
  ASSIGN_OR_RETURN(std::optional<std::string> map, folder.ReadIfThere("special_tokens_map.json"));
  ASSIGN_OR_RETURN(std::optional<std::string> added, folder.ReadIfThere("added_tokens.json"));
  ASSIGN_OR_RETURN(JsonTokenizer tokenizer, Parse(kind,
                                                  {.tokenizer_json = *std::move(json),
                                                   .tokenizer_config_json = config.value_or("{}"),
                                                   .special_tokens_map_json = std::move(map),
                                                   .added_tokens_json = std::move(added)},
                                                  folder.component()));
  return std::make_unique<JsonTokenizer>(std::move(tokenizer));
}

absl::StatusOr<JsonTokenizer> JsonTokenizer::Parse(TokenizerKind kind, const JsonTokenizerFiles& files,
                                                   const std::string& component) {
  absl::StatusOr<base::ConfigReader> file =
      base::ConfigReader::FromText(files.tokenizer_json, absl::StrCat(component, "/tokenizer.json"));
  if (!file.ok()) return file.status();
  absl::StatusOr<TokenNames> names =
      TokenNames::Parse(files.tokenizer_config_json, files.special_tokens_map_json, files.added_tokens_json, component);
  if (!names.ok()) return names.status();
  file->Choice("version", "1.0", {"1.0"});
  // Ids do not depend on the decoder.
  file->Ignore(
      {"added_tokens", "decoder", "model", "normalizer", "padding", "post_processor", "pre_tokenizer", "truncation"});
  RETURN_IF_ERROR(file->status());
  if (const std::vector<std::string> unknown = file->UnknownFields(); !unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file->name(), ": the field ", base::Quote(unknown.front()), " is not supported"));
  }
  JsonTokenizer tokenizer;
  RETURN_IF_ERROR(tokenizer.ReadParts(*file));
  base::ConfigReader& config = names->config();
  if (!IsClassOf(config.String("tokenizer_class", ""), kind)) {
    config.AddError("tokenizer_class", "model_index.json names the tokenizer of another model");
  }
  if (tokenizer.normalizer_.bert_cleaning()) CheckCleaning(*tokenizer.normalizer_.bert_cleaning(), config);
  tokenizer.TakeLengths(*names);
  const bool splits_special = names->SplitsSpecialTokens();
  RETURN_IF_ERROR(config.status());
  RETURN_IF_ERROR(tokenizer.TakeSides(*file, config, kind == TokenizerKind::kGemma));
  if (kind == TokenizerKind::kT5) tokenizer.model_->UseBytes();
  ASSIGN_OR_RETURN(std::vector<AddedToken> tokens, tokenizer.TakeTokens(kind, *file, *names));
  RETURN_IF_ERROR(tokenizer.BuildFinders(tokens, splits_special, file->name()));
  return tokenizer;
}

absl::Status JsonTokenizer::ReadParts(const base::ConfigReader& file) {
  const auto name = [&](const char* part) { return absl::StrCat(file.name(), ": ", part); };
  ASSIGN_OR_RETURN(normalizer_, TextNormalizer::Read(file.json().Find("normalizer"), name("normalizer")));
  ASSIGN_OR_RETURN(splitter_, TextSplitter::Read(file.json().Find("pre_tokenizer"), name("pre_tokenizer")));
  ASSIGN_OR_RETURN(model_, PieceModel::Read(file.json().Find("model"), name("model")));
  ASSIGN_OR_RETURN(TokenFrame frame, ReadTokenFrame(file.json().Find("post_processor"), name("post_processor")));
  before_ = std::move(frame.before);
  after_ = std::move(frame.after);
  return absl::OkStatus();
}

absl::Status JsonTokenizer::TakeSides(const base::ConfigReader& file, const base::ConfigReader& config,
                                      bool pads_left_by_class) {
  ASSIGN_OR_RETURN(const std::string padding, Direction(file, "padding"));
  ASSIGN_OR_RETURN(const std::string truncation, Direction(file, "truncation"));
  if (!config.Has("padding_side")) pads_left_ = padding.empty() ? pads_left_by_class : padding == "Left";
  if (!config.Has("truncation_side")) cuts_left_ = truncation == "Left";
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AddedToken>> JsonTokenizer::TakeTokens(TokenizerKind kind, const base::ConfigReader& file,
                                                                  TokenNames& names) {
  ASSIGN_OR_RETURN(std::vector<AddedToken> listed, ReadAdded(file));
  std::map<std::string, AddedToken> tokens;
  IdGiver ids(*model_);
  for (const AddedToken& token : listed) {
    if (!tokens.emplace(token.text, token).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.name(), ": added_tokens has ", base::Quote(token.text), " more than once"));
    }
    RETURN_IF_ERROR(ids.Check(token, absl::StrCat(file.name(), ": added_tokens")));
  }
  // In the order of their ids, as the reference adds tokens that tokenizer.json lacks.
  std::map<int64_t, const AddedToken*> stated;
  for (const auto& [text, token] : names.stated()) stated.emplace(token.id, &token);
  for (const auto& [id, token] : stated) {
    const auto found = tokens.find(token->text);
    if (found != tokens.end() && found->second.id != id) {
      return absl::InvalidArgumentError(absl::StrCat(names.stated_by(), " gives ", base::Quote(token->text), " the id ",
                                                     id, "; in ", file.name(), " it is ", found->second.id));
    }
    if (found != tokens.end()) continue;
    RETURN_IF_ERROR(ids.Check(*token, names.stated_by()));
    tokens.emplace(token->text, *token);
  }
  const auto name_token = [&](const std::string& text, bool required) -> absl::Status {
    const auto found = model_->vocabulary().find(text);
    if (tokens.contains(text)) {
      tokens[text].special = true;
    } else if (found != model_->vocabulary().end()) {
      tokens.emplace(text, AddedToken{.text = text, .id = found->second, .special = true});
    } else if (required) {
      return absl::InvalidArgumentError(
          absl::StrCat(names.config().name(), ": the token ", base::Quote(text), " is not in ", file.name()));
    }
    return absl::OkStatus();
  };
  for (const std::string& text : names.NamedTokens()) {
    RETURN_IF_ERROR(name_token(text, /*required=*/true));
  }
  for (const NamedToken& named : kNamedTokens) {
    const std::string text = names.Token(named.field, DefaultToken(named, kind));
    if (text.empty()) continue;
    RETURN_IF_ERROR(name_token(text, /*required=*/false));
    if (named.field == "pad_token" && tokens.contains(text)) pad_id_ = tokens[text].id;
  }
  std::vector<AddedToken> result;
  vocabulary_size_ = model_->size();
  for (const auto& [text, token] : tokens) {
    vocabulary_size_ = std::max(vocabulary_size_, token.id + 1);
    result.push_back(token);
  }
  for (const std::vector<int64_t>* frame : {&before_, &after_}) {
    for (const int64_t id : *frame) {
      if (id < vocabulary_size_) continue;
      return absl::InvalidArgumentError(absl::StrCat(file.name(), ": post_processor has the id ", id,
                                                     "; valid values are 0 to ", vocabulary_size_ - 1));
    }
  }
  return result;
}

absl::Status JsonTokenizer::BuildFinders(const std::vector<AddedToken>& tokens, bool splits_special,
                                         const std::string& name) {
  std::vector<AddedToken> in_original, in_normalized;
  std::set<std::string> texts;
  for (AddedToken token : tokens) {
    if (!token.normalized) {
      in_original.push_back(std::move(token));
      continue;
    }
    std::vector<TracedChar> text = TraceText(token.text, 0);
    RETURN_IF_ERROR(normalizer_.Run(text));
    NormalizedText normalized;
    for (const TracedChar& c : text) normalized.Append(c);
    if (normalized.text.empty() || !texts.insert(normalized.text).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the added token ", base::Quote(token.text),
                       normalized.text.empty() ? " is empty" : " is that of another token", " once it is normalized"));
    }
    token.text = normalized.text;
    in_normalized.push_back(std::move(token));
  }
  original_finder_ = AddedTokenFinder(in_original, splits_special);
  normalized_finder_ = AddedTokenFinder(in_normalized, splits_special);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PieceId>> JsonTokenizer::Split(std::string_view utf8) const {
  std::vector<PieceId> tokens;
  size_t begin = 0;
  for (const AddedTokenFinder::Match& match : original_finder_.Find(utf8)) {
    RETURN_IF_ERROR(SplitPart(utf8.substr(begin, match.begin - begin), begin, tokens));
    tokens.push_back({match.id, match.begin});
    begin = match.end;
  }
  RETURN_IF_ERROR(SplitPart(utf8.substr(begin), begin, tokens));
  return tokens;
}

absl::Status JsonTokenizer::SplitPart(std::string_view utf8, size_t origin, std::vector<PieceId>& tokens) const {
  std::vector<TracedChar> text = TraceText(utf8, origin);
  if (text.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(normalizer_.Run(text));
  if (normalized_finder_.empty()) return EncodeText(std::move(text), tokens);
  NormalizedText bytes;
  std::vector<size_t> characters;  // for every byte, the index of its character
  for (size_t i = 0; i < text.size(); ++i) {
    bytes.Append(text[i]);
    characters.resize(bytes.text.size(), i);
  }
  characters.push_back(text.size());
  size_t begin = 0;
  for (const AddedTokenFinder::Match& match : normalized_finder_.Find(bytes.text)) {
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(characters[begin]);
    const auto to = text.begin() + static_cast<std::ptrdiff_t>(characters[match.begin]);
    RETURN_IF_ERROR(EncodeText({from, to}, tokens));
    tokens.push_back({match.id, bytes.origins[match.begin]});
    begin = match.end;
  }
  return EncodeText({text.begin() + static_cast<std::ptrdiff_t>(characters[begin]), text.end()}, tokens);
}

absl::Status JsonTokenizer::EncodeText(std::vector<TracedChar> text, std::vector<PieceId>& tokens) const {
  ASSIGN_OR_RETURN(const TextPieces pieces, splitter_.Run(std::move(text)));
  NormalizedText piece;
  for (size_t i = 0; i < pieces.ends.size(); ++i) {
    piece.text.clear();
    piece.origins.clear();
    for (const TracedChar& c : pieces[i]) piece.Append(c);
    model_->Encode(piece, tokens);
  }
  return absl::OkStatus();
}

}  // namespace tessera::models
