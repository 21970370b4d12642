// Bodies that clients of other image servers send, from their sources: SGLang 0.5.23, vLLM-Omni 0.30.0 and
// stable-diffusion.cpp of August 2026.
#include "server/http/client_fields.h"

#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/api/field_checks.h"
#include "server/http/image_request_json.h"
#include "tests/support/api_fixture.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr ForeignClient kAll[] = {ForeignClient::kSglang, ForeignClient::kVllmOmni, ForeignClient::kSdCpp};

GenerationBody Translated(const std::string& json, absl::Span<const ForeignClient> clients) {
  absl::StatusOr<GenerationBody> body = ReadGenerationBody(json, BodyKind::kGeneration, clients);
  EXPECT_TRUE(body.ok()) << body.status();
  return body.ok() ? *std::move(body) : GenerationBody();
}

struct Refusal {
  int status = 0;
  std::string field, message;
};

// Sends bodies to a server that reads the fields of `clients`.
class ClientServer {
 public:
  explicit ClientServer(std::vector<ForeignClient> clients) : api_({.api = {.clients = std::move(clients)}}) {}

  Refusal RefusalOf(const std::string& json) {
    const TestResponse response = api_.Call("POST", "/v1/images/generations", json);
    Refusal refusal = {.status = response.status};
    boost::system::error_code error;
    const boost::json::value answer = boost::json::parse(response.body, error);
    const auto* object = error || !answer.is_object() ? nullptr : answer.as_object().if_contains("error");
    if (object == nullptr) return refusal;
    const boost::json::value& field = object->at("param");
    if (field.is_string()) refusal.field = std::string(field.as_string());
    refusal.message = std::string(object->at("message").as_string());
    return refusal;
  }

 private:
  ApiFixture api_;
};

TEST(ClientFieldsTest, ABodyOfSglangsApiForComfyUiIsRead) {
  const GenerationBody body = Translated(
      R"({"prompt":"red apple","size":"512x512","n":2,"response_format":"b64_json","negative_prompt":"blurry",
          "guidance_scale":3.5,"num_inference_steps":20,"seed":42,"enable_teacache":false,"background":"auto",
          "output_format":"png","generator_device":"cuda","enhance_prompt":false,"quality":"auto","style":"vivid"})",
      {ForeignClient::kSglang});
  EXPECT_EQ(body.request.size, "512x512");
  EXPECT_EQ(body.request.count, 2);
  EXPECT_EQ(body.request.steps, 20);
  EXPECT_THAT(body.ignored, ElementsAre("enable_teacache", "generator_device", "enhance_prompt"));
}

TEST(ClientFieldsTest, SglangsSidesNamesAndContainersAreRead) {
  const GenerationBody body = Translated(
      R"({"prompt":"a","width":640,"height":480.0,"size":null,"num_outputs_per_prompt":3,"lora_nickname":"style",
          "diffusers_kwargs":{"a":{"b":[[1e99,{"c":null}],"x"]},"a":2},"cache_dit_params":null,
          "extra_body":{"num_inference_steps":7,"flow_shift":3.0,"perf_dump_path":"/tmp/x"},"extra_params":null})",
      {ForeignClient::kSglang});
  EXPECT_EQ(body.request.size, "640x480");
  EXPECT_EQ(body.request.count, 3);
  EXPECT_EQ(body.request.steps, 7);
  EXPECT_EQ(body.request.loras, (std::vector<AdapterRequest>{{.name = "style"}}));
  EXPECT_THAT(body.ignored, ElementsAre("diffusers_kwargs", "flow_shift", "perf_dump_path"));
}

TEST(ClientFieldsTest, ABodyOfVllmOmnisLoadClientIsRead) {
  const GenerationBody body = Translated(
      R"({"model":"fake","prompt":"red apple","n":2,"response_format":"b64_json","size":"1024x768","seed":3,
          "num_inference_steps":30,"true_cfg_scale":4.0,"generator_device":"cpu","vae_use_tiling":true,"lora":null,
          "return_stage_metrics":true,"modalities":["image"],"extra_params":{"flow_shift":3}})",
      {ForeignClient::kVllmOmni});
  EXPECT_EQ(body.request.size, "1024x768");
  EXPECT_EQ(body.request.true_cfg_scale, 4.0);
  EXPECT_THAT(body.request.loras, IsEmpty());
  EXPECT_THAT(body.ignored,
              ElementsAre("generator_device", "vae_use_tiling", "return_stage_metrics", "modalities", "flow_shift"));
}

