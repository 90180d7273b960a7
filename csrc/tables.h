// Forward: moments, tables, scale. Backward: sums, tables, spread, in closed form. With the statistics M, V of each cut i,
//
//   mu = sum of w_i M_i    var = sum of w'_i V_i    r = 1 / sqrt(var + eps)    gamma = gamma1 gamma2    a = gamma r
//   y = a (x - mu) + beta                                                      beta = gamma2 beta1 + beta2
//
// and from g = sum of dy, h = sum of dy (x - mu) of each affine and column,
//
//   dbeta = g    dgamma = r h    dmu = -a g    dvar = -a r^2 h / 2    dM_i = sum of w_i dmu    dV_i = sum of w'_i dvar
//   dx = a dy + sum over the cuts that use the batch of (dM_i + 2 dV_i (x - M_i)) / count_i
//
// Global statistics are mixed once, into one row of columns per domain. Each affine then adds its local statistics, which are
// constant within a segment of columns, except for those of the row cut.
#pragma once
#include "statistics.h"

namespace anynorm {
namespace ANYNORM_ISA {

// Return the mixing weights for the mean or the variance, (groups, number of all cuts); 0 for a cut that is not in `side`.
inline const double* mixing_weights(const Problem& p, const std::vector<int64_t>& side, const float* logits) {
  int64_t num_cuts = int64_t(p.cuts.size()), k = int64_t(side.size());
  double* weights = arena().filled(p.groups * num_cuts, 0.0);
  for (int64_t g = 0; g < p.groups; g++) {
    const float* row = logits + g * k;
    int64_t top = 0;
    for (int64_t i = 1; logits && i < k; i++)
      if (row[i] > row[top] || (std::isnan(row[i]) && !std::isnan(row[top]))) top = i;
    double total = 0;
    for (int64_t i = 0; logits && i < k; i++) total += std::exp(double(row[i]) - double(row[top]));
    for (int64_t i = 0; i < k; i++) {
      double softmax = logits ? std::exp(double(row[i]) - double(row[top])) / total : 1.0;
      weights[g * num_cuts + side[i]] = !logits || p.mixing == Mixing::softmax ? softmax
                                        : p.mixing == Mixing::argmax           ? double(i == top)
                                                                               : double(row[i]);
    }
  }
  return weights;
}

inline void logits_gradient(const Problem& p, const std::vector<int64_t>& side, const double* weights, const double* d_weights, float* out) {
  int64_t num_cuts = int64_t(p.cuts.size()), k = int64_t(side.size());
  for (int64_t g = 0; out && g < p.groups; g++) {
    const double *w = weights + g * num_cuts, *dw = d_weights + g * num_cuts;
    double inner = 0;
    for (int64_t i : side) inner += w[i] * dw[i];
    for (int64_t i = 0; i < k; i++) {
      double softmax = p.mixing == Mixing::argmax ? 0.0 : w[side[i]] * (dw[side[i]] - inner);
      out[g * k + i] = float(p.mixing == Mixing::precomputed ? dw[side[i]] : softmax);
    }
  }
}

// Operations on a run of n columns, for which a table of statistics has one entry per column (step 1) or a single one (step 0).
INLINE void add_run(double* __restrict row, double weight, const double* entries, int64_t step, int64_t n) {
  if (weight == 0) return;  // 0 times NaN would be NaN
  if (step) for (int64_t j = 0; j < n; j++) row[j] += weight * entries[j];
  else for (int64_t j = 0; j < n; j++) row[j] += weight * entries[0];
}
INLINE void collect_run(const double* row, double weight, double* __restrict entries, int64_t step, int64_t n) {
  if (weight == 0) return;
  double total = 0;
  if (step) for (int64_t j = 0; j < n; j++) entries[j] += weight * row[j];
  else for (int64_t j = 0; j < n; j++) total += row[j];
  if (!step) entries[0] += weight * total;
}
INLINE double dot_run(const double* row, const double* entries, int64_t step, int64_t n) {
  double total = 0;
  if (step) for (int64_t j = 0; j < n; j++) total += row[j] * entries[j];
  else for (int64_t j = 0; j < n; j++) total += row[j] * entries[0];
  return total;
}

INLINE double dot(const double* row, const float* values, int64_t n) {
  double total = 0;
  for (int64_t j = 0; j < n; j++) total += row[j] * double(values[j]);
  return total;
}

INLINE float inverse_std(double var, double eps) { return 1.0f / std::sqrt(float(var + eps)); }
// Split a mean into a float32 k and a remainder e, because the mean may be much larger than the deviation.
INLINE void split(double mean, float& k, float& e) { k = float(mean), e = float(mean - double(k)); }

template <class T>
struct Pass {
  const Problem& p;
  const Tensors& t;
  const Sync& sync;
  const T *x = static_cast<const T*>(t.x), *dy = static_cast<const T*>(t.dy);
  const int64_t n = p.samples, columns = p.columns, domains = p.num_domains(), num_cuts = int64_t(p.cuts.size());
  const double* mean_weights = mixing_weights(p, p.mean, t.mean_logits);
  const double* var_weights = mixing_weights(p, p.var, t.var_logits);
  double *global_mean = nullptr, *global_var = nullptr;  // mixed over the global cuts, (domains, columns)
  float *global_k = nullptr, *global_e = nullptr, *global_r = nullptr;  // of mixed global statistics, (domains, columns)
  const float* origin = nullptr;  // offset of the global means in the gradients of mixing weights, (domains, columns); null for 0
  bool local_mean = false, local_var = false, has_global_cut = false;
  bool mean_in_segments = true, var_in_segments = true;  // whether the mixed mean and variance are constant within a segment
  const float *gamma1 = nullptr, *beta1 = nullptr, *gamma2 = nullptr, *beta2 = nullptr;  // by column; with a second affine, gamma2 is null

