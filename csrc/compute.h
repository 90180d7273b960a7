// Forward: moments, tables, scale. Backward: sums, tables, spread, in closed form. With the statistics M, V of each cut i,
//
//   mu = sum of w_i M_i    var = sum of w'_i V_i    r = 1 / sqrt(var + eps)    gamma, beta: shared, then own    a = gamma r
//   y = a (x - mu) + beta
//
// and from g = sum of dy, t = sum of dy (x - mu) of each set and column,
//
//   dbeta = g    dgamma = r t    dmu = -a g    dvar = -a r^2 t / 2    dM_i = sum of w_i dmu    dV_i = sum of w'_i dvar
//   dx = a dy + sum over the cuts that use the batch of (dM_i + 2 dV_i (x - M_i)) / count_i
//
// Tables are rows of columns. What does not depend on the sample (pooled cuts, running statistics) is mixed once per pass.
#pragma once
#include <ATen/Parallel.h>

#include <memory>
#include <numeric>

#include "passes.h"
#include "problem.h"

namespace anynorm {
namespace ANYNORM_ISA {

constexpr double MIN_WORK = 16384;  // values per thread

// Memory for the tables of a pass, which the thread that starts it keeps for its next one.
class Arena {
  std::vector<std::unique_ptr<double[]>> blocks;
  size_t capacity = 0, used = 0;

 public:
  void reset() {
    if (blocks.size() > 1) blocks.erase(blocks.begin(), blocks.end() - 1);
    used = 0;
  }
  template <class V>
  V* take(int64_t count) {  // uninitialized
    size_t size = (size_t(count) * sizeof(V) + 63) / 64 * 8;
    if (used + size > capacity) {
      capacity = std::max(2 * capacity, size + 4096), used = 0;
      blocks.emplace_back(new double[capacity + 8]);
    }
    uintptr_t start = (reinterpret_cast<uintptr_t>(blocks.back().get() + used) + 63) / 64 * 64;
    used += size;
    return reinterpret_cast<V*>(start);
  }
  template <class V>
  V* zeros(int64_t count) {
    V* values = take<V>(count);
    std::fill(values, values + count, V(0));
    return values;
  }
};
inline Arena& arena() {
  static thread_local Arena memory;
  return memory;
}

// Call f(chunk, begin, end) for contiguous chunks of items, the same ones for the same number of threads.
inline int64_t num_chunks(int64_t items, double work_per_item) {
  if (is_forked || at::in_parallel_region()) return 1;
  int64_t useful = int64_t(double(items) * work_per_item / MIN_WORK);
  return std::max<int64_t>(1, std::min({int64_t(at::get_num_threads()), items, useful}));
}
template <class F>
void for_chunks(int64_t chunks, int64_t items, const F& f) {
  auto run = [&](int64_t chunk) { f(chunk, items * chunk / chunks, items * (chunk + 1) / chunks); };
  if (chunks == 1) return run(0);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; chunk++) run(chunk);
  });
}

// Call f(part, begin, end) for the columns of each part, if they are contiguous.
template <class F>
INLINE void for_parts(int64_t lo, int64_t hi, const Cut& cut, const F& f) {
  int64_t part = lo / cut.block;
  for (int64_t end = (part + 1) * cut.block; lo < hi; lo = end, end += cut.block, part++) f(part, lo, std::min(end, hi));
}

// dst[j] = base[j] + w table[part of j]; base may be dst.
template <class D, class B>
INLINE void add_parts(D* dst, const B* base, int64_t lo, int64_t hi, const double* __restrict table, const Cut& cut, double w) {
  if (w == 0) {  // nothing passes, not even NaN
    for (int64_t j = lo; j < hi; j++) dst[j] = D(base[j]);
  } else if (cut.block == 1) {
#pragma GCC ivdep
    for (int64_t j = lo; j < hi; j++) dst[j] = D(base[j] + w * table[j]);
  } else if (cut.block) {
    for_parts(lo, hi, cut, [&](int64_t part, int64_t from, int64_t to) {
      double value = w * table[part];
#pragma GCC ivdep
      for (int64_t j = from; j < to; j++) dst[j] = D(base[j] + value);
    });
  } else {
    for (int64_t j = lo; j < hi; j++) dst[j] = D(base[j] + w * table[cut.part[j]]);
  }
}

// table[part of j] += w src[j]; return the sum of src[j] values[part of j].
INLINE double sum_parts(double* __restrict table, const double* __restrict values, const double* __restrict src, int64_t lo,
                        int64_t hi, const Cut& cut, double w) {
  if (w == 0) return 0;
  double dot = 0;
  if (cut.block == 1) {
    for (int64_t j = lo; j < hi; j++) table[j] += w * src[j], dot += src[j] * values[j];
  } else if (cut.block) {
    for_parts(lo, hi, cut, [&](int64_t part, int64_t from, int64_t to) {
      double total = 0;
      for (int64_t j = from; j < to; j++) total += src[j];
      table[part] += w * total, dot += total * values[part];
    });
  } else {
    for (int64_t j = lo; j < hi; j++) table[cut.part[j]] += w * src[j], dot += src[j] * values[cut.part[j]];
  }
  return dot;
}

