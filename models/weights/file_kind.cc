#include "models/weights/file_kind.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files/file.h"
#include "base/files/git_lfs.h"
#include "base/macros/status_macros.h"
#include "base/paths/path_text.h"
#include "control/model/pipelines.h"
#include "models/weights/any_tensor_file.h"
#include "models/weights/known_parts.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr size_t kFirstBytes = 512, kMaxMarkerBytes = 4096, kMaxUnknown = 20;
constexpr std::string_view kMarker = ".comfy_quant", kHeaderMarkers = "_quantization_metadata";

std::string InspectCommand(const std::string& path) { return absl::StrCat("tessera inspect ", base::ShellWord(path)); }

std::string FirstBytes(const base::ReadOnlyFile& file) {
  std::string bytes(static_cast<size_t>(std::min<uint64_t>(file.size(), kFirstBytes)), '\0');
  return file.Read(0, std::as_writable_bytes(std::span(bytes))).ok() ? bytes : "";
}

bool IsWebPage(std::string_view bytes) {
  const std::string lower = absl::AsciiStrToLower(std::string(absl::StripLeadingAsciiWhitespace(std::string(bytes))));
  return lower.starts_with("<!doctype html") || lower.starts_with("<html") || lower.starts_with("<?xml");
}

// A pickle of Python: protocol 2 or higher begins with 0x80 and its number; PyTorch's files are Zip archives of one.
bool IsPickle(std::string_view bytes) {
  return bytes.starts_with(kZipMagic) || (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5);
}

// Recognises files that are no weights by their first bytes.
absl::Status CheckBeginning(std::string_view bytes, const std::string& path) {
  const std::string shown = base::QuotePath(path);
  if (base::IsGitLfsPointer(bytes)) return base::GitLfsPointerError(shown);
  if (bytes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " is empty; download it again and check it with: ", InspectCommand(path)));
  }
  if (IsWebPage(bytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown,
                     " is a web page, which a server sent in place of the weights; download it again with "
                     "/resolve/ instead of /blob/ in its address, logged in if the model asks for it, and check "
                     "it with: ",
                     InspectCommand(path)));
  }
  if (IsPickle(bytes)) {
    const std::string folder = base::ShellWord(fs::path(path).replace_extension().string());
    return absl::FailedPreconditionError(absl::StrCat(
        shown,
        " is a PyTorch pickle, which can run code when it is read; convert it with: python3 "
        "scripts/convert-model.py ",
        base::ShellWord(path), " ", folder, " --base MODEL, where MODEL is the diffusers folder of the base model"));
  }
  return absl::OkStatus();
}

bool AnyNameHas(std::span<const StoredTensor> tensors, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(tensors, [&](const StoredTensor& tensor) {
    return std::ranges::any_of(parts,
                               [&](std::string_view part) { return tensor.name.find(part) != std::string::npos; });
  });
}

bool AnyTypeIs(std::span<const StoredTensor> tensors, std::initializer_list<StoredType> types) {
  return std::ranges::any_of(
      tensors, [&](const StoredTensor& tensor) { return std::ranges::find(types, tensor.type) != types.end(); });
}

std::string AdapterOf(std::span<const StoredTensor> tensors) {
  if (AnyNameHas(tensors, {".lora_A.", ".lora_B.", ".lora_up.", ".lora_down.", "lora.up.", "lora.down.", ".lora.A",
                           "lora_unet_", "lora_transformer_", "lora_te"})) {
    return "LoRA";
  }
  if (AnyNameHas(tensors, {".lokr_w1", ".lokr_w2"})) return "LoKr adapter";
  return AnyNameHas(tensors, {".hada_w1"}) ? "LoHa adapter" : "";
}

