// The passes with tensors of torch as arguments, and the plans of passes.
#pragma once
#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <string>

#include "running_stats.h"

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

// The arguments of a pass besides tensors.
struct Settings {
  at::IntArrayRef spec;  // `ForwardSpec.encoded`
  double eps, slope;
  c10::string_view group;  // name of the process group over which statistics are synchronized
};

// The mask (samples, positions) of a batch or the sample of each point, bool or int64, contiguous; undefined without.
struct Members {
  Tensor tensor;
  int64_t num_samples = 0;

  bool is_mask() const { return tensor.scalar_type() == at::kBool; }
};

// A problem, and the settings from which it was made.
struct Plan {
  Problem p;
  std::vector<int64_t> spec;
  double eps, slope;
  std::string group;

  bool needs_y(const Inputs& inputs) const { return inputs[RESIDUAL].defined() && p.activation != Activation::none; }
};
using PlanPointer = std::shared_ptr<const Plan>;

Tensor dense(const Tensor& x,
             const Settings& settings);  // x, or a contiguous copy if the kernels do not support its layout
Shape shape_of(const Tensor& x, const Members& members);
PlanPointer find_plan(const Tensor& x, const Settings& settings, const Members& members = {});  // x must be dense

// Running statistics as the kernels access them; those with a dtype other than float32 and float64 are converted.
class RunningStats {
  std::vector<Tensor> tensors, converted;

 public:
  std::vector<Buffer> buffers;
  RunningStats(const Plan& plan, const std::vector<OptionalTensor>& given);
  void update(const Plan& plan, const Tensor& stats, const OptionalTensor& num_batches,
              const OptionalTensor& num_skipped, double momentum);
};

// Return y and the statistics: means and variances of all cuts, and counts. The inputs are checked.
std::pair<Tensor, Tensor> run_forward(const Plan& plan, const Inputs& inputs, const RunningStats& running,
                                      const Tensor& labels, const Members& members = {});
// Return the gradients that are needed. y is used if plan.needs_y(inputs); stats may be undefined if plan.p.recompute.
Inputs run_backward(const Plan& plan, const Inputs& inputs, const Tensor& y, const Tensor& stats, const Tensor& labels,
                    Tensor dy, const Needs& needs, const Members& members = {});

}  // namespace anynorm
