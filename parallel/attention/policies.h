// Attention over tokens that are distributed over ranks, composed of independent policies: how heads and tokens are
// exchanged before and after, which keys and values are read, and how those of other ranks are read.
//
// This attention is unmasked, so the order of keys does not matter: each rank joins its own text and image rows before
// the exchange, and they return in the same order. Shapes: b batch, n local query rows, t local key rows, h heads, d
// head_dim.
#pragma once

#include <ATen/ATen.h>

#include "parallel/attention/ring_attention.h"
#include "parallel/communicator.h"
#include "parallel/forward_context.h"
#include "parallel/plan/token_layout.h"
#include "parallel/qkv.h"

namespace tessera::parallel {

// Exchanges this rank's tokens with all heads for the whole group's tokens with this rank's heads, and back.
class HeadExchange {
 public:
  virtual ~HeadExchange() = default;
  virtual Qkv ToHeads(const AttentionInput& input) = 0;
  // [b, queries of the group, h of this rank, d] → [b, n, h, d].
  virtual at::Tensor ToTokens(const at::Tensor& read, TokenRows queries) = 0;
};

class NoExchange final : public HeadExchange {
 public:
  Qkv ToHeads(const AttentionInput& input) override { return QkvOf(input); }
  at::Tensor ToTokens(const at::Tensor& read, TokenRows) override { return read; }
};

// An all-to-all within the group (Jacobs et al., 2023, DeepSpeed-Ulysses).
class UlyssesExchange final : public HeadExchange {
 public:
  // For a pass over `patches`. `tokens` and `group` must outlive the exchange; `ring_rank` is this rank's ring
  // coordinate.
  UlyssesExchange(const TokenLayout& tokens, PatchRange patches, int ring_rank, Communicator& group)
      : tokens_(tokens), patches_(patches), ring_rank_(ring_rank), group_(group) {}
  Qkv ToHeads(const AttentionInput& input) override;
  at::Tensor ToTokens(const at::Tensor& read, TokenRows queries) override;

 private:
  const TokenLayout& tokens_;
  PatchRange patches_;
  int ring_rank_;
  Communicator& group_;
};

// Decides which keys and values a pass reads. Called once for each attention of the pass, after the head exchange.
class KvStore {
 public:
  virtual ~KvStore() = default;
  // Returns `qkv` with its keys and values replaced by those to be read.
  virtual Qkv Renew(int layer, const Qkv& qkv) = 0;
};

// Returns the keys and values of the current pass.
class FreshStore final : public KvStore {
 public:
  Qkv Renew(int, const Qkv& qkv) override { return qkv; }
};

// Computes attention of this rank's queries over the keys of every rank.
class KvReader {
 public:
  virtual ~KvReader() = default;
  virtual at::Tensor Read(const Qkv& qkv) = 0;
};

class LocalReader final : public KvReader {
 public:
  at::Tensor Read(const Qkv& qkv) override;
};

// Passes keys and values around the ring of ranks (parallel/attention/ring_attention.h).
class RingReader final : public KvReader {
 public:
  // `held` are the patches whose keys and values the ranks hold: those of the pass or, with a StaleStore, all.
  RingReader(const TokenLayout& tokens, PatchRange held, Communicator& ring)
      : tokens_(tokens), held_(held), ring_(ring) {}
  at::Tensor Read(const Qkv& qkv) override;

 private:
  const TokenLayout& tokens_;
  PatchRange held_;
  Communicator& ring_;
  RingBuffers buffers_;
};

// All arguments must outlive the context.
class PolicyAttention final : public AttentionContext {
 public:
  PolicyAttention(HeadExchange& exchange, KvStore& store, KvReader& reader)
      : exchange_(exchange), store_(store), reader_(reader) {}
  at::Tensor Attend(int layer, const AttentionInput& input) override;

 private:
  HeadExchange& exchange_;
  KvStore& store_;
  KvReader& reader_;
};

}  // namespace tessera::parallel
