// Forward: moments, tables, scale. Backward: sums, tables, input_gradient, in closed form. With the statistics M, V of
// each cut i,
//
//   mu = sum of w_i M_i    var = sum of w'_i V_i    r = 1 / sqrt(var + eps)    gamma = gamma1 gamma2    a = gamma r
//   y = act(z + residual)    z = a (x - mu) + beta                             beta = gamma2 beta1 + beta2
//
// and from g = sum of d, h = sum of d (x - mu) of each affine and column, with d = dy act'(z + residual),
//
//   dbeta = g    dgamma = r h    dmu = -a g    dvar = -a r^2 h / 2    dM_i = sum of w_i dmu    dV_i = sum of w'_i dvar
//   dx = a d + sum over the cuts that use the batch of (dM_i + 2 dV_i (x - M_i)) / count_i
#pragma once
#include "gradients.h"
#include "loops.h"
#include "output.h"
#include "statistics.h"

namespace anynorm {
namespace ANYNORM_ISA {

template <class T>
struct Pass : Gradients {
  using Gradients::Gradients;
  const T* x = static_cast<const T*>(t.x);

  // A range of rows of a sample, or of positions of a strip (channels last), which may be those of a list.
  struct Range {
    int64_t sample, at, column, count;  // `at` is the offset in x, `column` the first column
    const int64_t* list;
  };
  // Call f(rows) with the passes over the rows of a sample in contiguous memory.
  template <class F>
  INLINE void with_rows(int64_t s, const F& f) const {
    if (p.ragged) f(Rows<T, ValidValues>{p.length, {t.valid + s * p.length, t.extents[s]}});
    else f(Rows<T>{p.length});
  }
  // Set the values at hidden positions to 0; in contiguous memory, the passes over rows do it.
  void hide(T* values) const {
    if (!p.ragged || !p.last) return;
    const int64_t* hidden = t.list + t.offsets[n];
    int64_t count = t.offsets[n + 1] - t.offsets[n];
    for_chunks(num_chunks(count, double(columns)), count, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) std::memset(values + hidden[i] * columns, 0, size_t(columns) * sizeof(T));
    });
  }