// How ComfyUI's marks say that layers are stored: the formats, without those that are broken.
std::set<std::string> MarkedFormats(const FileHeader& header) {
  std::set<std::string> formats;
  const auto add = [&](const base::Json& layer) {
    const base::Json* format = layer.Find("format");
    if (format != nullptr && format->AsString() != nullptr) formats.insert(*format->AsString());
    const base::Json* rotated = layer.Find("convrot");
    if (rotated != nullptr && rotated->AsBool().value_or(false)) formats.insert("convrot");
  };
  for (const auto& [name, text] : header.markers) {
    if (const auto json = base::ParseJson(text, name, kMaxMarkerBytes); json.ok()) add(*json);
  }
  const auto list = header.metadata.find(std::string(kHeaderMarkers));
  if (list == header.metadata.end()) return formats;
  if (const auto json = base::ParseJson(list->second, list->first); json.ok()) {
    if (const base::Json* layers = json->Find("layers")) {
      for (const base::JsonMember& layer : layers->members()) add(layer.value);
    }
  }
  return formats;
}

constexpr std::array<std::string_view, 3> kReadFormats{"float8_e4m3fn", "float8_e5m2", "int8_tensorwise"};

// Returns a form of quantization that is not read; empty if there is none.
std::string UnsupportedOf(const FileHeader& header, const std::set<std::string>& formats) {
  for (const std::string& format : formats) {
    if (std::ranges::find(kReadFormats, format) == kReadFormats.end()) {
      return format == "convrot" ? "int8 with rotated rows (convrot)" : format;
    }
  }
  if (AnyNameHas(header.tensors, {".wscales", ".wtscale", ".smooth_factor"})) return "svdquant";
  if (AnyNameHas(header.tensors, {".weight_scale_2"})) return "nvfp4";
  if (AnyNameHas(header.tensors, {".qzeros", ".g_idx"})) return "gptq";
  return AnyNameHas(header.tensors, {".qweight"}) ? "packed integers (.qweight)" : "";
}

// Returns how the weights are quantized; empty if they are not.
std::string StoredFormOf(const FileHeader& header, const std::set<std::string>& formats) {
  const std::span<const StoredTensor> tensors = header.tensors;
  if (header.container == FileContainer::kGguf) {
    std::map<std::string, size_t> counts;
    for (const StoredTensor& tensor : tensors) ++counts[StoredTypeName(tensor.type)];
    std::vector<std::string> types;
    for (const auto& [type, count] : counts) {
      if (type.starts_with('Q') || type.starts_with("IQ")) types.push_back(type);
    }
    return absl::StrJoin(types, ", ");
  }
  if (AnyNameHas(tensors, {".quant_state.bitsandbytes__nf4"})) return "nf4 (bitsandbytes)";
  if (AnyNameHas(tensors, {".quant_state.bitsandbytes__fp4"})) return "fp4 (bitsandbytes)";
  if (AnyTypeIs(tensors, {StoredType::kI8}) && AnyNameHas(tensors, {".SCB"})) return "int8 (bitsandbytes)";
  std::vector<std::string> marked;
  for (const std::string& format : formats) {
    marked.push_back(format == "int8_tensorwise" ? "int8" : format.starts_with("float8") ? "fp8" : format);
  }
  marked.erase(std::unique(marked.begin(), marked.end()), marked.end());
  if (!marked.empty()) return absl::StrCat(absl::StrJoin(marked, ", "), " with scales");
  if (AnyTypeIs(tensors, {StoredType::kF8E4M3, StoredType::kF8E5M2})) {
    return AnyNameHas(tensors, {"scale_weight", "weight_scale", "scaled_fp8"}) ? "fp8 with scales" : "fp8";
  }
  return AnyTypeIs(tensors, {StoredType::kI8}) ? "int8" : "";
}

// The tensors of a file with one prefix; names are without it.
struct Group {
  std::vector<std::string_view> names;  // sorted
  std::vector<const StoredTensor*> tensors;
};

bool AnyBegins(const std::vector<std::string_view>& sorted, std::string_view begin) {
  const auto found = std::ranges::lower_bound(sorted, begin);
  return found != sorted.end() && found->starts_with(begin);
}

