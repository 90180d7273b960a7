// The pass for x of shape (samples, columns), if each sample has its own coefficients. They are computed where they are
// used, because tables of coefficients would be as large as x. Deviations from means are mixed in float32, instead of
// means. With G and c the weighted averages of the global and of the local means, W_global and W_local the sums of
// their weights, and W_input the weight of a cut whose mean is x itself,
//
//   u = x - mu = W_global (x - G) + W_local (x - c) + rest x        rest = 1 - W_global - W_local - W_input
#pragma once
#include "forward_backward.h"

namespace anynorm {
namespace ANYNORM_ISA {

constexpr int64_t FLUSH = 64;  // number of samples that are summed in float32

template <class T>
struct VectorPass : Pass<T> {
  using Base = Pass<T>;
  using Base::Base;
  using Sums = typename Base::Sums;
  using Lines = typename Base::Lines;
  using Base::columns, Base::domains, Base::n, Base::num_cuts, Base::p, Base::t, Base::x;
  using Base::gamma1, Base::gamma2, Base::beta1, Base::beta2, Base::mean_weights, Base::var_weights;

  struct MeanWeights {  // sums of the mixing weights of the mean for one channel group
    double global = 0, local = 0, input = 0;
    double rest() const { return 1.0 - global - local - input; }
  };
  MeanWeights* group_weights = nullptr;
  // G = k + e, and var + eps, (domains, columns)
  float *mean_k = nullptr, *mean_e = nullptr, *global_variance = nullptr;

  void prepare() {
    Base::prepare();
    group_weights = arena().filled(p.groups, MeanWeights());
    for (int64_t g = 0; g < p.groups; g++)
      for (int64_t i = 0; i < num_cuts; i++) {
        double weight = mean_weights[g * num_cuts + i];
        (p.cuts[i].is_input   ? group_weights[g].input
         : p.cuts[i].is_local ? group_weights[g].local
                              : group_weights[g].global) += weight;
      }
    for (float** row : {&mean_k, &mean_e, &global_variance}) *row = arena().take<float>(domains * columns);
    double* mean = arena().filled(domains * columns, 0.0);  // where the weight is 0, G can be any value near x
    this->for_global([&](const Run& run) {
      for (int64_t j = 0; j < run.count; j++) {
        double value = t.means[run.stat + run.step * j];
        if (std::isfinite(value)) mean[run.at + j] = value;
      }
    });
    for (int64_t i = 0; i < domains * columns; i++) {
      double weight = group_weights[p.group(i % columns)].global;
      split(weight == 0 ? mean[i] : this->global_mean[i] / weight, mean_k[i], mean_e[i]);
      global_variance[i] = float(this->global_var[i] + p.eps);
    }
  }

  // The values of a sample that are constant within a segment, and pointers to rows.
  struct Segment {
    const float *k, *e, *variance;  // global statistics by column
    const float *gamma2, *beta2;
    float global, local, rest;  // weights
    float c, offset;            // the local mean in float32, and its weighted rounding error
    float local_var, r;         // r is constant if all variances are local

    template <class V>
    INLINE V deviation(V value, int64_t j) const {
      return (value - load_as<V>(k + j)) * global + (value - c) * local +
             (value * rest - (load_as<V>(e + j) * global + offset));
    }
    // The coefficients of z = gamma x̂ + beta.
    template <class V>
    INLINE V gamma(const float* gamma1, int64_t j) const {
      return load_as<V>(gamma1 + j) * load_as<V>(gamma2 + j);
    }
    template <class V>
    INLINE V beta(const float* beta1, int64_t j) const {
      return load_as<V>(beta1 + j) * load_as<V>(gamma2 + j) + load_as<V>(beta2 + j);
    }
    template <class V, bool CONSTANT>
    INLINE V inverse_std(int64_t j) const {
      if constexpr (CONSTANT) return V{} + r;
      else return inverse_sqrt(load_as<V>(variance + j) + local_var);
    }
  };
  // Call f(segment, group, begin, end) for the segments of a sample.
  template <class F>
  INLINE void for_sample(int64_t s, const F& f) const {
    int64_t at = this->domain(s) * columns;
    Segment segment = {mean_k + at, mean_e + at, global_variance + at, gamma2, beta2};
    if (t.second_weight) {
      segment.gamma2 = t.second_weight + this->second_affine_row(s) * columns;
      segment.beta2 = t.second_bias + this->second_affine_row(s) * columns;
    }
    this->for_segments(0, columns, [&](int64_t g, int64_t begin, int64_t end) {
      double mean = this->mix_segment(mean_weights, t.means, s, g, begin),
             var = this->mix_segment(var_weights, t.vars, s, g, begin), e = 0;
      if (group_weights[g].local != 0) {
        mean /= group_weights[g].local;
        segment.c = float(mean);
        e = mean - double(segment.c);
      } else segment.c = 0;
      segment.global = float(group_weights[g].global);
      segment.local = float(group_weights[g].local);
      segment.rest = float(group_weights[g].rest());
      segment.offset = float(group_weights[g].local * e);
      segment.local_var = float(var);
      segment.r = inverse_std(var, p.eps);
      f(segment, g, begin, end);
    });
  }
  // Call f(offset, a value of the vector type, whether r is constant) for the vectors of a segment.
  template <class F>
  INLINE void for_columns(int64_t begin, int64_t end, const F& f) const {
    auto run = [&](auto constant) {
      int64_t j = begin;
      for (; j + LANES <= end; j += LANES) f(j, Vector(), constant);
      for (; j < end; j++) f(j, float(), constant);
    };
    if (this->var_in_segments) run(std::true_type());
    else run(std::false_type());
  }

