// The coefficients of y = a (x - mu) + b: global statistics are mixed once, into one row of columns per domain. Each
// affine then adds its local statistics, which are constant within a segment of columns, except for those of the row
// cut.
#pragma once
#include <algorithm>

#include "mixing.h"
#include "simd.h"

namespace anynorm {
namespace ANYNORM_ISA {

template <class V>
INLINE double dot(const double* row, const V* values, int64_t n) {
  double total = 0;
  for (int64_t j = 0; j < n; j++) total += row[j] * double(values[j]);
  return total;
}

// A run of columns with the same mixing weight, for which a global cut has one statistic per column (step 1) or a
// single one (step 0).
struct Run {
  int64_t cut, weight;  // index of the cut and of its mixing weight
  int64_t at, stat;     // index of the first column in a table (domains, columns), and of its statistic
  int64_t step, count;
};
INLINE void add_run(const Run& run, double* __restrict table, double weight, const double* stats) {
  double* __restrict row = table + run.at;
  const double* entries = stats + run.stat;
  if (weight == 0) return;  // 0 times NaN would be NaN
  if (run.step)
    for (int64_t j = 0; j < run.count; j++) row[j] += weight * entries[j];
  else
    for (int64_t j = 0; j < run.count; j++) row[j] += weight * entries[0];
}
INLINE void collect_run(const Run& run, const double* table, double weight, double* __restrict stats) {
  const double* row = table + run.at;
  double* __restrict entries = stats + run.stat;
  if (weight == 0) return;
  double total = 0;
  if (run.step)
    for (int64_t j = 0; j < run.count; j++) entries[j] += weight * row[j];
  else
    for (int64_t j = 0; j < run.count; j++) total += row[j];
  if (!run.step) entries[0] += weight * total;
}
INLINE double dot_run(const Run& run, const double* table, const double* stats) {
  if (run.step) return dot(table + run.at, stats + run.stat, run.count);
  double total = 0;
  for (int64_t j = 0; j < run.count; j++) total += table[run.at + j] * stats[run.stat];
  return total;
}

INLINE float inverse_std(double var, double eps) { return 1.0f / std::sqrt(float(var + eps)); }

// Split a mean into a float32 k and a remainder e, because the mean may be much larger than the deviation.
INLINE void split(double mean, float& k, float& e) {
  k = float(mean);
  e = float(mean - double(k));
}

struct Tables {
  const Problem& p;
  const Tensors& t;
  const Sync& sync;
  const int64_t n = p.samples, columns = p.columns, domains = p.num_domains(), num_cuts = int64_t(p.cuts.size());
  const double* mean_weights = mixing_weights(p, p.mean, t.mean_logits);
  const double* var_weights = mixing_weights(p, p.var, t.var_logits);
  double *global_mean = nullptr, *global_var = nullptr;  // mixed over the global cuts, (domains, columns)
  // k, e and r of the mixed global statistics, (domains, columns)
  float *global_k = nullptr, *global_e = nullptr, *global_r = nullptr;
  // The offset of the global means in the gradients of mixing weights, (domains, columns); null for 0.
  const float* origin = nullptr;
  bool local_mean = false, local_var = false, has_global_cut = false;
  // Whether the mixed mean and variance are constant within a segment.
  bool mean_in_segments = true, var_in_segments = true;
  // The affine by column; gamma2 and beta2 are null with a second affine.
  const float *gamma1 = nullptr, *beta1 = nullptr, *gamma2 = nullptr, *beta2 = nullptr;

  Tables(const Problem& problem, const Tensors& tensors, const Sync& given_sync)
      : p(problem), t(tensors), sync(given_sync) {}

  int64_t affine_of(int64_t s) const { return p.affine_per_sample ? s : p.affines == 1 ? 0 : t.labels[s]; }
  int64_t domain(int64_t affine_index) const {
    return !p.domains ? 0 : p.affine_per_sample ? t.labels[affine_index] : affine_index;
  }
  int64_t second_affine_row(int64_t affine_index) const {
    return p.affine_per_sample && !p.style ? t.labels[affine_index] : affine_index;
  }
  int64_t part(const Cut& cut, int64_t column) const { return cut.part.empty() ? column : cut.part[column]; }
  int64_t entry(const Cut& cut, int64_t affine_index, int64_t column) const {
    int64_t row = cut.samples_per_part == 1 ? affine_index : affine_index / cut.samples_per_part;
    return cut.offset + row * cut.width + part(cut, column);
  }
  bool in_segments(int64_t i) const { return p.cuts[i].is_local && i != p.row_cut; }