const KnownPart* FindPart(const Group& group) {
  for (const KnownPart& known : kKnownParts) {
    const auto has = [&](std::string_view mark) { return mark.empty() || AnyBegins(group.names, mark); };
    if (std::ranges::all_of(known.marks, has)) return &known;
  }
  return nullptr;
}

// Fills in parts, family, duplicates and the names that belong to none of them.
void FindParts(const FileHeader& header, FileKind& kind) {
  std::map<std::string_view, Group> groups;
  for (const StoredTensor& tensor : header.tensors) {
    const std::string_view prefix = ComponentPrefix(tensor.name);
    Group& group = groups[prefix];
    group.names.push_back(std::string_view(tensor.name).substr(prefix.size()));
    group.tensors.push_back(&tensor);
  }
  for (auto& [prefix, group] : groups) std::ranges::sort(group.names);
  // A name with and without the prefix of a transformer would be two values of one parameter.
  if (const auto plain = groups.find(""); plain != groups.end()) {
    for (const auto& [prefix, group] : groups) {
      if (prefix.empty() || !prefix.ends_with("diffusion_model.")) continue;
      for (const std::string_view name : group.names) {
        if (std::ranges::binary_search(plain->second.names, name) && kind.duplicate.empty()) kind.duplicate = name;
      }
    }
  }
  for (const auto& [prefix, group] : groups) {
    const KnownPart* known = FindPart(group);
    if (known == nullptr) {
      for (const std::string_view name : group.names) {
        if (kind.unknown.size() < kMaxUnknown && !IsWithoutEffect(prefix, name)) {
          kind.unknown.push_back(absl::StrCat(std::string(prefix), std::string(name)));
        }
      }
      continue;
    }
    if (known->class_name.empty()) {
      kind.foreign_family = known->family;
      continue;
    }
    if (known->form == NameForm::kOriginal && !known->other_form.empty() && kind.mixed.empty()) {
      const auto other = std::ranges::lower_bound(group.names, known->other_form);
      // A matrix, as the clearest example.
      const auto is_weight = [&](const auto& name) {
        return name.starts_with(known->other_form) && name.ends_with(".weight");
      };
      const auto weight = std::find_if(other, group.names.end(), is_weight);
      if (other != group.names.end() && other->starts_with(known->other_form)) {
        kind.mixed = weight == group.names.end() ? *other : *weight;
      }
    }
    FilePart part{.role = known->role,
                  .class_name = std::string(known->class_name),
                  .family = std::string(known->family),
                  .prefix = std::string(prefix),
                  .form = known->form,
                  .tensors = group.tensors.size()};
    for (const StoredTensor* tensor : group.tensors) {
      part.bytes += tensor->bytes();
      ++part.stored[StoredTypeName(tensor->type)];
    }
    kind.parts.push_back(std::move(part));
  }
}

using Texts = std::map<std::string, std::string>;

// Returns the text of every small marker tensor.
absl::StatusOr<Texts> ReadMarkers(const SafetensorsFile& file) {
  Texts markers;
  for (const StoredTensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kMarker) || tensor.bytes() > kMaxMarkerBytes) continue;
    std::string text(static_cast<size_t>(tensor.bytes()), '\0');
    RETURN_IF_ERROR(file.Read(tensor, 0, std::as_writable_bytes(std::span(text))));
    markers[tensor.name] = std::move(text);
  }
  return markers;
}

// Adds what to do to the error of a broken file.
absl::Status WithAdvice(const absl::Status& status, const std::string& path) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(status.message()), "; download the file again and check it with: ", InspectCommand(path)));
}

// Returns the metadata that are one value.
Texts TextsOf(const GgufMetadata& metadata) {
  Texts texts;
  for (const auto& [key, value] : metadata) {
    if (const auto* text = std::get_if<std::string>(&value)) texts[key] = *text;
    if (const auto* number = std::get_if<int64_t>(&value)) texts[key] = absl::StrCat(*number);
  }
  return texts;
}

