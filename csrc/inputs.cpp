#include "inputs.h"

namespace anynorm {
namespace {

const char* NAMES[] = {"x",           "weight",     "bias",       "class_weight", "class_bias",
                       "mean_weight", "var_weight", "style_mean", "style_std",    "residual"};

bool is_plain(const Tensor& tensor) { return tensor.scalar_type() == at::kFloat && tensor.is_contiguous(); }

}  // namespace

void check_inputs(const Problem& p, const Inputs& inputs, const Tensor& labels) {
  for (int i = WEIGHT; i < RESIDUAL; i++) {
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
      (inputs[MEAN_WEIGHT].defined() || p.mean.size() <= 1) && (inputs[VAR_WEIGHT].defined() || p.var.size() == 1),
      "anynorm: several cuts need mixing weights");
  const Tensor &x = inputs[X], &residual = inputs[RESIDUAL];
  TORCH_CHECK(!residual.defined() || (residual.sizes() == x.sizes() && residual.scalar_type() == x.scalar_type() &&
                                      residual.device().is_cpu()),
              "anynorm: residual must have the shape, dtype and device of the input");
  if (!p.classes) return;
  TORCH_CHECK(labels.defined() && labels.device().is_cpu() && labels.scalar_type() == at::kLong &&
                  labels.sizes() == at::IntArrayRef{p.samples} && labels.is_contiguous(),
              "anynorm: labels must be int64 CPU labels, one per sample");
  const int64_t* values = labels.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < p.samples; s++)
    TORCH_CHECK(values[s] >= 0 && values[s] < p.classes, "anynorm: label ", values[s], " is not in [0, ", p.classes,
                ")");
}

void check_members(const Problem& p, const Tensor& x, const Members& members) {
  const Tensor& tensor = members.tensor;
  if (!tensor.defined()) return;
  TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(),
              "anynorm: a mask or batch index must be contiguous CPU memory");
  if (members.is_mask()) {
    TORCH_CHECK((tensor.sizes() == at::IntArrayRef{x.size(0), num_positions(x)}) && p.samples == x.size(0),
                "anynorm: a mask must have shape (samples, positions); got ", tensor.sizes());
    return;
  }
  TORCH_CHECK(tensor.scalar_type() == at::kLong && x.dim() == 2 && tensor.sizes() == at::IntArrayRef{x.size(0)},
              "anynorm: a batch index must be int64 with one entry per point");
  const int64_t* values = tensor.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < x.size(0); i++)
    TORCH_CHECK(values[i] >= 0 && values[i] < p.samples, "anynorm: batch index ", values[i], " is not in [0, ",
                p.samples, ")");
}

Inputs convert_inputs(const Problem& p, const Inputs& given) {
  Inputs inputs = given;
  for (int i = WEIGHT; i < RESIDUAL; i++) {
    if (!inputs[i].defined()) continue;
    if (i >= STYLE_MEAN && inputs[i].size(0) != p.samples) inputs[i] = inputs[i].expand({p.samples, p.channels});
    if (!is_plain(inputs[i])) inputs[i] = inputs[i].to(at::kFloat).contiguous();
  }
  return inputs;
}

}  // namespace anynorm
