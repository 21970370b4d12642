// ProductInput is the input of Linear: rows of numbers, or such rows that the operator before the product has already
// quantized (kernels/quantized_ops.h).
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "kernels/quantized_ops.h"

namespace tessera::models {

class ProductInput {
 public:
  // Implicit, because most products take numbers.
  ProductInput(at::Tensor numbers = {}) : numbers_(std::move(numbers)) {}
  ProductInput(kernels::QuantizedRows rows) : rows_(std::move(rows)) {}

  bool is_quantized() const { return rows_.codes.defined(); }
  const at::Tensor& numbers() const { return numbers_; }             // [..., in]; undefined if they are quantized
  const kernels::QuantizedRows& quantized() const { return rows_; }  // only if they are quantized

 private:
  at::Tensor numbers_;
  kernels::QuantizedRows rows_;
};

}  // namespace tessera::models
