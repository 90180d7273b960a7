// The four passes over the large tensors, as serial loops over contiguous rows or over the positions of channels_last
// memory:
//
//   moments          read x                mean and variance
//   scale            read x, write y       y = output(a (x - k) + b)
//   sums             read x, dy            g = sum of d, h = sum of d (x - k)
//   input_gradient   read x, dy, write dx  dx = a d + slope (x - shift) + offset
//
// `output` adds the residual and applies the activation, and d is the gradient of its argument (see output.h).
//
// Values are summed in float32 vectors over blocks that fit into a cache, and the sums of blocks are merged in double.
// Moments are computed from deviations from the mean of each block.
#pragma once
#include <algorithm>
#include <cmath>

#include "gradient_line.h"
#include "simd.h"

namespace anynorm {
namespace ANYNORM_ISA {

constexpr int64_t BLOCK = 1024;       // number of values of a row that are summed in float32
constexpr int64_t SHORT = 256;        // maximum length of rows of which LANES are summed at once
constexpr int64_t TILE = 128;         // number of positions that are summed in float32 (channels last)
constexpr int64_t BLOCK_VECTORS = 4;  // number of vectors of channels that are summed at once (channels last)

struct Moment {
  double mean, var;
};

// Return the moments of 1 / inverse_count values from the sums of their deviations and squared deviations from
// `centre`.
INLINE Moment around(float centre, float first, float second, double inverse_count) {
  double residual = double(first) * inverse_count, var = double(second) * inverse_count - residual * residual;
  return {double(centre) + residual, var < 0 ? 0 : var};  // keeps NaN
}
// Merge the moments `block` of n values into `moment`, the moments of `done` values.
INLINE void merge(Moment& moment, double done, Moment block, double n) {
  double delta = block.mean - moment.mean, fraction = n / (done + n);
  moment.var += fraction * (block.var - moment.var + delta * delta * (1 - fraction));
  moment.mean += delta * fraction;
}

// Call f(offset, i, count) for all vectors in n values, with i alternating between 0 and 1. The last vector overlaps
// the previous one; only its last `count` lanes are new.
template <class V, class F>
INLINE void for_vectors(int64_t n, const F& f) {
  constexpr int64_t width = WIDTH<V>;
  int64_t j = 0;
  for (; j + 2 * width <= n; j += 2 * width) {
    f(j, 0, width);
    f(j + width, 1, width);
  }
  if (j + width <= n) {
    f(j, 0, width);
    j += width;
  }
  if (j < n) f(n - width, 1, n - j);
}

// Return the sum of the lanes of vector_sum(0) if ROWS is 1; otherwise a vector whose lane r is the sum of the lanes of
// vector_sum(r).
template <class V, int64_t ROWS, class F>
INLINE auto row_totals(const F& vector_sum) {
  if constexpr (ROWS == 1) return sum(vector_sum(0));
  else {
    V totals[ROWS];
    for (int64_t r = 0; r < ROWS; r++) totals[r] = vector_sum(r);
    return sum_each(totals);
  }
}
INLINE float lane(float value, int64_t) { return value; }
INLINE float lane(const Vector& value, int64_t i) { return value[i]; }

// The values of a row that count: all, or the valid ones of a sample with a mask. The row is used up to `end`, and the
// operator keeps the last lanes of a vector at j, as keep_last.
struct AllValues {
  static constexpr bool is_masked = false;
  INLINE int64_t end(int64_t length) const { return length; }
  INLINE int64_t count(int64_t, int64_t n) const { return n; }
  template <class V>
  INLINE V operator()(V value, int64_t, int64_t last) const {
    return keep_last(value, last);
  }
};
struct ValidValues {
  const int32_t* valid;  // -1 or 0 for each value of the row
  int64_t extent;        // end of the last valid value
  static constexpr bool is_masked = true;
  INLINE int64_t end(int64_t) const { return extent; }
  INLINE int64_t count(int64_t start, int64_t n) const {
    int32_t total = 0;
    for (int64_t j = start; j < start + n; j++) total -= valid[j];
    return total;
  }
  template <class V>
  INLINE V operator()(V value, int64_t j, int64_t last) const {
    return keep_last(keep_valid(value, valid + j), last);
  }
};

// Compute the mean and variance of the n values from `start` of each of ROWS rows, of which `values` count, and merge
// them into those of the `done` values before them.
template <class V, int64_t ROWS, class T, class K>
INLINE void block_moments(const T* x, int64_t stride, int64_t n, int64_t values, double done, const K& keep,
                          int64_t start, double* mean, double* var) {
  double inverse_count = 1.0 / double(values);
  auto centre = row_totals<V, ROWS>([&](int64_t r) {
                  V s[2] = {};
                  for_vectors<V>(n, [&](int64_t j, int i, int64_t count) {
                    s[i] += keep(load_as<V>(x + r * stride + j), start + j, count);
                  });
                  return s[0] + s[1];
                }) *
                float(inverse_count);
  V squares[ROWS];
  auto first = row_totals<V, ROWS>([&](int64_t r) {
    V d1[2] = {}, d2[2] = {};
    float c = lane(centre, r);
    for_vectors<V>(n, [&](int64_t j, int i, int64_t count) {
      V d = keep(load_as<V>(x + r * stride + j) - c, start + j, count);
      d1[i] += d;
      d2[i] += d * d;
    });
    squares[r] = d2[0] + d2[1];
    return d1[0] + d1[1];
  });
  auto second = row_totals<V, ROWS>([&](int64_t r) { return squares[r]; });
  for (int64_t r = 0; r < ROWS; r++) {
    Moment block = around(lane(centre, r), lane(first, r), lane(second, r), inverse_count), row = block;
    if constexpr (ROWS == 1)  // rows that are summed at once have only one block
      if (done > 0) {
        row = {*mean, *var};
        merge(row, done, block, double(values));
      }
    mean[r] = row.mean;
    var[r] = row.var;
  }
}

template <class V, int64_t ROWS, class T, class K>
INLINE void row_moments(const T* x, int64_t length, const K& keep, double* mean, double* var) {
  int64_t done = 0, end = keep.end(length);
  if constexpr (K::is_masked) *mean = *var = 0;
  for (int64_t start = 0; start < end; start += BLOCK) {
    int64_t n = std::min(BLOCK, end - start), values = keep.count(start, n);
    if (!K::is_masked || values)
      block_moments<V, ROWS>(x + start, length, n, values, double(done), keep, start, mean, var);
    done += values;
  }
}

// The rows of coefficients by which z = a (x - k) + b is computed.
struct Affine {
  const float *k, *a, *b;
  Affine operator+(int64_t j) const { return {k + j, a + j, b + j}; }
};

// Add the sums over rows to g and h (see above); `at` is the offset of the first row.
template <class V, int64_t ROWS, class T, class K, class D>
INLINE void row_sums(const T* x, int64_t at, int64_t length, const K& keep, Affine affine, const D& gradient, double* g,
                     double* h) {
  for (int64_t start = 0, end = keep.end(length); start < end; start += BLOCK) {
    V products[ROWS];
    auto first = row_totals<V, ROWS>([&](int64_t r) {
      V s[2] = {}, m[2] = {};
      float k = affine.k[r], a = affine.a[r], b = affine.b[r];
      for_vectors<V>(std::min(BLOCK, end - start), [&](int64_t j, int i, int64_t count) {
        int64_t index = at + start + r * length + j;
        V centered = load_as<V>(x + index) - k, d = keep(V(gradient(index, centered, a, b)), start + j, count);
        s[i] += d;
        m[i] += d * keep(centered, start + j, count);
      });
      products[r] = m[0] + m[1];
      return s[0] + s[1];
    });
    auto second = row_totals<V, ROWS>([&](int64_t r) { return products[r]; });
    for (int64_t r = 0; r < ROWS; r++) {
      g[r] += double(lane(first, r));
      h[r] += double(lane(second, r));
    }
  }
}

// The passes over rows of `length` contiguous values, of which those of `keep` count; the others are 0 in y and dx.
template <class T, class K = AllValues>
struct Rows {
  int64_t length;
  K keep = {};

