// The operators of the compiler: anynorm_native::forward, backward and update_running. They have no side effects
// besides the declared mutation of running statistics, and autograd is registered in Python
// (anynorm/kernels/compiled.py).
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "passes.h"

namespace anynorm {
namespace {

Tensor value_or_undefined(const OptionalTensor& tensor) { return tensor ? *tensor : Tensor(); }
Tensor contiguous(const OptionalTensor& labels) { return labels ? labels->contiguous() : Tensor(); }

// Return the list of the running statistics of all cuts; `slots` has the index of each buffer in it.
std::vector<OptionalTensor> make_running(const Plan& plan, at::TensorList buffers, at::IntArrayRef slots) {
  std::vector<OptionalTensor> running(2 * plan.p.cuts.size());
  for (size_t i = 0; i < slots.size(); i++) running.at(slots[i]) = buffers[i];
  return running;
}

std::tuple<Tensor, Tensor> forward(const Tensor& given, const OptionalTensor& weight, const OptionalTensor& bias,
                                   const OptionalTensor& class_weight, const OptionalTensor& class_bias,
                                   const OptionalTensor& mean_weight, const OptionalTensor& var_weight,
                                   const OptionalTensor& style_mean, const OptionalTensor& style_std,
                                   const OptionalTensor& residual, at::TensorList buffers, at::IntArrayRef slots,
                                   const OptionalTensor& labels, at::IntArrayRef spec, double eps, double slope,
                                   c10::string_view group) {
  Settings settings = {spec, eps, slope, group};
  Inputs inputs = {dense(given, settings)};
  int i = WEIGHT;
  for (auto* tensor :
       {&weight, &bias, &class_weight, &class_bias, &mean_weight, &var_weight, &style_mean, &style_std, &residual})
    inputs[i++] = value_or_undefined(*tensor);
  PlanPointer plan = find_plan(inputs[X], settings);
  return run_forward(*plan, inputs, RunningStats(*plan, make_running(*plan, buffers, slots)), contiguous(labels));
}

std::vector<Tensor> backward(const Tensor& dy, const Tensor& given, const OptionalTensors& params,
                             const OptionalTensor& y, const Tensor& stats, const OptionalTensor& labels,
                             at::IntArrayRef spec, double eps, double slope, c10::string_view group,
                             const c10::List<bool>& needed) {
  Settings settings = {spec, eps, slope, group};
  Inputs inputs = {dense(given, settings)};
  Needs needs;
  TORCH_CHECK(needed.size() == NUM_INPUTS && params.size() == NUM_INPUTS - 1, "anynorm: ", int(NUM_INPUTS),
              " inputs are needed; got ", needed.size());
  for (size_t i = 0; i < params.size(); i++) inputs[i + 1] = value_or_undefined(params.get(i));
  for (size_t i = 0; i < NUM_INPUTS; i++) needs[i] = needed.get(i);
  Inputs grads = run_backward(*find_plan(inputs[X], settings), inputs, value_or_undefined(y), stats, contiguous(labels),
                              dy, needs);
  std::vector<Tensor> result;
  for (int i = 0; i < NUM_INPUTS; i++)
    if (needs[i]) result.push_back(grads[i].is_alias_of(dy) ? grads[i].clone() : grads[i]);
  return result;
}

// Update running statistics, unless checkpointing recomputes a forward pass.
void update(const Tensor& x, const Tensor& stats, at::TensorList buffers, at::IntArrayRef slots,
            const OptionalTensor& num_batches, const OptionalTensor& num_skipped, at::IntArrayRef spec, double eps,
            c10::string_view group, double momentum) {
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  Settings settings = {spec, eps, 0.0, group};
  PlanPointer plan = find_plan(dense(x, settings), settings);
  RunningStats(*plan, make_running(*plan, buffers, slots))
      .update(*plan, stats.contiguous(), num_batches, num_skipped, momentum);
}

}  // namespace

TORCH_LIBRARY(anynorm_native, m) {
  m.def(
      "forward(Tensor x, Tensor? weight, Tensor? bias, Tensor? class_weight, Tensor? class_bias, Tensor? mean_weight, "
      "Tensor? var_weight, Tensor? style_mean, Tensor? style_std, Tensor? residual, Tensor[] buffers, int[] slots, "
      "Tensor? labels, int[] spec, float eps, float slope, str group) -> (Tensor, Tensor)");
  m.def(
      "backward(Tensor dy, Tensor x, Tensor?[] params, Tensor? y, Tensor stats, Tensor? labels, int[] spec, float eps, "
      "float slope, str group, bool[] needed) -> Tensor[]");
  m.def(
      "update_running(Tensor x, Tensor stats, Tensor(a!)[] buffers, int[] slots, Tensor(b!)? num_batches, "
      "Tensor(c!)? num_skipped, int[] spec, float eps, str group, float momentum) -> ()");
  m.def("cpu_capability() -> str", [] { return std::string(kernels().name); });
}
TORCH_LIBRARY_IMPL(anynorm_native, CPU, m) {
  m.impl("forward", forward);
  m.impl("backward", backward);
  m.impl("update_running", update);
}

}  // namespace anynorm
