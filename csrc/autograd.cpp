// The Python module of eager code: forward, its node of the autograd graph, and the update of running statistics in one
// call. It does what the operators do, with less overhead: torch.ops would convert every argument.
#include <torch/csrc/python_headers.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13  // with earlier versions, compiled autograd raises an error
#define ANYNORM_COMPILED_AUTOGRAD
#include <torch/csrc/dynamo/compiled_autograd.h>
#endif

#include <algorithm>
#include <mutex>

#include "passes.h"

namespace anynorm {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Nodes are counted by std::shared_ptr in earlier versions of torch, and by c10::intrusive_ptr in later ones.
using NodePointer = decltype(torch::autograd::Edge::function);
constexpr bool IS_SHARED = std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>;

template <class N>
auto new_node() {
  if constexpr (IS_SHARED) return std::shared_ptr<N>(new N(), [](auto* node) { deleteNode(node); });
  else return c10::make_intrusive<N>();
}
template <class N>
NodePointer pointer_to(N* node) {
  if constexpr (IS_SHARED) return node->shared_from_this();
  else return NodePointer::unsafe_reclaim_from_nonowning(node);
}

OptionalTensor optional(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

// Whether the kernels can read the values of a tensor: it is neither batched by a transform nor traced.
bool has_values(const Tensor& tensor) {
  constexpr c10::DispatchKeySet transformed({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                             c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                             c10::DispatchKey::ZeroTensor});
  return !tensor.defined() || (tensor.has_storage() && !tensor.key_set().has_any(transformed));
}

// Compute gradients by the reference, so that they can be differentiated again, or for a batch of dy.
variable_list differentiable_backward(const Plan& plan, const Inputs& inputs, const Tensor& y, const Tensor& stats,
                                      const Tensor& labels, const Members& members, const Tensor& dy,
                                      const Needs& needs) {
  static const auto reference = c10::Dispatcher::singleton().findSchemaOrThrow("anynorm::reference_backward", "");
  const Problem& p = plan.p;
  OptionalTensors params, running;
  for (int i = WEIGHT; i < RESIDUAL; i++) params.push_back(optional(inputs[i]));
  for (const Cut& cut : p.cuts)
    for (int side = 0; side < 2; side++)
      running.push_back(
          optional(cut.uses_batch ? Tensor() : stats.narrow(0, side * p.num_stats + cut.offset, cut.rows * cut.width)));
  c10::List<bool> needed;
  for (bool need : needs) needed.push_back(need);
  torch::jit::Stack stack;
  torch::jit::push(stack, inputs[X], params, optional(y), running, optional(labels), plan.spec, plan.eps, plan.slope,
                   plan.group, optional(members.tensor), members.num_samples, dy, needed);
  reference.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradCPU), &stack);  // vmap has no rule for it
  std::vector<Tensor> computed = stack.back().toTensorVector();
  variable_list grads(NUM_INPUTS);
  for (size_t i = 0, next = 0; i < NUM_INPUTS; i++)
    if (needs[i]) grads[i] = computed[next++];
  return grads;
}

struct NormalizeBackward : torch::autograd::Node {
  PlanPointer plan;
  std::array<SavedVariable, NUM_INPUTS> inputs;  // except the residual
  SavedVariable y, stats;
  Tensor labels;
  Members members;

  std::string name() const override { return "AnynormNormalizeBackward"; }

  void release_variables() override {
    for (SavedVariable& input : inputs) input.reset_data();
    y.reset_data();
    stats.reset_data();
  }

