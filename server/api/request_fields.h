// Describes the fields of a request: the struct that holds their values, and a list that states each fact about a field
// once (base/fields/fields.h).
//
// HTTP bodies, gRPC messages and the command line are parsed by walking this list. It also drives the digest and the
// validation of requests, the field names in errors, the metadata in images, the tests of docs/openapi.json and of the
// tables in the documents, and GET /v1/schema. To add a field that models read, add its member and its line here, the
// parameter that it becomes (control/parameters/prompt_options.h) with its line in job_parameters.proto, the public
// field in image_service.proto, and the code in the model that reads it.
//
// A field that is a list of structs (adapters, each with a scale) is a vector of described structs
// (base/fields/fields.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/fields/fields.h"
#include "control/parameters/job_parameters.h"
#include "server/api/request_limits.h"
#include "server/api/request_values.h"

namespace tessera::server {

constexpr auto FieldsOf(const AdapterRequest*) {
  return std::tuple(
      base::Field("name", &AdapterRequest::name, base::Text{.is_required = true}),
      base::Field("scale", &AdapterRequest::scale, control::kAdapterScales, "Weight of the adapter; 0 turns it off."));
}
// Checks that each adapter is named at most once. The error is about the field `loras`.
absl::Status CheckRules(const std::vector<AdapterRequest>& adapters);

constexpr auto FieldsOf(const PictureSource*) {
  using P = PictureSource;
  return std::tuple(
      base::Field("data", &P::data, base::Bytes{.most_bytes = kMaxPictureBytes}, "The file in base64."),
      base::Field("image_url", &P::image_url, base::Text{.most_bytes = kMaxPictureUrlBytes},
                  "A data URL, or a URL of a host that the server's configuration lists."),
      base::Field("file_id", &P::file_id, base::Text{.most_bytes = 128}, "The id of a file of POST /v1/files."));
}

// Returns the name of an item of a list, which is its first field.
template <base::Described Item>
const std::string& NameOfItem(const Item& item) {
  return item.*std::get<0>(base::Fields<Item>()).member;
}

// The facts about a field that only requests have. Each comment states the meaning of null.
struct RequestFacts {
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
  // Placeholder for the option's value in the help, if its kind is not enough.
  const char* type = nullptr;
  // Description for the command-line help; also for the API if `description` is null.
  const char* help = nullptr;
  const char* description = nullptr;
  // Key in the metadata text of images; null: the label, capitalized.
  const char* key = nullptr;
  // Entry of ModelDescription::options that says that a model reads this field; null: every model reads it.
  const char* read_with = nullptr;
  // The parameter's value 0 means absent, so requests may not set it to 0.
  bool zero_is_absent = false;
  // The valid words, separated by spaces; null: any word, or those of the model.
  const char* words = nullptr;
  // The API's default as JSON; null: the model's default, or none.
  const char* usual = nullptr;
  // Name in errors, and of the member of control::JobParameters that the field becomes, if any; set by RequestField.
  const char* id = nullptr;
  bool is_parameter = false;
};

template <class Value, class Valid>
struct RequestField : base::Field<ImageRequest, Value, Valid> {
  // The valid values are those of the parameter that the field becomes, if both are of one kind.
  constexpr RequestField(const char* id, Value ImageRequest::*member, RequestFacts facts)
      : RequestField(id, member, Valid(), facts) {
    base::ForEachFieldOf<control::JobParameters>([&](const auto& parameter) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(parameter.valid)>, Valid>) {
        if (std::string_view(parameter.name) == id) this->valid = parameter.valid;
      }
    });
    if constexpr (std::is_same_v<Valid, base::Integer>) {
      if (facts.zero_is_absent) this->valid.low = 1;
    }
  }
  constexpr RequestField(const char* id, Value ImageRequest::*member, Valid valid, RequestFacts facts)
      : base::Field<ImageRequest, Value, Valid>(id, member, valid), facts(facts) {
    this->facts.id = id;
    base::ForEachFieldOf<control::JobParameters>([&](const auto& parameter) {
      if (std::string_view(parameter.name) == id) this->facts.is_parameter = true;
    });
  }

  RequestFacts facts;
};
template <class Value>
RequestField(const char*, Value ImageRequest::*, RequestFacts)
    -> RequestField<Value, typename base::KindOf<Value>::Type>;
template <class Value, class Valid>
RequestField(const char*, Value ImageRequest::*, Valid, RequestFacts) -> RequestField<Value, Valid>;

