// The operator anynorm_native::normalize: argument checks and autograd.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#ifndef _WIN32
#include <pthread.h>
#endif

#include "make_problem.h"
#include "running_stats.h"
#include "sync.h"

namespace anynorm {

bool is_forked = false;

namespace {

#ifndef _WIN32
const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
#endif

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The inputs that receive gradients.
enum Input { X, WEIGHT, BIAS, CLASS_WEIGHT, CLASS_BIAS, MEAN_WEIGHT, VAR_WEIGHT, STYLE_MEAN, STYLE_STD, NUM_INPUTS };
const char* NAMES[] = {"x",           "weight",     "bias",       "class_weight", "class_bias",
                       "mean_weight", "var_weight", "style_mean", "style_std"};

const Kernels& kernels() {
  static const Kernels best = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels();
#endif
    return baseline_kernels();
  }();
  return best;
}

// The data that autograd saves for backward, besides the inputs that receive gradients and the statistics.
struct Plan : torch::CustomClassHolder {
  Problem p;
  std::vector<int64_t> spec;
  std::string group;
  Tensor labels;

  Plan(const Tensor& x, at::IntArrayRef numbers, double eps, std::string group_name, Tensor given_labels)
      : p(read_problem(numbers, eps)),
        spec(numbers.vec()),
        group(std::move(group_name)),
        labels(std::move(given_labels)) {
    lay_out(p, x);
    p.recompute &= group.empty();  // a recomputation would need another exchange, in which all processes must take part
  }
};

// The tensors of a forward or backward pass. `stats` has the means and variances of all cuts, and the counts.
struct Call {
  const Plan& plan;
  const Problem& p = plan.p;
  Tensor stats;
  variable_list inputs{};  // parameters are converted to contiguous float32; a style is expanded to one row per sample

  Call(const Plan& given_plan, Tensor given_stats) : plan(given_plan), stats(std::move(given_stats)) {
    if (stats.defined()) return;
    stats = at::empty({2 * p.num_stats + p.num_domains()}, at::kDouble);
    std::fill_n(stats.mutable_data_ptr<double>() + 2 * p.num_stats, p.num_domains(), 0.0);
  }
  void set_inputs(const variable_list& given) {
    inputs = given;
    for (int i = WEIGHT; i < NUM_INPUTS; i++) {
      if (!inputs[i].defined()) continue;
      if (i >= STYLE_MEAN) inputs[i] = inputs[i].expand({p.samples, p.channels});
      inputs[i] = inputs[i].to(at::kFloat).contiguous();
    }
  }
  const float* input(int i) const {
    return inputs.empty() || !inputs[i].defined() ? nullptr : inputs[i].const_data_ptr<float>();
  }
  Tensors tensors() const {
    Tensors t{};
    t.x = inputs.empty() ? nullptr : inputs[X].const_data_ptr();
    t.weight = input(WEIGHT);
    t.bias = input(BIAS);
    t.mean_logits = input(MEAN_WEIGHT);
    t.var_logits = input(VAR_WEIGHT);
    t.second_weight = input(p.style ? STYLE_STD : CLASS_WEIGHT);
    t.second_bias = input(p.style ? STYLE_MEAN : CLASS_BIAS);
    t.labels = plan.labels.defined() ? plan.labels.const_data_ptr<int64_t>() : nullptr;
    t.means = stats.mutable_data_ptr<double>();
    t.vars = t.means + p.num_stats;
    t.counts = t.vars + p.num_stats;
    return t;
  }
};

// Checks
// -----------------------------------------------------------------------------------------------------------------------

void check_parameters(const Problem& p, const variable_list& inputs) {
  for (int i = WEIGHT; i < NUM_INPUTS; i++) {
    const Tensor& tensor = inputs[i];
    if (!tensor.defined()) continue;
    int64_t cuts = int64_t(i == MEAN_WEIGHT ? p.mean.size() : p.var.size());
    TORCH_CHECK(tensor.device().is_cpu() && tensor.is_floating_point(), "anynorm: ", NAMES[i],
                " must be a floating-point CPU tensor");
    bool fits = i <= BIAS         ? tensor.sizes() == at::IntArrayRef{p.channels}
                : i <= CLASS_BIAS ? tensor.sizes() == at::IntArrayRef{p.classes, p.channels}
                : i <= VAR_WEIGHT ? tensor.numel() == p.groups * cuts
                                  : tensor.dim() == 2 && (tensor.size(0) == 1 || tensor.size(0) == p.samples) &&
                                        tensor.size(1) == p.channels;
    TORCH_CHECK(fits, "anynorm: ", NAMES[i], " must have shape ",
                i <= BIAS         ? "(channels,)"
                : i <= CLASS_BIAS ? "(classes, channels)"
                : i <= VAR_WEIGHT ? "(groups, cuts)"
                                  : "(samples, channels)",
                "; got ", tensor.sizes());
  }
  TORCH_CHECK(inputs[CLASS_WEIGHT].defined() == inputs[CLASS_BIAS].defined() &&
                  inputs[STYLE_MEAN].defined() == inputs[STYLE_STD].defined() &&
                  inputs[STYLE_STD].defined() == p.style && (p.classes || !inputs[CLASS_WEIGHT].defined()),
              "anynorm: an affine needs both scale and shift, and classes if it has rows of classes");
  TORCH_CHECK(
      (inputs[MEAN_WEIGHT].defined() || p.mean.size() == 1) && (inputs[VAR_WEIGHT].defined() || p.var.size() == 1),
      "anynorm: several cuts need mixing weights");
}

void check_labels(const Problem& p, const Tensor& labels) {
  TORCH_CHECK(labels.defined() && labels.device().is_cpu() && labels.scalar_type() == at::kLong &&
                  labels.sizes() == at::IntArrayRef{p.samples},
              "anynorm: labels must be int64 CPU labels, one per sample");
  const int64_t* values = labels.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < p.samples; s++)
    TORCH_CHECK(values[s] >= 0 && values[s] < p.classes, "anynorm: label ", values[s], " is not in [0, ", p.classes,
                ")");
}