// r[j] = 1 / sqrt(var[j] + eps), by three Newton steps from a guess of the exponent: four times as fast as a division and a root.
// Zero, infinity, NaN and subnormal numbers take the exact way.
INLINE void inverse_std(const float* __restrict var, float eps, float* __restrict r, int64_t n) {
  int32_t normal = 1;
  for (int64_t j = 0; j < n; j++) {
    float v = var[j] + eps, half = 0.5f * v;
    int32_t bits;
    std::memcpy(&bits, &v, 4);
    bits = 0x5f3759df - (bits >> 1);
    float guess;
    std::memcpy(&guess, &bits, 4);
    for (int step = 0; step < 3; step++) guess *= 1.5f - half * guess * guess;
    normal &= v > 1e-37f && v < 1e37f;
    r[j] = guess;
  }
  if (!normal)
    for (int64_t j = 0; j < n; j++) r[j] = 1.0f / std::sqrt(var[j] + eps);
}

// Pool `rows` rows of `units` moments into the parts of a cut, by the law of total variance.
inline void pool_rows(const Cut& cut, const double* mean, const double* var, int64_t rows, int64_t units, double* M, double* V) {
  if (rows == 1 && cut.width == units && cut.part.empty()) {
    std::copy(mean, mean + units, M), std::copy(var, var + units, V);
    return;
  }
  int64_t block = units / cut.width;
  double share = 1.0 / double(std::max<int64_t>(1, rows * block));
  if (cut.part.empty()) {
    for (int64_t i = 0; i < cut.width; i++) {
      double sum = 0, squares = 0;
      for (int64_t r = 0; r < rows; r++)
        for (int64_t u = r * units + i * block, end = u + block; u < end; u++) sum += mean[u];
      double centre = sum * share;
      for (int64_t r = 0; r < rows; r++)
        for (int64_t u = r * units + i * block, end = u + block; u < end; u++)
          squares += var[u] + (mean[u] - centre) * (mean[u] - centre);
      M[i] = centre, V[i] = squares * share;
    }
    return;
  }
  std::fill(M, M + cut.width, 0.0), std::fill(V, V + cut.width, 0.0);
  for (int64_t i = 0; i < rows * units; i++) M[cut.part[i % units]] += share * mean[i];
  for (int64_t i = 0; i < rows * units; i++) {
    double d = mean[i] - M[cut.part[i % units]];
    V[cut.part[i % units]] += share * (var[i] + d * d);
  }
}

inline const double* mixing_weights(const float* logits, int64_t groups, int64_t cuts, Mixing mixing) {
  double* weights = arena().take<double>(groups * cuts);
  std::fill(weights, weights + groups * cuts, 1.0);
  for (int64_t g = 0; logits && g < groups; g++) {
    const float* row = logits + g * cuts;
    double* w = &weights[g * cuts];
    int64_t top = 0;
    for (int64_t i = 1; i < cuts; i++)
      if (row[i] > row[top] || (std::isnan(row[i]) && !std::isnan(row[top]))) top = i;
    double total = 0;
    for (int64_t i = 0; i < cuts; i++) {
      w[i] = mixing == Mixing::argmax ? double(i == top) : std::exp(double(row[i]) - double(row[top]));
      total += w[i];
    }
    for (int64_t i = 0; i < cuts; i++) w[i] = mixing == Mixing::precomputed ? double(row[i]) : w[i] / total;
  }
  return weights;
}

inline void logits_gradient(const double* weights, const double* d_weights, int64_t groups, int64_t cuts,
                            Mixing mixing, float* out) {
  for (int64_t g = 0; out && g < groups; g++) {
    const double *w = &weights[g * cuts], *dw = d_weights + g * cuts;
    double inner = std::inner_product(w, w + cuts, dw, 0.0);
    for (int64_t i = 0; i < cuts; i++) {
      double softmax = mixing == Mixing::argmax ? 0.0 : w[i] * (dw[i] - inner);
      out[g * cuts + i] = float(mixing == Mixing::precomputed ? dw[i] : softmax);
    }
  }
}

template <class T>
struct Pass {
  const Problem& p;
  const Tensors& t;
  const Sync& sync;
  const T *x = static_cast<const T*>(t.x), *dy = static_cast<const T*>(t.dy);
  const int64_t n = p.samples, columns = p.columns, domains = p.num_domains();
  const double* mean_weights = mixing_weights(t.mean_logits, p.groups, p.mean.size(), p.mixing);
  const double* var_weights = mixing_weights(t.var_logits, p.groups, p.var.size(), p.mixing);
  double* shared_mean = nullptr;  // mixed over the cuts that are not per sample, (domains, columns)
  float *shared_var = nullptr, *shared_r = nullptr;
  bool own_means = false, own_vars = false;  // whether a cut of the mean or variance is per sample
  const float *gamma = nullptr, *beta = nullptr;  // the shared affine of each column