absl::StatusOr<FileKind> ReadGgufKind(const std::string& path) {
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path, base::QuotePath(path));
  if (!file.ok()) return WithAdvice(file.status(), path);
  return KindOf({.container = FileContainer::kGguf,
                 .tensors = file->tensors(),
                 .metadata = TextsOf(file->metadata()),
                 .markers = {}});
}

std::string_view RoleName(PartRole role) {
  switch (role) {
    case PartRole::kTransformer:
      return "transformer";
    case PartRole::kAutoencoder:
      return "autoencoder";
    case PartRole::kTextEncoder:
      return "text encoder";
  }
  return "";
}

PartRole RoleOfComponent(std::string_view component) {
  if (component == "vae") return PartRole::kAutoencoder;
  return component.starts_with("text_encoder") ? PartRole::kTextEncoder : PartRole::kTransformer;
}

// The command that uses the file as what it is.
std::string UseCommand(const FilePart& part, const std::string& path) {
  const std::string file = base::ShellWord(path);
  switch (part.role) {
    case PartRole::kAutoencoder:
      return absl::StrCat("tessera generate PROMPT --model MODEL --vae ", file);
    case PartRole::kTextEncoder:
      return absl::StrCat("tessera generate PROMPT --model MODEL --text-encoder ", file);
    case PartRole::kTransformer:
      break;
  }
  return absl::StrCat("tessera generate PROMPT --model ", file);
}

// A class without what two classes of the same weights differ in.
std::string_view WeightsOf(std::string_view class_name) {
  if (class_name == "CLIPTextModelWithProjection") return "CLIPTextModel";
  return class_name == "Qwen3Model" ? "Qwen3ForCausalLM" : class_name;
}

std::string FamilyOfClass(std::string_view class_name) {
  for (const KnownPart& known : kKnownParts) {
    if (WeightsOf(known.class_name) == WeightsOf(class_name)) return std::string(known.family);
  }
  return std::string(class_name);
}

absl::Status UnsupportedError(const FileKind& kind, const std::string& path) {
  std::string_view family = kind.parts.empty() ? std::string_view() : std::string_view(kind.parts.front().family);
  const Fp8File* file = Fp8FileOf(family);
  const std::string alternative =
      file == nullptr
          ? absl::StrCat("use the model's fp8 file in its place and check it with: ", InspectCommand("FILE"))
          : absl::StrCat("use the model's fp8 file in its place, for example: hf download ",
                         std::string(file->repository), " ", std::string(file->file));
  return absl::FailedPreconditionError(absl::StrCat(base::QuotePath(path), " has weights in ", kind.unsupported,
                                                    ", which Tessera does not read; ", alternative));
}

}  // namespace

bool IsSameWeights(std::string_view a, std::string_view b) { return WeightsOf(a) == WeightsOf(b); }

bool IsPartOfClass(const FilePart& part, std::string_view class_name) {
  return IsSameWeights(part.class_name, class_name);
}

bool IsCheckpointName(std::string_view file) {
  const fs::path path(file);
  for (const char* extension : {".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"}) {
    if (path.extension() == extension) return true;
  }
  return false;
}

FileKind KindOf(const FileHeader& header) {
  FileKind kind{.container = header.container};
  const auto metadata = [&](const char* key) {
    const auto found = header.metadata.find(key);
    return found == header.metadata.end() ? std::string() : found->second;
  };
  if (header.container == FileContainer::kGguf) {
    kind.architecture = metadata("general.architecture");
    if (!absl::SimpleAtoi(metadata("split.count"), &kind.splits)) kind.splits = 1;
  }
  kind.has_tokenizer =
      !metadata("tokenizer.ggml.model").empty() || std::ranges::any_of(header.tensors, [](const StoredTensor& tensor) {
        return std::string_view(tensor.name).ends_with("tekken_model");
      });
  kind.adapter = AdapterOf(header.tensors);
  if (!kind.adapter.empty()) return kind;
  const std::set<std::string> formats = MarkedFormats(header);
  kind.unsupported = UnsupportedOf(header, formats);
  kind.quantization = StoredFormOf(header, formats);
  FindParts(header, kind);
  return kind;
}

