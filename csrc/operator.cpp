// The operator anynorm_native::normalize: checks, the problem from its integers, autograd, running statistics and exchanges.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#ifdef USE_DISTRIBUTED
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#ifndef _WIN32
#include <pthread.h>
#endif

#include "problem.h"

namespace anynorm {

bool is_forked = false;

namespace {

#ifndef _WIN32
const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
#endif

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensors = c10::List<std::optional<Tensor>>;

constexpr double MAX_SAVED = 0.05;  // of the bytes of x, in statistics
constexpr double MIN_BYTES = 1e5;  // below, time counts more than memory
enum Param { WEIGHT, BIAS, CLASS_WEIGHT, CLASS_BIAS, MEAN_WEIGHT, VAR_WEIGHT, STYLE_MEAN, STYLE_STD, NUM_PARAMS };

const Kernels& kernels() {
  static const Kernels best = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels();
#endif
    return baseline_kernels();
  }();
  return best;
}

// The problem ------------------------------------------------------------------------------------------------------------------

int64_t num_positions(const Tensor& x) {
  int64_t positions = 1;
  for (int64_t axis = 2; axis < x.dim(); axis++) positions *= x.size(axis);
  return positions;
}

bool channels_last(const Tensor& x) {
  if (x.is_contiguous()) return num_positions(x) == 1;
  if (x.dim() == 4) return x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

// Read the integers that `ForwardSpec.encode` writes.
Problem read_problem(at::IntArrayRef spec, double eps) {
  size_t at = 0;
  auto next = [&] {
    TORCH_CHECK(at < spec.size(), "anynorm: the description of the norm is too short");
    return spec[at++];
  };
  Problem p{};
  p.cuts.resize(next());
  for (Cut& cut : p.cuts) cut.channels = next(), cut.strips = next(), cut.samples_per_part = next(), cut.uses_batch = next();
  for (auto side : {&p.mean, &p.var}) {
    side->resize(next());
    for (int64_t& index : *side) {
      index = next();
      TORCH_CHECK(index >= 0 && size_t(index) < p.cuts.size(), "anynorm: no cut ", index);
    }
  }
  p.mixing = Mixing(next()), p.groups = next(), p.domains = next(), p.classes = next(), p.style = next(), p.strips = next();
  p.eps = eps;
  return p;
}

void assign_parts(const Problem& p, Cut& cut) {
  bool in_order = cut.width == p.columns && (p.strips == 1 || !p.last);
  if (in_order) return;
  cut.part.resize(p.columns);
  for (int64_t channel = 0; channel < p.channels; channel++)
    for (int64_t strip = 0, from = channel * cut.channels / p.channels * cut.strips; strip < p.strips; strip++)
      cut.part[p.last ? strip * p.channels + channel : channel * p.strips + strip] = int32_t(from + strip * cut.strips / p.strips);
}

// Divide the columns where the part of a local cut, other than the row cut, or the group of mixing weights changes.
void divide_columns(Problem& p) {
  for (int64_t j = 0; j < p.columns; j++) {
    bool begins = j == 0 || p.group(j) != p.group(j - 1);
    for (size_t i = 0; !begins && p.has_local && i < p.cuts.size(); i++)
      if (p.cuts[i].is_local && int64_t(i) != p.row_cut) begins = p.cuts[i].part.empty() || p.cuts[i].part[j] != p.cuts[i].part[j - 1];
    if (begins) p.segments.push_back(int32_t(j));
  }
  p.segments.push_back(int32_t(p.columns));
}

void lay_out(Problem& p, const Tensor& x) {
  int64_t positions = num_positions(x);
  p.samples = x.size(0), p.channels = x.size(1), p.is_bfloat16 = x.scalar_type() == at::kBFloat16, p.last = channels_last(x);
  TORCH_CHECK(p.strips > 0 && positions % p.strips == 0, "anynorm: ", positions, " positions are not divisible into ", p.strips, " strips");
  p.length = positions / p.strips, p.columns = p.channels * p.strips, p.row_cut = -1;
  bool all_use_batch = true;
  for (size_t i = 0; i < p.cuts.size(); i++) {
    Cut& cut = p.cuts[i];
    cut.channels = cut.channels ? cut.channels : p.channels;
    TORCH_CHECK(p.channels % cut.channels == 0 && cut.strips > 0 && p.strips % cut.strips == 0, "anynorm: a cut does not fit the input");
    cut.is_local = cut.uses_batch && cut.samples_per_part;
    TORCH_CHECK(!cut.is_local || p.samples % cut.samples_per_part == 0, "anynorm: a cut does not fit the batch size");
    cut.width = cut.channels * cut.strips;
    assign_parts(p, cut);
    bool is_row = cut.is_local && cut.samples_per_part == 1 && cut.part.empty();
    cut.is_input = is_row && p.is_vector();
    if (is_row) p.row_cut = int64_t(i);
    cut.rows = cut.is_input ? 0 : cut.is_local ? p.samples / cut.samples_per_part : p.num_domains();
    cut.offset = p.num_stats, p.num_stats += cut.rows * cut.width;
    p.has_local |= cut.is_local, p.has_global |= cut.uses_batch && !cut.is_local, all_use_batch &= cut.uses_batch;
  }
  divide_columns(p);
  p.map_per_sample = p.has_local || p.style || (p.classes && p.samples <= p.classes);
  p.maps = p.map_per_sample ? p.samples : std::max<int64_t>(p.classes, 1);
  double bytes = double(x.numel() * x.element_size());
  p.recompute = all_use_batch && bytes > MIN_BYTES && 2 * 8 * double(p.num_stats) > MAX_SAVED * bytes;
}

// Exchanges --------------------------------------------------------------------------------------------------------------------

#ifdef USE_DISTRIBUTED
Tensor as_tensor(double* values, at::IntArrayRef shape) { return at::from_blob(values, shape, at::kDouble); }

Sync make_sync(const std::string& name, int64_t domains) {
  if (name.empty()) return {};
  auto group = c10d::resolve_process_group(name);
  Sync sync;
  sync.merge = [group, domains](double* means, double* vars, double* counts, int64_t columns) {
    Tensor mean = as_tensor(means, {domains, columns}), var = as_tensor(vars, {domains, columns});
    Tensor count = as_tensor(counts, {domains, 1});
    Tensor packed = at::stack({mean, var, count.expand_as(mean)});
    std::vector<std::vector<Tensor>> all(1);
    for (int rank = 0; rank < group->getSize(); rank++) all[0].push_back(at::empty_like(packed));
    std::vector<Tensor> own = {packed};
    group->allgather(all, own)->wait();
    Tensor tables = at::stack(all[0]), n = tables.select(1, 2), total = n.sum(0);
    Tensor share = n / total.clamp_min(1e-9), merged = (share * tables.select(1, 0)).sum(0);
    var.copy_((share * (tables.select(1, 1) + (tables.select(1, 0) - merged).square())).sum(0));
    mean.copy_(merged), count.copy_(total.narrow(1, 0, 1));
  };
  sync.sum = [group](double* table, int64_t size) {
    std::vector<Tensor> tensors = {as_tensor(table, {size})};
    group->allreduce(tensors)->wait();
  };
  return sync;
}
#else
Sync make_sync(const std::string& name, int64_t) {
  TORCH_CHECK(name.empty(), "anynorm: this torch has no distributed package");
  return {};
}
#endif

// Tensors ----------------------------------------------------------------------------------------------------------------------

const float* pointer(const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr; }
float* mutable_pointer(const Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; }

struct Call {
  Problem p;
  std::string group;
  std::vector<Tensor> params;  // float32 and contiguous, a style repeated for each sample
  Tensor labels, stats, counts;

  void set_params(const variable_list& given) {
    params.clear();
    for (int i = 0; i < NUM_PARAMS; i++) {
      Tensor param = given[i];
      if (param.defined() && i >= STYLE_MEAN) param = param.expand({p.samples, p.channels});
      params.push_back(param.defined() ? param.to(at::kFloat).contiguous() : param);
    }
  }
  Tensors tensors(const Tensor& x) const {
    Tensors t{};
    t.x = x.const_data_ptr();
    t.weight = pointer(params[WEIGHT]), t.bias = pointer(params[BIAS]);
    t.weight2 = pointer(params[p.style ? STYLE_STD : CLASS_WEIGHT]), t.bias2 = pointer(params[p.style ? STYLE_MEAN : CLASS_BIAS]);
    t.mean_logits = pointer(params[MEAN_WEIGHT]), t.var_logits = pointer(params[VAR_WEIGHT]);
    t.labels = labels.defined() ? labels.const_data_ptr<int64_t>() : nullptr;
    t.means = stats.mutable_data_ptr<double>(), t.vars = t.means + p.num_stats;
    t.counts = counts.mutable_data_ptr<double>();
    return t;
  }
};

void check_tensor(const Tensor& tensor, const char* name, at::IntArrayRef shape) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_floating_point(), "anynorm: ", name, " must be a floating-point CPU tensor");
  TORCH_CHECK(tensor.sizes() == shape, "anynorm: ", name, " must have shape ", shape, "; got ", tensor.sizes());
}

