#include "buffers.h"

#include <limits>

namespace anynorm {
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

}  // namespace anynorm