  const T* sample(const T* tensor, int64_t s) const { return tensor + s * columns * p.length; }
  int64_t channel(int64_t column) const { return p.last ? column % p.channels : column / p.strips; }
  int64_t domain(int64_t set) const { return !p.domains ? 0 : p.set_per_sample ? t.labels[set] : set; }
  int64_t own_row(int64_t set) const { return p.set_per_sample && !p.style ? t.labels[set] : set; }
  int64_t set_of(int64_t s) const { return p.set_per_sample ? s : p.sets == 1 ? 0 : t.labels[s]; }
  double* row_of(double* table, const Cut& cut, int64_t set) const {
    return table + cut.offset + (cut.per_sample ? set / cut.samples_per_part : cut.rows == 1 ? 0 : domain(set)) * cut.width;
  }
  // Whether a cut of vectors has one value per statistic: its mean is x and its variance 0, so that nothing is stored.
  bool is_input(const Cut& cut) const { return cut.rows == 0; }

  // Call f(group, begin, end) for contiguous columns of one channel group.
  template <class F>
  void for_groups(int64_t lo, int64_t hi, const F& f) const {
    int64_t size = p.channels / p.groups;
    if (p.groups == 1) return f(0, lo, hi);
    while (lo < hi) {
      int64_t group = channel(lo) / size;
      int64_t end = p.last ? lo - channel(lo) + (group + 1) * size : (group + 1) * size * p.strips;
      f(group, lo, std::min(end, hi));
      lo = end;
    }
  }

  // Moments ------------------------------------------------------------------------------------------------------------------

  int64_t common_parts(bool all) const {  // the fewest rows per sample from which every cut can be pooled
    int64_t units = 1;
    for (const Cut& cut : p.cuts)
      if (all ? cut.uses_batch : cut.per_sample && !is_input(cut)) units = std::lcm(units, cut.channels);
    return units;
  }

  void compute_moments(bool with_pooled) {
    bool pooled = with_pooled && p.has_pooled_cut;
    if (!pooled && !p.has_per_sample_cut) return;
    bool by_position = p.last && p.strips == 1 && !p.domains && (p.is_vector() || !p.has_per_sample_cut);
    int64_t units = p.is_vector() && !p.domains ? common_parts(false) : p.last || p.strips > 1 || sync.merge ? columns : common_parts(true);
    double *mean = nullptr, *var = nullptr;
    if (!by_position || p.has_per_sample_cut) {
      compute_rows(units, mean, var);
      pool_samples(units, mean, var);
    }
    if (pooled && by_position) pool_positions();
    if (pooled && !by_position) pool_rows_by_domain(units, mean, var);
  }

  void compute_rows(int64_t units, double*& mean, double*& var) const {
    mean = arena().take<double>(n * units), var = arena().take<double>(n * units);
    int64_t length = columns * p.length / units;
    if (p.last && !(p.is_vector() && units < columns)) {
      int64_t items = n * p.strips, values = p.length * p.channels;
      for_chunks(num_chunks(items, double(values)), items, [&](int64_t, int64_t lo, int64_t hi) {
        for (int64_t i = lo; i < hi; i++)
          moments_last(x + i * values, p.length, p.channels, &mean[i * p.channels], &var[i * p.channels]);
      });
    } else {
      for_chunks(num_chunks(n * units, double(length)), n * units, [&](int64_t, int64_t lo, int64_t hi) {
        moments(x + lo * length, hi - lo, length, &mean[lo], &var[lo]);
      });
    }
  }

  void pool_samples(int64_t units, const double* mean, const double* var) const {
    for (const Cut& cut : p.cuts) {
      if (!cut.per_sample || is_input(cut)) continue;
      int64_t rows = cut.samples_per_part;
      for_chunks(num_chunks(cut.rows, 4.0 * double(rows * units)), cut.rows, [&](int64_t, int64_t lo, int64_t hi) {
        for (int64_t i = lo; i < hi; i++) {
          double *M = t.means + cut.offset + i * cut.width, *V = t.vars + cut.offset + i * cut.width;
          pool_rows(cut, &mean[i * rows * units], &var[i * rows * units], rows, units, M, V);
        }
      });
    }
  }

  // Pooled moments of the columns, by chunks of positions or of samples, merged in order.
  void pool_positions() {
    int64_t positions = n * p.length, chunks = num_chunks(positions, double(p.channels));
    if (!positions) return pool_rows_by_domain(columns, nullptr, nullptr);  // zeros
    double *mean = arena().take<double>(chunks * columns), *var = arena().take<double>(chunks * columns);
    double* counts = arena().take<double>(chunks);
    for_chunks(chunks, positions, [&](int64_t chunk, int64_t lo, int64_t hi) {
      moments_last(x + lo * p.channels, hi - lo, p.channels, &mean[chunk * columns], &var[chunk * columns]);
      for (int64_t j = 0; j < columns; j++) var[chunk * columns + j] *= double(hi - lo);
      counts[chunk] = double(hi - lo);
    });
    finish_pooled(columns, chunks, mean, var, counts);
  }

