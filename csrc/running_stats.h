// Running statistics: loaded for cuts that do not use the batch, and updated for cuts that do.
#pragma once
#include <cmath>

#include "make_problem.h"

namespace anynorm {

// A buffer of running statistics in float32 or float64; both pointers are null if there is no buffer.
struct Buffer {
  float* floats;
  double* doubles;
  int64_t size;
  double largest;  // the largest finite value of the dtype of the running statistics

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

// Call f(buffer, cut, table, parts, factor) for each buffer of running statistics that domain or micro-batch d of the
// batch updates. The new statistics are factor times the sums over `parts` rows of the table: averages over ghost
// batches, unbiased variances.
template <class F>
void for_updated(const Problem& p, const double* stats, const std::vector<Buffer>& buffers, int64_t d, const F& f) {
  const double *means = stats, *vars = stats + p.num_stats, *counts = vars + p.num_stats;
  for (size_t i = 0; i < p.cuts.size(); i++) {
    const Cut& cut = p.cuts[i];
    int64_t parts = cut.is_local && !p.in_sequence ? cut.rows : 1;  // number of sample parts that are averaged
    if (!cut.uses_batch || !parts || d >= cut.rows / parts) continue;
    double count = num_values(p, counts, cut, d), correction = p.has_mean() ? 1 : 0,
           bessel = std::max(count, 1.0) / std::max(count - correction, 1.0);
    for (int side = 0; side < 2 && count > 0; side++)
      if (buffers[2 * i + side].exists())
        f(buffers[2 * i + side], cut, (side ? vars : means) + cut.offset + d * cut.width, parts,
          (side ? bessel : 1.0) / double(parts));
  }
}

// Whether all new statistics of domain or micro-batch d are finite in the dtype of the running statistics.
inline bool has_finite(const Problem& p, const double* stats, const std::vector<Buffer>& buffers, int64_t d) {
  bool finite = true;
  for_updated(p, stats, buffers, d,
              [&](const Buffer& buffer, const Cut& cut, const double* table, int64_t parts, double factor) {
                double largest = buffer.largest / (factor * double(parts));
                for (int64_t j = 0; j < parts * cut.width; j++) finite &= std::abs(table[j]) <= largest;
              });
  return finite;
}

// Update the running statistics of all cuts, s <- (1 - momentum) s + momentum m, as `Running` in
// anynorm/core/update_rules.py, averaging over ghost batches, or one by one for micro-batches. num_batches and
// num_skipped have one counter per domain, or are null. Nothing is updated if a statistic was computed from a single
// value. If a statistic of a domain is not finite, no statistic of that domain is updated, and its batch is counted in
// num_skipped instead of num_batches. `stats` has the means, variances and counts of a forward pass.
inline bool update_running(const Problem& p, const double* stats, const std::vector<Buffer>& buffers,
                           int64_t* num_batches, int64_t* num_skipped, double momentum) {
  const double* counts = stats + 2 * p.num_stats;
  if (has_single_value(p, counts, buffers)) return false;
  for (size_t i = 0; i < buffers.size(); i++) {  // check all buffers before writing to any of them
    const Cut& cut = p.cuts[i / 2];
    check(!cut.uses_batch || !buffers[i].exists() || buffers[i].size == (cut.is_local ? 1 : cut.rows) * cut.width,
          "running statistics have ", buffers[i].size, " values, which do not fit the norm");
  }
  std::vector<double> values;
  for (int64_t d = 0; d < p.num_updates; d++) {
    bool finite = has_finite(p, stats, buffers, d);
    int64_t* counter = finite ? num_batches : num_skipped;
    int64_t domain = p.in_sequence ? 0 : d;
    if (counter) counter[domain] += p.pools_batch ? counts[domain] > 0 : p.samples > 0;
    if (!finite) continue;
    for_updated(p, stats, buffers, d,
                [&](const Buffer& buffer, const Cut& cut, const double* table, int64_t parts, double factor) {
                  values.assign(cut.width, 0.0);
                  for (int64_t r = 0; r < parts; r++)
                    for (int64_t j = 0; j < cut.width; j++) values[j] += factor * table[r * cut.width + j];
                  auto update = [&](auto* data) {
                    for (int64_t j = 0; j < cut.width; j++)
                      data[j] = (1 - momentum) * double(data[j]) + momentum * values[j];
                  };
                  if (buffer.floats) update(buffer.floats + domain * cut.width);
                  else update(buffer.doubles + domain * cut.width);
                });
  }
  return true;
}

}  // namespace anynorm