  // Compute the coefficients of every affine by prepare_affine(affine, lo, hi, scratch), which returns k, and call
  // compute(scratch, k, range), with k of the first column, for all ranges. Coefficients of several samples are
  // computed once.
  template <class Prepare, class Compute>
  void for_rows(const Prepare& prepare_affine, const Compute& compute) const {
    int64_t size = p.last ? p.length : columns, values = p.last ? p.channels : p.length,
            items = p.ragged && p.last ? t.offsets[n] : n * (p.last ? p.strips : 1) * size;
    int64_t chunks = num_chunks(items, double(values));
    Scratch* scratch = new_scratch(p.affine_per_sample ? chunks : p.affines);
    const float** k = arena().take<const float*>(p.affine_per_sample ? chunks : p.affines);
    for (int64_t affine_index = 0; !p.affine_per_sample && affine_index < p.affines; affine_index++)
      k[affine_index] = prepare_affine(affine_index, 0, columns, scratch[affine_index]);
    for_chunks(chunks, items, [&](int64_t chunk, int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        int64_t unit = begin / size, s = p.last ? unit / p.strips : unit,
                first = p.last ? unit % p.strips * p.channels : begin - unit * size;
        next = std::min(end, (unit + 1) * size);
        Range range = {s, begin * values, first, next - begin, nullptr};
        if (p.ragged && p.last) {
          s = std::upper_bound(t.offsets, t.offsets + n, begin) - t.offsets - 1;
          first = 0;
          next = std::min(end, t.offsets[s + 1]);
          range = {s, 0, 0, next - begin, t.list + begin};
        }
        int64_t i = p.affine_per_sample ? chunk : affine_of(s);
        if (p.affine_per_sample)
          k[i] = prepare_affine(s, first, p.last ? first + p.channels : first + next - begin, scratch[i]);
        compute(scratch[i], k[i] + first, range);
      }
    });
  }

  void forward() {
    Statistics<T>{p, t, sync}.compute();
    prepare();
    T* y = static_cast<T*>(t.y);
    for_rows([&](int64_t affine_index, int64_t lo, int64_t hi,
                 Scratch& w) { return coefficients(affine_index, lo, hi, w).k; },
             [&](Scratch& w, const float* k, const Range& range) {
               int64_t at = range.at, j = range.column, count = range.count;
               Affine affine = {k, w.a + j, w.b + j};
               with_output<T>(p, t, at, [&](const auto& output) {
                 if (p.last)
                   Positions<T>{p.channels, p.channels, range.list}.scale(x + at, y + at, count, affine, output);
                 else
                   with_rows(range.sample,
                             [&](const auto& rows) { rows.scale(x + at, y + at, count, affine, output); });
               });
             });
    hide(y);
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
    Lines global = global_lines(d_means, d_vars);
    T* dx = static_cast<T*>(t.dx);
    for_rows(
        [&](int64_t affine_index, int64_t lo, int64_t hi, Scratch& w) {
          int64_t at = affine_index * columns;
          return input_gradient_coefficients(affine_index, lo, hi, g + at, h + at, d_means, d_vars, global, w);
        },
        [&](Scratch& w, const float* k, const Range& range) {
          int64_t at = range.at, j = range.column, count = range.count;
          Affine affine = {k, w.a + j, w.b + j};
          RoundedLines lines = {w.shift + j, w.slope + j, w.offset + j};
          with_gradient<T>(p, t, at, true, [&](const auto& gradient) {
            if (p.last)
              Positions<T>{p.channels, p.channels, range.list}.input_gradient(x + at, dx + at, count, affine, lines,
                                                                              gradient);
            else
              with_rows(range.sample, [&](const auto& rows) {
                rows.input_gradient(x + at, dx + at, count, affine, lines, gradient);
              });
          });
        });
    hide(dx);
  }

  // Compute g and h of each affine and column, with k, the rounded mean, in place of mu. Each thread computes a range
  // of columns.
  void compute_sums(double* g, double* h) const {
    int64_t block = p.last ? BLOCK_VECTORS * LANES : 1, width = p.last ? p.channels : columns,
            blocks = (width + block - 1) / block;
    bool at_once = p.last && p.strips == 1 && p.affines == 1;                // all samples in one call
    bool by_class = p.is_vector() && p.affines > 1 && !p.affine_per_sample;  // all samples of a class in one call
    bool needs_z = p.activation != Activation::none && !t.d_residual;
    SamplesByLabel sorted{};
    if (by_class) sorted = sort_by_label(t.labels, n, p.affines);
    int64_t chunks = num_chunks(blocks, double(n * p.length * p.strips * block));
    Scratch* scratch = new_scratch(chunks);
    for_chunks(chunks, blocks, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t lo = begin * block, hi = std::min(width, end * block), previous = -1;
      Scratch& w = scratch[chunk];
      const float* k = nullptr;
      // Add the sums over positions of sample s from the offset `at` in x, or over those of a list, to an affine, from
      // column `from`.
      auto add = [&](int64_t affine_index, int64_t s, int64_t from, int64_t at, int64_t positions,
                     const int64_t* list) {
        int64_t to = from + hi - lo, out = affine_index * columns + from;
        if (affine_index != previous || p.strips > 1)
          k = (needs_z ? coefficients(affine_index, from, to, w) : mix_means(affine_index, from, to, w)).k;
        previous = affine_index;
        Affine affine = {k + from, (needs_z ? w.a : k) + from, (needs_z ? w.b : k) + from};
        with_gradient<T>(p, t, at, false, [&](const auto& gradient) {
          if (p.last)
            Positions<T>{p.channels, hi - lo, list}.sums(x + at, positions, affine, gradient, g + out, h + out);
          else with_rows(s, [&](const auto& rows) { rows.sums(x + at, hi - lo, affine, gradient, g + out, h + out); });
        });
      };
      for (int64_t i = 0; by_class && i < p.affines; i++)
        add(i, 0, lo, lo, sorted.begin[i + 1] - sorted.begin[i], sorted.samples + sorted.begin[i]);
      bool listed = p.ragged && p.last;
      for (int64_t s = 0; listed && s < (at_once ? 1 : n); s++)
        add(affine_of(s), s, lo, lo, at_once ? t.offsets[n] : t.num_valid(s), t.list + t.offsets[s]);
      for (int64_t s = 0; !by_class && !listed && s < (at_once ? 1 : n); s++)
        for (int64_t strip = 0; strip < (p.last ? p.strips : 1); strip++) {
          int64_t first = p.last ? strip * p.length * p.channels + lo : lo * p.length;
          add(affine_of(s), s, strip * p.channels + lo, s * columns * p.length + first,
              at_once ? n * p.length : p.length, nullptr);
        }
    });
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