  const T* sample(const T* tensor, int64_t s) const { return tensor + s * columns * p.length; }
  int64_t affine_of(int64_t s) const { return p.affine_per_sample ? s : p.affines == 1 ? 0 : t.labels[s]; }
  int64_t domain(int64_t affine) const { return !p.domains ? 0 : p.affine_per_sample ? t.labels[affine] : affine; }
  int64_t affine2_row(int64_t affine) const { return p.affine_per_sample && !p.style ? t.labels[affine] : affine; }
  int64_t part(const Cut& cut, int64_t column) const { return cut.part.empty() ? column : cut.part[column]; }
  int64_t entry(const Cut& cut, int64_t affine, int64_t column) const {
    int64_t row = cut.samples_per_part == 1 ? affine : affine / cut.samples_per_part;
    return cut.offset + row * cut.width + part(cut, column);
  }
  bool learns(double weight) const { return weight != 0 || p.mixing == Mixing::precomputed; }  // a softmax weight of 0 has no gradient
  bool in_segments(int64_t i) const { return p.cuts[i].is_local && i != p.row_cut; }

  // Call f(group, begin, end) for the segments in the columns [lo, hi).
  template <class F>
  INLINE void for_segments(int64_t lo, int64_t hi, const F& f) const {
    auto end = std::upper_bound(p.segments.begin(), p.segments.end(), int32_t(lo));
    for (; lo < hi; lo = *end++) f(p.group(lo), lo, std::min<int64_t>(*end, hi));
  }

  // Tables -------------------------------------------------------------------------------------------------------------------