// The order is that of lists and command-line help.
inline constexpr auto kRequestFields = std::tuple(
    RequestField(
        "prompt", &ImageRequest::prompt,
        {.option = "prompt",
         .help = "What the image shows; may be empty",
         .description = "What the image shows: UTF-8 without NUL, 1 to 32768 bytes. A tag <lora:NAME:SCALE> is taken "
                        "out of it and stands for an entry of loras."}),
    RequestField(
        "negative_prompt", &ImageRequest::negative_prompt,
        {.option = "--negative",
         .help = "What the image must not show; may be empty",
         .description = "What the image must not show. Empty differs from absent where guidance is optional."}),
    RequestField(
        "model", &ImageRequest::model, base::Text{.most_bytes = kMaxModelNameBytes},
        {.description =
             "Id or alias of a model, or the name of an adapter of one, which is then used at scale 1; absent, "
             "empty or default: the first of GET /v1/models, which OpenAI's names of image models also select, "
             "unless the server's configuration turns that off."}),
    RequestField("count", &ImageRequest::count, base::Integer{1, kMaxImageCount},
                 {.name = "n",
                  .option = "-n,--count",
                  .help = "Images to make, with seeds counting up (default: 1)",
                  .description = "Images, up to 10 or as the server is configured. Their seeds count up.",
                  .usual = "1"}),
    RequestField("size", &ImageRequest::size,
                 {.option = "-s,--size",
                  .type = "WxH",
                  .help = "Size in pixels: WIDTHxHEIGHT (default: the model's)",
                  .description = "'auto' (the model's) or WIDTHxHEIGHT in pixels, of the sizes the model takes."}),
    RequestField("width", &ImageRequest::width,
                 {.name = "size", .half = true, .option = "--width", .help = "Width in pixels"}),
    RequestField("height", &ImageRequest::height,
                 {.name = "size", .half = true, .option = "--height", .help = "Height in pixels"}),
    RequestField(
        "quality", &ImageRequest::quality,
        {.description =
             "A preset of steps: low is half the model's own number, high and hd twice, xhigh three times, max "
             "four times, up to the model's most.",
         .words = "auto low medium high xhigh max standard hd exact lossless"}),
    RequestField("complexity", &ImageRequest::complexity,
                 {.description = "Without effect.", .words = "low medium high"}),
    RequestField("seed", &ImageRequest::seed, base::Integer{0},
                 {.option = "--seed",
                  .help = "Seed of the first image; -1: random (default: random, and printed)",
                  .description = "Seed of the first image; absent or -1: random. Every answer has it."}),
    RequestField("steps", &ImageRequest::steps,
                 {.name = "num_inference_steps",
                  .option = "--steps",
                  .help = "Denoising steps (default: the model's)",
                  .description = "Up to the model's most. Overrides quality."}),
    RequestField("guidance_scale", &ImageRequest::guidance_scale,
                 {.label = "guidance",
                  .option = "--guidance",
                  .help = "Guidance scale (default: the model's)",
                  .key = "CFG scale"}),
    RequestField("true_cfg_scale", &ImageRequest::true_cfg_scale,
                 {.label = "true CFG scale",
                  .option = "--true-cfg",
                  .help = "Scale of true classifier-free guidance, used above 1 and with --negative (default: 1, off)",
                  .description = "Only for models that read it (options), like the fields from prompt_2 on.",
                  .key = "True CFG scale",
                  .read_with = control::prompt_option::kTrueCfgScale}),
    RequestField("sampler", &ImageRequest::sampler,
                 {.option = "--sampler",
                  .type = "NAME",
                  .help = "Sampler (default: the model's; `tessera inspect` lists them)",
                  .description = "One of the model's."}),
    RequestField(
        "loras", &ImageRequest::loras,
        {.item = "lora",
         .option = "--lora",
         .type = "FILE|NAME[:SCALE]",
         .help = "Low-rank adapter to use: a file, or with --server a name of the server's; may be given several times "
                 "(default scale: 1)",
         .description =
             "Low-rank adapters of the model to use, by the names in GET /v1/models, in the order in which they "
             "are added: at most 8, each once.",
         .key = "Loras"}),
    RequestField("output_format", &ImageRequest::output_format, {.words = "png jpeg webp", .usual = "\"png\""}),
    RequestField("output_compression", &ImageRequest::output_compression, base::Integer{0, 100},
                 {.description = "Quality of jpeg and webp. Absent: 95 for jpeg, lossless for webp."}),
    RequestField("background", &ImageRequest::background, {.words = "auto opaque"}),
    RequestField("style", &ImageRequest::style, {.description = "Without effect.", .words = "vivid natural"}),
    RequestField("moderation", &ImageRequest::moderation, {.description = "Without effect.", .words = "auto low"}),
    RequestField("user", &ImageRequest::user, base::Text{.most_bytes = kMaxUserBytes},
                 {.description = "A label of the caller, returned with the job."}),
    RequestField("safety_identifier", &ImageRequest::safety_identifier, base::Text{.most_bytes = kMaxUserBytes},
                 {.description = "The name of user in OpenAI's newer clients; overrides user unless empty."}),
    RequestField("partial_images", &ImageRequest::partial_images, base::Integer{0, kMaxPartialImages},
                 {.description = "Previews of each image; in generations only with stream."}),
    RequestField("priority", &ImageRequest::priority, base::Integer{kMinPriority, kMaxPriority},
                 {.description = "Higher is sooner."}),
    RequestField("deadline_ms", &ImageRequest::deadline_ms, base::Integer{1, kMaxDeadlineMs},
                 {.description = "Counted from acceptance; a job that is not done by then fails."}),
    RequestField("prompt_2", &ImageRequest::prompt_2,
                 {.option = "--prompt-2",
                  .help = "Prompt for the second text encoder (default: the same as the first)",
                  .read_with = control::prompt_option::kPrompt2}),
    RequestField("prompt_3", &ImageRequest::prompt_3,
                 {.option = "--prompt-3",
                  .help = "Prompt for the third text encoder (default: the same as the first)",
                  .read_with = control::prompt_option::kPrompt3}),
    RequestField("negative_prompt_2", &ImageRequest::negative_prompt_2,
                 {.option = "--negative-2",
                  .help = "Negative prompt for the second text encoder (default: the same as the first)",
                  .read_with = control::prompt_option::kPrompt2}),
    RequestField("negative_prompt_3", &ImageRequest::negative_prompt_3,
                 {.option = "--negative-3",
                  .help = "Negative prompt for the third text encoder (default: the same as the first)",
                  .read_with = control::prompt_option::kPrompt3}),
    RequestField("noise", &ImageRequest::noise,
                 {.option = "--noise",
                  .type = "NAME",
                  .help = "tessera or torch-cpu (default: tessera)",
                  .words = "tessera torch-cpu"}),
    RequestField("clean_caption", &ImageRequest::clean_caption,
                 {.option = "clean-caption", .help = "Clean the prompt as the model's authors did"}),
    RequestField("resolution_binning", &ImageRequest::resolution_binning,
                 {.option = "binning", .help = "Denoise at the nearest size of the model's table"}),
    RequestField("max_sequence_length", &ImageRequest::max_sequence_length,
                 {.label = "maximum sequence length",
                  .option = "--max-sequence-length",
                  .help = "Tokens of the prompt (default: the model's)",
                  .key = "Max sequence length",
                  .zero_is_absent = true}),
    RequestField("guidance_rescale", &ImageRequest::guidance_rescale,
                 {.option = "--guidance-rescale",
                  .help = "How far to rescale the guided prediction to the deviation of the conditional one "
                          "(default: 0, off)",
                  .read_with = control::prompt_option::kGuidanceRescale}),
    RequestField("cfg_normalization", &ImageRequest::cfg_normalization,
                 {.label = "CFG normalization",
                  .option = "--cfg-normalization",
                  .help = "Largest norm of the guided prediction over the whole image, as a multiple of the "
                          "conditional one's (default: 0, no limit)",
                  .read_with = control::prompt_option::kCfgNormalization}),
    RequestField("cfg_truncation", &ImageRequest::cfg_truncation,
                 {.label = "CFG truncation",
                  .option = "--cfg-truncation",
                  .help = "Part of the way from noise to the image after which steps run without guidance "
                          "(default: 1, none)",
                  .read_with = control::prompt_option::kCfgTruncation}),
    RequestField("clip_skip", &ImageRequest::clip_skip,
                 {.option = "--clip-skip",
                  .help = "Further last layers of CLIP to skip for the prompt (default: 0)",
                  .read_with = control::prompt_option::kClipSkip}),
    RequestField("skip_layers", &ImageRequest::skip_layers,
                 {.item = "skip layer",
                  .option = "--skip-layers",
                  .help = "Blocks for skip-layer guidance, such as 7,8,9 (default: none, off)",
                  .read_with = control::prompt_option::kSkipLayers}),
    RequestField("skip_layer_scale", &ImageRequest::skip_layer_scale,
                 {.option = "--skip-layer-scale",
                  .help = "Scale of skip-layer guidance (default: 2.8)",
                  .read_with = control::prompt_option::kSkipLayers}),
    RequestField("skip_layer_start", &ImageRequest::skip_layer_start,
                 {.option = "--skip-layer-start",
                  .help = "Fraction of the steps at which it begins (default: 0.01)",
                  .read_with = control::prompt_option::kSkipLayers}),
    RequestField("skip_layer_stop", &ImageRequest::skip_layer_stop,
                 {.option = "--skip-layer-stop",
                  .help = "Fraction of the steps at which it ends (default: 0.2)",
                  .read_with = control::prompt_option::kSkipLayers}),
    RequestField("original_width", &ImageRequest::original_width,
                 {.option = "--original-size",
                  .type = "WxH",
                  .help = "Original size that the model is conditioned on, WIDTHxHEIGHT (default: the model's)",
                  .key = "Original size",
                  .read_with = control::prompt_option::kOriginalSize,
                  .zero_is_absent = true}),
    RequestField("original_height", &ImageRequest::original_height,
                 {.key = "Original size", .read_with = control::prompt_option::kOriginalSize, .zero_is_absent = true}),
    RequestField("crop_top", &ImageRequest::crop_top,
                 {.option = "--crop-top-left",
                  .type = "TOP,LEFT",
                  .help = "Crop position that the model is conditioned on, TOP,LEFT in pixels (default: 0,0)",
                  .key = "Crop top left",
                  .read_with = control::prompt_option::kOriginalSize}),
    RequestField("crop_left", &ImageRequest::crop_left,
                 {.key = "Crop top left", .read_with = control::prompt_option::kOriginalSize}),
    RequestField("pictures", &ImageRequest::images, base::List<base::Nested>{.most = control::kMaxPictures},
                 {.name = "images",
                  .description = "Pictures from which the image begins, or which the model looks at: PNG, JPEG or WebP "
                                 "of at most 50 MB. Models differ in how many they take (picture_input)."}),
    RequestField("picture_mask", &ImageRequest::mask, base::List<base::Nested>{.most = 1},
                 {.name = "mask",
                  .description = "A picture of the size of the first one that is transparent where it is to change."}),
    RequestField("strength", &ImageRequest::strength,
                 {.description = "How much of a picture changes, above 0 and up to 1: the part of the steps that is "
                                 "run. Absent: 0.6, or 1 for models that fill in or edit by instruction.",
                  .key = "Denoising strength"}),
    RequestField("input_fidelity", &ImageRequest::input_fidelity,
                 {.description = "Without effect.", .words = "high low"}));
