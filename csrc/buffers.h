// The running statistics of a layer, read and written in place.
#pragma once
#include "plans.h"
#include "running_stats.h"

namespace anynorm {

// Running statistics as the kernels access them; those with a dtype other than float32 and float64 are converted.
class RunningStats {
  std::vector<Tensor> tensors, converted;

 public:
  std::vector<Buffer> buffers;
  RunningStats(const Plan& plan, const std::vector<OptionalTensor>& given);
  void update(const Plan& plan, const Tensor& stats, const OptionalTensor& num_batches,
              const OptionalTensor& num_skipped, double momentum);
};

}  // namespace anynorm
