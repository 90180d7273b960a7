// Running statistics: loaded for cuts that do not use the batch, and updated for cuts that do.
#pragma once
#include <ATen/ATen.h>

#include "problem.h"

namespace anynorm {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

// Copy running statistics into the tables of statistics; a statistic without a buffer is set to 0.
inline void read_running(const Problem& p, const Tensors& t, const OptionalTensors& running) {
  for (size_t i = 0; i < p.cuts.size(); i++)
    for (int side = 0; side < 2 && !p.cuts[i].uses_batch; side++) {
      const Cut& cut = p.cuts[i];
      std::optional<at::Tensor> buffer = running.get(2 * i + side);
      int64_t size = cut.rows * cut.width;
      double* row = (side ? t.vars : t.means) + cut.offset;
      TORCH_CHECK(!buffer || (buffer->numel() == size && buffer->device().is_cpu()),
                  "anynorm: running statistics must be ", size, " values on the CPU; got ", buffer->sizes());
      if (!buffer) std::fill_n(row, size, 0.0);
      else if (buffer->scalar_type() == at::kFloat && buffer->is_contiguous())
        std::copy_n(buffer->const_data_ptr<float>(), size, row);
      else at::from_blob(row, {size}, at::kDouble).copy_(buffer->detach().reshape({-1}));
    }
}

// Update one row of a buffer in place: s <- (1 - momentum) s + momentum m, as `Running` in
// anynorm/core/update_rules.py.
inline void interpolate(at::Tensor& buffer, int64_t row, const std::vector<double>& values, double momentum) {
  int64_t width = int64_t(values.size());
  auto update = [&](auto* data) {
    for (int64_t i = 0; i < width; i++) data[i] = (1 - momentum) * double(data[i]) + momentum * values[i];
  };
  if (buffer.scalar_type() == at::kFloat) update(buffer.mutable_data_ptr<float>() + row * width);
  else if (buffer.scalar_type() == at::kDouble) update(buffer.mutable_data_ptr<double>() + row * width);
  else {
    at::Tensor wide = buffer.to(at::kDouble);
    interpolate(wide, row, values, momentum);
    buffer.copy_(wide);
    return;
  }
  if (!buffer.is_inference()) buffer.unsafeGetTensorImpl()->bump_version();
}

// Update the running statistics of all cuts, averaging over ghost batches. Nothing is updated if a statistic was
// computed from a single value, which has no variance.
inline void update_running(const Problem& p, const Tensors& t, const OptionalTensors& running,
                           std::optional<at::Tensor> num_batches, double momentum) {
  auto num_values = [&](const Cut& cut, int64_t row) {
    return double(p.columns / cut.width) * (cut.is_local ? double(cut.samples_per_part * p.length) : t.counts[row]);
  };
  for (size_t i = 0; i < p.cuts.size(); i++)
    for (int64_t row = 0;
         p.cuts[i].uses_batch && (running.get(2 * i) || running.get(2 * i + 1)) && row < p.cuts[i].rows; row++)
      if (num_values(p.cuts[i], row) == 1) return;
  for (size_t i = 0; i < running.size(); i++) {  // check all buffers before writing to any of them
    const Cut& cut = p.cuts[i / 2];
    std::optional<at::Tensor> buffer = cut.uses_batch ? running.get(i) : std::nullopt;
    TORCH_CHECK(!buffer || (buffer->numel() == (cut.is_local ? 1 : cut.rows) * cut.width && buffer->is_contiguous() &&
                            buffer->device().is_cpu() && buffer->is_floating_point()),
                "anynorm: running statistics must be contiguous on the CPU");
  }
  TORCH_CHECK(!num_batches || (num_batches->scalar_type() == at::kLong && num_batches->numel() == p.num_domains() &&
                               num_batches->is_contiguous() && num_batches->device().is_cpu()),
              "anynorm: num_batches_tracked must hold one int64 per domain");
  for (size_t i = 0; i < p.cuts.size(); i++) {
    const Cut& cut = p.cuts[i];
    int64_t parts = cut.is_local ? cut.rows : 1;  // number of sample parts that are averaged
    for (int64_t d = 0; cut.uses_batch && parts && d < cut.rows / parts; d++)
      for (int side = 0; side < 2; side++) {
        std::optional<at::Tensor> buffer = running.get(2 * i + side);
        double count = num_values(cut, d),
               factor = (side ? std::max(count, 1.0) / std::max(count - 1, 1.0) : 1.0) / double(parts);
        if (!buffer || count == 0) continue;
        std::vector<double> values(cut.width);
        const double* table = (side ? t.vars : t.means) + cut.offset + d * cut.width;
        for (int64_t r = 0; r < parts; r++)
          for (int64_t j = 0; j < cut.width; j++) values[j] += factor * table[r * cut.width + j];
        interpolate(*buffer, d, values, momentum);
      }
  }
  if (!num_batches) return;
  int64_t* batches = num_batches->mutable_data_ptr<int64_t>();
  for (int64_t d = 0; d < p.num_domains(); d++) batches[d] += p.pools_batch ? t.counts[d] > 0 : p.samples > 0;
  if (!num_batches->is_inference()) num_batches->unsafeGetTensorImpl()->bump_version();
}

}  // namespace anynorm
