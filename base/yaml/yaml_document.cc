#include "base/yaml/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <exception>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text/utf8.h"

namespace tessera::base {
namespace {

// Follows the parser through a document without storing it, and throws at the first violation of the bounds.
class BoundsChecker final : public YAML::EventHandler {
 public:
  explicit BoundsChecker(const YamlBounds& bounds) : bounds_(bounds) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    // The parser treats a comma at the beginning of a document as an empty document followed by another one, endlessly.
    if (++documents_ > 1) {
      throw YAML::ParserException(mark, "there is more than one YAML document, or text after the end of the first");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Count(mark, anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Count(mark, 0);
    Require(++aliases_ <= bounds_.aliases, mark, "aliases", bounds_.aliases);
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, const std::string&) override {
    Count(mark, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Enter(mark, anchor);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Enter(mark, anchor);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void Enter(const YAML::Mark& mark, YAML::anchor_t anchor) {
    Count(mark, anchor);
    Require(++depth_ <= bounds_.depth, mark, "levels of mappings and lists", bounds_.depth);
  }
  void Count(const YAML::Mark& mark, YAML::anchor_t anchor) {
    Require(++nodes_ <= bounds_.nodes, mark, "keys and values", bounds_.nodes);
    if (anchor != 0) Require(++anchors_ <= bounds_.anchors, mark, "anchors", bounds_.anchors);
  }
  static void Require(bool within, const YAML::Mark& mark, const char* what, int most) {
    if (!within) throw YAML::ParserException(mark, absl::StrCat("there are more than ", most, " ", what));
  }

  const YamlBounds bounds_;
  int documents_ = 0;
  int depth_ = 0;
  int nodes_ = 0;
  int anchors_ = 0;
  int aliases_ = 0;
};

}  // namespace

absl::StatusOr<YAML::Node> ReadYamlDocument(const std::string& text, const YamlBounds& bounds) {
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    BoundsChecker checker(bounds);
    // The second call throws if a second document begins.
    if (!parser.HandleNextDocument(checker)) return YAML::Node(YAML::NodeType::Null);
    parser.HandleNextDocument(checker);
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration is not readable as YAML at line ",
                                                   error.mark.line + 1, ": ",
                                                   ReplaceInvalidUtf8(absl::string_view(error.msg).substr(0, 200))));
  } catch (const std::exception&) {
    return absl::InvalidArgumentError("the configuration is not readable as YAML");
  }
}

}  // namespace tessera::base