  variable_list apply(variable_list&& dy) override {
    Inputs unpacked;
    Needs needs;
    for (int i = 0; i < NUM_INPUTS; i++) {
      unpacked[i] = inputs[i].unpack();
      needs[i] = task_should_compute_output(i);
    }
    if (!dy[0].defined()) return variable_list(NUM_INPUTS);
    Tensor saved_y = y.unpack(pointer_to(this)), saved_stats = stats.unpack();
    const Tensor& x = unpacked[X];
    TORCH_CHECK(x.scalar_type() == dy[0].scalar_type(), "anynorm: x was saved as ", dy[0].scalar_type(), "; got ",
                x.scalar_type());
    bool is_transformed =
        !has_values(dy[0]) || !has_values(saved_y) || !std::all_of(unpacked.begin(), unpacked.end(), has_values);
    if (at::GradMode::is_enabled() || is_transformed)
      return differentiable_backward(*plan, unpacked, saved_y, saved_stats, labels, members, dy[0], needs);
    at::AutoDispatchBelowADInplaceOrView guard;
    unpacked[RESIDUAL] = saved_y;  // only whether there is one
    Inputs grads = run_backward(*plan, unpacked, saved_y, saved_stats, labels, dy[0], needs, members);
    return variable_list(grads.begin(), grads.end());
  }

#ifdef ANYNORM_COMPILED_AUTOGRAD
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(!members.tensor.defined(),
                                "anynorm: compiled autograd does not support a mask or batch_index; "
                                "call backward outside of it");
    for (const SavedVariable& input : inputs) args.collect(input, /*is_output=*/false);
    args.collect(y, /*is_output=*/true);
    args.collect(stats, /*is_output=*/false);
    args.collect(labels);
    for (int64_t number : plan->spec) args.collect(number);
    args.collect(plan->eps);
    args.collect(plan->slope);
    args.collect(plan->group);
    args.collect(plan->p.num_stats);
    for (size_t i = 0; i < NUM_INPUTS; i++) args.collect(task_should_compute_output(i));
  }

  // Called with tensors of a trace in place of the saved ones: call the operator of the compiler.
  variable_list apply_with_saved(const variable_list& dy, torch::dynamo::autograd::SwapSavedVariables& saved) override {
    auto swap = [&](auto&& f) {
      for (SavedVariable& input : inputs) f(input);
      f(y);
      f(stats);
      f(labels);
    };
    swap([&](auto& variable) { saved.before(variable); });
    variable_list grads = dy[0].defined() ? traced_backward(dy[0]) : variable_list(NUM_INPUTS);
    swap([&](auto& variable) { saved.after(variable); });
    return grads;
  }

  variable_list traced_backward(const Tensor& dy) {
    static const auto backward = c10::Dispatcher::singleton().findSchemaOrThrow("anynorm_native::backward", "");
    Tensor x = inputs[X].unpack(), saved_y = y.unpack(pointer_to(this)), saved_stats = stats.unpack();
    if (!saved_stats.defined())  // the kernels compute them again
      saved_stats = at::zeros({2 * plan->p.num_stats + plan->p.num_domains()}, x.options().dtype(at::kDouble));
    OptionalTensors params;
    for (int i = WEIGHT; i < RESIDUAL; i++) params.push_back(optional(inputs[i].unpack()));
    params.push_back(saved_y.defined() ? OptionalTensor(x) : std::nullopt);  // only whether there is a residual
    c10::List<bool> needed;
    for (size_t i = 0; i < NUM_INPUTS; i++) needed.push_back(task_should_compute_output(i));
    torch::jit::Stack stack;
    torch::jit::push(stack, dy, x, params, optional(saved_y), saved_stats, optional(labels), plan->spec, plan->eps,
                     plan->slope, plan->group, needed);
    backward.callBoxed(stack);
    std::vector<Tensor> computed = stack.back().toTensorVector();
    variable_list grads(NUM_INPUTS);
    for (size_t i = 0, next = 0; i < NUM_INPUTS; i++)
      if (needed.get(i)) grads[i] = computed[next++];
    return grads;
  }
#endif
};

// Whether a mask hides all values of a domain that has samples: then the layer raises an error.
bool hides_a_domain(const Plan& plan, const Tensor& stats, const Tensor& labels, const Members& members) {
  if (!members.tensor.defined() || !members.is_mask() || !labels.defined() || !plan.p.domains) return false;
  const double* counts = stats.const_data_ptr<double>() + 2 * plan.p.num_stats;
  const int64_t* values = labels.const_data_ptr<int64_t>();
  return std::any_of(values, values + labels.numel(), [&](int64_t domain) { return counts[domain] == 0; });
}

// Add the node to the autograd graph, if an input needs a gradient.
void record(const PlanPointer& plan, const Inputs& inputs, Tensor& y, const Tensor& stats, const Tensor& labels,
            const Members& members) {
  bool needs_grad = false;
  for (const Tensor& input : inputs) needs_grad |= input.defined() && input.requires_grad();
  if (!needs_grad || !at::GradMode::is_enabled()) return;
  auto node = new_node<NormalizeBackward>();
  torch::autograd::edge_list edges;
  edges.reserve(NUM_INPUTS);
  for (const Tensor& input : inputs)
    edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  node->set_next_edges(std::move(edges));
  for (int i = 0; i < RESIDUAL; i++)
    if (inputs[i].defined()) node->inputs[i] = SavedVariable(inputs[i], /*is_output=*/false);
  torch::autograd::set_history(y, node);
  if (plan->needs_y(inputs)) node->y = SavedVariable(y, /*is_output=*/true);
  if (!plan->p.recompute) node->stats = SavedVariable(stats, /*is_output=*/false);
  node->plan = plan;
  node->labels = labels;
  node->members = members;
}

// Python
// ---------------------------------------------------------------------------------------------------------------------

// The settings of a pass, with the plans for the last shapes of x; Python holds it in a capsule.
struct Definition {
  std::vector<int64_t> spec;
  double eps, slope;
  std::string group;
  std::vector<std::pair<Shape, PlanPointer>> plans;
  std::mutex mutex;

  Settings settings() const { return {spec, eps, slope, group}; }
  PlanPointer plan(const Tensor& x, const Members& members) {
    Shape shape = shape_of(x, members);
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [known, plan] : plans)
      if (known == shape) return plan;
    if (plans.size() >= MAX_PLANS) plans.clear();
    plans.emplace_back(shape, find_plan(x, settings(), members));
    return plans.back().second;
  }

 private:
  static constexpr size_t MAX_PLANS = 16;
};

constexpr const char* CAPSULE = "anynorm.Definition";