absl::StatusOr<FileKind> ReadFileKind(const std::string& path) {
  const std::string shown = base::QuotePath(path);
  ASSIGN_OR_RETURN(const base::ReadOnlyFile beginning, base::ReadOnlyFile::Open(path, shown));
  const std::string bytes = FirstBytes(beginning);
  RETURN_IF_ERROR(CheckBeginning(bytes, path));
  if (IsGguf(bytes)) return ReadGgufKind(path);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path, shown);
  if (!file.ok()) return WithAdvice(file.status(), path);
  ASSIGN_OR_RETURN(Texts markers, ReadMarkers(*file));
  return KindOf({.container = FileContainer::kSafetensors,
                 .tensors = file->tensors(),
                 .metadata = file->metadata(),
                 .markers = std::move(markers)});
}

absl::StatusOr<TensorShapes> ReadShapes(const std::string& path, const FilePart& part) {
  ASSIGN_OR_RETURN(const AnyTensorFile file, OpenTensorFile(path, base::QuotePath(path)));
  TensorShapes shapes;
  for (const StoredTensor& tensor : Common(file).tensors()) {
    if (ComponentPrefix(tensor.name) != part.prefix) continue;
    shapes.emplace(tensor.name.substr(part.prefix.size()), tensor.shape);
  }
  return shapes;
}

absl::Status CheckUsable(const FileKind& kind, const std::string& path) {
  const std::string shown = base::QuotePath(path);
  if (!kind.adapter.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown, " is a ", kind.adapter, ", not a model; use it together with its base model: ",
                     "tessera generate PROMPT --model MODEL --lora ", base::ShellWord(path)));
  }
  if (kind.splits > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown, " is one of ", kind.splits, " files of a model that was split (split.count is ",
                     kind.splits, "); join them with: llama-gguf-split --merge FIRST_FILE WHOLE_FILE"));
  }
  if (kind.container == FileContainer::kGguf && !kind.architecture.empty() && !IsReadArchitecture(kind.architecture)) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown, ": ", control::FamilyProblem(absl::StrCat("the architecture ", base::Quote(kind.architecture))),
        "; see what it holds with: ", InspectCommand(path)));
  }
  if (!kind.foreign_family.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(shown, ": ", control::FamilyProblem(kind.foreign_family)));
  }
  if (!kind.unsupported.empty()) return UnsupportedError(kind, path);
  if (!kind.duplicate.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        shown, " holds the tensor ", base::Quote(kind.duplicate),
        " twice, with and without the prefix of the transformer; download the file again and check it with: ",
        InspectCommand(path)));
  }
  if (!kind.mixed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " mixes the names of the model's authors with those of diffusers, for example ",
                     base::Quote(kind.mixed), "; download the file again and check it with: ", InspectCommand(path)));
  }
  if (std::ranges::find(kind.parts, kLlamaCppClipClass, &FilePart::class_name) != kind.parts.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown,
        " holds CLIP under the names of llama.cpp (t.blk.0.attn_q.weight), which Tessera does not read; use a file "
        "with "
        "CLIP's own names (text_model.encoder.layers.0.…), in safetensors or GGUF, for example: hf download "
        "comfyanonymous/flux_text_encoders clip_l.safetensors"));
  }
  if (kind.parts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " holds no part of a model that Tessera knows",
                     kind.unknown.empty() ? "" : absl::StrCat(" (a tensor is ", base::Quote(kind.unknown.front()), ")"),
                     "; see what it holds with: ", InspectCommand(path)));
  }
  return absl::OkStatus();
}

