// Runs the cases of weights in the files that users have: single checkpoints, GGUF files, folders packed by
// bitsandbytes, and files that must be refused.
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"
#include "models/autoencoder/autoencoder.h"
#include "models/autoencoder/image_codec_table.h"
#include "models/text_encoders/text_encoder.h"
#include "tests/golden_runner/golden_component.h"
#include "tests/golden_runner/mesh_pass.h"
#include "tests/golden_runner/model_under_test.h"
#include "tests/golden_runner/on_ranks.h"

namespace tessera::golden {
namespace {

// Where a component of a case is.
struct Part {
  std::string component, path, config_path, class_name;
};

absl::StatusOr<std::vector<Part>> PartsOf(const Case& test_case) {
  const std::string base = test_case.Text("base");
  const base::Json* made_of = test_case.folders.Find(base);
  const base::Json* others = made_of == nullptr ? nullptr : made_of->Find("parts");
  const std::string folder = test_case.Text("folder");
  std::vector<Part> parts;
  for (const base::Json& listed : test_case.arguments.Find("components")->items()) {
    Part part{.component = *listed.AsString()};
    std::string own = test_case.Path((folder.empty() ? base : folder) + "/" + part.component);
    if (!std::filesystem::exists(own) && others != nullptr && others->Find(part.component) != nullptr) {
      own = test_case.Path(*others->Find(part.component)->AsString());
    }
    part.config_path = own + "/config.json";
    part.path = folder.empty() ? test_case.Path(test_case.Text("file")) : own;
    ASSIGN_OR_RETURN(const base::ConfigReader config, base::ConfigReader::FromFile(part.config_path, part.component));
    ASSIGN_OR_RETURN(part.class_name, ClassOf(config.json()));
    parts.push_back(std::move(part));
  }
  return parts;
}

// Returns a whole weight in fp64, in the shape that the file gives it.
absl::StatusOr<at::Tensor> ReadWeight(const models::WeightFolder& weights, const models::WeightLocation& location) {
  std::vector<std::byte> bytes(location.bytes());
  RETURN_IF_ERROR(weights.Read(location, 0, bytes));
  const std::vector<int64_t>& shape = location.tensor.shape;
  if (location.quantization == nullptr) {
    const std::optional<at::ScalarType> type = models::TorchType(location.tensor.type);
    if (!type) return absl::InvalidArgumentError(location.tensor.name);
    return at::from_blob(bytes.data(), shape, *type).to(at::kDouble).clone();
  }
  ASSIGN_OR_RETURN(const at::Tensor wide, models::WidenedRows(weights, location, 0, location.rows(), bytes.data()));
  return wide.view(shape).to(at::kDouble);
}

// Four numbers that distinguish a tensor from every other one.
at::Tensor Fingerprint(const at::Tensor& weight) {
  const at::Tensor flat = weight.flatten(), j = at::arange(flat.numel(), at::kDouble);
  return at::stack(
      {flat.norm(), (flat * at::cos(0.01 * j)).sum(), (flat * at::cos(0.0371 * j + 1)).sum(), flat.abs().max()});
}

// Compares the names and values of all weights.
absl::Status CompareWeights(const Part& part, const models::ParamTable& table, bool is_packed_folder,
                            const Tensors& gold, Report& report) {
  ASSIGN_OR_RETURN(models::WeightFolder weights, OpenWeights(part.path, part.config_path));
  RETURN_IF_ERROR(models::NameWeights(weights, table));
  const std::string fingerprints = absl::StrCat("fingerprint.", part.component, "."),
                    values = absl::StrCat("value.", part.component, ".");
  std::set<std::string> unseen;
  for (const auto& [name, location] : weights.tensors()) unseen.insert(name);
  const auto value_of = [&](const std::string& name) -> absl::StatusOr<at::Tensor> {
    const auto found = weights.tensors().find(name);
    if (found != weights.tensors().end()) return ReadWeight(weights, found->second);
    for (const models::Param& param : table.params()) {
      if (param.spec.name == name && param.spec.is_identity_if_missing)
        return at::eye(param.spec.shape[0], at::kDouble);
    }
    return absl::NotFoundError(absl::StrCat(part.component, " has no ", name));
  };
  for (const auto& [name, expected] : gold) {
    if (name.starts_with(fingerprints)) {
      const std::string parameter = name.substr(fingerprints.size());
      ASSIGN_OR_RETURN(const at::Tensor value, value_of(parameter));
      report.Add(name, RelativeError(Fingerprint(value), expected), is_packed_folder ? 1e-6 : 1e-12);
      unseen.erase(parameter);
    } else if (name.starts_with(values)) {
      ASSIGN_OR_RETURN(const at::Tensor value, value_of(name.substr(values.size())));
      report.Add(name, RelativeError(value.reshape(expected.sizes()), expected), is_packed_folder ? 1e-6 : 0);
    }
  }
  report.Add(absl::StrCat("weights that are in no golden: ", absl::StrJoin(unseen, ", ")),
             static_cast<double>(unseen.size()), 0);
  return absl::OkStatus();
}

// The results of autoencoders and text encoders are recorded in fp64 from inputs or position tables in fp32.
double Allowed(const Case& test_case, at::ScalarType dtype) {
  const double fp32 = test_case.Tolerance("fp32");
  return dtype == at::kDouble ? std::min(fp32, std::max(test_case.Tolerance("fp64"), 1e-6)) : fp32;
}

absl::StatusOr<Tensors> TransformerInputs(const Case& test_case) {
  ASSIGN_OR_RETURN(Tensors inputs, ReadTensors(test_case.Path(test_case.Text("inputs"))));
  if (const base::Json* shapes = test_case.arguments.Find("img_shapes"); shapes != nullptr) {
    inputs["in.img_shapes"] = PictureSizes(*shapes);
  }
  return inputs;
}

// The weights of the reference may be rounded to the library's dtype; either is right.
double Error(const at::Tensor& actual, const Tensors& gold, const std::string& name, const char* rounded) {
  const double error = RelativeError(actual.reshape(gold.at(name).sizes()), gold.at(name));
  const auto other = gold.find(rounded);
  return other == gold.end() ? error
                             : std::min(error, RelativeError(actual.reshape(other->second.sizes()), other->second));
}

absl::Status CompareTransformer(const Case& test_case, const Part& part, const Tensors& gold, Report& report) {
  ASSIGN_OR_RETURN(const Tensors inputs, TransformerInputs(test_case));
  for (const auto& [dtype, precision] : {std::pair{at::kDouble, "64"}, {at::kFloat, "32"}}) {
    const std::string name = absl::StrCat("f", precision, ".output");
    const double tolerance = test_case.Tolerance(absl::StrCat("fp", precision).c_str());
    ASSIGN_OR_RETURN(const std::unique_ptr<ModelUnderTest> whole,
                     OpenModel(part.class_name, part.path, part.config_path, dtype, test_case.device));
    const Tensors here = OnDevice(inputs, test_case.device);
    const auto compare = [&](const at::Tensor& output, Report& own) {
      own.Add(name, Error(output, gold, name, dtype == at::kDouble ? "f64.rounded" : ""), tolerance);
    };
    if (test_case.layout.ranks() > 1) {
      ASSIGN_OR_RETURN(
          const Report on_ranks,
          RunOnRanks(test_case.layout, whole->heads, whole->model->num_blocks(), [&](const RankPlace& place) {
            const c10::InferenceMode no_gradients;
            Report own;
            const absl::StatusOr<std::unique_ptr<ModelUnderTest>> share =
                OpenModel(part.class_name, part.path, part.config_path, dtype, test_case.device, place.share);
            if (!share.ok()) return absl::StatusOr<Report>(share.status());
            std::vector<at::Tensor> outputs;
            for (const Tensors& row : RowsOf(**share, here)) {
              const models::TransformerInput input = (*share)->input(row);
              outputs.push_back((*share)->output(RunOnMesh(*(*share)->model, input, place), input.grid));
            }
            compare(at::cat(outputs), own);
            return absl::StatusOr<Report>(own);
          }));
      report.Add("", on_ranks);
      continue;
    }
    compare(OutputOf(*whole, here), report);
    if (dtype != at::kDouble) continue;
    RETURN_IF_ERROR(CompareWeights(part, whole->table, !test_case.Text("folder").empty(), gold, report));
  }
  return absl::OkStatus();
}

absl::Status CompareAutoencoder(const Case& test_case, const Part& part, const Tensors& gold, Report& report) {
  const models::ImageCodecEntry* entry = models::FindImageCodec(part.class_name);
  if (entry == nullptr) return absl::UnimplementedError(absl::StrCat("autoencoders of class ", part.class_name));
  ASSIGN_OR_RETURN(const Tensors inputs, ReadTensors(test_case.Path(test_case.Text("vae_inputs"))));
  const auto without_time = [](const at::Tensor& x) { return x.dim() == 5 ? x.squeeze(2) : x; };
  OneRank rank;
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, "fp64"}, {at::kFloat, "fp32"}}) {
    models::ParamTable table(dtype, test_case.device);
    models::ImageCodecConfig config;
    const auto make = [](const models::ImageCodecConfig& c, models::ParamTable& t) { return c.make(t); };
    ASSIGN_OR_RETURN(const std::unique_ptr<models::ImageCodec> codec,
                     OpenComponent(part.path, part.config_path, entry->read, make, config, table));
    auto* autoencoder = dynamic_cast<models::Autoencoder*>(codec.get());
    if (autoencoder == nullptr) return absl::UnimplementedError(absl::StrCat(part.class_name, " in bands"));
    const auto in = [&](const char* name) { return without_time(inputs.at(name)).to(test_case.device, dtype); };
    const double allowed = Allowed(test_case, dtype);
    const auto compare = [&](const char* name, const at::Tensor& actual) {
      report.Add(absl::StrCat(name, " in ", tolerance), RelativeError(actual, without_time(gold.at(name))), allowed);
    };
    // `in.scaled` is what the network decodes, and the file may have other statistics of latents.
    compare("vae.f64.decoded", autoencoder->DecodeInBands(autoencoder->LatentsOf(in("in.scaled")), rank.context,
                                                          models::BandBytesOn(test_case.device)));
    compare("vae.f64.mean",
            autoencoder->EncodeInBands(in("in.image"), rank.context, models::BandBytesOn(test_case.device)).mean);
    if (dtype == at::kDouble) {
      RETURN_IF_ERROR(CompareWeights(part, table, !test_case.Text("folder").empty(), gold, report));
    }
  }
  return absl::OkStatus();
}