  void prepare() {
    int64_t size = domains * columns;
    global_mean = arena().filled(size, 0.0), global_var = arena().filled(size, 0.0);
    for (int64_t i = 0; i < num_cuts; i++) {
      const Cut& cut = p.cuts[i];
      bool in_mean = std::count(p.mean.begin(), p.mean.end(), i), in_var = std::count(p.var.begin(), p.var.end(), i);
      local_mean |= in_mean && cut.is_local, local_var |= in_var && cut.is_local;
      mean_in_segments &= !in_mean || in_segments(i), var_in_segments &= !in_var || in_segments(i), has_global_cut |= !cut.is_local;
    }
    for_global([&](int64_t, int64_t w, int64_t at, int64_t e, int64_t step, int64_t count) {
      add_run(global_mean + at, mean_weights[w], t.means + e, step, count), add_run(global_var + at, var_weights[w], t.vars + e, step, count);
    });
    for (float** row : {&global_k, &global_e, &global_r}) *row = arena().take<float>(size);
    for (int64_t j = 0; !local_mean && j < size; j++) split(global_mean[j], global_k[j], global_e[j]);
    for (int64_t j = 0; !local_var && j < size; j++) global_r[j] = inverse_std(global_var[j], p.eps);
    gamma1 = by_column(t.weight, 1.0f), beta1 = by_column(t.bias, 0.0f);
    if (!t.weight2) gamma2 = by_column(nullptr, 1.0f), beta2 = by_column(nullptr, 0.0f);
  }
  const float* by_column(const float* values, float otherwise) const {
    if (values && p.strips == 1) return values;
    float* row = arena().take<float>(columns);
    for (int64_t j = 0; j < columns; j++) row[j] = values ? values[p.channel(j)] : otherwise;
    return row;
  }

  struct Scratch {  // temporary rows (one value per column) of a thread
    float *k, *e, *r, *a, *b, *c, *gamma2, *beta2;
  };
  Scratch* new_scratch(int64_t count) const {
    Scratch* all = arena().take<Scratch>(count);
    for (int64_t i = 0; i < count; i++) {
      Scratch& w = all[i];
      if (i && !p.affine_per_sample) w = all[0];  // affines of several samples need separate rows only for a, b and c
      else for (float** row : {&w.k, &w.e, &w.r, &w.gamma2, &w.beta2}) *row = arena().take<float>(columns);
      for (float** row : {&w.a, &w.b, &w.c}) *row = arena().take<float>(columns);
    }
    return all;
  }