void check(const Problem& p, const variable_list& params, const std::optional<Tensor>& labels) {
  const char* names[] = {"weight", "bias", "class_weight", "class_bias", "mean_weight", "var_weight", "style_mean", "style_std"};
  for (int i = 0; i < NUM_PARAMS; i++) {
    if (!params[i].defined()) continue;
    int64_t cuts = int64_t(i == MEAN_WEIGHT ? p.mean.size() : p.var.size());
    if (i <= BIAS) check_tensor(params[i], names[i], {p.channels});
    else if (i <= CLASS_BIAS) check_tensor(params[i], names[i], {p.classes, p.channels});
    else if (i <= VAR_WEIGHT) check_tensor(params[i].reshape({-1}), names[i], {p.groups * cuts});
    else check_tensor(params[i], names[i], {params[i].size(0) == 1 ? 1 : p.samples, p.channels});
  }
  TORCH_CHECK(params[CLASS_WEIGHT].defined() == params[CLASS_BIAS].defined() && params[STYLE_MEAN].defined() == params[STYLE_STD].defined() &&
              params[STYLE_STD].defined() == p.style, "anynorm: an affine needs both scale and shift");
  TORCH_CHECK(params[MEAN_WEIGHT].defined() || p.mean.size() == 1, "anynorm: several cuts need mixing weights");
  TORCH_CHECK(params[VAR_WEIGHT].defined() || p.var.size() == 1, "anynorm: several cuts need mixing weights");
  if (!p.classes) return;
  TORCH_CHECK(labels && labels->device().is_cpu() && labels->scalar_type() == at::kLong && labels->dim() == 1 && labels->size(0) == p.samples,
              "anynorm: labels must be int64 CPU labels, one per sample");
  const int64_t* values = labels->const_data_ptr<int64_t>();
  for (int64_t s = 0; s < p.samples; s++)
    TORCH_CHECK(values[s] >= 0 && values[s] < p.classes, "anynorm: label ", values[s], " is not in [0, ", p.classes, ")");
}