  void pool_rows_by_domain(int64_t units, const double* rows_mean, const double* rows_var) {
    int64_t chunks = num_chunks(n, 4.0 * double(units)), size = domains * units;
    double length = double(columns * p.length / units);
    double *mean = arena().zeros<double>(chunks * size), *var = arena().zeros<double>(chunks * size);
    double* counts = arena().zeros<double>(chunks * domains);
    for_chunks(chunks, n, [&](int64_t chunk, int64_t lo, int64_t hi) {
      for (int64_t s = lo; s < hi; s++) {
        int64_t d = p.domains ? t.labels[s] : 0;
        double &count = counts[chunk * domains + d], share = 1.0 / (count + 1.0), factor = length * count * share;
        double *m = &mean[chunk * size + d * units], *q = &var[chunk * size + d * units];
        const double *row = &rows_mean[s * units], *row_var = &rows_var[s * units];
#pragma GCC ivdep
        for (int64_t u = 0; u < units; u++) {
          double delta = row[u] - m[u];
          q[u] += length * row_var[u] + delta * delta * factor;
          m[u] += delta * share;
        }
        count += 1.0;
      }
    });
    for (int64_t i = 0; i < chunks * domains; i++) counts[i] *= length;
    finish_pooled(units, chunks, mean, var, counts);
  }

  // `var` holds sums of squares, `counts` the values of each chunk and domain.
  void finish_pooled(int64_t units, int64_t chunks, double* mean, double* var, double* counts) {
    for (int64_t chunk = 1; chunk < chunks; chunk++)
      for (int64_t d = 0; d < domains; d++) {
        double count = counts[chunk * domains + d];
        for (int64_t u = 0; count > 0 && u < units; u++) {
          int64_t i = d * units + u, j = chunk * domains * units + i;
          merge_block(mean[i], var[i], counts[d], mean[j], var[j], count);
        }
        counts[d] += count;
      }
    for (int64_t d = 0; d < domains; d++)
      for (int64_t u = 0; counts[d] > 0 && u < units; u++) var[d * units + u] /= counts[d];
    if (sync.merge) sync.merge(mean, var, counts, units);
    for (int64_t d = 0; d < domains; d++) t.counts[d] = counts[d] * double(units) / double(columns);
    for (const Cut& cut : p.cuts)
      for (int64_t d = 0; cut.uses_batch && !cut.per_sample && d < domains; d++) {
        double *M = t.means + cut.offset + d * cut.width, *V = t.vars + cut.offset + d * cut.width;
        pool_rows(cut, &mean[d * units], &var[d * units], 1, units, M, V);
      }
  }

  // Tables -------------------------------------------------------------------------------------------------------------------

  void prepare_tables() {
    int64_t size = domains * columns;
    shared_mean = arena().zeros<double>(size), shared_var = arena().zeros<float>(size), shared_r = arena().take<float>(size);
    for (int64_t d = 0; d < domains; d++) {
      mix_shared(p.mean, mean_weights, t.means, d, &shared_mean[d * columns]);
      mix_shared(p.var, var_weights, t.vars, d, &shared_var[d * columns]);
    }
    inverse_std(shared_var, float(p.eps), shared_r, size);
    for (int64_t i : p.mean) own_means |= p.cuts[i].per_sample;
    for (int64_t i : p.var) own_vars |= p.cuts[i].per_sample;
    gamma = expand_affine(t.weight, 1.0f), beta = expand_affine(t.bias, 0.0f);
  }

  const float* expand_affine(const float* values, float otherwise) const {
    if (values && p.strips == 1) return values;
    float* row = arena().take<float>(columns);
    for (int64_t j = 0; j < columns; j++) row[j] = values ? values[channel(j)] : otherwise;
    return row;
  }

  template <class D>
  void mix_shared(const std::vector<int64_t>& side, const double* weights, const double* table, int64_t d, D* mixed) const {
    for (size_t c = 0; c < side.size(); c++) {
      const Cut& cut = p.cuts[side[c]];
      if (cut.per_sample) continue;
      const double* row = table + cut.offset + (cut.rows == 1 ? 0 : d) * cut.width;
      for_groups(0, columns, [&](int64_t g, int64_t lo, int64_t hi) {
        add_parts(mixed, mixed, lo, hi, row, cut, weights[g * side.size() + c]);
      });
    }
  }

  // Add the statistics of a sample to the shared row.
  template <class D>
  void mix_own(const std::vector<int64_t>& side, const double* weights, double* table, int64_t set, int64_t lo,
               int64_t hi, const D* base, D* mixed) const {
    for (size_t c = 0; c < side.size(); c++) {
      const Cut& cut = p.cuts[side[c]];
      if (!cut.per_sample) continue;
      if (is_input(cut) && &side == &p.var) continue;  // 0
      for_groups(lo, hi, [&](int64_t g, int64_t from, int64_t to) {
        double w = weights[g * side.size() + c];
        if (!is_input(cut)) return add_parts(mixed, base, from, to, row_of(table, cut, set), cut, w);
        const T* __restrict row = sample(x, set);
        if (w == 0) return void(std::copy(base + from, base + to, mixed + from));
#pragma GCC ivdep
        for (int64_t j = from; j < to; j++) mixed[j] = D(base[j] + w * double(load(row[j])));
      });
      base = mixed;
    }
    if (base != mixed) std::copy(base + lo, base + hi, mixed + lo);
  }

