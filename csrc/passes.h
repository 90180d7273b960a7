// A forward or backward pass with tensors of torch as arguments.
#pragma once
#include "buffers.h"

namespace anynorm {

const Kernels& kernels();  // the fastest ones that the processor supports

// Return y and the statistics: means and variances of all cuts, and counts. The inputs are checked.
std::pair<Tensor, Tensor> run_forward(const Plan& plan, const Inputs& inputs, const RunningStats& running,
                                      const Tensor& labels, const Members& members = {});
// Return the gradients that are needed. y is used if plan.needs_y(inputs); stats may be undefined if plan.p.recompute.
Inputs run_backward(const Plan& plan, const Inputs& inputs, const Tensor& y, const Tensor& stats, const Tensor& labels,
                    Tensor dy, const Needs& needs, const Members& members = {});

}  // namespace anynorm
