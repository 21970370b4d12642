#include "parallel/attention/stale_store.h"

#include <algorithm>

#include "base/macros/planted.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kNever = -1;

bool HasText(TokenRows rows) { return rows != TokenRows::kImage; }

}  // namespace

void StaleStore::Begin(int64_t epoch, const TokenLayout& tokens, int ring_rank) {
  TORCH_CHECK(epoch > epoch_, "epoch ", epoch, " after epoch ", epoch_);
  tokens_ = tokens;
  ring_rank_ = ring_rank;
  if (base::Planted("stale_store_across_requests") && epoch_ != kNever) return;
  epoch_ = epoch;
}

Qkv StaleStore::Renew(int layer, const Qkv& qkv) {
  // References attend to one another only in a pass that computes all of them.
  if (qkv.keys == TokenRows::kReferences) return qkv;
  const bool with_text = HasText(qkv.keys);
  const int64_t texts = tokens_->Text(ring_rank_).count();
  const int64_t skipped = with_text ? 0 : texts;  // StoreRow counts text rows even if this attention has none
  const int64_t rows = tokens_->StoreRows(ring_rank_) - skipped;
  const int patches = tokens_->counts().patches;

  Layer& kept = layers_[layer];
  std::vector<int64_t> shape = qkv.k.sizes().vec();
  shape[1] = rows;
  shape.insert(shape.begin(), 2);
  if (!kept.keys_values.defined() || kept.keys_values.sizes() != at::IntArrayRef(shape) ||
      kept.keys_values.options().dtype() != qkv.k.options().dtype()) {
    kept.keys_values = at::empty(shape, qkv.k.options());
    kept.epochs.assign(static_cast<size_t>(patches), kNever);
  }
  kept.epochs.resize(static_cast<size_t>(patches), kNever);

  int64_t from = 0;
  for (const TokenRun& run : tokens_->ExchangedRuns(qkv.keys, pass_, ring_rank_)) {
    // If there are other ring ranks, the shares of consecutive patches are not adjacent in the store. Their global
    // indices are not consecutive either, so they are separate runs.
    const int64_t count = run.tokens.count(), to = tokens_->StoreRow(ring_rank_, run) - skipped;
    kept.keys_values[0].narrow(1, to, count).copy_(qkv.k.narrow(1, from, count));
    kept.keys_values[1].narrow(1, to, count).copy_(qkv.v.narrow(1, from, count));
    from += count;
  }
  TORCH_CHECK(from == qkv.k.size(1), "a pass over patches ", pass_.begin, " to ", pass_.end, " made ", qkv.k.size(1),
              " keys for ", from, " tokens");
  std::fill(kept.epochs.begin() + pass_.begin, kept.epochs.begin() + pass_.end, epoch_);
  for (int patch = 0; patch < patches; ++patch) {
    TORCH_CHECK(kept.epochs[static_cast<size_t>(patch)] == epoch_, "attention ", layer, " would read patch ", patch,
                " of epoch ", kept.epochs[static_cast<size_t>(patch)], " in epoch ", epoch_);
  }

  Qkv result = qkv;
  const int64_t first = base::Planted("stale_text_omitted") && with_text && !pass_.with_text() ? texts : 0;
  result.k = kept.keys_values[0].narrow(1, first, rows - first);
  result.v = kept.keys_values[1].narrow(1, first, rows - first);
  return result;
}

}  // namespace tessera::parallel
