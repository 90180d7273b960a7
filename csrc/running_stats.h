// Running statistics: loaded for cuts that do not use the batch, and updated for cuts that do.
#pragma once
#include "make_problem.h"

namespace anynorm {

// A buffer of running statistics in float32 or float64; both pointers are null if there is no buffer.
struct Buffer {
  float* floats;
  double* doubles;
  int64_t size;

  bool exists() const { return floats || doubles; }
};

// Copy running statistics into the tables of statistics; a statistic without a buffer is set to 0. There are two
// buffers per cut, of the mean and of the variance.
inline void read_running(const Problem& p, const Tensors& t, const std::vector<Buffer>& buffers) {
  for (size_t i = 0; i < p.cuts.size(); i++)
    for (int side = 0; side < 2 && !p.cuts[i].uses_batch; side++) {
      const Buffer& buffer = buffers[2 * i + side];
      int64_t size = p.cuts[i].rows * p.cuts[i].width;
      double* row = (side ? t.vars : t.means) + p.cuts[i].offset;
      check(!buffer.exists() || buffer.size == size, "running statistics must be ", size, " values; got ", buffer.size);
      if (buffer.floats) std::copy_n(buffer.floats, size, row);
      else if (buffer.doubles) std::copy_n(buffer.doubles, size, row);
      else std::fill_n(row, size, 0.0);
    }
}

// Return the number of values of each statistic of a cut in one row of its table.
inline double num_values(const Problem& p, const double* counts, const Cut& cut, int64_t row) {
  return double(p.columns / cut.width) * (cut.is_local ? double(cut.samples_per_part * p.length) : counts[row]);
}

// Whether a cut computed a variance from a single value, which has none; a second moment about zero can be computed.
inline bool has_single_value(const Problem& p, const double* counts, const std::vector<Buffer>& buffers) {
  for (size_t i = 0; p.has_mean() && i < p.cuts.size(); i++)
    for (int64_t row = 0;
         p.cuts[i].uses_batch && (buffers[2 * i].exists() || buffers[2 * i + 1].exists()) && row < p.cuts[i].rows;
         row++)
      if (num_values(p, counts, p.cuts[i], row) == 1) return true;
  return false;
}

// Update the running statistics of all cuts, s <- (1 - momentum) s + momentum m, as `Running` in
// anynorm/core/update_rules.py, averaging over ghost batches. num_batches has one counter per domain, or is null.
// Nothing is updated if a statistic was computed from a single value. `stats` has the means, variances and counts of a
// forward pass.
inline bool update_running(const Problem& p, const double* stats, const std::vector<Buffer>& buffers,
                           int64_t* num_batches, double momentum) {
  const double *means = stats, *vars = stats + p.num_stats, *counts = vars + p.num_stats;
  if (has_single_value(p, counts, buffers)) return false;
  for (size_t i = 0; i < buffers.size(); i++) {  // check all buffers before writing to any of them
    const Cut& cut = p.cuts[i / 2];
    check(!cut.uses_batch || !buffers[i].exists() || buffers[i].size == (cut.is_local ? 1 : cut.rows) * cut.width,
          "running statistics have ", buffers[i].size, " values, which do not fit the norm");
  }
  std::vector<double> values;
  for (size_t i = 0; i < p.cuts.size(); i++) {
    const Cut& cut = p.cuts[i];
    int64_t parts = cut.is_local ? cut.rows : 1;  // number of sample parts that are averaged
    for (int64_t d = 0; cut.uses_batch && parts && d < cut.rows / parts; d++)
      for (int side = 0; side < 2; side++) {
        const Buffer& buffer = buffers[2 * i + side];
        double count = num_values(p, counts, cut, d), correction = p.has_mean() ? 1 : 0,
               factor = (side ? std::max(count, 1.0) / std::max(count - correction, 1.0) : 1.0) / double(parts);
        if (!buffer.exists() || count == 0) continue;
        values.assign(cut.width, 0.0);
        const double* table = (side ? vars : means) + cut.offset + d * cut.width;
        for (int64_t r = 0; r < parts; r++)
          for (int64_t j = 0; j < cut.width; j++) values[j] += factor * table[r * cut.width + j];
        auto update = [&](auto* data) {
          for (int64_t j = 0; j < cut.width; j++) data[j] = (1 - momentum) * double(data[j]) + momentum * values[j];
        };
        if (buffer.floats) update(buffer.floats + d * cut.width);
        else update(buffer.doubles + d * cut.width);
      }
  }
  for (int64_t d = 0; num_batches && d < p.num_domains(); d++)
    num_batches[d] += p.pools_batch ? counts[d] > 0 : p.samples > 0;
  return true;
}

}  // namespace anynorm
