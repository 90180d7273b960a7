// Gradients of the parameters, and the coefficients of dx = a d + slope (x - shift) + offset, from the sums g and h of
// each affine.
#pragma once
#include <numeric>

#include "gradient_line.h"
#include "tables.h"

namespace anynorm {
namespace ANYNORM_ISA {

struct Gradients : Tables {
  using Tables::Tables;

  // Whether a mixing weight has a gradient; a softmax weight of 0 has none.
  bool has_gradient(double weight) const { return weight != 0 || p.mixing == Mixing::precomputed; }

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
    double *vars = means + domains * columns, *var_weights = weights + p.groups * num_cuts;
    float* rows = arena().filled(4 * columns, 0.0f);
    return {weight, weight + columns, means, vars, weights, var_weights, size, rows, new_scratch(1)};
  }
  // Call add(sums, begin, end) for chunks of affines, and return the total over all chunks.
  template <class F>
  Sums sum_chunks(const F& add) const {
    int64_t unit = 1;  // number of consecutive samples that share local statistics, which must be in the same chunk
    for (const Cut& cut : p.cuts)
      if (cut.is_local) unit = std::lcm(unit, cut.samples_per_part);
    int64_t items = p.affines / unit,
            chunks = p.affine_per_sample && !p.classes ? num_chunks(items, 8.0 * double(unit * columns)) : 1;
    Sums* sums = arena().take<Sums>(chunks);
    for (int64_t chunk = 0; chunk < chunks; chunk++) sums[chunk] = new_sums();
    for_chunks(chunks, items,
               [&](int64_t chunk, int64_t begin, int64_t end) { add(sums[chunk], begin * unit, end * unit); });
    for (int64_t chunk = 1; chunk < chunks; chunk++)
      for (int64_t i = 0; i < sums[0].size; i++) sums[0].weight[i] += sums[chunk].weight[i];
    return sums[0];
  }

  // Replace g and h by dmu and dvar, compute the gradients of the local statistics, and return the sums for all other
  // gradients.
  Sums gradients(double* g, double* h, double* d_means, double* d_vars) const {
    return sum_chunks([&](Sums& sums, int64_t begin, int64_t end) {
      for (int64_t affine_index = begin; affine_index < end; affine_index++) {
        if (!p.affine_per_sample && p.classes && !std::count(t.labels, t.labels + n, affine_index)) continue;
        if (p.ragged && p.affine_per_sample && !t.num_valid(affine_index)) continue;
        Row row = mix(affine_index, 0, columns, *sums.scratch);
        affine_gradients(affine_index, row, g + affine_index * columns, h + affine_index * columns, d_means, d_vars,
                         sums);
      }
    });
  }

  void affine_gradients(int64_t affine_index, const Row& row, double* g, double* h, double* d_means, double* d_vars,
                        Sums& sums) const {
    for (int64_t j = 0; t.second_weight && j < columns; j++) {
      int64_t i = second_affine_row(affine_index) * p.channels + p.channel(j);
      if (t.d_second_weight)
        t.d_second_weight[i] += row.r[j] * (float(h[j]) - row.e[j] * float(g[j])) * gamma1[j] + float(g[j]) * beta1[j];
      if (t.d_second_bias) t.d_second_bias[i] += float(g[j]);
    }
    int64_t at = domain(affine_index) * columns;
    double* __restrict weight = sums.weight;
    double* __restrict bias = sums.bias;
    double* __restrict means = sums.means + at;
    double* __restrict vars = sums.vars + at;
    const float *g1 = gamma1, *g2 = row.gamma2, *r = row.r, *e = row.e;
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; j++) {
      float up = float(g[j]), a = g2[j] * g1[j] * r[j], d_gamma = r[j] * (float(h[j]) - e[j] * up);
      weight[j] += double(g2[j] * d_gamma);
      bias[j] += double(g2[j] * up);
      g[j] = -a * up;
      h[j] = -0.5f * a * r[j] * d_gamma;
    }
#pragma GCC ivdep
    for (int64_t j = 0, end = has_global_cut ? columns : 0; j < end; j++) {
      means[j] += double(g[j]);
      vars[j] += double(h[j]);
    }
    if (!p.has_local) return;
    for_segments(0, columns, [&](int64_t group, int64_t begin, int64_t end) {
      double total = 0, total_var = 0;
      for (int64_t j = begin; j < end; j++) {
        total += g[j];
        total_var += h[j];
      }
      local_gradients(affine_index, group, begin, total, total_var, d_means, d_vars);
      weights_gradients(affine_index, group, begin, total, total_var, 0.0, sums);
      if (p.row_cut < 0) return;
      int64_t i = group * num_cuts + p.row_cut, e = row_entry(affine_index) + begin;
      if (has_gradient(mean_weights[i])) sums.mean_weights[i] += dot(g + begin, t.means + e, end - begin);
      if (has_gradient(var_weights[i])) sums.var_weights[i] += dot(h + begin, t.vars + e, end - begin);
    });
  }