  void forward() {
    Statistics<T>{p, t, this->sync}.compute();
    prepare();
    for_chunks(num_chunks(n, 2.0 * double(columns)), n, [&](int64_t, int64_t first, int64_t last) {
      with_output<T>(p, t, 0, [&](const auto& output) {
        for (int64_t s = first; s < last; s++)
          for_sample(s, [&](const Segment& segment, int64_t, int64_t begin, int64_t end) {
            const T* in = x + s * columns;
            T* out = static_cast<T*>(t.y) + s * columns;
            for_columns(begin, end, [&](int64_t j, auto v, auto constant) {
              using V = decltype(v);
              V normalized = segment.deviation(load_as<V>(in + j), j) * segment.template inverse_std<V, constant()>(j);
              V z = normalized * segment.template gamma<V>(gamma1, j) + segment.template beta<V>(beta1, j);
              store(out + j, output(z, s * columns + j));
            });
          });
      });
    });
  }

  // Sums of gradients over at most FLUSH samples in float32: weight, bias, global means and variances. `flush` adds
  // them to Sums.
  struct FloatSums {
    float *weight, *bias, *means, *vars;
  };

  void backward() {
    if (p.recompute) Statistics<T>{p, t, this->sync}.compute();
    prepare();
    this->origin = mean_k;
    double *d_means = arena().filled(p.num_stats, 0.0), *d_vars = arena().filled(p.num_stats, 0.0);
    float* direct = nullptr;  // the term of dx that is proportional to dy
    if (t.dx) direct = std::is_same_v<T, float> ? static_cast<float*>(t.dx) : arena().take<float>(n * columns);
    Sums total = this->sum_chunks([&](Sums& sums, int64_t first_sample, int64_t last_sample) {
      float* memory = sums.rows;
      FloatSums rows = {memory, memory + columns, memory + 2 * columns, memory + 3 * columns};
      for (int64_t s = first_sample; s < last_sample; s++) {
        with_gradient<T>(p, t, s * columns, false, [&](const auto& gradient) {
          sample_gradients(s, gradient, rows, sums, direct, d_means, d_vars);
        });
        bool last_of_domain = s + 1 == last_sample || this->domain(s + 1) != this->domain(s);
        if (last_of_domain || (s - first_sample) % FLUSH == FLUSH - 1) flush(rows, sums, this->domain(s));
      }
    });
    this->global_gradients(total, d_means, d_vars);
    this->write_gradients(total);
    if (direct) input_gradient(direct, this->global_lines(d_means, d_vars), d_means, d_vars);
  }

  void flush(FloatSums& rows, Sums& sums, int64_t domain) const {
    double *means = sums.means + domain * columns, *vars = sums.vars + domain * columns;
    for (int64_t j = 0; j < columns; j++) {
      sums.weight[j] += double(rows.weight[j]);
      sums.bias[j] += double(rows.bias[j]);
      means[j] += double(rows.means[j]);
      vars[j] += double(rows.vars[j]);
    }
    std::fill(rows.weight, rows.weight + 4 * columns, 0.0f);
  }