// Autograd
// ---------------------------------------------------------------------------------------------------------------------

Tensor run_forward(const variable_list& inputs, Call& call) {
  call.set_inputs(inputs);
  Tensors t = call.tensors();
  Tensor y = at::empty_like(inputs[X]);
  t.y = y.mutable_data_ptr();
  kernels().forward(call.p, t, make_sync(call.plan.group, call.p.num_domains()));
  return y;
}

variable_list run_backward(const variable_list& inputs, Call& call, Tensor dy, const std::vector<bool>& needs) {
  const Tensor& x = inputs[X];
  call.set_inputs(inputs);
  if (dy.scalar_type() != x.scalar_type() || dy.strides() != x.strides()) dy = at::empty_like(x).copy_(dy);
  Tensors t = call.tensors();
  variable_list grads(NUM_INPUTS);
  auto gradient = [&](int i) -> float* {
    if (!needs[i]) return nullptr;
    bool is_sum = i == CLASS_WEIGHT || i == CLASS_BIAS || i >= STYLE_MEAN;
    grads[i] = is_sum ? at::zeros_like(call.inputs[i]) : at::empty_like(call.inputs[i]);
    return grads[i].mutable_data_ptr<float>();
  };
  if (needs[X]) {
    grads[X] = at::empty_like(x);
    t.dx = grads[X].mutable_data_ptr();
  }
  t.dy = dy.const_data_ptr();
  t.d_weight = gradient(WEIGHT);
  t.d_bias = gradient(BIAS);
  t.d_second_weight = gradient(call.p.style ? STYLE_STD : CLASS_WEIGHT);
  t.d_second_bias = gradient(call.p.style ? STYLE_MEAN : CLASS_BIAS);
  t.d_mean_logits = gradient(MEAN_WEIGHT);
  t.d_var_logits = gradient(VAR_WEIGHT);
  kernels().backward(call.p, t, make_sync(call.plan.group, call.p.num_domains()));
  for (int i = WEIGHT; i < NUM_INPUTS; i++) {
    if (!grads[i].defined()) continue;
    if (grads[i].sizes() != inputs[i].sizes()) grads[i] = grads[i].sum(0, true);
    if (grads[i].scalar_type() != inputs[i].scalar_type()) grads[i] = grads[i].to(inputs[i].scalar_type());
  }
  return grads;
}

// Compute gradients by the reference, so that they can be differentiated again.
variable_list differentiable_backward(const variable_list& inputs, const Call& call, const Tensor& dy,
                                      const std::vector<bool>& needs) {
  static const auto reference = c10::Dispatcher::singleton().findSchemaOrThrow("anynorm::reference_backward", "");
  auto optional = [](const Tensor& tensor) { return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt; };
  OptionalTensors params, running;
  for (int i = WEIGHT; i < NUM_INPUTS; i++) params.push_back(optional(inputs[i]));
  for (const Cut& cut : call.p.cuts)
    for (int side = 0; side < 2; side++)
      running.push_back(
          optional(cut.uses_batch ? Tensor()
                                  : call.stats.narrow(0, side * call.p.num_stats + cut.offset, cut.rows * cut.width)));
  c10::List<bool> needed;
  for (bool need : needs) needed.push_back(need);
  torch::jit::Stack stack;
  torch::jit::push(stack, inputs[X], params, running, optional(call.plan.labels), call.plan.spec, call.p.eps,
                   call.plan.group, dy, needed);
  reference.callBoxed(stack);
  std::vector<Tensor> computed = stack.back().toTensorVector();
  variable_list grads(NUM_INPUTS);
  for (size_t i = 0, next = 0; i < NUM_INPUTS; i++)
    if (needs[i]) grads[i] = computed[next++];
  return grads;
}

