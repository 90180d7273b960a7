// The operators of the compiler: anynorm_native::forward, backward and update_running. They have no side effects
// besides the declared mutation of running statistics, and autograd is registered in Python
// (anynorm/kernels/compiled.py).
#include "operators.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>
#ifndef _WIN32
#include <pthread.h>
#endif

#include <cstring>
#include <unordered_map>

#include "ragged.h"
#include "sync.h"

namespace anynorm {

// Threads
// ---------------------------------------------------------------------------------------------------------------------

namespace {

// Whether this process was forked. OpenMP threads do not survive a fork; a parallel loop would wait forever for the
// parent's.
bool is_forked = false;
#ifndef _WIN32
const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
#endif

}  // namespace

const Threads threads = {[]() -> int64_t { return is_forked || at::in_parallel_region() ? 1 : at::get_num_threads(); },
                         [](int64_t chunks, const std::function<void(int64_t)>& f) {
                           at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
                             for (int64_t chunk = begin; chunk < end; chunk++) f(chunk);
                           });
                         }};

namespace {

const Kernels& kernels() {
  static const Kernels best = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels();
#endif
    return baseline_kernels();
  }();
  return best;
}

// Plans
// ---------------------------------------------------------------------------------------------------------------------

constexpr size_t MAX_PLANS = 4096;  // per thread

int64_t num_positions(const Tensor& x) {
  int64_t positions = 1;
  for (int64_t axis = 2; axis < x.dim(); axis++) positions *= x.size(axis);
  return positions;
}

struct Key {
  std::vector<int64_t> numbers;
  std::string group;
  bool operator==(const Key& other) const { return numbers == other.numbers && group == other.group; }
};
struct Hash {
  size_t operator()(const Key& key) const {
    size_t hash = std::hash<std::string>()(key.group);
    for (int64_t number : key.numbers) hash = (hash ^ size_t(number)) * 0x9e3779b97f4a7c15u;
    return hash;
  }
};
int64_t bits(double value) {
  int64_t result;
  std::memcpy(&result, &value, sizeof value);
  return result;
}

bool channels_last(const Tensor& x) {
  if (x.is_contiguous()) return num_positions(x) == 1;
  if (x.dim() == 4) return x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

}  // namespace

Shape shape_of(const Tensor& x, const Members& members) {
  bool ragged = members.tensor.defined();
  return {ragged ? members.num_samples : x.size(0), x.size(1), num_positions(x), channels_last(x),
          x.scalar_type() == at::kBFloat16,         ragged};
}

Tensor dense(const Tensor& x, const Settings& settings) {
  TORCH_CHECK(x.device().is_cpu() && x.layout() == at::kStrided && x.dim() >= 2,
              "anynorm: the input must be a dense CPU tensor (n, c, ...)");
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
              "anynorm: the input must be float32 or bfloat16; got ", x.scalar_type());
  bool ranks_may_differ = !settings.group.empty() && !settings.spec.empty() &&
                          settings.spec.back() > 1;  // in memory layout, and so in the order of columns
  return x.is_contiguous() || (channels_last(x) && !ranks_may_differ) ? x : x.contiguous();
}

PlanPointer find_plan(const Tensor& x, const Settings& settings, const Members& members) {
  static thread_local std::unordered_map<Key, PlanPointer, Hash> plans;
  Shape shape = shape_of(x, members);
  Key key;
  key.numbers.reserve(settings.spec.size() + 8);
  key.numbers = {shape.samples,     shape.channels, shape.positions,    shape.last,
                 shape.is_bfloat16, shape.ragged,   bits(settings.eps), bits(settings.slope)};
  key.numbers.insert(key.numbers.end(), settings.spec.begin(), settings.spec.end());
  key.group.assign(settings.group.data(), settings.group.size());
  auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  if (plans.size() >= MAX_PLANS) plans.clear();
  std::vector<int64_t> spec = settings.spec.vec();
  auto plan = std::make_shared<Plan>(
      Plan{make_problem(spec, settings.eps, settings.slope, shape), spec, settings.eps, settings.slope, key.group});
  plan->p.recompute &=
      key.group.empty();  // a recomputation would need another exchange, in which all processes take part
  plans.emplace(std::move(key), plan);
  return plan;
}

