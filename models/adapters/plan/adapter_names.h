// AdapterNames maps the module names in adapter files of various tools to the modules of a model.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields/enum_names.h"
#include "models/adapters/plan/product_spec.h"

namespace tessera::models {

struct ExpandedKeyRow;

// The module names of the model's authors, which most tools other than diffusers write. kNone is for families without
// such files.
enum class OriginalNames { kNone, kFlux, kSd3, kZImage, kFlux2, kQwenImage };
constexpr auto NamesOf(OriginalNames) { return std::array{"none", "flux", "sd3", "z_image", "flux2", "qwen_image"}; }

// The part of a model's description that adapter files are checked against. Immutable.
struct AdaptableModel {
  OriginalNames originals = OriginalNames::kNone;
  // All matrix products by component ("transformer", "text_encoder"), including other ranks' blocks, as listed by
  // ParamTable. Components that take no adapters are absent.
  std::map<std::string, std::vector<ProductSpec>, std::less<>> components;
};

// The modules that one name in a file refers to. They belong to one component, and their outputs are concatenated.
struct NamedModules {
  std::string original;  // the authors' dotted name; empty for diffusers' name
  std::string component;
  std::vector<const ProductSpec*> modules;
  // The file's rows are ordered (shift, scale), the modules' rows (scale, shift).
  bool halves_exchanged = false;
};

// Looks up names for one model, which outlives it. Thread-safe.
class AdapterNames {
 public:
  explicit AdapterNames(const AdaptableModel& model);

  // Finds a module by diffusers' dotted name or an alias of it. Null if there is none.
  const ProductSpec* Module(std::string_view component, std::string_view name) const;
  // Like Module, with every "." replaced by "_", as kohya writes names.
  const ProductSpec* Underscored(std::string_view component, const std::string& name) const;
  // Finds a name of the authors, dotted or underscored; includes the names of XLabs' processors. Null if there is none.
  const NamedModules* Original(const std::string& name) const;

  // Returns all of the authors' names, underscored.
  const std::map<std::string, NamedModules, std::less<>>& originals() const { return originals_; }

  const AdaptableModel& model() const { return model_; }

 private:
  using ByName = std::map<std::string, const ProductSpec*, std::less<>>;

  void AddOriginals();
  void AddOriginal(const ExpandedKeyRow& row, int64_t block);

  const AdaptableModel& model_;
  std::map<std::string, ByName, std::less<>> dotted_, underscored_;  // by component
  std::map<std::string, NamedModules, std::less<>> originals_;       // by underscored name
};

// Returns the family of models that a name was made for ("SD3", "Stable Diffusion XL or 1") if it is not the model's
// family; otherwise empty.
std::string_view ForeignFamily(std::string_view name, OriginalNames originals);

}  // namespace tessera::models