  // Call f(group, begin, end) for the segments in the columns [lo, hi).
  template <class F>
  INLINE void for_segments(int64_t lo, int64_t hi, const F& f) const {
    auto end = std::upper_bound(p.segments.begin(), p.segments.end(), int32_t(lo));
    for (; lo < hi; lo = *end++) f(p.group(lo), lo, std::min<int64_t>(*end, hi));
  }

  void prepare() {
    int64_t size = domains * columns;
    global_mean = arena().filled(size, 0.0);
    global_var = arena().filled(size, 0.0);
    for (int64_t i = 0; i < num_cuts; i++) {
      const Cut& cut = p.cuts[i];
      bool in_mean = std::count(p.mean.begin(), p.mean.end(), i), in_var = std::count(p.var.begin(), p.var.end(), i);
      local_mean |= in_mean && cut.is_local;
      local_var |= in_var && cut.is_local;
      mean_in_segments &= !in_mean || in_segments(i);
      var_in_segments &= !in_var || in_segments(i);
      has_global_cut |= !cut.is_local;
    }
    for_global([&](const Run& run) {
      add_run(run, global_mean, mean_weights[run.weight], t.means);
      add_run(run, global_var, var_weights[run.weight], t.vars);
    });
    for (float** row : {&global_k, &global_e, &global_r}) *row = arena().take<float>(size);
    for (int64_t j = 0; !local_mean && j < size; j++) split(global_mean[j], global_k[j], global_e[j]);
    for (int64_t j = 0; !local_var && j < size; j++) global_r[j] = inverse_std(global_var[j], p.eps);
    gamma1 = by_column(t.weight, 1.0f);
    beta1 = by_column(t.bias, 0.0f);
    if (!t.second_weight) {
      gamma2 = by_column(nullptr, 1.0f);
      beta2 = by_column(nullptr, 0.0f);
    }
  }
  const float* by_column(const float* values, float otherwise) const {
    if (values && p.strips == 1) return values;
    float* row = arena().take<float>(columns);
    for (int64_t j = 0; j < columns; j++) row[j] = values ? values[p.channel(j)] : otherwise;
    return row;
  }

  struct Scratch {  // temporary rows (one value per column) of a thread
    float *k, *e, *r, *a, *b, *shift, *slope, *offset, *gamma2, *beta2;
  };
  Scratch* new_scratch(int64_t count) const {
    Scratch* all = arena().take<Scratch>(count);
    for (int64_t i = 0; i < count; i++) {
      Scratch& w = all[i];
      if (i && !p.affine_per_sample) w = all[0];  // affines of several samples share the rows that `mix` writes
      else
        for (float** row : {&w.k, &w.e, &w.r, &w.gamma2, &w.beta2}) *row = arena().take<float>(columns);
      for (float** row : {&w.a, &w.b, &w.shift, &w.slope, &w.offset}) *row = arena().take<float>(columns);
    }
    return all;
  }