// Running statistics -----------------------------------------------------------------------------------------------------------

// Copy running statistics into the table of statistics; a statistic that the norm does not use reads 0.
void read_running(const Problem& p, const OptionalTensors& running, const Tensor& stats) {
  for (size_t i = 0; i < p.cuts.size(); i++)
    for (int side = 0; side < 2 && !p.cuts[i].uses_batch; side++) {
      const Cut& cut = p.cuts[i];
      std::optional<Tensor> buffer = running.get(2 * i + side);
      Tensor row = stats.select(0, side).narrow(0, cut.offset, cut.rows * cut.width);
      if (!buffer) {
        row.zero_();
        continue;
      }
      TORCH_CHECK(buffer->numel() == row.numel() && buffer->device().is_cpu(), "anynorm: running statistics must be ", row.numel(), " values on the CPU; got ", buffer->sizes());
      row.copy_(buffer->detach().reshape({-1}));
    }
}

void blend(Tensor& buffer, int64_t row, int64_t width, const std::vector<double>& values, double momentum) {
  if (buffer.scalar_type() != at::kFloat && buffer.scalar_type() != at::kDouble) {
    Tensor wide = buffer.to(at::kDouble);
    blend(wide, row, width, values, momentum);
    buffer.copy_(wide);
    return;
  }
  auto interpolate = [&](auto* data) {
    for (int64_t i = 0; i < width; i++)
      data[row * width + i] = (1 - momentum) * double(data[row * width + i]) + momentum * values[i];
  };
  if (buffer.scalar_type() == at::kFloat) interpolate(buffer.mutable_data_ptr<float>());
  else interpolate(buffer.mutable_data_ptr<double>());
  if (!buffer.is_inference()) buffer.unsafeGetTensorImpl()->bump_version();
}

