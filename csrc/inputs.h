// The tensors of a pass, and what they must be.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

#include "problem.h"

namespace anynorm {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalTensors = c10::List<OptionalTensor>;

// The inputs that receive gradients: x, and the fields of `Params` in anynorm/kernels/interface.py.
enum Input {
  X,
  WEIGHT,
  BIAS,
  CLASS_WEIGHT,
  CLASS_BIAS,
  MEAN_WEIGHT,
  VAR_WEIGHT,
  STYLE_MEAN,
  STYLE_STD,
  RESIDUAL,
  NUM_INPUTS
};
using Inputs = std::array<Tensor, NUM_INPUTS>;  // undefined tensors for inputs that are not used
using Needs = std::array<bool, NUM_INPUTS>;

// The mask (samples, positions) of a batch or the sample of each point, bool or int64, contiguous; undefined without.
struct Members {
  Tensor tensor;
  int64_t num_samples = 0;

  bool is_mask() const { return tensor.scalar_type() == at::kBool; }
};

inline int64_t num_positions(const Tensor& x) {
  int64_t positions = 1;
  for (int64_t axis = 2; axis < x.dim(); axis++) positions *= x.size(axis);
  return positions;
}

inline bool is_channels_last(const Tensor& x) {
  if (x.is_contiguous()) return num_positions(x) == 1;
  if (x.dim() == 4) return x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

// Raise an error for parameters, a style, a residual or labels that do not fit the problem.
void check_inputs(const Problem& p, const Inputs& inputs, const Tensor& labels);
void check_members(const Problem& p, const Tensor& x, const Members& members);
// Return the inputs with parameters in contiguous float32, and a style with one row per sample.
Inputs convert_inputs(const Problem& p, const Inputs& given);

}  // namespace anynorm