  // Add the gradients of the mean and variance of a segment to the gradients of its local statistics.
  void local_gradients(int64_t affine_index, int64_t group, int64_t column, double d_mu, double d_var, double* d_means,
                       double* d_vars) const {
    for (int64_t cut = 0, i = group * num_cuts; cut < num_cuts; cut++, i++) {
      if (!in_segments(cut)) continue;
      int64_t e = entry(p.cuts[cut], affine_index, column);
      if (mean_weights[i] != 0) d_means[e] += mean_weights[i] * d_mu;
      if (var_weights[i] != 0) d_vars[e] += var_weights[i] * d_var;
    }
  }
  // Add to the gradients of the mixing weights of the local statistics of a segment; `centre` is subtracted from the
  // means.
  void weights_gradients(int64_t affine_index, int64_t group, int64_t column, double d_mu, double d_var, double centre,
                         Sums& sums) const {
    for (int64_t cut = 0, i = group * num_cuts; cut < num_cuts; cut++, i++) {
      if (!in_segments(cut)) continue;
      int64_t e = entry(p.cuts[cut], affine_index, column);
      if (has_gradient(mean_weights[i])) sums.mean_weights[i] += d_mu * (t.means[e] - centre);
      if (has_gradient(var_weights[i])) sums.var_weights[i] += d_var * t.vars[e];
    }
  }

  // Compute the gradients of the global statistics and of their mixing weights. Then replace dM and dV of all cuts by q
  // and p of the line q + p (x - M).
  void global_gradients(Sums& total, double* d_means, double* d_vars) const {
    for_global([&](const Run& run) {
      int64_t i = run.weight;
      if (has_gradient(mean_weights[i])) {
        double shifted = origin ? dot(total.means + run.at, origin + run.at, run.count) : 0.0;
        total.mean_weights[i] += dot_run(run, total.means, t.means) - shifted;
      }
      if (has_gradient(var_weights[i])) total.var_weights[i] += dot_run(run, total.vars, t.vars);
    });
    if (sync.sum && p.pools_batch) sync.sum(total.means, 2 * domains * columns);
    for_global([&](const Run& run) {
      collect_run(run, total.means, mean_weights[run.weight], d_means);
      collect_run(run, total.vars, var_weights[run.weight], d_vars);
    });
    for (const Cut& cut : p.cuts)
      for (int64_t row = 0; cut.uses_batch && row < cut.rows; row++) {
        double per_column = !cut.is_local ? t.counts[row]
                            : p.ragged    ? double(t.num_valid(row))
                                          : double(cut.samples_per_part * p.length);
        double inverse_count = 1.0 / std::max(per_column * double(columns / cut.width), 1.0);
        for (int64_t i = cut.offset + row * cut.width, end = i + cut.width; i < end; i++) {
          d_means[i] *= inverse_count;
          d_vars[i] *= 2.0 * inverse_count;
        }
      }
  }

