// Checks that the public protos have a comment on every field and every enum value.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/request_fields.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename Described>
void Check(const Described& described, std::vector<std::string>& silent) {
  google::protobuf::SourceLocation location;
  const bool found = described.GetSourceLocation(&location);
  if (!found || (location.leading_comments.empty() && location.trailing_comments.empty())) {
    silent.push_back(std::string(described.full_name()));
  }
}

void Check(const EnumDescriptor& names, std::vector<std::string>& silent) {
  for (int i = 0; i < names.value_count(); ++i) Check(*names.value(i), silent);
}

void Check(const Descriptor& message, std::vector<std::string>& silent) {
  for (int i = 0; i < message.field_count(); ++i) Check(*message.field(i), silent);
  for (int i = 0; i < message.nested_type_count(); ++i) Check(*message.nested_type(i), silent);
  for (int i = 0; i < message.enum_type_count(); ++i) Check(*message.enum_type(i), silent);
}

// Calls visit(file) for all protos in a folder of `root`, with their comments.
void VisitProtos(const std::string& root, const std::string& folder,
                 const std::function<void(const google::protobuf::FileDescriptor&)>& visit) {
  const TestFolder out;
  const std::string set = out / "set";
  const std::string command = absl::StrCat("'", PROTOC, "' --include_source_info '--descriptor_set_out=", set,
                                           "' '--proto_path=", root, "' '", root, "/", folder, "'/*.proto");
  if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
  std::ifstream file(set, std::ios::binary);
  google::protobuf::FileDescriptorSet files;
  EXPECT_TRUE(files.ParseFromIstream(&file));
  EXPECT_GT(files.file_size(), 0);
  google::protobuf::DescriptorPool pool;
  for (const auto& proto : files.file()) {
    const auto* built = pool.BuildFile(proto);
    if (built == nullptr) {
      ADD_FAILURE() << proto.name() << " cannot be read";
      continue;
    }
    visit(*built);
  }
}

// Returns the fields and enum values without a comment, in all protos in a folder of `root`.
std::vector<std::string> Silent(const std::string& root, const std::string& folder) {
  std::vector<std::string> silent;
  VisitProtos(root, folder, [&silent](const google::protobuf::FileDescriptor& file) {
    for (int i = 0; i < file.message_type_count(); ++i) Check(*file.message_type(i), silent);
    for (int i = 0; i < file.enum_type_count(); ++i) Check(*file.enum_type(i), silent);
  });
  return silent;
}

TEST(ProtoCommentsTest, EveryFieldAndEveryValueHasOne) { EXPECT_THAT(Silent("proto", "tessera/v1"), IsEmpty()); }

// Returns what the comment of a field with these bounds states; nothing for values without bounds.
std::vector<std::string> StatedBounds(const base::Text& valid) {
  if (valid.most_bytes == base::Text().most_bytes) return {};
  // An empty text means that the field is absent, so the minimum length of a text need not be stated.
  return {absl::StrCat(valid.most_bytes, " bytes")};
}
std::vector<std::string> StatedBounds(const base::Integer& valid) {
  if (valid.high == base::Integer().high) return {};
  return {absl::StrCat(valid.low, " to ", valid.high)};
}
std::vector<std::string> StatedBounds(const base::Number& valid) {
  return {absl::StrCat(valid.low, " to ", valid.high)};
}
std::vector<std::string> StatedBounds(const base::Flag&) { return {}; }

TEST(ProtoCommentsTest, TheFieldsOfARequestHaveTheBoundsOfTheTable) {
  // The upper bounds of these fields depend on the model or the server.
  const std::set<std::string> elsewhere = {"n", "num_inference_steps", "max_sequence_length", "sampler", "skip_layers"};
  int checked = 0;
  VisitProtos("proto", "tessera/v1", [&](const google::protobuf::FileDescriptor& file) {
    const Descriptor& request = *file.FindMessageTypeByName("ImageRequest");
    base::ForEachFieldOf<server::ImageRequest>(
        [&]<class Value, class Valid>(const server::RequestField<Value, Valid>& field) {
          const std::string name = server::ApiName(field.facts);
          const auto* described = request.FindFieldByName(name);
          if (field.facts.half || field.facts.words != nullptr || described == nullptr || elsewhere.contains(name))
            return;
          std::vector<std::string> bounds;
          if constexpr (!base::kIsList<Value>) {
            bounds = StatedBounds(field.valid);
          } else if constexpr (std::is_same_v<Valid, base::List<base::Nested>>) {
            bounds = {absl::StrCat("at most ", field.valid.most)};
            base::ForEachFieldOf<typename Value::value_type>([&](const auto& item) {
              if constexpr (std::is_same_v<decltype(item.valid), base::Number>) {
                for (const std::string& of_item : StatedBounds(item.valid)) bounds.push_back(of_item);
              }
            });
          }
          google::protobuf::SourceLocation location;
          ASSERT_TRUE(described->GetSourceLocation(&location));
          for (const std::string& bound : bounds) EXPECT_THAT(location.leading_comments, HasSubstr(bound)) << name;
          if (!bounds.empty()) ++checked;
        });
  });
  EXPECT_GT(checked, 20);
}

TEST(ProtoCommentsTest, OneThatIsMissingIsNoticed) {
  const TestFolder folder;
  folder.Write("v1/planted.proto", R"(syntax = "proto3";
package planted;
message Outer {
  // Said.
  int32 said = 1;
  int32 behind = 2;  // said after it
  int32 silent = 3;
  message Inner {
    int32 silent = 1;
  }
  oneof choice {
    int32 chosen = 4;
  }
}
enum Kind {
  KIND_NONE = 0;
}
)");
  EXPECT_THAT(Silent(folder.path(), "v1"), ElementsAre("planted.Outer.silent", "planted.Outer.chosen",
                                                       "planted.Outer.Inner.silent", "planted.KIND_NONE"));
}

}  // namespace
}  // namespace tessera