  // Call f(row, offset, a value of the vector type, number of rows) for groups of rows.
  template <int64_t AT_ONCE, class F>
  INLINE void each(int64_t rows, const F& f) const {
    int64_t r = 0;
    if (keep.end(length) < LANES) {
      for (; r < rows; r++) f(r, r * length, float(), std::integral_constant<int64_t, 1>());
      return;
    }
    if constexpr (!K::is_masked)
      if (length <= SHORT)
        for (; r + AT_ONCE <= rows; r += AT_ONCE)
          f(r, r * length, Vector(), std::integral_constant<int64_t, AT_ONCE>());
    for (; r < rows; r++) f(r, r * length, Vector(), std::integral_constant<int64_t, 1>());
  }
  // Call f(j, vector type) for the vectors of a row, and set the values after them to 0.
  template <class V, class F>
  INLINE void write(T* row, const F& f) const {
    int64_t end = keep.end(length);
    for_vectors<V>(end, [&](int64_t j, int, int64_t) { store(row + j, keep(V(f(j)), j, WIDTH<V>)); });
    if constexpr (K::is_masked) std::memset(row + end, 0, size_t(length - end) * sizeof(T));
  }
  void moments(const T* x, int64_t rows, double* mean, double* var) const {
    each<LANES>(rows, [&](int64_t r, int64_t at, auto v, auto n) {
      row_moments<decltype(v), n()>(x + at, length, keep, mean + r, var + r);
    });
  }
  template <class D>
  void sums(const T* x, int64_t rows, Affine affine, const D& gradient, double* g, double* h) const {
    each<LANES>(rows, [&](int64_t r, int64_t at, auto v, auto n) {
      row_sums<decltype(v), n()>(x, at, length, keep, affine + r, gradient, g + r, h + r);
    });
  }
  template <class O>
  void scale(const T* x, T* y, int64_t rows, Affine affine, const O& output) const {
    each<1>(rows, [&](int64_t r, int64_t at, auto v, auto) {
      using V = decltype(v);
      float k = affine.k[r], a = affine.a[r], b = affine.b[r];
      write<V>(y + at, [&](int64_t j) { return output((load_as<V>(x + at + j) - k) * a + b, at + j); });
    });
  }
  template <class D>
  void input_gradient(const T* x, T* dx, int64_t rows, Affine affine, const RoundedLines& lines,
                      const D& gradient) const {
    each<1>(rows, [&](int64_t r, int64_t at, auto v, auto) {
      using V = decltype(v);
      float k = affine.k[r], a = affine.a[r], b = affine.b[r], shift = lines.shift[r], slope = lines.slope[r],
            offset = lines.offset[r];
      write<V>(dx + at, [&](int64_t j) {
        V value = load_as<V>(x + at + j), d = gradient(at + j, V(value - k), a, b);
        return d * a + ((value - shift) * slope + offset);
      });
    });
  }
};

// The positions of a pass: all, or those of a list.
struct AllPositions {
  INLINE int64_t operator()(int64_t i) const { return i; }
};
struct ListedPositions {
  const int64_t* list;
  INLINE int64_t operator()(int64_t i) const { return list[i]; }
};

// Moments and sums of N vectors of channels over positions that are `stride` values apart, in tiles that fit into a
// cache.
template <class V, int64_t N, class T, class P>
INLINE void column_moments(const T* x, const P& position, int64_t positions, int64_t stride, double* mean,
                           double* var) {
  constexpr int64_t width = N * WIDTH<V>;
  Moment moments[width] = {};
  for (int64_t start = 0; start < positions; start += TILE) {
    int64_t n = std::min(TILE, positions - start);
    V centre[N] = {}, d1[N] = {}, d2[N] = {};
    for (int64_t s = 0; s < n; s++)
      for (int64_t i = 0; i < N; i++) centre[i] += load_as<V>(x + position(start + s) * stride + i * WIDTH<V>);
    for (int64_t i = 0; i < N; i++) centre[i] *= 1.0f / float(n);
    for (int64_t s = 0; s < n; s++)
      for (int64_t i = 0; i < N; i++) {
        V d = load_as<V>(x + position(start + s) * stride + i * WIDTH<V>) - centre[i];
        d1[i] += d;
        d2[i] += d * d;
      }
    float values[3][width];
    std::memcpy(values[0], centre, sizeof centre);
    std::memcpy(values[1], d1, sizeof d1);
    std::memcpy(values[2], d2, sizeof d2);
    for (int64_t c = 0; c < width; c++)
      merge(moments[c], double(start), around(values[0][c], values[1][c], values[2][c], 1.0 / double(n)), double(n));
  }
  for (int64_t c = 0; c < width; c++) {
    mean[c] = moments[c].mean;
    var[c] = moments[c].var;
  }
}

template <class V, int64_t N, class T, class P, class D>
INLINE void column_sums(const T* x, int64_t channel, const P& position, int64_t positions, int64_t stride,
                        Affine affine, const D& gradient, double* g, double* h) {
  for (int64_t start = 0; start < positions; start += TILE) {
    V total[N] = {}, moment[N] = {};
    for (int64_t s = 0; s < std::min(TILE, positions - start); s++)
      for (int64_t i = 0; i < N; i++) {
        int64_t j = i * WIDTH<V>, at = channel + position(start + s) * stride;
        V centered = load_as<V>(x + at + j) - load_as<V>(affine.k + j),
          d = gradient(at + j, centered, load_as<V>(affine.a + j), load_as<V>(affine.b + j));
        total[i] += d;
        moment[i] += d * centered;
      }
    float values[2][N * WIDTH<V>];
    std::memcpy(values[0], total, sizeof total);
    std::memcpy(values[1], moment, sizeof moment);
    for (int64_t c = 0; c < N * WIDTH<V>; c++) {
      g[c] += double(values[0][c]);
      h[c] += double(values[1][c]);
    }
  }
}

// The passes over channels_last memory: positions are `stride` values apart, and the first `channels` values of each
// are used. The positions are those of `list`, if there is one.
template <class T>
struct Positions {
  int64_t stride, channels;
  const int64_t* list = nullptr;

