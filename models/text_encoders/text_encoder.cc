#include "models/text_encoders/text_encoder.h"

#include <limits>

#include "kernels/ops.h"
#include "models/precision.h"
#include "models/text_encoders/bert_encoder.h"
#include "models/text_encoders/clip_encoder.h"
#include "models/text_encoders/t5_encoder.h"

namespace tessera::models {

std::unique_ptr<TextEncoder> MakeTextEncoder(const TextEncoderConfig& config, ParamTable& table) {
  struct Maker {
    std::unique_ptr<TextEncoder> operator()(const T5Config& c) const { return std::make_unique<T5Encoder>(c, table); }
    std::unique_ptr<TextEncoder> operator()(const ClipConfig& c) const {
      return std::make_unique<ClipEncoder>(c, table);
    }
    std::unique_ptr<TextEncoder> operator()(const BertConfig& c) const {
      return std::make_unique<BertEncoder>(c, table);
    }
    ParamTable& table;
  };
  return std::visit(Maker{table}, config.config);
}

at::Tensor TextAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t head_dim,
                         const at::Tensor& bias, double scale) {
  // Returns the product of each head, [t, ·], using the operator whose sums have the same order for any number of
  // threads.
  const auto by_head = [&](const at::Tensor& x, const at::Tensor& y) {
    std::vector<at::Tensor> products;
    for (int64_t i = 0; i < x.size(0); ++i) {
      for (int64_t h = 0; h < x.size(1); ++h)
        products.push_back(kernels::LinearProduct(x[i][h], y[i][h], std::nullopt));
    }
    return at::stack(products).unflatten(0, {x.size(0), x.size(1)});
  };
  const auto heads = [&](const at::Tensor& x) { return x.unflatten(-1, {-1, head_dim}).transpose(1, 2); };
  at::Tensor scores = by_head(heads(q), heads(k)).to(AccumulationType(q.scalar_type()));
  if (scale != 1) scores = scores * scale;
  if (bias.defined()) scores = scores + bias;
  const at::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  return by_head(weights, heads(v).transpose(-1, -2)).transpose(1, 2).flatten(2);
}

at::Tensor PaddingBias(const at::Tensor& mask, at::ScalarType dtype) {
  const double lowest =
      dtype == at::kDouble ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
  return at::zeros_like(mask, mask.options().dtype(dtype)).masked_fill(mask == 0, lowest).unsqueeze(1).unsqueeze(1);
}

}  // namespace tessera::models