TEST(ClientFieldsTest, AnAdapterOfVllmOmniHasItsNamesAndNoPath) {
  const std::vector<AdapterRequest> wanted = {{.name = "style", .scale = 0.5}};
  for (const char* lora : {R"({"name":"style","scale":0.5,"int_id":7})", R"({"lora_name":"style","lora_scale":0.5})",
                           R"({"adapter":"style","path":"style","scale":0.5})"}) {
    const std::string json = absl::StrCat(R"({"prompt":"a","lora":)", lora, "}");
    EXPECT_EQ(Translated(json, {ForeignClient::kVllmOmni}).request.loras, wanted) << lora;
  }
  const absl::Status path = ReadGenerationBody(R"({"prompt":"a","lora":{"name":"style","path":"/models/style"}})",
                                               BodyKind::kGeneration, {ForeignClient::kVllmOmni})
                                .status();
  EXPECT_EQ(ErrorField(path), "lora.path");
  EXPECT_THAT(path.message(), HasSubstr("adapters are named"));
}

TEST(ClientFieldsTest, ABodyForSdCppsWebUiIsRead) {
  const GenerationBody body = Translated(
      R"({"prompt":"red apple","negative_prompt":"","width":768,"height":512,"steps":28,"cfg_scale":7.0,"seed":-1,
          "batch_size":2,"sampler_name":"euler","scheduler":"karras","extra_images":[],"enable_hr":false,
          "lora":[{"path":"style","multiplier":0.8},{"name":"ink","is_high_noise":false}]})",
      {ForeignClient::kSdCpp});
  EXPECT_EQ(body.request.size, "768x512");
  EXPECT_EQ(body.request.steps, 28);
  EXPECT_EQ(body.request.guidance_scale, 7.0);
  EXPECT_EQ(body.request.count, 2);
  EXPECT_EQ(body.request.sampler, "euler");
  EXPECT_EQ(body.request.loras, (std::vector<AdapterRequest>{{.name = "style", .scale = 0.8}, {.name = "ink"}}));
  EXPECT_THAT(body.ignored, ElementsAre("scheduler", "enable_hr", "lora[].is_high_noise"));
}

// The example of its documentation of POST /sdcpp/v1/img_gen, in a prompt.
TEST(ClientFieldsTest, TheJsonInAPromptOfSdCppIsReadAndTakenOut) {
  const boost::json::object arguments =
      boost::json::parse(
          R"({"negative_prompt":"","clip_skip":-1,"width":1024,"height":512,"strength":0.75,"seed":-1,"batch_count":1,
          "auto_resize_ref_image":true,"init_image":null,"ref_images":[],"mask_image":null,
          "sample_params":{"scheduler":"discrete","sample_method":"euler","sample_steps":28,"eta":1.0,
            "custom_sigmas":[],"guidance":{"txt_cfg":7.0,"distilled_guidance":7,"slg":{"layers":[7,8,9],"scale":0.0}}},
          "lora":[],"hires":{"enabled":false,"custom_sigmas":[]},"vae_tiling_params":{"enabled":false}})")
          .as_object();
  const std::string prompt =
      absl::StrCat("a cat <sd_cpp_extra_args>", boost::json::serialize(arguments), "</sd_cpp_extra_args> on a chair ");
  const std::string json = boost::json::serialize(boost::json::object{{"prompt", prompt}, {"n", 1}});
  const GenerationBody body = Translated(json, {ForeignClient::kSdCpp});
  EXPECT_EQ(body.request.prompt, "a cat on a chair ");
  EXPECT_EQ(body.request.size, "1024x512");
  EXPECT_EQ(body.request.steps, 28);
  EXPECT_EQ(body.request.guidance_scale, 7.0);
  EXPECT_EQ(body.request.clip_skip, std::nullopt);
  EXPECT_EQ(body.request.seed, std::nullopt);
  EXPECT_EQ(body.request.count, 1);
  EXPECT_THAT(body.ignored,
              ElementsAre("strength", "auto_resize_ref_image", "sample_params.scheduler", "sample_params.eta",
                          "sample_params.custom_sigmas", "sample_params.guidance.slg", "hires", "vae_tiling_params"));
}

