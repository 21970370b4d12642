// Defines the fields of a request: the structs that hold their values, and the table that states each fact about a
// field once.
//
// HTTP bodies, gRPC messages and the command line are parsed with this table. It also drives the digest and the
// validation of requests, the field names in errors, the metadata in images, the tests of docs/openapi.json and of the
// tables in the documents, and GET /v1/schema. To add a field that models read, add its member and its line here, the
// parameter that it becomes (control/prompt_options.h) with its line in job_parameters.proto, the public field in
// image_service.proto, and the code in the model that reads it.
//
// A field that is a list of structs (adapters, each with a scale) is a vector of described structs (base/fields.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/fields.h"
#include "control/job_parameters.h"
#include "server/api/request_limits.h"

namespace tessera::server {

// A low-rank adapter to use for an image.
struct AdapterRequest {
  std::string name;  // the server's name for it; on the command line without a server, its file path
  double scale = 1;  // within kAdapterScales

  bool operator==(const AdapterRequest&) const = default;
};

constexpr auto FieldsOf(const AdapterRequest*) {
  return std::tuple(
      base::Field("name", &AdapterRequest::name, base::Text{.is_required = true}),
      base::Field("scale", &AdapterRequest::scale, control::kAdapterScales, "Weight of the adapter; 0 turns it off."));
}
// Checks that each adapter is named at most once. The error is about the field `loras`.
absl::Status CheckRules(const std::vector<AdapterRequest>& adapters);

// A list of described structs. The first field of each item is its name.
template <class T>
inline constexpr bool kIsListOfStructs = false;
template <base::Described Item>
inline constexpr bool kIsListOfStructs<std::vector<Item>> = true;

template <base::Described Item>
const std::string& NameOfItem(const Item& item) {
  return item.*std::get<0>(base::Fields<Item>()).member;
}

// A request as parsed from the command line, HTTP or gRPC. Absent values mean the model's defaults.
struct GenerationRequest {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  // Prompts for the second and third text encoder; empty: the same as the first.
  std::string prompt_2, prompt_3, negative_prompt_2, negative_prompt_3;
  std::optional<int64_t> width;
  std::optional<int64_t> height;
  std::optional<int64_t> steps;
  std::optional<double> guidance_scale;
  uint64_t seed = 0;  // seed of the first image; those of the others count up from it
  int64_t count = 1;
  std::string sampler;
  std::string noise = "tessera";
  std::optional<bool> clean_caption;
  std::optional<bool> resolution_binning;
  std::optional<int64_t> max_sequence_length;
  // A model refuses the following fields if it does not read them.
  std::optional<double> true_cfg_scale;
  std::optional<double> guidance_rescale;
  std::optional<int64_t> clip_skip;
  std::vector<int64_t> skip_layers;
  std::optional<double> skip_layer_scale, skip_layer_start, skip_layer_stop;
  std::optional<int64_t> original_width, original_height, crop_top, crop_left;
  std::vector<AdapterRequest> loras;  // in the order in which they are applied
};

// A request in the terms of the public API, which HTTP and gRPC share. For empty texts and absent values, the API's
// default applies, else the model's.
struct ImageRequest {
  std::string model;             // id or alias; empty: the first model
  GenerationRequest generation;  // except its seed, count, width and height, which the members below replace
  std::optional<uint64_t> seed;  // absent: random
  std::optional<int64_t> n;
  std::string size;           // "auto" or "WIDTHxHEIGHT"
  std::string quality;        // a preset number of steps; num_inference_steps takes precedence
  std::string complexity;     // checked, without effect
  std::string output_format;  // png, jpeg, webp
  std::optional<int64_t> output_compression;
  std::string background;  // "transparent" is refused: pictures have no alpha channel
  std::string style;       // checked, without effect
  std::string moderation;  // checked, without effect
  std::string user;
  std::string safety_identifier;  // the name that newer clients use for `user`; takes precedence unless empty
  std::optional<int64_t> partial_images;
  std::optional<int64_t> priority;
  std::optional<int64_t> deadline_ms;
};

// One line of the table. Each comment states the meaning of null or of an absent value.
struct RequestField {
  // Name in errors, and of the member of control::JobParameters that the field becomes, if any.
  const char* id;
  // Name in HTTP and gRPC; null: the id.
  const char* name = nullptr;
  // The API field `name` holds two values, and this is one of them.
  bool half = false;
  // Name in messages of the command line; null: the id with spaces.
  const char* label = nullptr;
  // Name of one item of a list on the command line.
  const char* item = nullptr;
  // Command-line option in CLI11's syntax; null: none. A switch is written without dashes.
  const char* option = nullptr;
  // Placeholder for the option's value in the help, if its type is not enough.
  const char* type = nullptr;
  // Description for the command-line help; also for the API if `description` is null.
  const char* help = nullptr;
  const char* description = nullptr;
  // Key in the metadata text of images; null: the label, capitalized.
  const char* key = nullptr;
  // Entry of ModelDescription::options that says that a model reads this field; null: every model reads it.
  const char* read_with = nullptr;
  // Bounds of a field that does not become a parameter; nullopt: those of the parameter, or none.
  std::optional<Bounds> bounds = std::nullopt;
  // The parameter's value 0 means absent, so requests may not set it to 0.
  bool zero_is_absent = false;
  // The valid words, separated by spaces; null: any word, or those of the model.
  const char* words = nullptr;
  // The API's default as JSON; null: the model's default, or none.
  const char* usual = nullptr;