  // Return the mixed mean k + e, r = 1 / sqrt(var + eps) and second affine of an affine for the columns [lo, hi). They are global
  // rows, or written to `w`.
  struct Row {
    const float *k, *e, *r, *gamma2, *beta2;
  };
  Row mix(int64_t affine, int64_t lo, int64_t hi, Scratch& w) const {
    Row row = mix_means(affine, lo, hi, w);
    if (t.weight2) {
      row.gamma2 = t.weight2 + affine2_row(affine) * p.channels, row.beta2 = t.bias2 + affine2_row(affine) * p.channels;
      if (p.strips > 1) {
        for (int64_t j = lo; j < hi; j++) w.gamma2[j] = row.gamma2[p.channel(j)], w.beta2[j] = row.beta2[p.channel(j)];
        row.gamma2 = w.gamma2, row.beta2 = w.beta2;
      }
    }
    float* __restrict r = w.r;
    const double *base = global_var + domain(affine) * columns, eps = p.eps;
    if (!local_var) return row;
    for_segments(lo, hi, [&](int64_t g, int64_t begin, int64_t end) {
      double var = mix_segment(var_weights, t.vars, affine, g, begin), weight = row_weight(var_weights, g);
      if (var_in_segments) return std::fill(r + begin, r + end, inverse_std(var, eps));
      const double* values = t.vars + row_entry(affine);
      if (weight == 0)
        for (int64_t j = begin; j < end; j++) r[j] = inverse_std(base[j] + var, eps);
      else
        for (int64_t j = begin; j < end; j++) r[j] = inverse_std(base[j] + var + weight * values[j], eps);
    });
    return row;
  }
  Row mix_means(int64_t affine, int64_t lo, int64_t hi, Scratch& w) const {
    int64_t at = domain(affine) * columns;
    Row row = {local_mean ? w.k : global_k + at, local_mean ? w.e : global_e + at, local_var ? w.r : global_r + at, gamma2, beta2};
    float *__restrict k = w.k, *__restrict e = w.e;
    const double* base = global_mean + at;
    if (!local_mean) return row;
    for_segments(lo, hi, [&](int64_t g, int64_t begin, int64_t end) {
      double mean = mix_segment(mean_weights, t.means, affine, g, begin), weight = row_weight(mean_weights, g);
      const double* values = t.means + row_entry(affine);
      if (mean_in_segments) split(mean, k[begin], e[begin]), std::fill(k + begin, k + end, k[begin]), std::fill(e + begin, e + end, e[begin]);
      else if (weight == 0) for (int64_t j = begin; j < end; j++) split(base[j] + mean, k[j], e[j]);
      else for (int64_t j = begin; j < end; j++) split(base[j] + mean + weight * values[j], k[j], e[j]);
    });
    return row;
  }
  // Return the weighted sum of the local statistics that are constant within a segment.
  double mix_segment(const double* weights, const double* table, int64_t affine, int64_t g, int64_t column) const {
    double total = 0;
    for (int64_t i = 0; i < num_cuts; i++)
      if (in_segments(i) && weights[g * num_cuts + i] != 0) total += weights[g * num_cuts + i] * table[entry(p.cuts[i], affine, column)];
    return total;
  }
  double row_weight(const double* weights, int64_t g) const { return p.row_cut < 0 ? 0.0 : weights[g * num_cuts + p.row_cut]; }
  int64_t row_entry(int64_t affine) const { return p.row_cut < 0 ? 0 : entry(p.cuts[p.row_cut], affine, 0); }

  // Compute a and b of y = a (x - k) + b, where b compensates the rounding of k.
  Row coefficients(int64_t affine, int64_t lo, int64_t hi, Scratch& w) const {
    Row row = mix(affine, lo, hi, w);
    const float *g1 = gamma1, *b1 = beta1;
    float *__restrict a = w.a, *__restrict b = w.b;
#pragma GCC ivdep
    for (int64_t j = lo; j < hi; j++) {
      a[j] = row.gamma2[j] * g1[j] * row.r[j];
      b[j] = row.gamma2[j] * b1[j] + row.beta2[j] - a[j] * row.e[j];
    }
    return row;
  }

  // Passes -------------------------------------------------------------------------------------------------------------------

  // Compute the coefficients of every affine by prepare_affine(affine, lo, hi, scratch), which returns k, and call run(scratch,
  // k, offset in x, first column, count) for ranges of rows, or of positions of a strip. Coefficients of several samples are
  // computed once.
  template <class Prepare, class Run>
  void for_rows(const Prepare& prepare_affine, const Run& run) const {
    int64_t size = p.last ? p.length : columns, values = p.last ? p.channels : p.length, items = n * (p.last ? p.strips : 1) * size;
    int64_t chunks = num_chunks(items, double(values));
    Scratch* scratch = new_scratch(p.affine_per_sample ? chunks : p.affines);
    const float** k = arena().take<const float*>(p.affine_per_sample ? chunks : p.affines);
    for (int64_t affine = 0; !p.affine_per_sample && affine < p.affines; affine++) k[affine] = prepare_affine(affine, 0, columns, scratch[affine]);
    for_chunks(chunks, items, [&](int64_t chunk, int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        int64_t unit = begin / size, s = p.last ? unit / p.strips : unit, first = p.last ? unit % p.strips * p.channels : begin - unit * size;
        next = std::min(end, (unit + 1) * size);
        int64_t i = p.affine_per_sample ? chunk : affine_of(s);
        if (p.affine_per_sample) k[i] = prepare_affine(s, first, p.last ? first + p.channels : first + next - begin, scratch[i]);
        run(scratch[i], k[i] + first, begin * values, first, next - begin);
      }
    });
  }