TEST(ClientFieldsTest, SdCppCountsTheLastLayerOfClipAndOurFieldTheSkippedOnes) {
  const auto skip = [](const std::string& prompt, const std::string& more) {
    return Translated(absl::StrCat(R"({"prompt":")", prompt, "\"", more, "}"), {ForeignClient::kSdCpp})
        .request.clip_skip;
  };
  EXPECT_EQ(skip(R"(a<sd_cpp_extra_args>{\"clip_skip\":2}</sd_cpp_extra_args>)", ""), 1);
  EXPECT_EQ(skip(R"(a<sd_cpp_extra_args>{\"clip_skip\":0}</sd_cpp_extra_args>)", ""), std::nullopt);
  EXPECT_EQ(skip("a", ",\"clip_skip\":2"), 2);
}

struct BadClientBody {
  std::string json;
  const char* field;
  const char* message;
};

TEST(ClientFieldsTest, WhatCannotBeMeantIsRefusedWithTheClientsNameOfTheField) {
  const auto in_prompt = [](const std::string& prompt) {
    return boost::json::serialize(boost::json::object{{"prompt", prompt}});
  };
  const std::vector<BadClientBody> bodies = {
      {R"({"prompt":"a","steps":20,"num_inference_steps":30})", "num_inference_steps",
       "num_inference_steps is 30, but steps is 20; give one of them, or the same value"},
      {R"({"prompt":"a","n":1,"num_outputs_per_prompt":2})", "num_outputs_per_prompt", "but n is 1"},
      {R"({"prompt":"a","size":"64x64","width":64,"height":32})", "width", "width and height are 64x32, but size is"},
      {R"({"prompt":"a","width":64})", "width", "is given without height"},
      {R"({"prompt":"a","width":64,"height":48,"extra_params":{"width":32}})", "extra_params.width", "but width is 64"},
      {R"({"prompt":"a","width":"64","height":64})", "width", "width is a string"},
      {R"({"prompt":"a","width":-64,"height":64})", "width", "from 1 to 999999999"},
      {R"({"prompt":"a","width":64,"height":1e10})", "height", "from 1 to 999999999"},
      {R"({"prompt":"a","width":[64],"height":64})", "width", "width is a list"},
      {R"({"prompt":"a","width":true,"height":64})", "width", "width is true or false"},
      {R"({"prompt":"a","width":8,"height":64})", "width", "width is 8; "},
      {R"({"prompt":"a","width":64,"height":4096})", "height", "height is 4096; "},
      {R"({"prompt":"a","steps":0})", "steps", "steps is 0; valid values are 1 to 1000"},
      {R"({"prompt":"a","steps":"20"})", "steps", "steps is a string; it must be a whole number"},
      {R"({"prompt":"a","cfg_scale":-1})", "cfg_scale", "the nearest is 0"},
      {R"({"prompt":"a","batch_size":11})", "batch_size", "batch_size is 11; valid values are 1 to 10"},
      {R"({"prompt":"a","sampler_name":"LCM"})", "sampler_name", "sampler_name 'LCM' is unknown"},
      {R"({"prompt":"a","extra_params":{"num_inference_steps":0}})", "extra_params.num_inference_steps", "is 0; "},
      {R"({"prompt":"a","extra_params":{"wibble":0}})", "extra_params.wibble", "unknown"},
      {R"({"prompt":"a","extra_params":{"extra_params":{}}})", "extra_params.extra_params", "an object"},
      {R"({"prompt":"a","lora.name":"style"})", R"(lora\.name)", "unknown"},
      {R"({"prompt":"a","lora":{"name":"a","adapter":"b"}})", "lora.adapter", "but lora.name is 'a'"},
      {R"({"prompt":"a","lora":{"scale":1}})", "lora.scale", "without the name of an adapter"},
      {R"({"prompt":"a","lora":{"name":"a","scale":"1"}})", "lora.scale", "it must be a number"},
      {R"({"prompt":"a","lora":{"name":7}})", "lora.name", "the name of an adapter"},
      {R"({"prompt":"a","lora":{"name":"a","weight":1}})", "lora.weight", "unknown"},
      {R"({"prompt":"a","lora":{"name":"a"},"loras":[{"name":"b"}]})", "lora.name", "but loras is a list"},
      {R"({"prompt":"a","lora":[{"multiplier":1}]})", "lora", "without a name"},
      {R"({"prompt":"a","lora":[{"name":"a","scale":1}]})", "lora", "valid values are name, path, multiplier"},
      {R"({"prompt":"a","lora":[{"name":"a","path":"b"}]})", "lora[].path", "but lora[].name is 'a'"},
      {R"({"prompt":"a","lora":[{"name":"a","multiplier":"1"}]})", "lora[].multiplier", "a number"},
      {R"({"prompt":"a","lora":[{"name":"a"}]})", "lora", "has no adapters here"},
      {R"({"prompt":"a","lora":["a"]})", "lora", "it must be a list such as"},
      {R"({"prompt":"a","lora_nickname":["a","b"]})", "lora_nickname", "the name of an adapter"},
      {R"({"prompt":"a","init_images":["aGk="]})", "init_images", "makes images from pictures"},
      {R"({"prompt":"a","mask_image":"aGk="})", "mask_image", "makes images from pictures"},
      {R"({"prompt":"a","image":"aGk="})", "image", "makes images from pictures"},
      {R"({"prompt":"a","image":{"a":1}})", "image", "makes images from pictures"},
      {R"({"prompt":"a","wibble":1})", "wibble", "unknown"},
      {R"({"prompt":"a","hires":1,"hires":2})", "", "'hires' is given twice"},
      {in_prompt("a <sd_cpp_extra_args>{\"sample_params\":{\"sample_steps\":0}}</sd_cpp_extra_args>"),
       "sample_params.sample_steps", "sample_params.sample_steps is 0; valid values are 1 to 1000"},
      {in_prompt("a <sd_cpp_extra_args>{\"prompt\":\"b\"}</sd_cpp_extra_args>"), "prompt", "but prompt is 'b'"},
      {in_prompt("a <sd_cpp_extra_args>{\"wibble\":1}</sd_cpp_extra_args>"), "wibble", "unknown"},
      {in_prompt("a <sd_cpp_extra_args>{</sd_cpp_extra_args>"), "prompt", "in <sd_cpp_extra_args>, "},
      {in_prompt("a <sd_cpp_extra_args>[]</sd_cpp_extra_args>"), "prompt", "it is not an object"},
      {in_prompt("a <sd_cpp_extra_args>{}"), "prompt", "without its end"},
      {in_prompt("a </sd_cpp_extra_args>"), "prompt", "has sd_cpp_extra_args"},
      {in_prompt("a < SD_CPP_Extra_Args >{}</sd_cpp_extra_args>"), "prompt", "has sd_cpp_extra_args"},
      {in_prompt("<sd_cpp_extra_args>{}</sd_cpp_extra_args>a<sd_cpp_extra_args>{}</sd_cpp_extra_args>"), "prompt",
       "one element of that name"},
      {in_prompt("<sd_cpp_extra_args>{\"prompt\":\"<sd_cpp_extra_args>{}</sd_cpp_extra_args>\"}</sd_cpp_extra_args>"),
       "prompt", ""},
      {in_prompt("<sd_cpp_extra_args>{\"steps\":3}</sd_cpp_extra_args>"), "prompt", "prompt is empty"},
      {R"({"prompt":"a","negative_prompt":"<sd_cpp_extra_args>{}</sd_cpp_extra_args>"})", "negative_prompt",
       "has sd_cpp_extra_args"},
  };
  ClientServer server({kAll[0], kAll[1], kAll[2]});
  for (const BadClientBody& body : bodies) {
    const Refusal refusal = server.RefusalOf(body.json);
    EXPECT_EQ(refusal.status, 400) << body.json;
    EXPECT_EQ(refusal.field, body.field) << body.json << ": " << refusal.message;
    EXPECT_THAT(refusal.message, HasSubstr(body.message)) << body.json;
    EXPECT_THAT(refusal.message, StartsWith(refusal.field));
  }
}