  std::variant<std::string GenerationRequest::*, std::optional<std::string> GenerationRequest::*,
               std::optional<bool> GenerationRequest::*, std::optional<int64_t> GenerationRequest::*,
               std::optional<double> GenerationRequest::*, std::vector<int64_t> GenerationRequest::*,
               std::vector<AdapterRequest> GenerationRequest::*, std::string ImageRequest::*,
               std::optional<int64_t> ImageRequest::*, std::optional<uint64_t> ImageRequest::*>
      member;
};

// The order is that of lists and command-line help.
inline constexpr RequestField kRequestFields[] = {
    {.id = "prompt",
     .option = "prompt",
     .help = "What the image shows; may be empty",
     .description = "What the image shows: UTF-8 without NUL, 1 to 32768 bytes.",
     .member = &GenerationRequest::prompt},
    {.id = "negative_prompt",
     .option = "--negative",
     .help = "What the image must not show; may be empty",
     .description = "What the image must not show. Empty differs from absent where guidance is optional.",
     .member = &GenerationRequest::negative_prompt},
    {.id = "model",
     .description =
         "Id or alias of a model, or the name of an adapter of one, which is then used at scale 1; absent or "
         "empty: the first of GET /v1/models, which OpenAI's names of image models also select, "
         "unless the server's configuration turns that off.",
     .bounds = Bounds{0, kMaxModelNameBytes},
     .member = &ImageRequest::model},
    {.id = "count",
     .name = "n",
     .option = "-n,--count",
     .help = "Images to make, with seeds counting up (default: 1)",
     .description = "Images, up to 10 or as the server is configured. Their seeds count up.",
     .bounds = Bounds{1, kMaxImageCount},
     .usual = "1",
     .member = &ImageRequest::n},
    {.id = "size",
     .option = "-s,--size",
     .type = "WxH",
     .help = "Size in pixels: WIDTHxHEIGHT (default: the model's)",
     .description = "'auto' (the model's) or WIDTHxHEIGHT in pixels, of the sizes the model takes.",
     .member = &ImageRequest::size},
    {.id = "width",
     .name = "size",
     .half = true,
     .option = "--width",
     .help = "Width in pixels",
     .member = &GenerationRequest::width},
    {.id = "height",
     .name = "size",
     .half = true,
     .option = "--height",
     .help = "Height in pixels",
     .member = &GenerationRequest::height},
    {.id = "quality",
     .description = "A preset of steps: low is half the model's own number, high and hd twice, xhigh three times, max "
                    "four times, up to the model's most.",
     .words = "auto low medium high xhigh max standard hd",
     .member = &ImageRequest::quality},
    {.id = "complexity",
     .description = "Without effect.",
     .words = "low medium high",
     .member = &ImageRequest::complexity},
    {.id = "seed",
     .option = "--seed",
     .help = "Seed of the first image (default: random, and printed)",
     .description = "Seed of the first image; absent: random. Every answer has it.",
     .member = &ImageRequest::seed},
    {.id = "steps",
     .name = "num_inference_steps",
     .option = "--steps",
     .help = "Denoising steps (default: the model's)",
     .description = "Up to the model's most. Overrides quality.",
     .member = &GenerationRequest::steps},
    {.id = "guidance_scale",
     .label = "guidance",
     .option = "--guidance",
     .help = "Guidance scale (default: the model's)",
     .key = "CFG scale",
     .member = &GenerationRequest::guidance_scale},
    {.id = "true_cfg_scale",
     .label = "true CFG scale",
     .option = "--true-cfg",
     .help = "Scale of true classifier-free guidance, used above 1 and with --negative (default: 1, off)",
     .description = "Only for models that read it (options), like the fields from prompt_2 on.",
     .key = "True CFG scale",
     .read_with = control::prompt_option::kTrueCfgScale,
     .member = &GenerationRequest::true_cfg_scale},
    {.id = "sampler",
     .option = "--sampler",
     .type = "NAME",
     .help = "Sampler (default: the model's; `tessera inspect` lists them)",
     .description = "One of the model's.",
     .member = &GenerationRequest::sampler},
    {.id = "loras",
     .item = "lora",
     .option = "--lora",
     .type = "FILE|NAME[:SCALE]",
     .help = "Low-rank adapter to use: a file, or with --server a name of the server's; may be given several times "
             "(default scale: 1)",
     .description = "Low-rank adapters of the model to use, by the names in GET /v1/models, in the order in which they "
                    "are added: at most 8, each once.",
     .key = "Loras",
     .member = &GenerationRequest::loras},
    {.id = "output_format", .words = "png jpeg webp", .usual = "\"png\"", .member = &ImageRequest::output_format},
    {.id = "output_compression",
     .description = "Quality of jpeg and webp. Absent: 95 for jpeg, lossless for webp.",
     .bounds = Bounds{0, 100},
     .member = &ImageRequest::output_compression},
    {.id = "background", .words = "auto opaque", .member = &ImageRequest::background},
    {.id = "style", .description = "Without effect.", .words = "vivid natural", .member = &ImageRequest::style},
    {.id = "moderation", .description = "Without effect.", .words = "auto low", .member = &ImageRequest::moderation},
    {.id = "user",
     .description = "A label of the caller, returned with the job.",
     .bounds = Bounds{0, kMaxUserBytes},
     .member = &ImageRequest::user},
    {.id = "safety_identifier",
     .description = "The name of user in OpenAI's newer clients; overrides user unless empty.",
     .bounds = Bounds{0, kMaxUserBytes},
     .member = &ImageRequest::safety_identifier},
    {.id = "partial_images",
     .description = "Previews of each image; in generations only with stream.",
     .bounds = Bounds{0, kMaxPartialImages},
     .member = &ImageRequest::partial_images},
    {.id = "priority",
     .description = "Higher is sooner.",
     .bounds = Bounds{kMinPriority, kMaxPriority},
     .member = &ImageRequest::priority},
    {.id = "deadline_ms",
     .description = "Counted from acceptance; a job that is not done by then fails.",
     .bounds = Bounds{1, kMaxDeadlineMs},
     .member = &ImageRequest::deadline_ms},
    {.id = "prompt_2",
     .option = "--prompt-2",
     .help = "Prompt for the second text encoder (default: the same as the first)",
     .read_with = control::prompt_option::kPrompt2,
     .member = &GenerationRequest::prompt_2},
    {.id = "prompt_3",
     .option = "--prompt-3",
     .help = "Prompt for the third text encoder (default: the same as the first)",
     .read_with = control::prompt_option::kPrompt3,
     .member = &GenerationRequest::prompt_3},
    {.id = "negative_prompt_2",
     .option = "--negative-2",
     .help = "Negative prompt for the second text encoder (default: the same as the first)",
     .read_with = control::prompt_option::kPrompt2,
     .member = &GenerationRequest::negative_prompt_2},
    {.id = "negative_prompt_3",
     .option = "--negative-3",
     .help = "Negative prompt for the third text encoder (default: the same as the first)",
     .read_with = control::prompt_option::kPrompt3,
     .member = &GenerationRequest::negative_prompt_3},
    {.id = "noise",
     .option = "--noise",
     .type = "NAME",
     .help = "tessera or torch-cpu (default: tessera)",
     .words = "tessera torch-cpu",
     .member = &GenerationRequest::noise},
    {.id = "clean_caption",
     .option = "clean-caption",
     .help = "Clean the prompt as the model's authors did",
     .member = &GenerationRequest::clean_caption},
    {.id = "resolution_binning",
     .option = "binning",
     .help = "Denoise at the nearest size of the model's table",
     .member = &GenerationRequest::resolution_binning},
    {.id = "max_sequence_length",
     .label = "maximum sequence length",
     .option = "--max-sequence-length",
     .help = "Tokens of the prompt (default: the model's)",
     .key = "Max sequence length",
     .zero_is_absent = true,
     .member = &GenerationRequest::max_sequence_length},
    {.id = "guidance_rescale",
     .option = "--guidance-rescale",
     .help = "How far to rescale the guided prediction to the deviation of the conditional one (default: 0, off)",
     .read_with = control::prompt_option::kGuidanceRescale,
     .member = &GenerationRequest::guidance_rescale},
    {.id = "clip_skip",
     .option = "--clip-skip",
     .help = "Further last layers of CLIP to skip for the prompt (default: 0)",
     .read_with = control::prompt_option::kClipSkip,
     .member = &GenerationRequest::clip_skip},
    {.id = "skip_layers",
     .item = "skip layer",
     .option = "--skip-layers",
     .help = "Blocks for skip-layer guidance, such as 7,8,9 (default: none, off)",
     .read_with = control::prompt_option::kSkipLayers,
     .member = &GenerationRequest::skip_layers},
    {.id = "skip_layer_scale",
     .option = "--skip-layer-scale",
     .help = "Scale of skip-layer guidance (default: 2.8)",
     .read_with = control::prompt_option::kSkipLayers,
     .member = &GenerationRequest::skip_layer_scale},
    {.id = "skip_layer_start",
     .option = "--skip-layer-start",
     .help = "Fraction of the steps at which it begins (default: 0.01)",
     .read_with = control::prompt_option::kSkipLayers,
     .member = &GenerationRequest::skip_layer_start},
    {.id = "skip_layer_stop",
     .option = "--skip-layer-stop",
     .help = "Fraction of the steps at which it ends (default: 0.2)",
     .read_with = control::prompt_option::kSkipLayers,
     .member = &GenerationRequest::skip_layer_stop},
    {.id = "original_width",
     .option = "--original-size",
     .type = "WxH",
     .help = "Original size that the model is conditioned on, WIDTHxHEIGHT (default: the model's)",
     .key = "Original size",
     .read_with = control::prompt_option::kOriginalSize,
     .zero_is_absent = true,
     .member = &GenerationRequest::original_width},
    {.id = "original_height",
     .key = "Original size",
     .read_with = control::prompt_option::kOriginalSize,
     .zero_is_absent = true,
     .member = &GenerationRequest::original_height},
    {.id = "crop_top",
     .option = "--crop-top-left",
     .type = "TOP,LEFT",
     .help = "Crop position that the model is conditioned on, TOP,LEFT in pixels (default: 0,0)",
     .key = "Crop top left",
     .read_with = control::prompt_option::kOriginalSize,
     .member = &GenerationRequest::crop_top},
    {.id = "crop_left",
     .key = "Crop top left",
     .read_with = control::prompt_option::kOriginalSize,
     .member = &GenerationRequest::crop_left},
};

// Returns the line with this id; null if there is none.
const RequestField* FindField(absl::string_view id);

std::string ApiName(const RequestField& field);
std::string Label(const RequestField& field);
std::string MetadataKey(const RequestField& field);
std::vector<std::string> Words(const RequestField& field);
Bounds BoundsOf(const RequestField& field);

// Whether the field also exists on the command line, and not only in the API.
inline bool IsOfGeneration(const RequestField& field) {
  return std::visit(
      []<class Value, class Request>(Value Request::*) { return std::is_same_v<Request, GenerationRequest>; },
      field.member);
}

// Calls visit(value) with a reference to the field's value in `request`, which may be const.
template <class Request, class Visit>
void VisitValue(const RequestField& field, Request& request, const Visit& visit) {
  std::visit(
      [&](auto member) {
        if constexpr (requires { request.generation.*member; }) {
          visit(request.generation.*member);
        } else if constexpr (requires { request.*member; }) {
          visit(request.*member);
        }
      },
      field.member);
}

// Copies every field to the field of the same name in the other struct, if it exists.
template <base::Described From, base::Described To>
void CopyFields(const From& from, To& to) {
  base::ForEachField(
      [&from](const auto& target, auto& member) {
        base::ForEachField(
            [&](const auto& source, const auto& value) {
              if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>,
                                           std::remove_cvref_t<decltype(member)>>) {
                if (absl::string_view(source.name) == target.name) member = value;
              }
            },
            from);
      },
      to);
}

// Copies a value of a request to the parameter that it becomes, or back, where the types correspond.
template <typename From, typename To>
void CopyValue(const From& from, To& to) {
  if constexpr (std::is_same_v<From, To>) {
    to = from;
  } else if constexpr (std::is_enum_v<To> && std::is_same_v<From, std::string>) {
    to = base::EnumOf<To>(from).value_or(to);
  } else if constexpr (kIsListOfStructs<From> && kIsListOfStructs<To>) {
    to.clear();
    for (const auto& item : from) CopyFields(item, to.emplace_back());
  } else if constexpr (requires { to.assign(1, static_cast<typename To::value_type>(*from.begin())); }) {
    to.assign(from.begin(), from.end());
  } else if constexpr (requires { to = static_cast<To>(*from); }) {
    to = static_cast<To>(*from);
  } else if constexpr (std::is_arithmetic_v<From> && requires { to.emplace(from); }) {
    to.emplace(from);
  }
}

}  // namespace tessera::server
