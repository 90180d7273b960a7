// Communication of moments and gradients between the processes of a group.
#pragma once
#include <ATen/ATen.h>
#ifdef USE_DISTRIBUTED
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include "problem.h"

namespace anynorm {

#ifdef USE_DISTRIBUTED
inline Sync make_sync(const std::string& name, int64_t domains) {
  if (name.empty()) return {};
  auto group = c10d::resolve_process_group(name);
  auto as_tensor = [](double* values, at::IntArrayRef shape) { return at::from_blob(values, shape, at::kDouble); };
  Sync sync;
  sync.merge = [=](double* means, double* vars, double* counts, int64_t columns) {
    at::Tensor mean = as_tensor(means, {domains, columns}), var = as_tensor(vars, {domains, columns}),
               count = as_tensor(counts, {domains, 1});
    at::Tensor packed = at::stack({mean, var, count.expand_as(mean)});
    std::vector<std::vector<at::Tensor>> all(1);
    for (int rank = 0; rank < group->getSize(); rank++) all[0].push_back(at::empty_like(packed));
    std::vector<at::Tensor> own = {packed};
    group->allgather(all, own)->wait();
    at::Tensor tables = at::stack(all[0]), n = tables.select(1, 2), total = n.sum(0);
    at::Tensor share = n / total.clamp_min(1e-9), merged = (share * tables.select(1, 0)).sum(0);
    var.copy_((share * (tables.select(1, 1) + (tables.select(1, 0) - merged).square())).sum(0));
    mean.copy_(merged);
    count.copy_(total.narrow(1, 0, 1));
  };
  sync.sum = [=](double* table, int64_t size) {
    std::vector<at::Tensor> tensors = {as_tensor(table, {size})};
    group->allreduce(tensors)->wait();
  };
  return sync;
}
#else
inline Sync make_sync(const std::string& name, int64_t) {
  TORCH_CHECK(name.empty(), "anynorm: this torch has no distributed package");
  return {};
}
#endif

}  // namespace anynorm