// s <- (1 - momentum) s + momentum m, for every cut or for none: one value has no variance.
void update_running(const Problem& p, const Tensors& t, const OptionalTensors& running, std::optional<Tensor> num_batches, double momentum) {
  auto values_per_column = [&](const Cut& cut, int64_t row) { return cut.is_local ? double(cut.samples_per_part * p.length) : t.counts[row]; };
  for (size_t i = 0; i < p.cuts.size(); i++)
    for (int64_t row = 0; p.cuts[i].uses_batch && (running.get(2 * i) || running.get(2 * i + 1)) && row < p.cuts[i].rows; row++)
      if (values_per_column(p.cuts[i], row) * double(p.columns / p.cuts[i].width) == 1) return;
  for (size_t i = 0; i < p.cuts.size(); i++) {
    const Cut& cut = p.cuts[i];
    int64_t parts = cut.is_local ? cut.rows : 1;  // of one running statistic: ghost batches are averaged
    for (int64_t d = 0; cut.uses_batch && parts && d < cut.rows / parts; d++)
      for (int side = 0; side < 2; side++) {
        double per_column = values_per_column(cut, d), count = per_column * double(p.columns / cut.width);
        double factor = (side ? std::max(count, 1.0) / std::max(count - 1, 1.0) : 1.0) / double(parts);
        std::optional<Tensor> buffer = running.get(2 * i + side);
        if (!buffer || count == 0) continue;
        TORCH_CHECK(buffer->numel() == cut.rows / parts * cut.width && buffer->is_contiguous() && buffer->device().is_cpu() &&
                    buffer->is_floating_point(), "anynorm: running statistics must be contiguous on the CPU");
        std::vector<double> values(cut.width);
        const double* table = (side ? t.vars : t.means) + cut.offset + d * cut.width;
        for (int64_t j = 0; j < parts * cut.width; j++) values[j % cut.width] += factor * table[j];
        blend(*buffer, d, cut.width, values, momentum);
      }
  }
  if (!num_batches) return;
  TORCH_CHECK(num_batches->scalar_type() == at::kLong && num_batches->numel() == p.num_domains() && num_batches->is_contiguous() && num_batches->device().is_cpu(),
              "anynorm: num_batches_tracked must hold one int64 per domain");
  for (int64_t d = 0; d < p.num_domains(); d++) 
    num_batches->mutable_data_ptr<int64_t>()[d] += t.counts[d] > 0 || (p.has_local && !p.has_global && p.samples > 0);
  if (!num_batches->is_inference()) num_batches->unsafeGetTensorImpl()->bump_version();
}

// Autograd ---------------------------------------------------------------------------------------------------------------------

Tensor run_forward(const Tensor& x, const variable_list& params, Call& call) {
  call.set_params(params);
  Tensors t = call.tensors(x);
  Tensor y = at::empty_like(x);
  t.y = y.mutable_data_ptr();
  kernels().forward(call.p, t, make_sync(call.group, call.p.num_domains()));
  return y;
}