  void forward() {
    Statistics<T>{p, t, sync}.compute();
    prepare();
    T* y = static_cast<T*>(t.y);
    for_rows([&](int64_t affine, int64_t lo, int64_t hi, Scratch& w) { return coefficients(affine, lo, hi, w).k; },
             [&](Scratch& w, const float* k, int64_t at, int64_t j, int64_t count) {
               if (p.last) Positions<T>{p.channels, p.channels}.scale(x + at, y + at, count, k, w.a + j, w.b + j);
               else Rows<T>{p.length}.scale(x + at, y + at, count, k, w.a + j, w.b + j);
             });
  }

  void backward() {
    if (p.recompute) Statistics<T>{p, t, sync}.compute();
    prepare();
    double *d_means = arena().filled(p.num_stats, 0.0), *d_vars = arena().filled(p.num_stats, 0.0);
    double *g = arena().filled(p.affines * columns, 0.0), *h = arena().filled(p.affines * columns, 0.0);
    compute_sums(g, h);
    Sums total = gradients(g, h, d_means, d_vars);
    global_gradients(total, d_means, d_vars);
    write_gradients(total);
    if (!t.dx) return;
    T* dx = static_cast<T*>(t.dx);
    for_rows([&](int64_t affine, int64_t lo, int64_t hi, Scratch& w) {
               int64_t at = affine * columns;
               return spread_coefficients(affine, lo, hi, g + at, h + at, d_means, d_vars, total, w);
             },
             [&](Scratch& w, const float* k, int64_t at, int64_t j, int64_t count) {
               if (p.last) Positions<T>{p.channels, p.channels}.spread(x + at, dy + at, dx + at, count, k, w.a + j, w.b + j, w.c + j);
               else Rows<T>{p.length}.spread(x + at, dy + at, dx + at, count, k, w.a + j, w.b + j, w.c + j);
             });
  }

  // Compute g and h of each affine and column, with k, the rounded mean, in place of mu. Each thread computes a range of columns.
  void compute_sums(double* g, double* h) const {
    int64_t block = p.last ? BLOCK_VECTORS * LANES : 1, width = p.last ? p.channels : columns, blocks = (width + block - 1) / block;
    bool at_once = p.last && p.strips == 1 && p.affines == 1;  // all samples in one call
    int64_t chunks = num_chunks(blocks, double(n * p.length * p.strips * block));
    Scratch* scratch = new_scratch(chunks);
    for_chunks(chunks, blocks, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t lo = begin * block, hi = std::min(width, end * block);
      const float* k = nullptr;
      for (int64_t s = 0, previous = -1; s < (at_once ? 1 : n); s++)
        for (int64_t strip = 0; strip < (p.last ? p.strips : 1); strip++) {
          int64_t affine = affine_of(s), from = strip * p.channels + lo, to = strip * p.channels + hi;
          if (affine != previous || p.strips > 1) k = mix_means(affine, from, to, scratch[chunk]).k;
          previous = affine;
          int64_t at = s * columns * p.length + (p.last ? strip * p.length * p.channels + lo : lo * p.length), out = affine * columns + from;
          if (p.last) Positions<T>{p.channels, hi - lo}.sums(x + at, dy + at, at_once ? n * p.length : p.length, k + from, g + out, h + out);
          else Rows<T>{p.length}.sums(x + at, dy + at, hi - lo, k + from, g + out, h + out);
        }
    });
  }