  // Return the mixed mean of a set: the shared row, or one written into `work`.
  const double* mean_row(int64_t set, int64_t lo, int64_t hi, double* work) const {
    const double* shared = &shared_mean[domain(set) * columns];
    if (!own_means) return shared;
    mix_own(p.mean, mean_weights, t.means, set, lo, hi, shared, work);
    return work;
  }

  // Return 1 / sqrt(var + eps) of a set; where one cut has the variance alone, of its parts, which are fewer than columns.
  const float* inverse_std_row(int64_t set, int64_t lo, int64_t hi, float* work) const {
    if (!own_vars) return &shared_r[domain(set) * columns];
    const Cut& cut = p.cuts[p.var[0]];
    if (p.var.size() == 1 && cut.block > 1) {
      const double* row = row_of(t.vars, cut, set);
      for_parts(lo, hi, cut, [&](int64_t part, int64_t from, int64_t to) {
        float r = 1.0f / std::sqrt(float(row[part] + p.eps));
        for (int64_t j = from; j < to; j++) work[j] = r;
      });
      return work;
    }
    mix_own(p.var, var_weights, t.vars, set, lo, hi, &shared_var[domain(set) * columns], work + columns);
    inverse_std(work + columns + lo, float(p.eps), work + lo, hi - lo);
    return work;
  }

  struct Work {  // rows that a thread writes
    double *mu, *d0, *d1, *d2, *d3, *d4;
    float *r, *k, *a, *b, *c;
  };
  Work* new_work(int64_t count) const {
    Work* all = arena().take<Work>(count);
    for (int64_t i = 0; i < count; i++) {
      for (double** row : {&all[i].mu, &all[i].d0, &all[i].d1, &all[i].d2, &all[i].d3, &all[i].d4}) *row = arena().take<double>(columns);
      all[i].r = arena().take<float>(2 * columns);
      for (float** row : {&all[i].k, &all[i].a, &all[i].b, &all[i].c}) *row = arena().take<float>(columns);
    }
    return all;
  }
  // Sets that samples share have their rows computed once, the others by each chunk of the pass over x.
  Work* work_rows(int64_t chunks) const { return new_work(p.set_per_sample ? chunks : p.sets); }
  int64_t num_shared() const { return p.set_per_sample ? 0 : p.sets; }

  // Write k, a, b of y = a (x - k) + b: k is the mean rounded to float32, and b makes up for it.
  void coefficients(int64_t set, int64_t lo, int64_t hi, Work& work) const {
    const double* __restrict mu = mean_row(set, lo, hi, work.mu);
    const float* __restrict r = inverse_std_row(set, lo, hi, work.r);
    float *__restrict k = work.k, *__restrict a = work.a, *__restrict b = work.b;
    const float *__restrict gamma_row = gamma, *__restrict beta_row = beta;
    if (!t.own_weight) {
#pragma GCC ivdep
      for (int64_t j = lo; j < hi; j++) {
        k[j] = float(mu[j]), a[j] = gamma_row[j] * r[j];
        b[j] = beta_row[j] - a[j] * float(mu[j] - double(k[j]));
      }
      return;
    }
    const float *own_gamma = t.own_weight + own_row(set) * p.channels, *own_beta = t.own_bias + own_row(set) * p.channels;
#pragma GCC ivdep
    for (int64_t j = lo; j < hi; j++) {
      int64_t c = p.strips == 1 ? j : channel(j);
      k[j] = float(mu[j]), a[j] = own_gamma[c] * gamma_row[j] * r[j];
      b[j] = own_gamma[c] * beta_row[j] + own_beta[c] - a[j] * float(mu[j] - double(k[j]));
    }
  }

  // Call f(chunk, sample, lo, hi, offset, strip) for column ranges [lo, hi) of samples (rows contiguous) or for position ranges
  // of a strip (channels last), in chunks of equal size; offset is that of the first value in x.
  template <class F>
  void for_rows(int64_t chunks, const F& f) const {
    int64_t size = p.last ? p.length : columns;
    for_chunks(chunks, p.last ? n * p.strips * p.length : n * columns, [&](int64_t chunk, int64_t lo, int64_t hi) {
      while (lo < hi) {
        int64_t unit = lo / size, end = std::min(hi, (unit + 1) * size);
        f(chunk, p.last ? unit / p.strips : unit, lo - unit * size, end - unit * size, lo * (p.last ? p.channels : p.length),
          p.last ? unit % p.strips : 0);
        lo = end;
      }
    });
  }
  int64_t row_chunks() const {
    return p.last ? num_chunks(n * p.strips * p.length, double(p.channels)) : num_chunks(n * columns, double(p.length));
  }

  void forward() {
    compute_moments(true);
    prepare_tables();
    int64_t chunks = row_chunks();
    Work* work = work_rows(chunks);
    for (int64_t s = 0; s < num_shared(); s++) coefficients(s, 0, columns, work[s]);
    T* y = static_cast<T*>(t.y);
    for_rows(chunks, [&](int64_t chunk, int64_t s, int64_t lo, int64_t hi, int64_t offset, int64_t strip) {
      int64_t from = p.last ? strip * p.channels : lo, to = p.last ? from + p.channels : hi;
      Work& w = work[p.set_per_sample ? chunk : set_of(s)];
      if (p.set_per_sample) coefficients(s, from, to, w);
      if (p.last) scale_last(x + offset, y + offset, hi - lo, p.channels, &w.k[from], &w.a[from], &w.b[from]);
      else scale(x + offset, y + offset, hi - lo, p.length, &w.k[from], &w.a[from], &w.b[from]);
    });
  }