absl::Status CompareTextEncoder(const Case& test_case, const Part& part, const Tensors& gold, Report& report) {
  ASSIGN_OR_RETURN(const Tensors inputs,
                   ReadTensors(test_case.Path(test_case.Text(absl::StrCat(part.component, "_inputs").c_str()))));
  OneRank rank;
  for (const auto& [dtype, precision] : {std::pair{at::kDouble, "fp64"}, {at::kFloat, "fp32"}}) {
    models::ParamTable table(dtype, test_case.device);
    models::TextEncoderConfig config;
    const auto parse = [&](base::ConfigReader& reader) { return models::ReadTextEncoder(part.class_name, reader); };
    const auto make = [](const models::TextEncoderConfig& c, models::ParamTable& t) { return c.make(t); };
    ASSIGN_OR_RETURN(const std::unique_ptr<models::TextEncoder> encoder,
                     OpenComponent(part.path, part.config_path, parse, make, config, table));
    const at::Tensor ids = inputs.at("input_ids").narrow(0, 0, 1).to(test_case.device);
    // Decoders see a mask, and padding does not count.
    const bool is_decoder = gold.contains(part.component + ".f64.penultimate") && config.pooled_width == 0;
    at::Tensor mask;
    if (is_decoder) mask = inputs.at("attention_mask").narrow(0, 0, 1).to(test_case.device);
    const auto compare = [&](const char* name, int64_t state) {
      const std::string full = absl::StrCat(part.component, ".f64.", name);
      const auto expected = gold.find(full);
      if (expected == gold.end()) return;
      at::Tensor hidden = encoder->Forward({.ids = ids, .mask = mask, .states = {state}}, rank.context).hidden;
      if (is_decoder) hidden = hidden * mask.unsqueeze(-1);
      report.Add(absl::StrCat(full, " in ", precision), RelativeError(hidden, expected->second),
                 Allowed(test_case, dtype));
    };
    compare("penultimate", -2);
    compare("last_hidden_state", -1);
    if (const auto pooled = gold.find(part.component + ".f64.pooled"); pooled != gold.end()) {
      report.Add(absl::StrCat(pooled->first, " in ", precision),
                 RelativeError(encoder->Forward({.ids = ids}, rank.context).pooled, pooled->second),
                 Allowed(test_case, dtype));
    }
    if (dtype == at::kDouble) {
      RETURN_IF_ERROR(CompareWeights(part, table, !test_case.Text("folder").empty(), gold, report));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunStoredWeights(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(test_case));
  Report report;
  for (const Part& part : parts) {
    if (part.component == "transformer") {
      const absl::Status compared = CompareTransformer(test_case, part, gold, report);
      // Tensor ranks that would cut a block are refused by name.
      if (test_case.layout.mesh.tensor > 1 && absl::StrContains(compared.message(), "within a block of")) {
        return absl::UnimplementedError(compared.message());
      }
      RETURN_IF_ERROR(compared);
    } else if (test_case.layout.ranks() > 1) {
      continue;
    } else if (part.component == "vae") {
      RETURN_IF_ERROR(CompareAutoencoder(test_case, part, gold, report));
    } else {
      RETURN_IF_ERROR(CompareTextEncoder(test_case, part, gold, report));
    }
  }
  if (test_case.layout.ranks() > 1 && report.comparisons() == 0)
    return absl::UnimplementedError("it has no transformer");
  return report;
}

absl::StatusOr<Report> RunRefusedFile(const Case& test_case) {
  const std::string base = test_case.Path(test_case.Text("base")), path = test_case.Path(test_case.file);
  const bool is_folder = std::filesystem::is_directory(path);
  const std::string component = *test_case.arguments.Find("components")->items().front().AsString();
  const std::string config = (is_folder ? path : base) + "/" + component + "/config.json";
  const std::string stored = is_folder ? path + "/" + component : path;
  // Wherever code of a pickle would leave its mark.
  constexpr char kMark[] = "pickle-was-run";
  if (std::filesystem::exists(kMark)) return absl::FailedPreconditionError(absl::StrCat(kMark, " exists already"));
  ASSIGN_OR_RETURN(const base::ConfigReader reader, base::ConfigReader::FromFile(config, "config.json"));
  ASSIGN_OR_RETURN(const std::string class_name, ClassOf(reader.json()));
  const absl::StatusOr<std::unique_ptr<ModelUnderTest>> opened =
      OpenModel(class_name, stored, config, at::kFloat, test_case.device);
  Report report;
  report.Add("code of a pickle was run", std::filesystem::exists(kMark) ? 1 : 0, 0);
  const bool may_load = !test_case.Text("optional").empty();
  if (opened.ok()) {
    report.Add("it was loaded", may_load ? 0 : 1, 0);
    return report;
  }
  const std::string message(opened.status().message());
  for (const base::Json& name : test_case.arguments.Find("names")->items()) {
    const bool is_named = message.find(*name.AsString()) != std::string::npos;
    report.Add(absl::StrCat("the message does not name ", *name.AsString(), ": ", message), is_named ? 0 : 1, 0);
  }
  return report;
}

}  // namespace tessera::golden