constexpr auto FieldsOf(const ImageRequest*) { return kRequestFields; }

// Returns the facts about the field with this id; null if there is none.
const RequestFacts* FindField(absl::string_view id);

std::string ApiName(const RequestFacts& facts);
std::string Label(const RequestFacts& facts);
std::string MetadataKey(const RequestFacts& facts);
std::vector<std::string> Words(const RequestFacts& facts);

// Calls visit(field, value) for the field with this id of `request`, which may be const.
template <class Request, class Visit>
void VisitField(absl::string_view id, Request& request, const Visit& visit) {
  base::ForEachField(
      [&](const auto& field, auto& value) {
        if (id == field.name) visit(field, value);
      },
      request);
}

// Whether a field has a value. An empty text or list is none.
template <class Value>
bool IsGiven(const Value& value) {
  if constexpr (base::kIsOptional<Value>) {
    return value.has_value();
  } else if constexpr (requires { value.empty(); }) {
    return !value.empty();
  } else {
    return true;
  }
}

template <base::Described From, base::Described To>
void CopyFields(const From& from, To& to);

// Copies a value of a request to the parameter that it becomes, or back, where the types correspond.
template <class From, class To>
void CopyValue(const From& from, To& to) {
  if constexpr (base::kIsOptional<From>) {
    if (from.has_value()) CopyValue(*from, to);
  } else if constexpr (base::kIsOptional<To>) {
    CopyValue(from, to.emplace());
  } else if constexpr (base::kIsList<From> && base::kIsList<To>) {
    to.clear();
    for (const auto& item : from) CopyValue(item, to.emplace_back());
  } else if constexpr (base::NamedEnum<To> && std::is_same_v<From, std::string>) {
    to = base::EnumOf<To>(from).value_or(to);
  } else if constexpr (base::NamedEnum<From> && std::is_same_v<To, std::string>) {
    to = base::EnumName(from);
  } else if constexpr (base::Described<From> && base::Described<To>) {
    CopyFields(from, to);
  } else if constexpr (std::is_convertible_v<From, To>) {
    to = static_cast<To>(from);
  }
}

// Copies every field that is given to the field of the same name in the other struct, if it exists.
template <base::Described From, base::Described To>
void CopyFields(const From& from, To& to) {
  base::ForEachField(
      [&from](const auto& target, auto& member) {
        base::ForEachField(
            [&](const auto& source, const auto& value) {
              if (absl::string_view(source.name) == target.name && IsGiven(value)) CopyValue(value, member);
            },
            from);
      },
      to);
}

}  // namespace tessera::server
