#include "models/text_encoders/t5_encoder.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/pretend_device.h"
#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

constexpr int64_t kVocabulary = 50;

// An encoder with weights generated from a seed.
struct Encoder {
  explicit Encoder(at::Device device)
      : table(at::kDouble, device),
        encoder({.vocabulary = kVocabulary,
                 .width = 16,
                 .head_dim = 8,
                 .heads = 2,
                 .hidden = 24,
                 .layers = 2,
                 .buckets = 32,
                 .max_distance = 128,
                 .norm_eps = 1e-6},
                table) {
    uint64_t seed = 1;
    for (const Param& param : table.params()) param.Value().copy_(Random(param.spec.shape, seed++).to(device));
  }

  at::Tensor Encode(int64_t tokens) const {
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const at::Tensor ids = (at::arange(tokens, at::kLong) * 7 % kVocabulary).unsqueeze(0);
    const at::Tensor there = ids.to(table.device());
    waited = PretendDeviceWaits();
    at::Tensor hidden = encoder.Forward({.ids = there}, {.attention = attention, .tensor = one, .world = one}).hidden;
    waited = PretendDeviceWaits() - waited;
    return hidden.cpu();
  }

  ParamTable table;
  T5Encoder encoder;
  mutable HostWaits waited;  // of the last call
};

// The result does not depend on what the encoder encoded before.
TEST(T5EncoderTest, ATextIsEncodedAsByAFreshEncoder) {
  const c10::InferenceMode no_gradients;
  const Encoder used(at::kCPU);
  for (const int64_t tokens : {7, 1, 600, 40, 512, 513, 601}) {
    EXPECT_TRUE(at::equal(used.Encode(tokens), Encoder(at::kCPU).Encode(tokens))) << tokens;
  }
}

TEST(T5EncoderTest, OnADeviceNothingIsWaitedForAfterTheFirstText) {
  const c10::InferenceMode no_gradients;
  const Encoder host(at::kCPU), device(kPretendDevice);
  device.Encode(3);
  for (const int64_t tokens : {9, 1, 77, 500}) {
    const at::Tensor encoded = device.Encode(tokens);
    EXPECT_EQ(device.waited, HostWaits{}) << tokens;
    EXPECT_LE((encoded - host.Encode(tokens)).abs().max().item<double>(), 1e-12) << tokens;
  }
}

}  // namespace
}  // namespace tessera::models