// Return x in the memory layout that it had in the forward pass; hooks of saved tensors may have changed it.
Tensor as_saved(const Tensor& x, bool last) {
  if (last == channels_last(x) && (last || x.is_contiguous())) return x;
  return x.contiguous(!last || x.dim() < 4 ? at::MemoryFormat::Contiguous
                      : x.dim() == 4       ? at::MemoryFormat::ChannelsLast
                                           : at::MemoryFormat::ChannelsLast3d);
}

struct Normalize : torch::autograd::Function<Normalize> {
  // `defined` has the inputs that autograd tracks; `inputs` also has undefined tensors for the inputs that the norm
  // does not use.
  static Tensor forward(AutogradContext* ctx, at::TensorList defined, const variable_list* inputs,
                        c10::intrusive_ptr<Plan> plan, Call* call) {
    Tensor y = run_forward(*inputs, *call);
    variable_list saved = *inputs;
    saved.push_back(plan->p.recompute ? Tensor() : call->stats);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = at::IValue::make_capsule(std::move(plan));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    variable_list inputs = ctx->get_saved_variables();
    auto plan = c10::static_intrusive_pointer_cast<Plan>(ctx->saved_data["plan"].toCapsule());
    TORCH_CHECK(inputs[X].scalar_type() == dy[0].scalar_type(), "anynorm: x was saved as ", dy[0].scalar_type(),
                "; got ", inputs[X].scalar_type());
    inputs[X] = as_saved(inputs[X], plan->p.last);
    Call call(*plan, inputs.back().defined() ? inputs.back().contiguous() : Tensor());
    inputs.pop_back();
    std::vector<bool> needs;
    size_t edge = 0;
    for (const Tensor& input : inputs) needs.push_back(input.defined() && ctx->needs_input_grad(edge++));
    variable_list all = at::GradMode::is_enabled() ? differentiable_backward(inputs, call, dy[0], needs)
                                                   : run_backward(inputs, call, dy[0], needs);
    variable_list grads;
    for (size_t i = 0; i < NUM_INPUTS; i++)
      if (inputs[i].defined()) grads.push_back(all[i]);
    grads.resize(edge + 3);
    return grads;
  }
};

// Operators
// --------------------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor> normalize(const Tensor& given, const OptionalTensors& params, const OptionalTensors& running,
                                     const std::optional<Tensor>& labels, at::IntArrayRef spec, double eps,
                                     c10::string_view group, const std::optional<Tensor>& num_batches,
                                     double momentum) {
  TORCH_CHECK(given.device().is_cpu() && given.layout() == at::kStrided && given.dim() >= 2,
              "anynorm: the input must be a dense CPU tensor (n, c, ...)");
  TORCH_CHECK(given.scalar_type() == at::kFloat || given.scalar_type() == at::kBFloat16,
              "anynorm: the input must be float32 or bfloat16; got ", given.scalar_type());
  TORCH_CHECK(params.size() == NUM_INPUTS - 1, "anynorm: ", NUM_INPUTS - 1, " parameters are needed; got ",
              params.size());
  bool ranks_may_differ =
      !group.empty() && !spec.empty() && spec.back() > 1;  // in memory layout, and so in the order of columns
  Tensor x = given.is_contiguous() || (channels_last(given) && !ranks_may_differ) ? given : given.contiguous();
  variable_list inputs = {x};
  for (size_t i = 0; i < params.size(); i++) inputs.push_back(params.get(i).value_or(Tensor()));
  auto plan =
      c10::make_intrusive<Plan>(x, spec, eps, std::string(group), labels ? labels->contiguous().clone() : Tensor());
  const Problem& p = plan->p;
  TORCH_CHECK(running.size() == 2 * p.cuts.size(), "anynorm: running statistics of ", p.cuts.size(),
              " cuts are needed; got ", running.size() / 2);
  check_parameters(p, inputs);
  if (p.classes) check_labels(p, plan->labels);
  Call call(*plan, Tensor());
  read_running(p, call.tensors(), running);
  bool differentiable = at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
  variable_list defined;
  for (const Tensor& input : inputs)
    if (input.defined()) defined.push_back(input);
  Tensor y =
      differentiable ? Normalize::apply(at::TensorList(defined), &inputs, plan, &call) : run_forward(inputs, call);
  if (momentum >= 0) update_running(p, call.tensors(), running, num_batches, momentum);
  return {y, call.stats};
}

}  // namespace

TORCH_LIBRARY(anynorm_native, m) {
  m.def(
      "normalize(Tensor x, Tensor?[] params, Tensor?[] running_stats, Tensor? labels, int[] spec, float eps, str "
      "group, "
      "Tensor? num_batches, float momentum) -> (Tensor, Tensor)",
      normalize);
  m.def("cpu_capability() -> str", [] { return std::string(kernels().name); });
}

}  // namespace anynorm