  // Backward -----------------------------------------------------------------------------------------------------------------

  // Gradients that several samples add to, in one block of memory; one per chunk of samples.
  struct Sums {
    double *weight, *bias, *own_weight, *own_bias, *means, *vars, *mean_weights, *var_weights;
    int64_t size;
  };
  Sums new_sums() const {
    int64_t own = t.own_weight && !p.style ? p.classes * p.channels : 0, shared = domains * columns;
    int64_t sizes[] = {columns, columns, own, own, shared, shared, p.groups * int64_t(p.mean.size()), p.groups * int64_t(p.var.size())};
    Sums sums;
    sums.size = std::accumulate(std::begin(sizes), std::end(sizes), int64_t(0));
    double* next = arena().zeros<double>(sums.size);
    int i = 0;
    for (double** field : {&sums.weight, &sums.bias, &sums.own_weight, &sums.own_bias, &sums.means, &sums.vars, &sums.mean_weights,
                           &sums.var_weights})
      *field = next, next += sizes[i++];
    return sums;
  }

  void backward() {
    if (p.recompute) compute_moments(false);
    prepare_tables();
    double *g = nullptr, *q = nullptr, *d_means = arena().zeros<double>(p.num_stats), *d_vars = arena().zeros<double>(p.num_stats);
    compute_sums(g, q);
    Sums total = gradients(g, q, d_means, d_vars);
    pooled_gradients(total, d_means, d_vars);
    write_gradients(total);
    if (t.dx) spread_gradients(d_means, d_vars, total);
  }

  // Write g and t (around k, the rounded mean) of each set and column; nothing for vectors whose samples are sets: see `gradients`.
  void compute_sums(double*& g, double*& q) const {
    if (p.set_per_sample && p.is_vector()) return;
    int64_t chunks = row_chunks(), size = p.sets * columns, tables = p.set_per_sample ? 1 : chunks;
    g = arena().zeros<double>(tables * size), q = arena().zeros<double>(tables * size);
    Work* work = work_rows(chunks);
    auto write_k = [&](int64_t set, int64_t lo, int64_t hi, Work& w) {
      const double* mu = mean_row(set, lo, hi, w.mu);
      for (int64_t j = lo; j < hi; j++) w.k[j] = float(mu[j]);
    };
    for (int64_t s = 0; s < num_shared(); s++) write_k(s, 0, columns, work[s]);
    if (p.set_per_sample && p.last) chunks = num_chunks(n * p.strips, double(p.length * p.channels));  // a strip is not divided
    auto run = [&](int64_t chunk, int64_t s, int64_t lo, int64_t hi, int64_t offset, int64_t strip) {
      int64_t from = p.last ? strip * p.channels : lo, to = p.last ? from + p.channels : hi;
      Work& w = work[p.set_per_sample ? chunk : set_of(s)];
      if (p.set_per_sample) write_k(s, from, to, w);
      int64_t row = (p.set_per_sample ? 0 : chunk) * size + set_of(s) * columns + from;
      if (p.last) sums_last(x + offset, dy + offset, hi - lo, p.channels, &w.k[from], &g[row], &q[row]);
      else sums(x + offset, dy + offset, hi - lo, p.length, &w.k[from], &g[row], &q[row]);
    };
    if (p.set_per_sample && p.last) {
      for_chunks(chunks, n * p.strips, [&](int64_t chunk, int64_t lo, int64_t hi) {
        for (int64_t i = lo; i < hi; i++) run(chunk, i / p.strips, 0, p.length, i * p.length * p.channels, i % p.strips);
      });
    } else {
      for_rows(chunks, run);
    }
    for (int64_t i = size; i < tables * size; i++) g[i % size] += g[i], q[i % size] += q[i];
  }

