#include "client/cli/train/config_template.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "base/fields/json_fields.h"
#include "base/text/byte_text.h"
#include "base/text/utf8.h"
#include "control/model/model_description.h"
#include "control/training/model_training.h"

namespace tessera::client {
namespace {

constexpr size_t kCommentColumn = 44;

// Collects lines of YAML with their comments aligned in one column.
class Lines {
 public:
  // File names are written into comments and may contain any characters.
  void Comment(const std::string& text) {
    absl::StrAppend(&text_, indent_, "# ", base::ReplaceControlCharacters(text), "\n");
  }
  void Blank() { text_ += '\n'; }

  template <base::Described T>
  void Fields(const T& value) {
    base::ForEachField([this](const auto& field, const auto& member) { (*this)(field, member); }, value);
  }
  // Writes a section for a mapping or a list of mappings, and one line for anything else.
  template <class F, class T>
  void operator()(const F& field, const T& value) {
    if constexpr (base::Described<T>) {
      Section(field.name);
      if (*field.help != '\0') Comment(field.help);
      Fields(value);
      EndSection();
    } else {
      std::string comment = field.help;
      if constexpr (base::NamedEnum<T>) comment = absl::StrJoin(base::EnumNames<T>(), ", ") + comment;
      Line(field.name, base::JsonOfFields(value), comment);
    }
  }
  void Section(const char* name) {
    if (indent_.empty()) Blank();
    absl::StrAppend(&text_, indent_, name, ":\n");
    indent_ += "  ";
  }
  void EndSection() { indent_.resize(indent_.size() - 2); }
  template <base::Described T>
  void Item(const T& value) {
    first_of_item_ = true;
    Fields(value);
    EndSection();
  }
  std::string Take() { return std::move(text_); }

 private:
  void Line(const char* name, const std::string& value, const std::string& comment) {
    std::string line = absl::StrCat(indent_, first_of_item_ ? "- " : "", name, ": ", value);
    if (std::exchange(first_of_item_, false)) indent_ += "  ";
    if (!comment.empty()) {
      if (line.size() < kCommentColumn) line.resize(kCommentColumn, ' ');
      absl::StrAppend(&line, "  # ", comment);
    }
    absl::StrAppend(&text_, line, "\n");
  }

  std::string text_;
  std::string indent_;
  bool first_of_item_ = false;
};

// Returns "Predicted memory of a rank: 27.1 MiB (17.3 MiB of weights, …). …"
std::string MemoryText(const TemplateFacts& facts) {
  const control::LargestSample largest = control::LargestSampleOf(facts.images, facts.model);
  const control::TrainingMemory memory = control::PredictMemory(facts.config, facts.model, largest);
  std::vector<std::string> parts;
  for (const auto& [what, bytes] : {std::pair<std::string, uint64_t>{"weights", memory.weights},
                                    {"adapter", memory.adapter},
                                    {"gradients", memory.gradients},
                                    {"optimizer state", memory.optimizer},
                                    {"activations at " + control::BucketText(largest.bucket), memory.activations}}) {
    if (bytes > 0) parts.push_back(absl::StrCat(base::ByteText(bytes), " of ", what));
  }
  return absl::StrCat("Predicted memory of a rank: ", base::ByteText(memory.total()), " (", absl::StrJoin(parts, ", "),
                      "), and ", base::ByteText(memory.encoding), " until everything is encoded (",
                      base::ByteText(memory.encoding_waiting), " if text encoders wait in main memory).");
}

void Head(const TemplateFacts& facts, Lines& lines) {
  const control::ModelDescription& model = facts.model;
  lines.Comment(absl::StrCat("Training of ", model.pipeline, " (family ", model.family, ", ", model.blocks, " blocks, ",
                             model.heads, " heads)."));
  lines.Comment(MemoryText(facts));
  lines.Comment("All keys except model, output and datasets are optional.");
  lines.Blank();
}

void Images(const TemplateFacts& facts, Lines& lines) {
  std::map<int64_t, int64_t> in_bucket;
  for (const control::TrainingSample& sample : facts.images.samples) ++in_bucket[sample.bucket];
  lines.Section("datasets");
  lines.Comment(absl::StrCat("Found here: ", facts.images.samples.size(),
                             facts.images.samples.size() == 1 ? " image" : " images", ". Buckets:"));
  for (const auto& [bucket, count] : in_bucket) {
    const std::string size = control::BucketText(facts.images.buckets[static_cast<size_t>(bucket)]);
    lines.Comment(absl::StrCat("  ", size, "  ", count, count == 1 ? " image" : " images"));
  }
  for (const std::string& warning : facts.images.Warnings()) lines.Comment(absl::StrCat(warning, "."));
  for (const control::TrainDataset& dataset : facts.config.datasets) lines.Item(dataset);
  lines.EndSection();
}

}  // namespace

std::string ConfigTemplate(const TemplateFacts& facts) {
  Lines lines;
  Head(facts, lines);
  base::ForEachField(
      [&]<class T>(const auto& field, const T& value) {
        if constexpr (std::is_same_v<T, std::vector<control::TrainDataset>>) {
          Images(facts, lines);
        } else {
          lines(field, value);
        }
      },
      facts.config);
  return lines.Take();
}

std::string CommentedConfig(const control::TrainConfig& config, const std::vector<std::string>& comments) {
  Lines lines;
  for (const std::string& comment : comments) lines.Comment(comment);
  lines.Blank();
  base::ForEachField(
      [&]<class T>(const auto& field, const T& value) {
        if constexpr (std::is_same_v<T, std::vector<control::TrainDataset>>) {
          lines.Section(field.name);
          for (const control::TrainDataset& dataset : value) lines.Item(dataset);
          lines.EndSection();
        } else {
          lines(field, value);
        }
      },
      config);
  return lines.Take();
}

}  // namespace tessera::client