absl::StatusOr<FilePart> PartFor(const FileKind& kind, const std::string& path, const std::string& component,
                                 const std::string& class_name) {
  RETURN_IF_ERROR(CheckUsable(kind, path));
  const PartRole role = RoleOfComponent(component);
  std::vector<const FilePart*> fitting;
  const FilePart* other = nullptr;  // of the same role
  for (const FilePart& part : kind.parts) {
    if (part.role != role) continue;
    if (WeightsOf(part.class_name) == WeightsOf(class_name)) {
      fitting.push_back(&part);
    } else {
      other = &part;
    }
  }
  if (!fitting.empty()) {
    // Of the two CLIPs of Stable Diffusion 3, clip_g is the second.
    const bool second = component == "text_encoder_2";
    for (const FilePart* part : fitting) {
      if ((part->prefix.find("clip_g") != std::string::npos) == second) return *part;
    }
    return *fitting.front();
  }
  const std::string shown = base::QuotePath(path);
  if (other != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " holds a ", std::string(RoleName(role)), " of ", other->family, ", and the model's ", component,
        " is of ", FamilyOfClass(class_name), "; use it with a model of its family: ", UseCommand(*other, path)));
  }
  const FilePart& held = kind.parts.front();
  if (held.role == PartRole::kTextEncoder && role == PartRole::kTransformer) {
    const std::string stated =
        kind.architecture.empty() ? "" : absl::StrCat(" (architecture ", base::Quote(kind.architecture), ")");
    return absl::FailedPreconditionError(
        absl::StrCat(shown, " is a language model", stated, ", ", held.family,
                     ", and not a diffusion transformer; use it as a text encoder: ", UseCommand(held, path)));
  }
  return absl::FailedPreconditionError(absl::StrCat(shown, " holds ", DescribeKind(kind), " and no ", component,
                                                    "; use it as what it is: ", UseCommand(held, path)));
}

std::string DescribeKind(const FileKind& kind) {
  std::vector<std::string> parts;
  for (const FilePart& part : kind.parts) {
    parts.push_back(absl::StrCat("the ", std::string(RoleName(part.role)), " of ", part.family));
  }
  std::string text = absl::StrJoin(parts, ", ");
  if (!kind.adapter.empty()) text = absl::StrCat("a ", kind.adapter);
  if (!kind.quantization.empty()) absl::StrAppend(&text, " in ", kind.quantization);
  return text;
}

absl::Status CheckQuantizationConfig(const base::Json& config, const std::string& name) {
  const base::Json* quantization = config.Find("quantization_config");
  if (quantization == nullptr || quantization->is_null()) return absl::OkStatus();
  const base::Json* method = quantization->Find("quant_method");
  if (method != nullptr && method->AsString() != nullptr && *method->AsString() == "bitsandbytes") {
    return absl::OkStatus();
  }
  const std::string stated = method == nullptr ? "nothing" : method->Describe();
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has quantized weights (quant_method is ", stated,
      "); valid is \"bitsandbytes\"; use the model's own folder and quantize it while it is loaded: tessera generate "
      "PROMPT --model ORG/NAME --weights fp8"));
}

absl::Status PickledWeightsError(const std::string& name, const std::string& files) {
  return absl::FailedPreconditionError(
      absl::StrCat(name, " has weights only as PyTorch pickles (", files,
                   "), which can run code when they are read; convert MODEL to safetensors with: python3 "
                   "scripts/convert-model.py MODEL NEW_FOLDER"));
}

absl::Status GgufWeightsError(const std::string& name, const std::string& files) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has no weights but in GGUF (", files,
      "); name the file itself, a transformer with --model, another component with --text-encoder or --vae, for "
      "example: tessera generate PROMPT --model MODEL/",
      name, "/FILE.gguf"));
}

}  // namespace tessera::models