  // The lines of the gradient of x, summed over the global cuts, (domains, columns). Their p, q and centre are three
  // tables.
  struct Lines {
    double *p, *q, *centre;
    INLINE Line operator[](int64_t i) const { return {p[i], q[i], centre[i]}; }
  };
  Lines global_lines(const double* d_means, const double* d_vars) const {
    Lines lines;
    for (double** table : {&lines.p, &lines.q, &lines.centre}) *table = arena().filled(domains * columns, 0.0);
    for_global([&](const Run& run) {
      for (int64_t j = 0; p.cuts[run.cut].uses_batch && j < run.count; j++) {
        int64_t i = run.at + j, stat = run.stat + run.step * j;
        Line sum = lines[i] + Line{d_vars[stat], d_means[stat], t.means[stat]};
        lines.p[i] = sum.p;
        lines.q[i] = sum.q;
        lines.centre[i] = sum.centre;
      }
    });
    return lines;
  }
  // Return the line of a segment, summed over its local statistics.
  Line local_line(int64_t affine_index, int64_t column, const double* d_means, const double* d_vars) const {
    Line sum = {0, 0, 0};
    for (int64_t i = 0; i < num_cuts; i++) {
      if (!in_segments(i)) continue;
      int64_t stat = entry(p.cuts[i], affine_index, column);
      sum = sum + Line{d_vars[stat], d_means[stat], t.means[stat]};
    }
    return sum;
  }

  void write_gradients(const Sums& total) const {
    auto by_channel = [&](const double* sums, float* out) {
      double* rows = arena().filled(p.channels, 0.0);
      for (int64_t j = 0; out && j < columns; j++) rows[p.strips == 1 ? j : p.channel(j)] += sums[j];
      if (out) std::copy(rows, rows + p.channels, out);
    };
    by_channel(total.weight, t.d_weight);
    by_channel(total.bias, t.d_bias);
    logits_gradient(p, p.mean, mean_weights, total.mean_weights, t.d_mean_logits);
    logits_gradient(p, p.var, var_weights, total.var_weights, t.d_var_logits);
  }

  // Compute a, b, shift, slope and offset of z = a (x - k) + b and dx = a d + slope (x - shift) + offset, and return k.
  const float* input_gradient_coefficients(int64_t affine_index, int64_t lo, int64_t hi, const double* d_mu,
                                           const double* d_var, const double* d_means, const double* d_vars,
                                           const Lines& global, Scratch& w) const {
    const float* k = coefficients(affine_index, lo, hi, w).k;
    int64_t at = domain(affine_index) * columns;
    float* __restrict slope = w.slope;
    float* __restrict offset = w.offset;
    float* __restrict shift = w.shift;
    for_segments(lo, hi, [&](int64_t g, int64_t begin, int64_t end) {
      Line local = local_line(affine_index, begin, d_means, d_vars);
      double wm = row_weight(mean_weights, g), wv = row_weight(var_weights, g),
             inverse_count = 1.0 / double(p.ragged ? std::max<int64_t>(t.num_valid(affine_index), 1) : p.length);
      if (p.row_cut < 0) {
#pragma GCC ivdep
        for (int64_t j = begin; j < end; j++) round_line(global[at + j] + local, k[j], shift[j], slope[j], offset[j]);
        return;
      }
      const double* M = t.means + row_entry(affine_index);
#pragma GCC ivdep
      for (int64_t j = begin; j < end; j++) {
        double row_p = wv == 0 ? 0.0 : 2.0 * wv * inverse_count * d_var[j],
               row_q = wm == 0 ? 0.0 : wm * inverse_count * d_mu[j];
        round_line(global[at + j] + local + Line{row_p, row_q, M[j]}, k[j], shift[j], slope[j], offset[j]);
      }
    });
    return k;
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