variable_list run_backward(const Tensor& x, const variable_list& params, Call& call, Tensor dy, const std::vector<bool>& needs) {
  call.set_params(params);
  if (dy.scalar_type() != x.scalar_type() || dy.strides() != x.strides()) dy = at::empty_like(x).copy_(dy);
  Tensors t = call.tensors(x);
  variable_list grads(1 + NUM_PARAMS);
  if (needs[0]) grads[0] = at::empty_like(x), t.dx = grads[0].mutable_data_ptr();
  for (int i = 0; i < NUM_PARAMS; i++)
    if (needs[1 + i]) grads[1 + i] = at::zeros_like(call.params[i]);
  t.dy = dy.const_data_ptr();
  t.d_weight = mutable_pointer(grads[1 + WEIGHT]), t.d_bias = mutable_pointer(grads[1 + BIAS]);
  t.d_weight2 = mutable_pointer(grads[1 + (call.p.style ? STYLE_STD : CLASS_WEIGHT)]);
  t.d_bias2 = mutable_pointer(grads[1 + (call.p.style ? STYLE_MEAN : CLASS_BIAS)]);
  t.d_mean_logits = mutable_pointer(grads[1 + MEAN_WEIGHT]), t.d_var_logits = mutable_pointer(grads[1 + VAR_WEIGHT]);
  kernels().backward(call.p, t, make_sync(call.group, call.p.num_domains()));
  for (int i = 0; i < NUM_PARAMS; i++) {
    Tensor& grad = grads[1 + i];
    if (!grad.defined()) continue;
    if (grad.sizes() != params[i].sizes()) grad = grad.sum(0, true);
    grad = grad.to(params[i].scalar_type());
  }
  return grads;
}

Call make_call(const Tensor& x, at::IntArrayRef spec, double eps, const std::string& group, const Tensor& labels) {
  Call call{read_problem(spec, eps), group, {}, labels, {}, {}};
  lay_out(call.p, x);
  call.p.recompute &= group.empty();  // processes would have to exchange again, all or none of them
  return call;
}

// Gradients that can be differentiated again, by the reference.
variable_list differentiable_backward(const Tensor& x, const variable_list& params, const Call& call, at::IntArrayRef spec, const Tensor& dy,
                                      const std::vector<bool>& needs) {
  static const auto reference = c10::Dispatcher::singleton().findSchemaOrThrow("anynorm::reference_backward", "");
  OptionalTensors all, running;
  for (const Tensor& param : params) all.push_back(param.defined() ? std::optional<Tensor>(param) : std::nullopt);
  for (const Cut& cut : call.p.cuts)
    for (int side = 0; side < 2; side++)
      running.push_back(cut.uses_batch ? std::nullopt
                                       : std::optional<Tensor>(call.stats.select(0, side).narrow(0, cut.offset, cut.rows * cut.width)));
  c10::List<bool> needed;
  for (bool need : needs) needed.push_back(need);
  torch::jit::Stack stack;
  torch::jit::push(stack, x, all, running, call.labels.defined() ? std::optional<Tensor>(call.labels) : std::nullopt, spec, call.p.eps,
                   call.group, dy, needed);
  reference.callBoxed(stack);
  std::vector<Tensor> found = stack.back().toTensorVector();
  variable_list grads(needs.size());
  for (size_t i = 0, next = 0; i < needs.size(); i++)
    if (needs[i]) grads[i] = found[next++];
  return grads;
}

using Optional = std::optional<Tensor>;