// Running statistics
// ---------------------------------------------------------------------------------------------------------------------

namespace {

double largest_value(at::ScalarType type) {
  return type == at::kFloat      ? std::numeric_limits<float>::max()
         : type == at::kDouble   ? std::numeric_limits<double>::max()
         : type == at::kHalf     ? double(std::numeric_limits<at::Half>::max())
         : type == at::kBFloat16 ? double(std::numeric_limits<at::BFloat16>::max())
                                 : std::numeric_limits<float>::max();
}

// The values of a counter per domain; null without a counter.
int64_t* counter(const Plan& plan, const OptionalTensor& tensor, const char* name) {
  if (!tensor) return nullptr;
  TORCH_CHECK(tensor->scalar_type() == at::kLong && tensor->numel() == plan.p.num_domains() &&
                  tensor->is_contiguous() && tensor->device().is_cpu(),
              "anynorm: ", name, " must hold one int64 per domain");
  return tensor->mutable_data_ptr<int64_t>();
}

}  // namespace

RunningStats::RunningStats(const Plan& plan, const std::vector<OptionalTensor>& given) {
  TORCH_CHECK(given.size() == 2 * plan.p.cuts.size(), "anynorm: running statistics of ", plan.p.cuts.size(),
              " cuts are needed; got ", given.size() / 2);
  buffers.resize(given.size());
  for (size_t i = 0; i < given.size(); i++) {
    if (!given[i]) continue;
    Tensor tensor = *given[i];
    TORCH_CHECK(tensor.device().is_cpu() && tensor.is_floating_point(),
                "anynorm: running statistics must be floating-point CPU tensors");
    double largest = largest_value(tensor.scalar_type());
    bool is_wide = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
    if (!is_wide || !tensor.is_contiguous()) {
      tensors.push_back(tensor);
      tensor = tensor.detach().to(at::kDouble).contiguous();
      converted.push_back(tensor);
    } else if (plan.p.cuts[i / 2].uses_batch) {
      tensors.push_back(tensor);
      converted.emplace_back();
    }
    bool is_float = tensor.scalar_type() == at::kFloat;
    buffers[i] = {is_float ? static_cast<float*>(tensor.data_ptr()) : nullptr,
                  is_float ? nullptr : static_cast<double*>(tensor.data_ptr()), tensor.numel(), largest};
  }
}

void RunningStats::update(const Plan& plan, const Tensor& stats, const OptionalTensor& num_batches,
                          const OptionalTensor& num_skipped, double momentum) {
  int64_t *batches = counter(plan, num_batches, "num_batches_tracked"),
          *skipped = counter(plan, num_skipped, "num_batches_skipped");
  if (!update_running(plan.p, stats.const_data_ptr<double>(), buffers, batches, skipped, momentum)) return;
  auto changed = [](const Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (size_t i = 0; i < tensors.size(); i++) {
    if (converted[i].defined()) tensors[i].detach().copy_(converted[i]);
    else changed(tensors[i]);
  }
  if (num_batches) changed(*num_batches);
  if (num_skipped) changed(*num_skipped);
}

// Passes
// ---------------------------------------------------------------------------------------------------------------------

namespace {

const char* NAMES[] = {"x",           "weight",     "bias",       "class_weight", "class_bias",
                       "mean_weight", "var_weight", "style_mean", "style_std",    "residual"};

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

bool is_plain(const Tensor& tensor) { return tensor.scalar_type() == at::kFloat && tensor.is_contiguous(); }

// The inputs with parameters in contiguous float32, and a style with one row per sample.
Inputs convert_inputs(const Problem& p, const Inputs& given) {
  Inputs inputs = given;
  for (int i = WEIGHT; i < RESIDUAL; i++) {
    if (!inputs[i].defined()) continue;
    if (i >= STYLE_MEAN && inputs[i].size(0) != p.samples) inputs[i] = inputs[i].expand({p.samples, p.channels});
    if (!is_plain(inputs[i])) inputs[i] = inputs[i].to(at::kFloat).contiguous();
  }
  return inputs;
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
  if (last == channels_last(x) && (last || x.is_contiguous())) return x;
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

// Operators
// ---------------------------------------------------------------------------------------------------------------------

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
