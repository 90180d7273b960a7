#include "passes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "ragged.h"
#include "sync.h"

namespace anynorm {

const Kernels& kernels() {
  static const Kernels best = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels();
#endif
    return baseline_kernels();
  }();
  return best;
}

namespace {

// Return the valid positions of the samples, and set the pointers to them.
Ragged make_ragged(const Problem& p, const Members& members, Tensors& t) {
  if (!members.tensor.defined()) return {};
  Ragged ragged =
      members.is_mask()
          ? ragged_from_mask(members.tensor.const_data_ptr<bool>(), p.samples, members.tensor.size(1), p.last)
          : ragged_from_index(members.tensor.const_data_ptr<int64_t>(), members.tensor.size(0), p.samples);
  t.list = ragged.list.data();
  t.offsets = ragged.offsets.data();
  t.extents = ragged.extents.data();
  t.valid = ragged.valid.data();
  return ragged;
}

Tensor with_layout_of(const Tensor& x, const Tensor& tensor) {
  bool is_equal = tensor.scalar_type() == x.scalar_type() && tensor.strides() == x.strides();
  return is_equal ? tensor : at::empty_like(x).copy_(tensor);
}

Tensors pointers(const Problem& p, const Inputs& inputs, const Tensor& stats, const Tensor& labels) {
  auto input = [&](int i) { return inputs[i].defined() ? inputs[i].const_data_ptr<float>() : nullptr; };
  Tensors t{};
  t.x = inputs[X].const_data_ptr();
  t.weight = input(WEIGHT);
  t.bias = input(BIAS);
  t.mean_logits = input(MEAN_WEIGHT);
  t.var_logits = input(VAR_WEIGHT);
  t.second_weight = input(p.style ? STYLE_STD : CLASS_WEIGHT);
  t.second_bias = input(p.style ? STYLE_MEAN : CLASS_BIAS);
  t.labels = labels.defined() ? labels.const_data_ptr<int64_t>() : nullptr;
  t.means = stats.mutable_data_ptr<double>();
  t.vars = t.means + p.num_stats;
  t.counts = t.vars + p.num_stats;
  return t;
}

Tensor new_stats(const Problem& p) {
  Tensor stats = at::empty({2 * p.num_stats + p.num_domains()}, at::kDouble);
  std::fill_n(stats.mutable_data_ptr<double>() + 2 * p.num_stats, p.num_domains(), 0.0);
  return stats;
}

// Return x in the memory layout that it had in the forward pass; hooks of saved tensors may have changed it.
Tensor as_saved(const Tensor& x, bool last) {
  if (last == is_channels_last(x) && (last || x.is_contiguous())) return x;
  return x.contiguous(!last || x.dim() < 4 ? at::MemoryFormat::Contiguous
                      : x.dim() == 4       ? at::MemoryFormat::ChannelsLast
                                           : at::MemoryFormat::ChannelsLast3d);
}

}  // namespace

std::pair<Tensor, Tensor> run_forward(const Plan& plan, const Inputs& given, const RunningStats& running,
                                      const Tensor& labels, const Members& members) {
  const Problem& p = plan.p;
  check_inputs(p, given, labels);
  check_members(p, given[X], members);
  Inputs inputs = convert_inputs(p, given);
  Tensor stats = new_stats(p), y = at::empty_like(inputs[X]), residual;
  Tensors t = pointers(p, inputs, stats, labels);
  read_running(p, t, running.buffers);
  t.y = y.mutable_data_ptr();
  if (inputs[RESIDUAL].defined()) {
    residual = with_layout_of(inputs[X], inputs[RESIDUAL]);
    t.residual = residual.const_data_ptr();
  }
  Ragged ragged = make_ragged(p, members, t);
  kernels().forward(p, t, make_sync(plan.group, p.num_domains()));
  return {y, stats};
}

Inputs run_backward(const Plan& plan, const Inputs& given, const Tensor& y, const Tensor& given_stats,
                    const Tensor& labels, Tensor dy, const Needs& needs, const Members& members) {
  const Problem& p = plan.p;
  Inputs inputs = convert_inputs(p, given), grads;
  inputs[X] = as_saved(inputs[X], p.last);
  const Tensor& x = inputs[X];
  Tensor stats = given_stats.defined() ? given_stats.contiguous() : new_stats(p), saved_y;
  dy = with_layout_of(x, dy);
  Tensors t = pointers(p, inputs, stats, labels);
  auto gradient = [&](int i) -> float* {
    if (!needs[i]) return nullptr;
    bool is_sum = i == CLASS_WEIGHT || i == CLASS_BIAS || i >= STYLE_MEAN;
    grads[i] = is_sum ? at::zeros_like(inputs[i]) : at::empty_like(inputs[i]);
    return grads[i].mutable_data_ptr<float>();
  };
  if (needs[X]) {
    grads[X] = at::empty_like(x);
    t.dx = grads[X].mutable_data_ptr();
  }
  t.dy = dy.const_data_ptr();
  if (needs[RESIDUAL]) grads[RESIDUAL] = dy;
  if (plan.needs_y(given)) {
    saved_y = as_saved(y, p.last);
    t.y = const_cast<void*>(saved_y.const_data_ptr());
    grads[RESIDUAL] = at::empty_like(x);
    t.d_residual = grads[RESIDUAL].mutable_data_ptr();
  }
  t.d_weight = gradient(WEIGHT);
  t.d_bias = gradient(BIAS);
  t.d_second_weight = gradient(p.style ? STYLE_STD : CLASS_WEIGHT);
  t.d_second_bias = gradient(p.style ? STYLE_MEAN : CLASS_BIAS);
  t.d_mean_logits = gradient(MEAN_WEIGHT);
  t.d_var_logits = gradient(VAR_WEIGHT);
  Ragged ragged = make_ragged(p, members, t);
  kernels().backward(p, t, make_sync(plan.group, p.num_domains()));
  for (int i = WEIGHT; i < RESIDUAL; i++) {
    if (!grads[i].defined()) continue;
    if (grads[i].sizes() != given[i].sizes()) grads[i] = grads[i].sum(0, true);
    if (grads[i].scalar_type() != given[i].scalar_type()) grads[i] = grads[i].to(given[i].scalar_type());
  }
  if (!needs[RESIDUAL]) grads[RESIDUAL] = Tensor();
  return grads;
}

}  // namespace anynorm