TEST(ClientFieldsTest, NoFieldTakesThePathOrTheAddressOfAnAdapter) {
  for (const char* name : {"/etc/passwd", "../style", "./style", "~/style", "a/b", "a\\\\b", "https://hub.example/a",
                           "s3:a", "style.safetensors", "style.GGUF", "style.ckpt", ""}) {
    for (const char* form : {R"({"prompt":"a","lora":[{"path":"%"}]})", R"({"prompt":"a","lora":[{"name":"%"}]})",
                             R"({"prompt":"a","lora":{"name":"%"}})", R"({"prompt":"a","lora":{"local_path":"%"}})",
                             R"({"prompt":"a","lora_path":"%"})", R"({"prompt":"a","lora_nickname":"%"})"}) {
      std::string json = form;
      json.replace(json.find('%'), 1, name);
      EXPECT_THAT(ReadGenerationBody(json, BodyKind::kGeneration, kAll).status().message(),
                  HasSubstr("no path and no URL"))
          << json;
    }
  }
}

TEST(ClientFieldsTest, EqualValuesOfTwoNamesAreOne) {
  const GenerationBody body = Translated(
      R"({"prompt":"a","steps":20,"num_inference_steps":20.0,"size":"64x32","width":64,"height":32,
          "lora":[{"name":"a","multiplier":2}],"loras":[{"name":"a","scale":2}]})",
      kAll);
  EXPECT_EQ(body.request.steps, 20);
  EXPECT_EQ(body.request.size, "64x32");
  EXPECT_EQ(body.request.loras, (std::vector<AdapterRequest>{{.name = "a", .scale = 2}}));
}