  // Return the mixed mean k + e, r = 1 / sqrt(var + eps) and second affine of an affine for the columns [lo, hi). They
  // are global rows, or written to `w`.
  struct Row {
    const float *k, *e, *r, *gamma2, *beta2;
  };
  Row mix(int64_t affine_index, int64_t lo, int64_t hi, Scratch& w) const {
    Row row = mix_means(affine_index, lo, hi, w);
    if (t.second_weight) {
      row.gamma2 = t.second_weight + second_affine_row(affine_index) * p.channels;
      row.beta2 = t.second_bias + second_affine_row(affine_index) * p.channels;
      if (p.strips > 1) {
        for (int64_t j = lo; j < hi; j++) {
          w.gamma2[j] = row.gamma2[p.channel(j)];
          w.beta2[j] = row.beta2[p.channel(j)];
        }
        row.gamma2 = w.gamma2;
        row.beta2 = w.beta2;
      }
    }
    float* __restrict r = w.r;
    const double *base = global_var + domain(affine_index) * columns, eps = p.eps;
    if (!local_var) return row;
    for_segments(lo, hi, [&](int64_t g, int64_t begin, int64_t end) {
      double var = mix_segment(var_weights, t.vars, affine_index, g, begin), weight = row_weight(var_weights, g);
      if (var_in_segments) return std::fill(r + begin, r + end, inverse_std(var, eps));
      const double* values = t.vars + row_entry(affine_index);
      if (weight == 0)
        for (int64_t j = begin; j < end; j++) r[j] = inverse_std(base[j] + var, eps);
      else
        for (int64_t j = begin; j < end; j++) r[j] = inverse_std(base[j] + var + weight * values[j], eps);
    });
    return row;
  }
  Row mix_means(int64_t affine_index, int64_t lo, int64_t hi, Scratch& w) const {
    int64_t at = domain(affine_index) * columns;
    Row row = {local_mean ? w.k : global_k + at, local_mean ? w.e : global_e + at, local_var ? w.r : global_r + at,
               gamma2, beta2};
    float* __restrict k = w.k;
    float* __restrict e = w.e;
    const double* base = global_mean + at;
    if (!local_mean) return row;
    for_segments(lo, hi, [&](int64_t g, int64_t begin, int64_t end) {
      double mean = mix_segment(mean_weights, t.means, affine_index, g, begin), weight = row_weight(mean_weights, g);
      const double* values = t.means + row_entry(affine_index);
      if (mean_in_segments) {
        split(mean, k[begin], e[begin]);
        std::fill(k + begin, k + end, k[begin]);
        std::fill(e + begin, e + end, e[begin]);
      } else if (weight == 0)
        for (int64_t j = begin; j < end; j++) split(base[j] + mean, k[j], e[j]);
      else
        for (int64_t j = begin; j < end; j++) split(base[j] + mean + weight * values[j], k[j], e[j]);
    });
    return row;
  }
  // Return the weighted sum of the local statistics that are constant within a segment.
  double mix_segment(const double* weights, const double* table, int64_t affine_index, int64_t g,
                     int64_t column) const {
    double total = 0;
    for (int64_t i = 0; i < num_cuts; i++)
      if (in_segments(i) && weights[g * num_cuts + i] != 0)
        total += weights[g * num_cuts + i] * table[entry(p.cuts[i], affine_index, column)];
    return total;
  }
  double row_weight(const double* weights, int64_t g) const {
    return p.row_cut < 0 ? 0.0 : weights[g * num_cuts + p.row_cut];
  }
  int64_t row_entry(int64_t affine_index) const {
    return p.row_cut < 0 ? 0 : entry(p.cuts[p.row_cut], affine_index, 0);
  }

  // Compute a and b of y = a (x - k) + b, where b compensates the rounding of k.
  Row coefficients(int64_t affine_index, int64_t lo, int64_t hi, Scratch& w) const {
    Row row = mix(affine_index, lo, hi, w);
    const float *g1 = gamma1, *b1 = beta1;
    float* __restrict a = w.a;
    float* __restrict b = w.b;
#pragma GCC ivdep
    for (int64_t j = lo; j < hi; j++) {
      a[j] = row.gamma2[j] * g1[j] * row.r[j];
      b[j] = row.gamma2[j] * b1[j] + row.beta2[j] - a[j] * row.e[j];
    }
    return row;
  }

  // Call f(run) for the runs of columns of each global cut and domain.
  template <class F>
  INLINE void for_global(const F& f) const {
    for (int64_t i = 0; i < num_cuts; i++) {
      const Cut& cut = p.cuts[i];
      bool in_order = cut.part.empty();
      for (int64_t begin = 0, end; !cut.is_local && begin < columns; begin = end) {
        end = in_order && p.groups == 1 ? columns : begin + 1;
        while (end < columns && p.group(end) == p.group(begin) && (in_order || cut.part[end] == cut.part[begin])) end++;
        for (int64_t d = 0; d < domains; d++) {
          int64_t stat = cut.offset + (cut.rows == 1 ? 0 : d) * cut.width + part(cut, begin);
          f(Run{i, p.group(begin) * num_cuts + i, d * columns + begin, stat, int64_t(in_order), end - begin});
        }
      }
    }
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