  template <class F>
  INLINE void each(const F& f) const {
    int64_t c = 0;
    for (; c + BLOCK_VECTORS * LANES <= channels; c += BLOCK_VECTORS * LANES)
      f(c, Vector(), std::integral_constant<int64_t, BLOCK_VECTORS>());
    for (; c + LANES <= channels; c += LANES) f(c, Vector(), std::integral_constant<int64_t, 1>());
    for (; c < channels; c++) f(c, float(), std::integral_constant<int64_t, 1>());
  }
  void moments(const T* x, int64_t positions, double* mean, double* var) const {
    each([&](int64_t c, auto v, auto n) {
      if (list) column_moments<decltype(v), n()>(x + c, ListedPositions{list}, positions, stride, mean + c, var + c);
      else column_moments<decltype(v), n()>(x + c, AllPositions(), positions, stride, mean + c, var + c);
    });
  }
  template <class D>
  void sums(const T* x, int64_t positions, Affine affine, const D& gradient, double* g, double* h) const {
    each([&](int64_t c, auto v, auto n) {
      if (list)
        column_sums<decltype(v), n()>(x, c, ListedPositions{list}, positions, stride, affine + c, gradient, g + c,
                                      h + c);
      else column_sums<decltype(v), n()>(x, c, AllPositions(), positions, stride, affine + c, gradient, g + c, h + c);
    });
  }
  template <class O>
  void scale(const T* x, T* y, int64_t positions, Affine affine, const O& output) const {
    each_position(positions, [&](int64_t at) {
      vectors([&](int64_t c, auto v) {
        using V = decltype(v);
        V z = (load_as<V>(x + at + c) - load_as<V>(affine.k + c)) * load_as<V>(affine.a + c) + load_as<V>(affine.b + c);
        store(y + at + c, output(z, at + c));
      });
    });
  }
  template <class D>
  void input_gradient(const T* x, T* dx, int64_t positions, Affine affine, const RoundedLines& lines,
                      const D& gradient) const {
    each_position(positions, [&](int64_t at) {
      vectors([&](int64_t c, auto v) {
        using V = decltype(v);
        V value = load_as<V>(x + at + c), a = load_as<V>(affine.a + c),
          d = gradient(at + c, V(value - load_as<V>(affine.k + c)), a, load_as<V>(affine.b + c));
        V line = (value - load_as<V>(lines.shift + c)) * load_as<V>(lines.slope + c) + load_as<V>(lines.offset + c);
        store(dx + at + c, d * a + line);
      });
    });
  }
  // Call f with the index of the first value of each position. The list is tested once, not at each position.
  template <class F>
  INLINE void each_position(int64_t positions, const F& f) const {
    if (list)
      for (int64_t s = 0; s < positions; s++) f(list[s] * stride);
    else
      for (int64_t s = 0, at = 0; s < positions; s++, at += stride) f(at);
  }
  template <class F>
  INLINE void vectors(const F& f) const {
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) f(c, Vector());
    for (; c < channels; c++) f(c, float());
  }
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