struct Normalize : torch::autograd::Function<Normalize> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Optional& weight, const Optional& bias, const Optional& class_weight,
                        const Optional& class_bias, const Optional& mean_weight, const Optional& var_weight, const Optional& style_mean,
                        const Optional& style_std, at::IntArrayRef spec, Call* call) {
    variable_list params;
    for (const Optional* param : {&weight, &bias, &class_weight, &class_bias, &mean_weight, &var_weight, &style_mean, &style_std})
      params.push_back(param->has_value() ? **param : Tensor());
    Tensor y = run_forward(x, params, *call);
    variable_list saved = {x};
    saved.insert(saved.end(), params.begin(), params.end());
    for (const Tensor& tensor : {call->p.recompute ? Tensor() : call->stats, call->counts, call->labels}) saved.push_back(tensor);
    ctx->save_for_backward(saved);
    ctx->saved_data["spec"] = spec, ctx->saved_data["eps"] = call->p.eps, ctx->saved_data["group"] = call->group;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    variable_list saved = ctx->get_saved_variables(), params(saved.begin() + 1, saved.begin() + 1 + NUM_PARAMS), grads(3 + NUM_PARAMS);
    const Tensor &x = saved[0], &labels = saved[3 + NUM_PARAMS];
    std::vector<int64_t> spec = ctx->saved_data["spec"].toIntVector();
    Call call = make_call(x, spec, ctx->saved_data["eps"].toDouble(), ctx->saved_data["group"].toStringRef(), labels);
    call.counts = saved[2 + NUM_PARAMS];
    call.stats = call.p.recompute ? at::empty({2, call.p.num_stats}, call.counts.options()) : saved[1 + NUM_PARAMS];
    std::vector<bool> needs = {ctx->needs_input_grad(0)};
    size_t edge = 1;
    for (const Tensor& param : params) needs.push_back(param.defined() && ctx->needs_input_grad(edge++));
    variable_list found = at::GradMode::is_enabled() ? differentiable_backward(x, params, call, spec, dy[0], needs)
                                                     : run_backward(x, params, call, dy[0], needs);
    std::copy(found.begin(), found.end(), grads.begin());
    return grads;
  }
};

// Operators --------------------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> normalize(const Tensor& given, const OptionalTensors& given_params, const OptionalTensors& running,
                                             const std::optional<Tensor>& labels, at::IntArrayRef spec, double eps, c10::string_view group,
                                             const std::optional<Tensor>& num_batches, double momentum) {
  TORCH_CHECK(given.device().is_cpu() && given.layout() == at::kStrided && given.dim() >= 2, "anynorm: the input must be a dense CPU tensor (n, c, ...)");
  TORCH_CHECK(given.scalar_type() == at::kFloat || given.scalar_type() == at::kBFloat16, "anynorm: the input must be float32 or bfloat16; got ", given.scalar_type());
  TORCH_CHECK(given_params.size() == NUM_PARAMS, "anynorm: ", int(NUM_PARAMS), " parameters are needed; got ", given_params.size());
  bool ranks_may_differ = !group.empty() && !spec.empty() && spec.back() > 1;  // in the order of their columns
  Tensor x = given.is_contiguous() || (channels_last(given) && !ranks_may_differ) ? given : given.contiguous();
  Call call = make_call(x, spec, eps, std::string(group), labels ? labels->contiguous().clone() : Tensor());
  TORCH_CHECK(running.size() == 2 * call.p.cuts.size(), "anynorm: running statistics of ", call.p.cuts.size(), " cuts are needed; got ", running.size() / 2);
  variable_list params;
  for (size_t i = 0; i < NUM_PARAMS; i++) params.push_back(given_params.get(i).value_or(Tensor()));
  check(call.p, params, call.labels.defined() ? std::optional<Tensor>(call.labels) : std::nullopt);
  call.stats = at::empty({2, call.p.num_stats}, x.options().dtype(at::kDouble).requires_grad(false));
  call.counts = at::zeros({call.p.num_domains()}, call.stats.options());
  read_running(call.p, running, call.stats);
  bool differentiable = at::GradMode::is_enabled() && x.requires_grad();
  for (const Tensor& param : params) differentiable |= at::GradMode::is_enabled() && param.defined() && param.requires_grad();
  Tensor y;
  if (differentiable) {
    std::vector<Optional> all;
    for (const Tensor& param : params) all.push_back(param.defined() ? Optional(param) : std::nullopt);
    y = Normalize::apply(x, all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7], spec, &call);
  } else {
    y = run_forward(x, params, call);
  }
  if (momentum >= 0) update_running(call.p, call.tensors(x), running, num_batches, momentum);
  return {y, call.stats, call.counts};
}

}  // namespace

TORCH_LIBRARY(anynorm_native, m) {
  m.def("normalize(Tensor x, Tensor?[] params, Tensor?[] running_stats, Tensor? labels, int[] spec, float eps, str group, "
        "Tensor? num_batches, float momentum) -> (Tensor, Tensor, Tensor)", normalize);
  m.def("cpu_capability() -> str", [] { return std::string(kernels().name); });
}

}  // namespace anynorm