  // Gradients to which several affines contribute, in one block of memory. There is one per chunk of affines.
  struct Sums {
    double *weight, *bias, *means, *vars, *mean_weights, *var_weights;
    int64_t size;
    float* rows;  // memory for sums in float32
    Scratch* scratch;
  };
  Sums new_sums() const {
    int64_t size = 2 * columns + 2 * domains * columns + 2 * p.groups * num_cuts;
    double *weight = arena().filled(size, 0.0), *means = weight + 2 * columns, *weights = means + 2 * domains * columns;
    return {weight, weight + columns, means, means + domains * columns, weights, weights + p.groups * num_cuts, size,
            arena().filled(4 * columns, 0.0f), new_scratch(1)};
  }
  // Call add(sums, begin, end) for chunks of affines, and return the total over all chunks.
  template <class F>
  Sums sum_chunks(const F& add) const {
    int64_t unit = 1;  // number of consecutive samples that share local statistics, which must be in the same chunk
    for (const Cut& cut : p.cuts)
      if (cut.is_local) unit = std::lcm(unit, cut.samples_per_part);
    int64_t items = p.affines / unit, chunks = p.affine_per_sample && !p.classes ? num_chunks(items, 8.0 * double(unit * columns)) : 1;
    Sums* sums = arena().take<Sums>(chunks);
    for (int64_t chunk = 0; chunk < chunks; chunk++) sums[chunk] = new_sums();
    for_chunks(chunks, items, [&](int64_t chunk, int64_t begin, int64_t end) { add(sums[chunk], begin * unit, end * unit); });
    for (int64_t chunk = 1; chunk < chunks; chunk++)
      for (int64_t i = 0; i < sums[0].size; i++) sums[0].weight[i] += sums[chunk].weight[i];
    return sums[0];
  }

  // Replace g and h by dmu and dvar, compute the gradients of the local statistics, and return the sums for all other gradients.
  Sums gradients(double* g, double* h, double* d_means, double* d_vars) const {
    return sum_chunks([&](Sums& sums, int64_t begin, int64_t end) {
      for (int64_t affine = begin; affine < end; affine++) {
        if (!p.affine_per_sample && p.classes && !std::count(t.labels, t.labels + n, affine)) continue;
        Row row = mix(affine, 0, columns, *sums.scratch);
        affine_gradients(affine, row, g + affine * columns, h + affine * columns, d_means, d_vars, sums);
      }
    });
  }

