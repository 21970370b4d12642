// Runs the cases of autoencoders.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/autoencoder/autoencoder.h"
#include "models/autoencoder/image_codec_table.h"
#include "tests/golden_runner/golden_component.h"

namespace tessera::golden {
namespace {

// Removes the axis of time, which Qwen-Image's tensors have, of one frame.
at::Tensor WithoutTime(const at::Tensor& tensor) { return tensor.dim() == 5 ? tensor.squeeze(2) : tensor; }

// Opens the autoencoder of the case's folder. Returns Unimplemented if its class is not built.
absl::StatusOr<std::unique_ptr<models::Autoencoder>> OpenAutoencoder(const Case& test_case, models::ParamTable& table) {
  const std::string folder = test_case.Path(test_case.Text("folder")), config_path = folder + "/config.json";
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromFile(config_path, "config.json");
  if (!reader.ok()) return reader.status();
  const std::string class_name = reader->String("_class_name", "");
  const models::ImageCodecEntry* entry = models::FindImageCodec(class_name);
  if (entry == nullptr) return absl::UnimplementedError(absl::StrCat("autoencoders of class ", class_name));
  models::ImageCodecConfig config;
  const auto make = [](const models::ImageCodecConfig& c, models::ParamTable& t) { return c.make(t); };
  absl::StatusOr<std::unique_ptr<models::ImageCodec>> codec =
      OpenComponent(folder, config_path, entry->read, make, config, table);
  if (!codec.ok()) return codec.status();
  auto* autoencoder = dynamic_cast<models::Autoencoder*>(codec->get());
  if (autoencoder == nullptr) return absl::UnimplementedError(absl::StrCat(class_name, " in bands"));
  codec->release();
  return std::unique_ptr<models::Autoencoder>(autoencoder);
}

// Compares the whole image at once, and bands of one row each: both must match the reference.
template <class Compare>
void InBothBands(at::Device device, const Compare& compare) {
  compare(models::BandBytesOn(device), "");
  compare(1, " in bands");
}

}  // namespace

absl::StatusOr<Report> RunAutoencoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  models::ParamTable table(at::kFloat, test_case.device);
  const absl::StatusOr<std::unique_ptr<models::Autoencoder>> vae = OpenAutoencoder(test_case, table);
  if (!vae.ok()) return vae.status();
  OneRank rank;
  Report report;
  const auto in = [&](const char* name) { return WithoutTime(gold->at(name)).to(test_case.device); };
  const auto compare = [&](const std::string& what, const at::Tensor& actual, const char* name) {
    report.Add(what, RelativeError(actual, WithoutTime(gold->at(name))), test_case.Tolerance("fp32"));
  };
  InBothBands(test_case.device, [&](int64_t band, const std::string& suffix) {
    compare("decoded" + suffix, (*vae)->DecodeInBands(in("in.latents"), rank.context, band), "decoded");
    const models::Autoencoder::Posterior posterior = (*vae)->EncodeInBands(in("in.image"), rank.context, band);
    compare("mean" + suffix, posterior.mean, "encoded.mean");
    compare("logvar" + suffix, posterior.log_variance, "encoded.logvar");
    compare("latents" + suffix, (*vae)->LatentsOf(posterior.mean), "encoded.latents_from_mean");
    if (!gold->contains("in.posterior_noise")) return;
    const at::Tensor sample = posterior.mean + at::exp(posterior.log_variance / 2) * in("in.posterior_noise");
    compare("sample" + suffix, (*vae)->LatentsOf(sample), "encoded.latents_from_sample");
  });
  return report;
}

absl::StatusOr<Report> RunEncodedImage(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  OneRank rank;
  Report report;
  const at::Tensor pixels = gold->at("image.uint8").permute({2, 0, 1}).unsqueeze(0);
  const at::Tensor image = 2 * (pixels.to(at::kFloat) / 255) - 1;  // [1, 3, H, W], in fp32 also for fp64
  for (const auto& [dtype, name] : {std::pair{at::kFloat, "32"}, {at::kDouble, "64"}}) {
    models::ParamTable table(dtype, test_case.device);
    const absl::StatusOr<std::unique_ptr<models::Autoencoder>> vae = OpenAutoencoder(test_case, table);
    if (!vae.ok()) return vae.status();
    const double tolerance = test_case.Tolerance(absl::StrCat("fp", name).c_str());
    InBothBands(test_case.device, [&, name = std::string(name)](int64_t band, const std::string& suffix) {
      const auto compare = [&](const std::string& what, const at::Tensor& actual) {
        const std::string recorded = absl::StrCat("f", name, ".", what);
        report.Add(recorded + suffix, RelativeError(actual, WithoutTime(gold->at(recorded))), tolerance);
      };
      const models::Autoencoder::Posterior posterior =
          (*vae)->EncodeInBands(image.to(test_case.device, dtype), rank.context, band);
      const at::Tensor noise = WithoutTime(gold->at("noise")).to(test_case.device, dtype);
      compare("mean", posterior.mean);
      compare("logvar", posterior.log_variance);
      compare("latents", (*vae)->LatentsOf(posterior.mean));
      compare("latents_drawn", (*vae)->LatentsOf(posterior.mean + at::exp(posterior.log_variance / 2) * noise));
    });
  }
  return report;
}

}  // namespace tessera::golden
