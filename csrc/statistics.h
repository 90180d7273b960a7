// Computation of batch statistics from x: moments of rows, pooled by the law of total variance; about zero if the norm
// has no mean.
#pragma once
#include <numeric>

#include "parallel.h"
#include "loops.h"

namespace anynorm {
namespace ANYNORM_ISA {

// Call f(part, begin, end) for the runs of units in the same part of a cut. Units are columns, or larger blocks of
// channels.
template <class F>
INLINE void for_runs(const Cut& cut, int64_t units, const F& f) {
  if (int64_t(cut.part.size()) != units) {
    int64_t block = units / cut.width;
    for (int64_t i = 0; i < cut.width; i++) f(i, i * block, (i + 1) * block);
    return;
  }
  for (int64_t begin = 0, end = 0; begin < units; begin = end) {
    while (end < units && cut.part[end] == cut.part[begin]) end++;
    f(cut.part[begin], begin, end);
  }
}

// Pool the moments of `units` units, in each of `rows` rows, into the parts of a cut.
inline void pool_rows(const Cut& cut, const double* mean, const double* var, int64_t rows, int64_t units, double* M,
                      double* V) {
  if (rows == 1 && cut.width == units) {
    for_runs(cut, units, [&](int64_t part, int64_t u, int64_t) {
      M[part] = mean[u];
      V[part] = var[u];
    });
    return;
  }
  double inverse_count = double(cut.width) / double(std::max<int64_t>(1, rows * units));
  std::fill(M, M + cut.width, 0.0);
  std::fill(V, V + cut.width, 0.0);
  for (int64_t r = 0; r < rows; r++)
    for_runs(cut, units, [&](int64_t part, int64_t begin, int64_t end) {
      double total = 0;
      for (int64_t u = begin; u < end; u++) total += mean[r * units + u];
      M[part] += inverse_count * total;
    });
  for (int64_t r = 0; r < rows; r++)
    for_runs(cut, units, [&](int64_t part, int64_t begin, int64_t end) {
      double squares = 0, centre = M[part];
      for (int64_t u = r * units + begin; u < r * units + end; u++)
        squares += var[u] + (mean[u] - centre) * (mean[u] - centre);
      V[part] += inverse_count * squares;
    });
}

template <class T>
struct Statistics {
  const Problem& p;
  const Tensors& t;
  const Sync& sync;
  const T* x = static_cast<const T*>(t.x);
  const int64_t n = p.samples, columns = p.columns, domains = p.num_domains();

  // Compute the statistics of all cuts that use the batch, and the counts.
  void compute() const {
    if (!p.pools_batch && !p.has_local) return;
    bool by_position = p.pools_batch && p.last && p.strips == 1 && n && (p.is_vector() || (!p.has_local && !p.domains));
    bool needs_rows = p.has_local || !by_position;
    int64_t units = columns;  // minimum number of parts of a sample from which all cuts can be pooled
    if (p.is_vector() && by_position) units = common_parts(true);
    else if ((!p.last || p.is_vector()) && p.strips == 1 && !p.ragged && !sync.merge) units = common_parts(false);
    double *mean = arena().take<double>(needs_rows ? n * units : columns),
           *var = arena().take<double>(needs_rows ? n * units : columns);
    if (needs_rows) {
      row_moments(units, mean, var);
      pool_local(units, mean, var);
    }
    if (by_position) pool_positions();
    else if (p.pools_batch) pool_samples(units, mean, var);
    if (!p.has_mean()) move_to_zero();
  }

 private:
  // Replace means and variances by moments about zero: 0 and E[x^2] = var + mean^2, a sum of positive terms.
  void move_to_zero() const {
    for (const Cut& cut : p.cuts)
      for (int64_t i = cut.offset, end = i + cut.rows * cut.width; cut.uses_batch && i < end; i++) {
        t.vars[i] += t.means[i] * t.means[i];
        t.means[i] = 0;
      }
  }

  int64_t common_parts(bool only_local) const {
    int64_t units = 1;
    for (const Cut& cut : p.cuts)
      if (cut.uses_batch && !cut.is_input && (cut.is_local || !only_local)) units = std::lcm(units, cut.channels);
    return units;
  }

  void row_moments(int64_t units, double* mean, double* var) const {
    if (p.ragged) return valid_moments(mean, var);
    if (p.last && !(p.is_vector() && units < columns)) {
      int64_t items = n * p.strips, values = p.length * p.channels;
      for_chunks(num_chunks(items, double(values)), items, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
          Positions<T>{p.channels, p.channels}.moments(x + i * values, p.length, &mean[i * p.channels],
                                                       &var[i * p.channels]);
      });
    } else {
      int64_t length = columns * p.length / units;
      for_chunks(num_chunks(n * units, double(length)), n * units, [&](int64_t, int64_t begin, int64_t end) {
        Rows<T>{length}.moments(x + begin * length, end - begin, &mean[begin], &var[begin]);
      });
    }
  }