  void affine_gradients(int64_t affine, const Row& row, double* g, double* h, double* d_means, double* d_vars, Sums& sums) const {
    for (int64_t j = 0; t.weight2 && j < columns; j++) {
      int64_t i = affine2_row(affine) * p.channels + p.channel(j);
      if (t.d_weight2) t.d_weight2[i] += row.r[j] * (float(h[j]) - row.e[j] * float(g[j])) * gamma1[j] + float(g[j]) * beta1[j];
      if (t.d_bias2) t.d_bias2[i] += float(g[j]);
    }
    double *__restrict weight = sums.weight, *__restrict bias = sums.bias;
    double *__restrict means = sums.means + domain(affine) * columns, *__restrict vars = sums.vars + domain(affine) * columns;
    const float *g1 = gamma1, *g2 = row.gamma2, *r = row.r, *e = row.e;
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; j++) {
      float up = float(g[j]), a = g2[j] * g1[j] * r[j], d_gamma = r[j] * (float(h[j]) - e[j] * up);
      weight[j] += double(g2[j] * d_gamma), bias[j] += double(g2[j] * up);
      g[j] = -a * up, h[j] = -0.5f * a * r[j] * d_gamma;
    }
#pragma GCC ivdep
    for (int64_t j = 0; j < (has_global_cut ? columns : 0); j++) means[j] += double(g[j]), vars[j] += double(h[j]);
    if (!p.has_local) return;
    for_segments(0, columns, [&](int64_t group, int64_t begin, int64_t end) {
      double total = 0, total_var = 0;
      for (int64_t j = begin; j < end; j++) total += g[j], total_var += h[j];
      local_gradients(affine, group, begin, total, total_var, d_means, d_vars);
      weights_gradients(affine, group, begin, total, total_var, 0.0, sums);
      if (p.row_cut < 0) return;
      int64_t i = group * num_cuts + p.row_cut, e = row_entry(affine) + begin;
      if (learns(mean_weights[i])) sums.mean_weights[i] += dot_run(g + begin, t.means + e, 1, end - begin);
      if (learns(var_weights[i])) sums.var_weights[i] += dot_run(h + begin, t.vars + e, 1, end - begin);
    });
  }

  // Add the gradients of the mean and variance of a segment to the gradients of its local statistics.
  void local_gradients(int64_t affine, int64_t group, int64_t column, double d_mu, double d_var, double* d_means, double* d_vars) const {
    for (int64_t cut = 0, i = group * num_cuts; cut < num_cuts; cut++, i++) {
      if (!in_segments(cut)) continue;
      int64_t e = entry(p.cuts[cut], affine, column);
      if (mean_weights[i] != 0) d_means[e] += mean_weights[i] * d_mu;
      if (var_weights[i] != 0) d_vars[e] += var_weights[i] * d_var;
    }
  }
  // Add to the gradients of the mixing weights of the local statistics of a segment; `centre` is subtracted from the means.
  void weights_gradients(int64_t affine, int64_t group, int64_t column, double d_mu, double d_var, double centre, Sums& sums) const {
    for (int64_t cut = 0, i = group * num_cuts; cut < num_cuts; cut++, i++) {
      if (!in_segments(cut)) continue;
      int64_t e = entry(p.cuts[cut], affine, column);
      if (learns(mean_weights[i])) sums.mean_weights[i] += d_mu * (t.means[e] - centre);
      if (learns(var_weights[i])) sums.var_weights[i] += d_var * t.vars[e];
    }
  }
  // Return p and q of q + p x, summed over the local statistics of a segment; d_vars and d_means hold p and q of each statistic.
  std::pair<double, double> local_slope(int64_t affine, int64_t column, const double* d_means, const double* d_vars) const {
    double slope = 0, offset = 0;
    for (int64_t i = 0; i < num_cuts; i++)
      if (in_segments(i)) slope += d_vars[entry(p.cuts[i], affine, column)], offset += d_means[entry(p.cuts[i], affine, column)];
    return {slope, offset};
  }

  // Compute the gradients of the global statistics and of their mixing weights. Then replace dM, dV of all cuts by q, p of the
  // term q + p x, and total.means, total.vars by the sums of q, p over the global cuts.
  void global_gradients(Sums& total, double* d_means, double* d_vars) const {
    for_global([&](int64_t, int64_t w, int64_t at, int64_t e, int64_t step, int64_t count) {
      if (learns(mean_weights[w])) total.mean_weights[w] += dot_run(total.means + at, t.means + e, step, count) - (origin ? dot(total.means + at, origin + at, count) : 0.0);
      if (learns(var_weights[w])) total.var_weights[w] += dot_run(total.vars + at, t.vars + e, step, count);
    });
    if (sync.sum && p.pools_batch) sync.sum(total.means, 2 * domains * columns);
    for_global([&](int64_t, int64_t w, int64_t at, int64_t e, int64_t step, int64_t count) {
      collect_run(total.means + at, mean_weights[w], d_means + e, step, count), collect_run(total.vars + at, var_weights[w], d_vars + e, step, count);
    });
    std::fill(total.means, total.means + 2 * domains * columns, 0.0);
    for (const Cut& cut : p.cuts)
      for (int64_t row = 0; cut.uses_batch && row < cut.rows; row++) {
        double per_column = cut.is_local ? double(cut.samples_per_part * p.length) : t.counts[row];
        double inverse_count = 1.0 / std::max(per_column * double(columns / cut.width), 1.0);
        double *dM = d_means + cut.offset + row * cut.width, *dV = d_vars + cut.offset + row * cut.width, *M = t.means + cut.offset + row * cut.width;
        for (int64_t i = 0; i < cut.width; i++) dV[i] *= 2.0 * inverse_count, dM[i] = dM[i] * inverse_count - (dV[i] == 0 ? 0.0 : dV[i] * M[i]);
      }
    for_global([&](int64_t i, int64_t, int64_t at, int64_t e, int64_t step, int64_t count) {
      if (!p.cuts[i].uses_batch) return;
      add_run(total.means + at, 1.0, d_means + e, step, count), add_run(total.vars + at, 1.0, d_vars + e, step, count);
    });
  }
  // Call f(cut, index of its mixing weight, index in (domains, columns), index of its statistic, step, count) for the runs of
  // columns of each global cut and domain.
  template <class F>
  INLINE void for_global(const F& f) const {
    for (int64_t i = 0; i < num_cuts; i++) {
      const Cut& cut = p.cuts[i];
      bool in_order = cut.part.empty();
      for (int64_t begin = 0, end; !cut.is_local && begin < columns; begin = end) {
        end = in_order && p.groups == 1 ? columns : begin + 1;
        while (end < columns && p.group(end) == p.group(begin) && (in_order || cut.part[end] == cut.part[begin])) end++;
        for (int64_t d = 0; d < domains; d++)
          f(i, p.group(begin) * num_cuts + i, d * columns + begin, cut.offset + (cut.rows == 1 ? 0 : d) * cut.width + part(cut, begin),
            int64_t(in_order), end - begin);
      }
    }
  }

  void write_gradients(const Sums& total) const {
    auto by_channel = [&](const double* sums, float* out) {
      double* rows = arena().filled(p.channels, 0.0);
      for (int64_t j = 0; out && j < columns; j++) rows[p.strips == 1 ? j : p.channel(j)] += sums[j];
      if (out) std::copy(rows, rows + p.channels, out);
    };
    by_channel(total.weight, t.d_weight), by_channel(total.bias, t.d_bias);
    logits_gradient(p, p.mean, mean_weights, total.mean_weights, t.d_mean_logits);
    logits_gradient(p, p.var, var_weights, total.var_weights, t.d_var_logits);
  }

  // Compute a, p, q of dx = a dy + p (x - k) + q as w.a, w.b, w.c, and return k. `global` has the sums over the global cuts.
  const float* spread_coefficients(int64_t affine, int64_t lo, int64_t hi, const double* d_mu, const double* d_var, const double* d_means,
                           const double* d_vars, const Sums& global, Scratch& w) const {
    const float* k = coefficients(affine, lo, hi, w).k;
    const double *P = global.vars + domain(affine) * columns, *Q = global.means + domain(affine) * columns;
    float *__restrict slope = w.b, *__restrict offset = w.c;
    for_segments(lo, hi, [&](int64_t g, int64_t begin, int64_t end) {
      auto [local_p, local_q] = local_slope(affine, begin, d_means, d_vars);
      double wm = row_weight(mean_weights, g), wv = row_weight(var_weights, g), inverse_count = 1.0 / double(p.length);
      if (p.row_cut < 0) {
#pragma GCC ivdep
        for (int64_t j = begin; j < end; j++) {
          double pj = P[j] + local_p;
          slope[j] = float(pj), offset[j] = float(Q[j] + local_q + double(k[j]) * pj);
        }
        return;
      }
      const double* M = t.means + row_entry(affine);
#pragma GCC ivdep
      for (int64_t j = begin; j < end; j++) {
        double row_p = wv == 0 ? 0.0 : 2.0 * wv * inverse_count * d_var[j], row_q = wm == 0 ? 0.0 : wm * inverse_count * d_mu[j];
        double pj = P[j] + local_p + row_p;
        slope[j] = float(pj), offset[j] = float(Q[j] + local_q + row_q - (row_p == 0 ? 0.0 : row_p * M[j]) + double(k[j]) * pj);
      }
    });
    return k;
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
