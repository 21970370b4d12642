// Which modules of a model adapters can lie beside, and the names that files of other tools have for them.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "models/adapters/plan/product_spec.h"

namespace tessera::models {

// The names that the model's authors gave its modules, which most tools but diffusers write. Families without such
// files have none.
enum class OriginalNames { kNone, kFlux, kSd3 };
constexpr auto NamesOf(OriginalNames) { return std::array{"none", "flux", "sd3"}; }

// What adapter files are held against. Immutable.
struct AdaptableModel {
  OriginalNames originals = OriginalNames::kNone;
  // Every matrix product by component ("transformer", "text_encoder"), of all ranks' blocks, as ParamTable lists them;
  // components that take no adapters are not here.
  std::map<std::string, std::vector<ProductSpec>, std::less<>> components;
};

// What one name in a file stands for: modules of one component whose outputs lie one after another.
struct NamedModules {
  std::string component;
  std::vector<const ProductSpec*> modules;
  // The file's rows are (shift, scale), the modules' (scale, shift).
  bool halves_exchanged = false;
};

// Answers for one model, which outlives it. Thread-safe.
class AdapterNames {
 public:
  explicit AdapterNames(const AdaptableModel& model);

  // diffusers' dotted name of a module, or an alias of it. Null: there is none.
  const ProductSpec* Module(std::string_view component, std::string_view name) const;
  // The same with every "." replaced by "_", as kohya writes it.
  const ProductSpec* Underscored(std::string_view component, const std::string& name) const;
  // One of the authors' names, dotted or underscored; XLabs' processors are among them. Null: there is none.
  const NamedModules* Original(const std::string& name) const;

  // All of the authors' names, underscored.
  const std::map<std::string, NamedModules, std::less<>>& originals() const { return originals_; }

  const AdaptableModel& model() const { return model_; }

 private:
  using ByName = std::map<std::string, const ProductSpec*, std::less<>>;

  void AddOriginals();
  void AddOriginal(std::string_view original, std::string_view modules, int64_t block);

  const AdaptableModel& model_;
  std::map<std::string, ByName, std::less<>> dotted_, underscored_;  // by component
  std::map<std::string, NamedModules, std::less<>> originals_;       // by underscored name
};

// For which family of models a name was made ("SD3", "Stable Diffusion XL or 1"), where it is one of a family other
// than the model's; empty: it says nothing.
std::string_view ForeignFamily(std::string_view name, OriginalNames originals);

}  // namespace tessera::models