  // Write the gradients of the statistics of samples, and return the sums of everything else.
  Sums gradients(const double* g_table, const double* q_table, double* d_means, double* d_vars) const {
    int64_t unit = 1;  // consecutive samples that share a statistic
    for (const Cut& cut : p.cuts)
      if (cut.per_sample) unit = std::lcm(unit, cut.samples_per_part);
    int64_t items = p.sets / unit, chunks = p.set_per_sample ? num_chunks(items, 8.0 * double(unit * columns)) : 1;
    Sums* sums = arena().take<Sums>(chunks);
    for (int64_t chunk = 0; chunk < chunks; chunk++) sums[chunk] = new_sums();
    Work* all_work = new_work(chunks);
    for_chunks(chunks, items, [&](int64_t chunk, int64_t lo, int64_t hi) {
      Work& work = all_work[chunk];
      double *dmu = work.d0, *dvar = work.d1, *dgamma = work.d2, *g_row = work.d3, *q_row = work.d4;
      for (int64_t set = lo * unit; set < hi * unit; set++) {
        const double *g = g_row, *q = q_row, *mu = mean_row(set, 0, columns, work.mu);
        if (!g_table) {
          const T *__restrict in = sample(x, set), *__restrict up = sample(dy, set);
#pragma GCC ivdep
          for (int64_t j = 0; j < columns; j++) {
            g_row[j] = double(load(up[j]));
            q_row[j] = double(load(up[j]) * (load(in[j]) - float(mu[j])));
          }
        } else {
          g = &g_table[set * columns], q = &q_table[set * columns];
        }
        set_gradients(set, mu, inverse_std_row(set, 0, columns, work.r), g, q, dmu, dvar, dgamma, sums[chunk]);
        side_gradients(p.mean, mean_weights, set, t.means, d_means, dmu, sums[chunk].mean_weights);
        side_gradients(p.var, var_weights, set, t.vars, d_vars, dvar, sums[chunk].var_weights);
      }
    });
    for (int64_t chunk = 1; chunk < chunks; chunk++)
      for (int64_t i = 0; i < sums[0].size; i++) sums[0].weight[i] += sums[chunk].weight[i];
    return sums[0];
  }