  template <class D>
  void sample_gradients(int64_t s, const D& gradient, FloatSums& rows, Sums& sums, float* direct, double* d_means,
                        double* d_vars) const {
    const T* in = x + s * columns;
    float* out = direct ? direct + s * columns : nullptr;
    float* d_second_weight = t.d_second_weight ? t.d_second_weight + this->second_affine_row(s) * columns : nullptr;
    float* d_second_bias = t.d_second_bias ? t.d_second_bias + this->second_affine_row(s) * columns : nullptr;
    for_sample(s, [&](const Segment& segment, int64_t g, int64_t begin, int64_t end) {
      float direct_weight =
          float(1.0 - group_weights[g].input);  // includes the gradient through a mean that is x itself
      Vector totals[4] = {};
      float tails[4] = {};
      for_columns(begin, end, [&](int64_t j, auto v, auto constant) {
        using V = decltype(v);
        auto add = [&](float* row, V value) { store(row + j, load_as<V>(row + j) + value); };
        auto total = [&](int i, V value) {
          if constexpr (WIDTH<V> == 1) tails[i] += value;
          else totals[i] += value;
        };
        V value = load_as<V>(in + j), scale = load_as<V>(segment.gamma2 + j), inner = load_as<V>(gamma1 + j);
        V r = segment.template inverse_std<V, constant()>(j), normalized = segment.deviation(value, j) * r,
          gamma = segment.template gamma<V>(gamma1, j);
        V d = gradient(j, normalized, gamma, segment.template beta<V>(beta1, j)), d_gamma = normalized * d,
          a = gamma * r;
        V d_mu = -(a * d), d_var = a * r * d_gamma * -0.5f;
        add(rows.weight, scale * d_gamma);
        add(rows.bias, scale * d);
        if (this->has_global_cut) {
          add(rows.means, d_mu);
          add(rows.vars, d_var);
        }
        if (d_second_weight) add(d_second_weight, d_gamma * inner + d * load_as<V>(beta1 + j));
        if (d_second_bias) add(d_second_bias, d);
        total(0, d_mu);
        total(1, d_var);
        total(2, d_mu * (value - segment.c));
        total(3, d_mu * (value - load_as<V>(segment.k + j)));
        if (out) store(out + j, a * d * direct_weight);
      });
      auto total = [&](int i) { return double(sum(totals[i]) + tails[i]); };
      this->local_gradients(s, g, begin, total(0), total(1), d_means, d_vars);
      if (p.mean.size() > 1 || p.var.size() > 1)
        mixing_gradients(s, g, begin, total(0), total(1), total(2), total(3), segment.c, sums);
    });
  }

  // Add to the gradients of the mixing weights. x is subtracted from all means: this adds the same term to the
  // gradients of all weights, which cancels in a softmax. `from_local` and `from_global` are the sums of dmu (x - c)
  // and dmu (x - k).
  void mixing_gradients(int64_t s, int64_t g, int64_t column, double d_mu, double d_var, double from_local,
                        double from_global, double c, Sums& sums) const {
    double sum_x = p.mixing == Mixing::precomputed ? from_local + c * d_mu : 0.0;
    this->weights_gradients(s, g, column, d_mu, d_var, c, sums);
    for (int64_t cut = 0, i = g * num_cuts; cut < num_cuts; cut++, i++) {
      double rest = p.cuts[cut].is_input ? 0.0 : p.cuts[cut].is_local ? from_local : from_global;
      if (this->has_gradient(mean_weights[i])) sums.mean_weights[i] += sum_x - rest;
    }
  }

  // Compute dx = direct + p (x - shift) + q (global statistics) + p (x - shift) + q (local statistics).
  void input_gradient(const float* direct, const Lines& global, const double* d_means, const double* d_vars) const {
    int64_t size = domains * columns;
    float *shift = arena().take<float>(size), *slope = arena().take<float>(size), *offset = arena().take<float>(size);
    for (int64_t i = 0; i < size; i++) round_line(global[i], mean_k[i], shift[i], slope[i], offset[i]);
    for_chunks(num_chunks(n, 2.0 * double(columns)), n, [&](int64_t, int64_t first, int64_t last) {
      for (int64_t s = first; s < last; s++) {
        int64_t at = this->domain(s) * columns;
        const float *shifts = shift + at, *slopes = slope + at, *offsets = offset + at, *part = direct + s * columns;
        const T* in = x + s * columns;
        T* out = static_cast<T*>(t.dx) + s * columns;
        for_sample(s, [&](const Segment& segment, int64_t, int64_t begin, int64_t end) {
          float local_shift, local_slope, local_offset;
          round_line(this->local_line(s, begin, d_means, d_vars), segment.c, local_shift, local_slope, local_offset);
          for_columns(begin, end, [&](int64_t j, auto v, auto) {
            using V = decltype(v);
            V value = load_as<V>(in + j),
              from_global = (value - load_as<V>(shifts + j)) * load_as<V>(slopes + j) + load_as<V>(offsets + j);
            store(out + j, load_as<V>(part + j) + (from_global + ((value - local_shift) * local_slope + local_offset)));
          });
        });
      }
    });
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
