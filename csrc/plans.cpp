#include "plans.h"

#include <cstring>
#include <unordered_map>

namespace anynorm {
namespace {

constexpr size_t MAX_PLANS = 1024;  // per thread; a plan has a few numbers per channel

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

}  // namespace

Shape shape_of(const Tensor& x, const Members& members) {
  bool ragged = members.tensor.defined();
  return {ragged ? members.num_samples : x.size(0), x.size(1), num_positions(x), is_channels_last(x),
          x.scalar_type() == at::kBFloat16,         ragged};
}

Tensor dense(const Tensor& x, const Settings& settings) {
  TORCH_CHECK(x.device().is_cpu() && x.layout() == at::kStrided && x.dim() >= 2,
              "anynorm: the input must be a dense CPU tensor (n, c, ...)");
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
              "anynorm: the input must be float32 or bfloat16; got ", x.scalar_type());
  bool ranks_may_differ = !settings.group.empty() && !settings.spec.empty() &&
                          settings.spec.back() > 1;  // in memory layout, and so in the order of columns
  return x.is_contiguous() || (is_channels_last(x) && !ranks_may_differ) ? x : x.contiguous();
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

}  // namespace anynorm
