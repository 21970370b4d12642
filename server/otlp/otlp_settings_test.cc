#include "server/otlp/otlp_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "server/config/header_lines.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Environment Of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

const Environment kVariables = Of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/"},
                                   {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-scope=1"},
                                   {"OTEL_SERVICE_NAME", "studio"}});

TEST(OtlpSettingsTest, ExportNothingUnlessTheConfigurationSaysSo) {
  const auto settings = OtlpSettingsOf({}, kVariables);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->url, "");
}

TEST(OtlpSettingsTest, FollowTheVariablesOfOpenTelemetryIfTheConfigurationSaysSo) {
  const auto settings = OtlpSettingsOf({.environment = true}, kVariables);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->url, "http://collector:4318/v1/traces");
  EXPECT_EQ(settings->service_name, "studio");
  EXPECT_THAT(settings->headers, ElementsAre("api-key: a b", "x-scope: 1"));
}

TEST(OtlpSettingsTest, PreferTheConfigurationToTheVariables) {
  const TestFolder folder;
  std::ofstream(folder / "headers") << "# a comment\n\n  Authorization: Bearer x:y \n";
  const auto settings = OtlpSettingsOf({.endpoint = "https://otlp.example/a",
                                        .environment = true,
                                        .headers_file = folder / "headers",
                                        .service_name = "mine"},
                                       kVariables);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->url, "https://otlp.example/a/v1/traces");
  EXPECT_EQ(settings->service_name, "mine");
  EXPECT_THAT(*HeaderLinesOf(*settings), ElementsAre("Authorization: Bearer x:y"));
  std::ofstream(folder / "headers") << "Authorization: Bearer new\n";
  EXPECT_THAT(*HeaderLinesOf(*settings), ElementsAre("Authorization: Bearer new"));
}

TEST(OtlpSettingsTest, RefuseWhatCannotBeSentWithoutShowingSecrets) {
  for (const char* bad :
       {"Authorization", ": secret", "a b: secret", "Host: secret", "content-LENGTH: 5", "X-Key: secret\x01",
        "X-Key: s\xc3\xa9"
        "cret",
        "X-Key:"}) {
    const auto headers = ParseHeaderLines(bad);
    ASSERT_FALSE(headers.ok()) << bad;
    EXPECT_THAT(std::string(headers.status().message()), Not(HasSubstr("secret")));
  }
  for (const char* bad : {"a=%zz", "a=%0d%0aX-Other: b", "=x", "a=%4"}) {
    EXPECT_FALSE(ParseHeaderVariable(bad).ok()) << bad;
  }
  EXPECT_THAT(*ParseHeaderVariable(" , "), IsEmpty());
  const auto url = OtlpSettingsOf({.environment = true}, Of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:secret@a"}}));
  EXPECT_THAT(std::string(url.status().message()),
              AllOf(HasSubstr("OTEL_EXPORTER_OTLP_ENDPOINT"), Not(HasSubstr("secret"))));
  const auto file = OtlpSettingsOf({.endpoint = "http://a", .headers_file = "/nowhere/headers"}, Of({}));
  EXPECT_TRUE(absl::IsNotFound(file.status()));
}

}  // namespace
}  // namespace tessera::server
