// Runs the cases of autoencoders.
#include <memory>
#include <string>

#include "models/autoencoder/autoencoder.h"
#include "tests/golden_runner/golden_component.h"

namespace tessera::golden {

absl::StatusOr<Report> RunAutoencoder(const Case& test_case) {
  const c10::InferenceMode no_gradients;
  const absl::StatusOr<Tensors> gold = ReadTensors(test_case.Path(test_case.file));
  if (!gold.ok()) return gold.status();
  const std::string folder = test_case.Path(test_case.Text("folder"));
  models::ParamTable table(at::kFloat, test_case.device);
  models::AutoencoderConfig config;
  const auto make = [](const models::AutoencoderConfig& c, models::ParamTable& t) {
    return std::make_unique<models::Autoencoder>(c, t);
  };
  const absl::StatusOr<std::unique_ptr<models::Autoencoder>> vae =
      OpenComponent(folder, folder + "/config.json", models::ParseAutoencoderConfig, make, config, table);
  if (!vae.ok()) return vae.status();
  OneRank rank;
  Report report;
  const double tolerance = test_case.Tolerance("fp32");
  const auto in = [&](const char* name) { return gold->at(name).to(test_case.device); };
  // Decodes and encodes the whole image at once, and in bands of one row each. Both must match the reference.
  for (const int64_t band : {models::BandBytesOn(test_case.device), int64_t{1}}) {
    const std::string suffix = band == 1 ? " in bands" : "";
    report.Add("decoded" + suffix,
               RelativeError((*vae)->DecodeInBands(in("in.latents"), rank.context, band), gold->at("decoded")),
               tolerance);
    const models::Autoencoder::Posterior posterior = (*vae)->EncodeInBands(in("in.image"), rank.context, band);
    report.Add("mean" + suffix, RelativeError(posterior.mean, gold->at("encoded.mean")), tolerance);
    report.Add("logvar" + suffix, RelativeError(posterior.log_variance, gold->at("encoded.logvar")), tolerance);
    report.Add("latents" + suffix,
               RelativeError((*vae)->norm().Apply(posterior.mean), gold->at("encoded.latents_from_mean")), tolerance);
    const at::Tensor sample = posterior.mean + at::exp(posterior.log_variance / 2) * in("in.posterior_noise");
    report.Add("sample" + suffix, RelativeError((*vae)->norm().Apply(sample), gold->at("encoded.latents_from_sample")),
               tolerance);
  }
  return report;
}

}  // namespace tessera::golden