PyObject* define(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* numbers;
  double eps, slope;
  const char* group;
  if (!PyArg_ParseTuple(args, "O!dds", &PyList_Type, &numbers, &eps, &slope, &group)) return nullptr;
  auto definition = std::make_unique<Definition>();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(numbers); i++) {
    definition->spec.push_back(PyLong_AsLongLong(PyList_GET_ITEM(numbers, i)));
    if (PyErr_Occurred()) return nullptr;
  }
  definition->eps = eps;
  definition->slope = slope;
  definition->group = group;
  return PyCapsule_New(definition.release(), CAPSULE, [](PyObject* capsule) {
    delete static_cast<Definition*>(PyCapsule_GetPointer(capsule, CAPSULE));
  });
  END_HANDLE_TH_ERRORS
}

// Read a tensor; return false for an instance of a subclass. None is an undefined tensor.
bool read_tensor(PyObject* object, Tensor& tensor) {
  if (object == Py_None) return true;
  if (!THPVariable_CheckExact(object)) return false;
  tensor = THPVariable_Unpack(object);
  return true;
}
template <class F>
bool read_tensors(PyObject* tuple, const F& f) {
  if (!PyTuple_Check(tuple)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Tensor tensor;
    if (!read_tensor(PyTuple_GET_ITEM(tuple, i), tensor)) return false;
    f(i, tensor);
  }
  return true;
}

// normalize(definition, x, params, running_stats, labels, num_batches, num_skipped, momentum) -> (y, stats), or None
// for inputs that are not plain tensors on the CPU, or parameters in float64. A mask or batch index and the number of
// samples may follow.
PyObject* normalize(PyObject*, PyObject* const* args, Py_ssize_t num_args) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(num_args == 8 || num_args == 10, "anynorm: normalize takes 8 or 10 arguments; got ", num_args);
  auto* definition = static_cast<Definition*>(PyCapsule_GetPointer(args[0], CAPSULE));
  if (!definition) return nullptr;
  double momentum = PyFloat_AsDouble(args[7]);
  if (PyErr_Occurred()) return nullptr;
  Inputs inputs;
  std::vector<OptionalTensor> running;
  Tensor given, given_labels, num_batches, num_skipped;
  bool is_plain = read_tensor(args[1], given) && given.defined() && read_tensor(args[4], given_labels) &&
                  read_tensor(args[5], num_batches) && read_tensor(args[6], num_skipped);
  Members members;
  if (num_args == 10) {
    is_plain = is_plain && read_tensor(args[8], members.tensor) && members.tensor.defined();
    members.num_samples = PyLong_AsLongLong(args[9]);
    if (PyErr_Occurred()) return nullptr;
  }
  TORCH_CHECK(PyTuple_Check(args[2]) && PyTuple_GET_SIZE(args[2]) == NUM_INPUTS - 1, "anynorm: ", NUM_INPUTS - 1,
              " parameters are needed");
  is_plain = is_plain && given.is_cpu() &&
             read_tensors(args[2],
                          [&](size_t i, const Tensor& tensor) {
                            inputs[i + 1] = tensor;
                            is_plain &=
                                !tensor.defined() ||
                                (tensor.is_cpu() && (i + 1 > VAR_WEIGHT || tensor.scalar_type() != at::kDouble));
                          }) &&
             is_plain && read_tensors(args[3], [&](size_t, const Tensor& tensor) {
               running.push_back(tensor.defined() ? OptionalTensor(tensor) : std::nullopt);
             });
  if (!is_plain) Py_RETURN_NONE;
  Tensor y, stats;
  {
    pybind11::gil_scoped_release no_gil;
    inputs[X] = dense(given, definition->settings());
    if (members.tensor.defined()) members.tensor = members.tensor.contiguous().clone();
    PlanPointer plan = definition->plan(inputs[X], members);
    Tensor labels = given_labels.defined() ? given_labels.contiguous().clone() : Tensor();
    RunningStats buffers(*plan, running);
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      std::tie(y, stats) = run_forward(*plan, inputs, buffers, labels, members);
      if (momentum >= 0 && !hides_a_domain(*plan, stats, labels, members))
        buffers.update(*plan, stats, optional(num_batches), optional(num_skipped), momentum);
    }
    record(plan, inputs, y, stats, labels, members);
  }
  PyObject *first = THPVariable_Wrap(y), *second = THPVariable_Wrap(stats);
  PyObject* result = PyTuple_Pack(2, first, second);
  Py_XDECREF(first);
  Py_XDECREF(second);
  return result;
  END_HANDLE_TH_ERRORS
}

PyMethodDef METHODS[] = {
    {"define", define, METH_VARARGS, "define(spec, eps, slope, group): the settings of a pass."},
    {"normalize", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(normalize)), METH_FASTCALL,
     "normalize(definition, x, params, running_stats, labels, num_batches, num_skipped, momentum[, members, "
     "num_samples]): y and the "
     "statistics."},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_native", "The C++ kernels.", -1, METHODS, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace anynorm

PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&anynorm::MODULE); }