TEST(ClientFieldsTest, TheFieldsOfOneClientAreNoOnesOfAnother) {
  for (const auto& [client, json] : std::vector<std::pair<ForeignClient, std::string>>{
           {ForeignClient::kSglang, R"({"prompt":"a","batch_size":1})"},
           {ForeignClient::kVllmOmni, R"({"prompt":"a","enable_teacache":true})"},
           {ForeignClient::kSdCpp, R"({"prompt":"a","bot_task":"x"})"}}) {
    EXPECT_THAT(ReadGenerationBody(json, BodyKind::kGeneration, {client}).status().message(), HasSubstr("unknown"));
    EXPECT_TRUE(ReadGenerationBody(json, BodyKind::kGeneration, kAll).ok()) << json;
  }
}

TEST(ClientFieldsTest, WithoutClientsTheirFieldsAreErrors) {
  ClientServer server({});
  for (const char* json : {R"({"prompt":"a","steps":3})", R"({"prompt":"a","width":64,"height":64})",
                           R"({"prompt":"a","generator_device":"cuda"})", R"({"prompt":"a","lora":{"name":"a"}})",
                           R"({"prompt":"a","extra_body":{}})"}) {
    EXPECT_EQ(server.RefusalOf(json).status, 400) << json;
  }
  EXPECT_THAT(server.RefusalOf(R"({"prompt":"a <sd_cpp_extra_args>{}</sd_cpp_extra_args>"})").message,
              HasSubstr("prompt has sd_cpp_extra_args"));
}

TEST(ClientFieldsTest, TheWarningIsBoundedAndCountsTheRest) {
  EXPECT_EQ(IgnoredFieldsWarning({"a", "b.c"}), "299 - \"ignored, without a meaning here: a, b.c\"");
  const std::vector<std::string> many(60, "sample_params.guidance.slg");
  const std::string warning = IgnoredFieldsWarning(many);
  EXPECT_LE(warning.size(), 500u);
  EXPECT_THAT(warning, HasSubstr(" more\""));
}

TEST(ClientFieldsTest, AnAnswerWarnsOfTheIgnoredFieldsWithAndWithoutAStream) {
  ApiFixture api({.api = {.clients = {ForeignClient::kSglang}}});
  const std::string warning = "299 - \"ignored, without a meaning here: generator_device, profile\"";
  for (const char* stream : {"false", "true"}) {
    const std::string ignored =
        absl::StrCat(R"({"prompt":"a","generator_device":"cu\"\r\nda","profile":true,"stream":)", stream, "}");
    const TestResponse response = api.Call("POST", "/v1/images/generations", ignored);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.Header("warning"), warning);
    const TestResponse plain =
        api.Call("POST", "/v1/images/generations", absl::StrCat(R"({"prompt":"a","stream":)", stream, "}"));
    EXPECT_EQ(plain.status, 200);
    EXPECT_EQ(plain.Header("warning"), "");
  }
  const TestResponse refused =
      api.Call("POST", "/v1/images/generations", R"({"prompt":"a","profile":true,"extra_body":{"n":11}})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr(R"("param":"extra_body.n")"));
}

TEST(ClientFieldsTest, JobsHaveOnlyTheFieldsOfThisApi) {
  ApiFixture api({.api = {.clients = {kAll[0], kAll[1], kAll[2]}}});
  const TestResponse job = api.Call("POST", "/v1/jobs", R"({"prompt":"a","width":64,"height":64})");
  EXPECT_EQ(job.status, 400) << job.body;
  EXPECT_EQ(api.Call("POST", "/v1/images/generations", R"({"prompt":"a","width":64,"height":64})").status, 200);
}

}  // namespace
}  // namespace tessera::server
