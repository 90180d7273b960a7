// The plans of passes: problems that were made for a norm and the shape of x, and are used again.
#pragma once
#include <memory>
#include <string>

#include "inputs.h"
#include "make_problem.h"

namespace anynorm {

// The arguments of a pass besides tensors.
struct Settings {
  at::IntArrayRef spec;  // `ForwardSpec.encoded`
  double eps, slope;
  c10::string_view group;  // name of the process group over which statistics are synchronized
};

// A problem, and the settings from which it was made.
struct Plan {
  Problem p;
  std::vector<int64_t> spec;
  double eps, slope;
  std::string group;

  // Whether backward needs y, from which it takes the sign of the argument of the activation.
  bool needs_y(const Inputs& inputs) const { return inputs[RESIDUAL].defined() && p.activation != Activation::none; }
};
using PlanPointer = std::shared_ptr<const Plan>;

Tensor dense(const Tensor& x,
             const Settings& settings);  // x, or a contiguous copy if the kernels do not support its layout
Shape shape_of(const Tensor& x, const Members& members);
PlanPointer find_plan(const Tensor& x, const Settings& settings, const Members& members = {});  // x must be dense

}  // namespace anynorm
