// Attention over tokens that are spread over ranks, made of independent policies: how heads and tokens are exchanged
// before and after, and how keys and values of other ranks are read.
//
// Attention here is unmasked, so the order of keys does not matter: each rank joins its own text and image rows before
// the exchange, and they come back in the same order. Shapes: b batch, n local query rows, t local key rows, h heads, d
// head_dim.
#pragma once

#include <ATen/ATen.h>

#include "parallel/communicator.h"
#include "parallel/forward_context.h"
#include "parallel/token_layout.h"

namespace tessera {

// Tokens of this rank and all heads ↔ tokens of the whole group and this rank's heads.
class HeadExchange {
 public:
  virtual ~HeadExchange() = default;
  virtual Qkv ToHeads(const Qkv& qkv) = 0;
  // [b, queries of the group, h of this rank, d] → [b, n, h, d].
  virtual at::Tensor ToTokens(const at::Tensor& read, TokenRows queries) = 0;
};

class NoExchange final : public HeadExchange {
 public:
  Qkv ToHeads(const Qkv& qkv) override { return qkv; }
  at::Tensor ToTokens(const at::Tensor& read, TokenRows) override { return read; }
};

// Jacobs et al., 2023 (DeepSpeed-Ulysses): all-to-all within the group.
class UlyssesExchange final : public HeadExchange {
 public:
  // Both outlive the exchange; `ring_rank` is this rank's ring coordinate.
  UlyssesExchange(const TokenLayout& tokens, int ring_rank, Communicator& group)
      : tokens_(tokens), ring_rank_(ring_rank), group_(group) {}
  Qkv ToHeads(const Qkv& qkv) override;
  at::Tensor ToTokens(const at::Tensor& read, TokenRows queries) override;

 private:
  const TokenLayout& tokens_;
  int ring_rank_;
  Communicator& group_;
};

// Attention of this rank's queries over the keys of every rank.
class KvReader {
 public:
  virtual ~KvReader() = default;
  virtual at::Tensor Read(const Qkv& qkv) = 0;
};

class LocalReader final : public KvReader {
 public:
  at::Tensor Read(const Qkv& qkv) override;
};

// Liu et al., 2023 (Ring Attention): keys and values go round the ranks; partial results are merged by their
// log-sum-exp.
class RingReader final : public KvReader {
 public:
  RingReader(const TokenLayout& tokens, Communicator& ring) : tokens_(tokens), ring_(ring) {}
  at::Tensor Read(const Qkv& qkv) override;

 private:
  const TokenLayout& tokens_;
  Communicator& ring_;
};

// Both outlive the context.
class PolicyAttention final : public AttentionContext {
 public:
  PolicyAttention(HeadExchange& exchange, KvReader& reader) : exchange_(exchange), reader_(reader) {}
  at::Tensor Attend(int layer, const Qkv& qkv) override;

 private:
  HeadExchange& exchange_;
  KvReader& reader_;
};

}  // namespace tessera
