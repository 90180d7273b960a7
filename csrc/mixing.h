// Mixing weights from logits, and the gradients of the logits.
#pragma once
#include <cmath>
#include <vector>

#include "parallel.h"

namespace anynorm {
namespace ANYNORM_ISA {

// Return the mixing weights for the mean or the variance, (groups, number of all cuts); 0 for a cut that is not in
// `side`.
inline const double* mixing_weights(const Problem& p, const std::vector<int64_t>& side, const float* logits) {
  int64_t num_cuts = int64_t(p.cuts.size()), k = int64_t(side.size());
  double* weights = arena().filled(p.groups * num_cuts, 0.0);
  for (int64_t g = 0; g < p.groups; g++) {
    const float* row = logits + g * k;
    int64_t top = 0;
    for (int64_t i = 1; logits && i < k; i++)
      if (row[i] > row[top] || (std::isnan(row[i]) && !std::isnan(row[top]))) top = i;
    double total = 0;
    for (int64_t i = 0; logits && i < k; i++) total += std::exp(double(row[i]) - double(row[top]));
    for (int64_t i = 0; i < k; i++) {
      double softmax = logits ? std::exp(double(row[i]) - double(row[top])) / total : 1.0;
      weights[g * num_cuts + side[i]] = !logits || p.mixing == Mixing::softmax ? softmax
                                        : p.mixing == Mixing::argmax           ? double(i == top)
                                                                               : double(row[i]);
    }
  }
  return weights;
}

inline void logits_gradient(const Problem& p, const std::vector<int64_t>& side, const double* weights,
                            const double* d_weights, float* out) {
  int64_t num_cuts = int64_t(p.cuts.size()), k = int64_t(side.size());
  for (int64_t g = 0; out && g < p.groups; g++) {
    const double *w = weights + g * num_cuts, *dw = d_weights + g * num_cuts;
    double inner = 0;
    for (int64_t i : side) inner += w[i] * dw[i];
    for (int64_t i = 0; i < k; i++) {
      double softmax = p.mixing == Mixing::argmax ? 0.0 : w[side[i]] * (dw[side[i]] - inner);
      out[g * k + i] = float(p.mixing == Mixing::precomputed ? dw[side[i]] : softmax);
    }
  }
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