  void set_gradients(int64_t set, const double* __restrict mu, const float* __restrict r, const double* __restrict g,
                     const double* __restrict q, double* __restrict dmu, double* __restrict dvar, double* __restrict dgamma,
                     Sums& sums) const {
    double *__restrict d_weight = sums.weight, *__restrict d_bias = sums.bias;
    double *__restrict means = &sums.means[domain(set) * columns], *__restrict vars = &sums.vars[domain(set) * columns];
    const float *__restrict gamma_row = gamma, *own_gamma = t.own_weight ? t.own_weight + own_row(set) * p.channels : nullptr;
    auto accumulate = [&](int64_t j, double own) {
      double rj = double(r[j]), scale = own * rj * double(gamma_row[j]);
      dgamma[j] = rj * (q[j] + (double(float(mu[j])) - mu[j]) * g[j]);
      dmu[j] = -scale * g[j];
      dvar[j] = -0.5 * scale * rj * dgamma[j];
      d_weight[j] += own * dgamma[j], d_bias[j] += own * g[j];
      means[j] += dmu[j], vars[j] += dvar[j];
    };
    if (!own_gamma) {
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; j++) accumulate(j, 1.0);
    } else {
      for (int64_t j = 0; j < columns; j++) accumulate(j, double(own_gamma[p.strips == 1 ? j : channel(j)]));
    }
    for (int64_t j = 0; own_gamma && j < columns; j++) {
      int64_t i = own_row(set) * p.channels + channel(j);
      double d_own = dgamma[j] * double(gamma[j]) + g[j] * double(beta[j]);
      if (!p.style) sums.own_weight[i] += d_own, sums.own_bias[i] += g[j];
      else if (t.d_own_weight) t.d_own_weight[i] += float(d_own);
      if (p.style && t.d_own_bias) t.d_own_bias[i] += float(g[j]);
    }
  }

  // Add the gradient of a set's mixed row to the statistics of samples and to the mixing weights.
  void side_gradients(const std::vector<int64_t>& side, const double* weights, int64_t set, double* table,
                      double* d_table, const double* up, double* d_weights) const {
    for (size_t c = 0; c < side.size(); c++) {
      const Cut& cut = p.cuts[side[c]];
      if (!cut.per_sample) continue;
      for_groups(0, columns, [&](int64_t group, int64_t lo, int64_t hi) {
        int64_t i = group * side.size() + c;
        if (!is_input(cut)) {
          d_weights[i] += sum_parts(row_of(d_table, cut, set), row_of(table, cut, set), up, lo, hi, cut, weights[i]);
        } else if (&side == &p.mean) {
          const T* row = sample(x, set);
          double dot = 0;
          for (int64_t j = lo; j < hi; j++) dot += up[j] * double(load(row[j]));
          d_weights[i] += dot;
        }
      });
    }
  }

  void pooled_gradients(Sums& total, double* d_means, double* d_vars) const {
    pooled_side(p.mean, mean_weights, t.means, d_means, total.means, total.mean_weights);
    pooled_side(p.var, var_weights, t.vars, d_vars, total.vars, total.var_weights);
    std::fill(total.means, total.means + 2 * domains * columns, 0.0);  // and the variances, which follow
    for (const Cut& cut : p.cuts) {
      double *dM = d_means + cut.offset, *dV = d_vars + cut.offset, *M = t.means + cut.offset;
      if (!cut.uses_batch) continue;
      if (sync.sum && !cut.per_sample) sync.sum(dM, cut.rows * cut.width), sync.sum(dV, cut.rows * cut.width);
      double values = double(columns / cut.width);
      for (int64_t i = 0; i < cut.rows * cut.width; i++) {
        double count = values * (cut.per_sample ? double(cut.samples_per_part * p.length) : t.counts[i / cut.width]);
        dV[i] *= 2.0 / std::max(count, 1.0);
        dM[i] = dM[i] / std::max(count, 1.0) - (dV[i] == 0 ? 0.0 : dV[i] * M[i]);
      }
      for (int64_t d = 0; !cut.per_sample && d < domains; d++) {
        double *means = &total.means[d * columns], *vars = &total.vars[d * columns];
        add_parts(means, means, 0, columns, dM + d * cut.width, cut, 1.0);
        add_parts(vars, vars, 0, columns, dV + d * cut.width, cut, 1.0);
      }
    }
  }

  void pooled_side(const std::vector<int64_t>& side, const double* weights, const double* table, double* d_table,
                   const double* up, double* d_weights) const {
    for (size_t c = 0; c < side.size(); c++) {
      const Cut& cut = p.cuts[side[c]];
      for (int64_t d = 0; !cut.per_sample && d < domains; d++)
        for_groups(0, columns, [&](int64_t group, int64_t lo, int64_t hi) {
          int64_t i = group * side.size() + c, row = cut.offset + (cut.rows == 1 ? 0 : d) * cut.width;
          d_weights[i] += sum_parts(d_table + row, table + row, &up[d * columns], lo, hi, cut, weights[i]);
        });
    }
  }

  void write_gradients(const Sums& total) const {
    auto by_channel = [&](const double* sums, float* out) {
      double* rows = arena().zeros<double>(p.channels);
      for (int64_t j = 0; out && j < columns; j++) rows[p.strips == 1 ? j : channel(j)] += sums[j];
      if (out) std::copy(rows, rows + p.channels, out);
    };
    int64_t own = p.classes * p.channels;
    by_channel(total.weight, t.d_weight), by_channel(total.bias, t.d_bias);
    if (t.d_own_weight && !p.style) std::copy(total.own_weight, total.own_weight + own, t.d_own_weight);
    if (t.d_own_bias && !p.style) std::copy(total.own_bias, total.own_bias + own, t.d_own_bias);
    logits_gradient(mean_weights, total.mean_weights, p.groups, p.mean.size(), p.mixing, t.d_mean_logits);
    logits_gradient(var_weights, total.var_weights, p.groups, p.var.size(), p.mixing, t.d_var_logits);
  }

  // Write k, a, p, q of dx = a dy + p (x - k) + q as k, a, b, c; `shared` holds the sums over the pooled cuts.
  void spread_coefficients(int64_t set, int64_t lo, int64_t hi, const double* d_means, const double* d_vars, const Sums& shared, Work& work) const {
    coefficients(set, lo, hi, work);
    const double *__restrict P = &shared.vars[domain(set) * columns], *__restrict Q = &shared.means[domain(set) * columns];
    for (const Cut& cut : p.cuts) {
      if (!cut.per_sample || is_input(cut)) continue;
      int64_t row = cut.offset + set / cut.samples_per_part * cut.width;
      add_parts(work.d0, Q, lo, hi, &d_means[row], cut, 1.0), add_parts(work.d1, P, lo, hi, &d_vars[row], cut, 1.0);
      Q = work.d0, P = work.d1;
    }
    float *__restrict slope = work.b, *__restrict offset = work.c, *__restrict k = work.k, *a = work.a;
#pragma GCC ivdep
    for (int64_t j = lo; j < hi; j++) slope[j] = float(P[j]), offset[j] = float(Q[j] + double(k[j]) * P[j]);
    for (size_t c = 0; c < p.mean.size(); c++)
      if (is_input(p.cuts[p.mean[c]]))
        for_groups(lo, hi, [&](int64_t g, int64_t from, int64_t to) {
          float rest = float(1.0 - mean_weights[g * p.mean.size() + c]);
          for (int64_t j = from; j < to; j++) a[j] *= rest;
        });
  }

  void spread_gradients(const double* d_means, const double* d_vars, const Sums& sums) const {
    int64_t chunks = row_chunks();
    Work* work = work_rows(chunks);
    for (int64_t s = 0; s < num_shared(); s++) spread_coefficients(s, 0, columns, d_means, d_vars, sums, work[s]);
    T* dx = static_cast<T*>(t.dx);
    for_rows(chunks, [&](int64_t chunk, int64_t s, int64_t lo, int64_t hi, int64_t start, int64_t strip) {
      int64_t from = p.last ? strip * p.channels : lo, to = p.last ? from + p.channels : hi;
      Work& w = work[p.set_per_sample ? chunk : set_of(s)];
      if (p.set_per_sample) spread_coefficients(s, from, to, d_means, d_vars, sums, w);
      const float *k = &w.k[from], *a = &w.a[from], *slope = &w.b[from], *offset = &w.c[from];
      if (p.last) spread_last(x + start, dy + start, dx + start, hi - lo, p.channels, k, a, slope, offset);
      else spread(x + start, dy + start, dx + start, hi - lo, p.length, k, a, slope, offset);
    });
  }
};

inline void forward(const Problem& p, const Tensors& t, const Sync& sync) {
  arena().reset();
  if (p.is_bfloat16) Pass<BFloat16>{p, t, sync}.forward();
  else Pass<float>{p, t, sync}.forward();
}
inline void backward(const Problem& p, const Tensors& t, const Sync& sync) {
  arena().reset();
  if (p.is_bfloat16) Pass<BFloat16>{p, t, sync}.backward();
  else Pass<float>{p, t, sync}.backward();
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