  void valid_moments(double* mean, double* var) const {
    double work = double(t.offsets[n]) / double(std::max<int64_t>(n, 1)) * double(columns);
    for_chunks(num_chunks(n, work), n, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; s++) {
        double *M = mean + s * columns, *V = var + s * columns;
        if (p.last) Positions<T>{columns, columns, t.list + t.offsets[s]}.moments(x, t.num_valid(s), M, V);
        else
          Rows<T, ValidValues>{p.length, {t.valid + s * p.length, t.extents[s]}}.moments(x + s * columns * p.length,
                                                                                         columns, M, V);
      }
    });
  }

  void pool_local(int64_t units, const double* mean, const double* var) const {
    for (const Cut& cut : p.cuts) {
      if (!cut.is_local || cut.is_input) continue;
      int64_t rows = cut.samples_per_part;
      for_chunks(num_chunks(cut.rows, double(rows * units)), cut.rows, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          int64_t row = i * rows * units, out = cut.offset + i * cut.width;
          pool_rows(cut, mean + row, var + row, rows, units, t.means + out, t.vars + out);
        }
      });
    }
  }

  // Compute the moments of columns directly over all samples and positions (channels last), or over the samples of each
  // domain (vectors), and pool them by each global cut.
  void pool_positions() const {
    double *mean = arena().take<double>(domains * columns), *var = arena().take<double>(domains * columns);
    double count = double(p.ragged ? t.offsets[n] : n * p.length);
    double* counts = arena().filled(domains, count);
    SamplesByLabel sorted{};
    if (p.domains) {
      sorted = sort_by_label(t.labels, n, domains);
      for (int64_t d = 0; d < domains; d++) counts[d] = double(sorted.begin[d + 1] - sorted.begin[d]);
    }
    int64_t blocks = (columns + BLOCK_VECTORS * LANES - 1) / (BLOCK_VECTORS * LANES);
    for_chunks(num_chunks(blocks, count * double(BLOCK_VECTORS * LANES)), blocks,
               [&](int64_t, int64_t begin, int64_t end) {
                 int64_t lo = begin * BLOCK_VECTORS * LANES, hi = std::min(columns, end * BLOCK_VECTORS * LANES);
                 for (int64_t d = 0; d < domains; d++) {
                   const int64_t* list = p.domains ? sorted.samples + sorted.begin[d] : t.list;
                   Positions<T>{columns, hi - lo, list}.moments(x + lo, int64_t(counts[d]), mean + d * columns + lo,
                                                                var + d * columns + lo);
                 }
               });
    pool_global(columns, mean, var, counts);
  }

  // Pool the moments of rows over the samples of each domain, and then by each global cut.
  void pool_samples(int64_t units, const double* row_mean, const double* row_var) const {
    double *mean = arena().filled(domains * units, 0.0), *var = arena().filled(domains * units, 0.0);
    double *counts = arena().filled(domains, 0.0), length = p.ragged ? 1.0 : double(columns * p.length / units);
    auto domain = [&](int64_t s) { return p.domains ? t.labels[s] : 0; };
    auto weight = [&](int64_t s) { return p.ragged ? double(t.num_valid(s)) : 1.0; };
    for (int64_t s = 0; s < n; s++) counts[domain(s)] += weight(s);
    for_chunks(num_chunks(units, 2.0 * double(n)), units, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t s = 0; s < n; s++) {
        double *M = mean + domain(s) * units, inverse_count = weight(s) / std::max(counts[domain(s)], 1.0);
        for (int64_t u = begin; u < end; u++) M[u] += inverse_count * row_mean[s * units + u];
      }
      for (int64_t s = 0; s < n; s++) {
        const double *M = mean + domain(s) * units, *row = row_mean + s * units, *row_v = row_var + s * units;
        double *V = var + domain(s) * units, inverse_count = weight(s) / std::max(counts[domain(s)], 1.0);
        for (int64_t u = begin; u < end; u++) V[u] += inverse_count * (row_v[u] + (row[u] - M[u]) * (row[u] - M[u]));
      }
    });
    for (int64_t d = 0; d < domains; d++) counts[d] *= length;
    pool_global(units, mean, var, counts);
  }

  // Pool the moments of columns or larger units by each global cut.
  void pool_global(int64_t units, double* mean, double* var, double* counts) const {
    if (sync.merge) sync.merge(mean, var, counts, units);
    for (int64_t d = 0; d < domains; d++) t.counts[d] = counts[d] * double(units) / double(columns);
    for (const Cut& cut : p.cuts)
      for (int64_t d = 0; cut.uses_batch && !cut.is_local && d < domains; d++) {
        int64_t out = cut.offset + d * cut.width;
        pool_rows(cut, mean + d * units, var + d * units, 1, units, t.means + out, t.vars + out);
      }
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
