// Compares docs/openapi.json with the server: routes, fields of requests, and the form of every answer.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/json/plain_json.h"
#include "server/api/job.h"
#include "server/http/image_request_json.h"
#include "server/http/request_schema.h"
#include "tests/support/api_fixture.h"

namespace tessera::server {
namespace {

using boost::json::object;
using boost::json::value;
using ::testing::HasSubstr;

const object& Document() {
  static const auto* document = [] {
    std::ifstream file("docs/openapi.json");
    std::ostringstream text;
    text << file.rdbuf();
    return new object(boost::json::parse(text.str()).as_object());
  }();
  return *document;
}

std::string Text(const value& text) { return std::string(text.as_string()); }

// Returns the schema that a "$ref" refers to.
const value& Resolved(const value& schema) {
  if (!schema.is_object() || !schema.as_object().contains("$ref")) return schema;
  std::string pointer = Text(schema.at("$ref"));
  const value* found = nullptr;
  const object* in = &Document();
  for (const absl::string_view part : absl::StrSplit(absl::string_view(pointer).substr(2), '/')) {
    found = &in->at(std::string(part));
    if (found->is_object()) in = &found->as_object();
  }
  return *found;
}

bool HasType(const value& data, const std::string& type) {
  if (type == "null") return data.is_null();
  if (type == "string") return data.is_string();
  if (type == "boolean") return data.is_bool();
  if (type == "integer") return data.is_int64() || data.is_uint64();
  if (type == "number") return data.is_number();
  if (type == "array") return data.is_array();
  return type == "object" && data.is_object();
}

// Returns how `data` differs from the schema; empty: not at all. It knows the JSON Schema keywords that the document
// uses for answers, and fails for others.
std::string Difference(const value& unresolved, const value& data, const std::string& path) {
  const value& schema = Resolved(unresolved);
  for (const auto& [word_view, rule] : schema.as_object()) {
    const std::string word(word_view);
    if (word == "type") {
      bool matches = rule.is_string() && HasType(data, Text(rule));
      if (rule.is_array()) {
        for (const value& type : rule.as_array()) matches = matches || HasType(data, Text(type));
      }
      if (!matches) return absl::StrCat(path, " is not of type ", boost::json::serialize(rule));
    } else if (word == "const") {
      if (data != rule) return absl::StrCat(path, " is not ", boost::json::serialize(rule));
    } else if (word == "enum") {
      const auto& valid = rule.as_array();
      if (std::find(valid.begin(), valid.end(), data) == valid.end()) return absl::StrCat(path, " is none of the enum");
    } else if (word == "required") {
      for (const value& name : rule.as_array()) {
        if (!data.as_object().contains(name.as_string())) return absl::StrCat(path, " has no ", Text(name));
      }
    } else if (word == "properties") {
      for (const auto& [name, member] : data.as_object()) {
        const value* property = rule.as_object().if_contains(name);
        if (property == nullptr) return absl::StrCat(path, " has the undocumented ", std::string(name));
        const std::string inner = Difference(*property, member, absl::StrCat(path, ".", std::string(name)));
        if (!inner.empty()) return inner;
      }
    } else if (word == "items") {
      for (const value& item : data.as_array()) {
        const std::string inner = Difference(rule, item, path + "[]");
        if (!inner.empty()) return inner;
      }
    } else if (word == "oneOf") {
      int matching = 0;
      for (const value& choice : rule.as_array()) matching += Difference(choice, data, path).empty() ? 1 : 0;
      if (matching != 1) return absl::StrCat(path, " fits ", matching, " of oneOf");
    } else if (word == "minimum" || word == "maximum") {
      if (!data.is_number()) continue;
      const double number = data.to_number<double>(), bound = rule.to_number<double>();
      if (word == "minimum" ? number < bound : number > bound) return absl::StrCat(path, " is beyond the ", word);
    } else if (word != "description" && word != "additionalProperties") {
      return absl::StrCat(path, " has the rule ", word, ", which this test does not know");
    }
  }
  return "";
}

// Checks that the document lists the answer for the operation.
void ExpectDocumented(const std::string& path, const std::string& method, const TestResponse& response) {
  SCOPED_TRACE(absl::StrCat(method, " ", path, " ", response.status, " ", response.body.substr(0, 300)));
  const object& responses = Document().at("paths").at(path).at(method).at("responses").as_object();
  const value* promised = responses.if_contains(absl::StrCat(response.status));
  ASSERT_NE(promised, nullptr) << "this status is not documented";
  const std::string media = response.Header("content-type");
  const value* content = Resolved(*promised).at("content").as_object().if_contains(media);
  ASSERT_NE(content, nullptr) << media;
  if (media != "application/json") return;
  EXPECT_EQ(Difference(content->at("schema"), boost::json::parse(response.body), "$"), "");
}

TEST(OpenApiTest, DocumentAndServerHaveTheSameRoutes) {
  TestImageService service;
  CallGate gate(nullptr);
  const ApiHandler handler(service, gate, {});
  std::set<std::string> served, documented;
  for (const ApiRoute& route : handler.routes()) {
    served.insert(absl::StrCat(route.method, " ", absl::StrReplaceAll(route.pattern, {{"{id...}", "{id}"}})));
  }
  for (const auto& [path, item] : Document().at("paths").as_object()) {
    for (const auto& [method, operation] : item.as_object()) {
      documented.insert(absl::StrCat(absl::AsciiStrToUpper(std::string(method)), " ", std::string(path)));
    }
  }
  EXPECT_EQ(served, documented);
}

TEST(OpenApiTest, QueryParametersAreThoseThatTheServerReads) {
  TestImageService service;
  CallGate gate(nullptr);
  const ApiHandler handler(service, gate, {});
  for (const ApiRoute& route : handler.routes()) {
    std::set<std::string> documented;
    const std::string path = absl::StrReplaceAll(route.pattern, {{"{id...}", "{id}"}});
    const value& operation = Document().at("paths").at(path).at(absl::AsciiStrToLower(route.method));
    if (const value* parameters = operation.as_object().if_contains("parameters")) {
      for (const value& parameter : parameters->as_array()) {
        if (Text(parameter.at("in")) == "query") documented.insert(Text(parameter.at("name")));
      }
    }
    EXPECT_EQ(documented, std::set<std::string>(route.query.begin(), route.query.end())) << path;
    EXPECT_EQ(route.needs_key, !operation.as_object().contains("security")) << path;
  }
}

TEST(OpenApiTest, FieldsOfRequestsAreThoseThatTheServerReads) {
  for (const auto& [kind, name] :
       {std::pair(BodyKind::kGeneration, "GenerationRequest"), std::pair(BodyKind::kJob, "JobRequest")}) {
    std::set<std::string> documented;
    for (const auto& [field, schema] :
         Document().at("components").at("schemas").at(name).at("properties").as_object()) {
      documented.insert(std::string(field));
    }
    const std::vector<std::string> read = GenerationFields(kind);
    EXPECT_EQ(documented, std::set<std::string>(read.begin(), read.end())) << name;
  }
}

// Formats like docs/openapi.json.
std::string Pretty(const value& json, const std::string& indent = "\n") {
  std::string text;
  const auto add = [&](const std::string& item) { absl::StrAppend(&text, text.empty() ? "" : ",", indent, " ", item); };
  if (const object* members = json.if_object()) {
    for (const auto& [name, member] : *members) {
      add(absl::StrCat(boost::json::serialize(value(name)), ": ", Pretty(member, indent + " ")));
    }
    return text.empty() ? "{}" : absl::StrCat("{", text, indent, "}");
  }
  if (const boost::json::array* items = json.if_array()) {
    for (const value& item : *items) add(Pretty(item, indent + " "));
    return text.empty() ? "[]" : absl::StrCat("[", text, indent, "]");
  }
  return base::PlainJson(json);
}

TEST(OpenApiTest, FieldsOfRequestsAreMadeFromTheTable) {
  object made = Document();
  object& schemas = made.at("components").at("schemas").as_object();
  schemas["GenerationRequest"] = RequestSchema(BodyKind::kGeneration);
  schemas["EditRequest"] = RequestSchema(BodyKind::kEdit);
  schemas["JobRequest"] = RequestSchema(BodyKind::kJob);
  const std::string text = Pretty(made) + "\n";
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream("docs/openapi.json") << text;
  std::ifstream file("docs/openapi.json");
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(text == written) << "set TESSERA_UPDATE_DOCUMENTS=1, run this test and build again";
}

TEST(OpenApiTest, TheSchemaThatIsServedIsTheDocumentsOwn) {
  ApiFixture api;
  const TestResponse response = api.Call("GET", "/v1/schema");
  EXPECT_EQ(response.status, 200);
  const value schema = boost::json::parse(response.body);
  EXPECT_EQ(schema, Document().at("components").at("schemas").at("JobRequest"));
  const value& rescale = schema.at("properties").at("guidance_rescale");
  EXPECT_EQ(rescale.at("maximum"), value(1));
  EXPECT_EQ(Text(rescale.at("x-option")), "--guidance-rescale");
  EXPECT_EQ(Text(rescale.at("x-metadata-key")), "Guidance rescale");
  EXPECT_EQ(Text(rescale.at("x-read-with")), "guidance_rescale");
}

TEST(OpenApiTest, EveryAnswerHasADocumentedShape) {
  ApiFixture api({.service = {.adapters = {"style"}, .nodes = {{.name = "node-a", .devices = {"cpu:0"}, .epoch = 1}}}});
  const auto check = [&](const std::string& path, const std::string& method, const std::string& target,
                         const std::string& body = "") {
    const TestResponse response = api.Call(absl::AsciiStrToUpper(method), target, body);
    ExpectDocumented(path, method, response);
    return response;
  };
  const std::string generations = "/v1/images/generations";
  check(generations, "post", generations, R"({"prompt":"a"})");
  check(generations, "post", generations, R"({"prompt":"a","response_format":"url","n":2})");
  check(generations, "post", generations, R"({"prompt":"a","stream":true})");
  check(generations, "post", generations, R"({"prompt":""})");
  check(generations, "post", generations, R"({"prompt":"a","model":"b"})");
  check(generations, "post", generations, R"({"prompt":"[fail]"})");
  check(generations, "post", generations, R"({"prompt":"[refuse]"})");
  const std::string job = check("/v1/jobs", "post", "/v1/jobs", R"({"prompt":"[warn]","user":"u"})").Header("location");
  ASSERT_TRUE(api.service().WaitForState(job.substr(9), JobState::kDone));
  const std::string failed = check("/v1/jobs", "post", "/v1/jobs", R"({"prompt":"[fail]"})").Header("location");
  ASSERT_TRUE(api.service().WaitForState(failed.substr(9), JobState::kFailed));
  const TestResponse done = check("/v1/jobs/{id}", "get", job);
  check("/v1/jobs/{id}", "get", failed);
  check("/v1/jobs/{id}", "delete", job);
  check("/v1/jobs/{id}", "get", "/v1/jobs/x");
  check("/v1/jobs/{id}/events", "get", job + "/events");
  check("/v1/jobs", "get", "/v1/jobs?limit=1");
  check("/v1/jobs", "get", "/v1/jobs?limit=0");
  check("/v1/jobs", "get", absl::StrCat("/v1/jobs?after=page-", std::string(48, '0')));
  const std::string image = Text(boost::json::parse(done.body).at("images").as_array()[0].at("id"));
  check("/v1/images/{id}", "get", "/v1/images/" + image);
  check("/v1/images/{id}", "get", "/v1/images/x");
  check("/v1/models", "get", "/v1/models");
  check("/v1/models/{id}", "get", "/v1/models/fake");
  check("/v1/models/{id}", "get", "/v1/models/x");
  check("/v1/models/{id}", "get", "/v1/models/style");
  check("/v1/jobs", "post", "/v1/jobs", R"({"prompt":"a","loras":[{"name":"style","scale":0.5}]})");
  check("/v1/schema", "get", "/v1/schema");
  check("/v1/server", "get", "/v1/server");
  const TestResponse usage = check("/v1/usage", "get", "/v1/usage");
  EXPECT_GT(boost::json::parse(usage.body).at("data").at(0).at("images").as_int64(), 0);
  check("/v1/usage", "get", "/v1/usage?since=2026-02-30");
  check("/openapi.json", "get", "/openapi.json");
  check("/livez", "get", "/livez");
  check("/readyz", "get", "/readyz");
  api.service().SetReady(absl::UnavailableError("no group is warm"));
  check("/readyz", "get", "/readyz");
}

TEST(OpenApiTest, EveryEventOfAStreamHasItsDocumentedShape) {
  ApiFixture api;
  const std::map<std::string, std::string> schemas = {{"image_generation.partial_image", "PartialImageEvent"},
                                                      {"image_generation.completed", "CompletedEvent"},
                                                      {"error", "ErrorEvent"}};
  std::set<std::string> met;
  for (const char* body :
       {R"({"prompt":"a","stream":true,"num_inference_steps":50,"partial_images":3,"n":2})",
        R"({"prompt":"a","stream":true,"response_format":"url"})", R"({"prompt":"[fail]","stream":true})"}) {
    const TestResponse response = api.Call("POST", "/v1/images/generations", body);
    ASSERT_EQ(response.status, 200);
    for (const absl::string_view line : absl::StrSplit(response.body, '\n')) {
      if (!absl::StartsWith(line, "data: ")) continue;
      const value data = boost::json::parse(std::string(line.substr(6)));
      const std::string type = Text(data.at("type"));
      met.insert(type);
      const auto schema = schemas.find(type);
      ASSERT_NE(schema, schemas.end()) << type;
      EXPECT_EQ(Difference(Document().at("components").at("schemas").at(schema->second), data, type), "");
    }
  }
  // Previews may be superseded.
  EXPECT_TRUE(met.contains("image_generation.completed") && met.contains("error"));
}

TEST(OpenApiTest, EveryEventOfAJobHasItsDocumentedShape) {
  ApiFixture api({.service = {.paused = true}});
  const value& answer = Document().at("paths").at("/v1/jobs/{id}/events").at("get").at("responses").at("200");
  const value& schema = answer.at("content").at("text/event-stream").at("schema");
  std::set<std::string> names;
  for (const char* prompt : {"a", "[fail]"}) {
    const std::string body = absl::StrCat(R"({"prompt":")", prompt, R"(","num_inference_steps":9,"partial_images":3})");
    const std::string job = api.Call("POST", "/v1/jobs", body).Header("location");
    HttpTestClient client(api.port());
    client.Send(absl::StrCat("GET ", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    ASSERT_TRUE(api.service().WaitForWatches(1));
    api.service().AllowSteps(9);
    const std::string events = client.ReadResponse().body;
    for (const absl::string_view event : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
      const std::vector<std::string> parts = absl::StrSplit(event, absl::MaxSplits("\ndata: ", 1));
      ASSERT_EQ(parts.size(), 2u) << event;
      names.insert(parts[0].substr(7));
      EXPECT_EQ(Difference(schema, boost::json::parse(parts[1]), parts[0]), "");
    }
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"step", "image", "done", "failed"}));
}

TEST(OpenApiTest, ShapesThatDifferAreNoticed) {
  const value schema = boost::json::parse(R"({"$ref":"#/components/schemas/Error"})");
  const auto difference = [&](const char* text) { return Difference(schema, boost::json::parse(text), "$"); };
  EXPECT_EQ(difference(R"({"error":{"message":"a","type":"b","param":null,"code":"c"}})"), "");
  EXPECT_THAT(difference(R"({"error":{"message":"a","type":"b","code":"c"}})"), HasSubstr("has no param"));
  EXPECT_THAT(difference(R"({"error":{"message":1,"type":"b","param":null,"code":"c"}})"), HasSubstr("not of type"));
  EXPECT_THAT(difference(R"({"error":{"message":"a","type":"b","param":null,"code":"c","x":1}})"),
              HasSubstr("undocumented x"));
}

}  // namespace
}  // namespace tessera::server
