// The four passes over the large tensors, as serial loops over contiguous rows or over the positions of channels_last memory:
//
//   moments   read x                mean and variance
//   scale     read x, write y       y = a (x - k) + b
//   sums      read x, dy            g = sum of dy, t = sum of dy (x - k)
//   spread    read x, dy, write dx  dx = a dy + p (x - k) + q
//
// Sums run in float32 lanes over blocks that stay in a cache, each around its own mean; blocks are merged in double.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define INLINE inline __attribute__((always_inline))

namespace anynorm {
namespace ANYNORM_ISA {

typedef float Lanes __attribute__((vector_size(64)));
typedef uint32_t LaneBits __attribute__((vector_size(64)));
typedef uint16_t HalfBits __attribute__((vector_size(32)));
constexpr int64_t LANES = 16, BLOCK = 1024, TILE = 128;

struct BFloat16 {
  uint16_t bits;
};

INLINE float load(float value) { return value; }
INLINE float load(BFloat16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
INLINE void store(float* out, float value) { *out = value; }
INLINE void store(BFloat16* out, float value) {  // rounds to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out->bits = uint16_t(value != value ? 0x7fc0u : rounded);
}
INLINE Lanes load_lanes(const float* x) {
  Lanes value;
  std::memcpy(&value, x, sizeof value);
  return value;
}
INLINE Lanes load_lanes(const BFloat16* x) {
  HalfBits half;
  std::memcpy(&half, x, sizeof half);
  LaneBits bits = __builtin_convertvector(half, LaneBits) << 16;
  Lanes value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
INLINE float sum_lanes(Lanes v) {
  auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

struct Moment {
  double mean, var;
};

// Merge a block of `n` values into `done` values, whose variance is given as a sum of squares.
INLINE void merge_block(double& mean, double& squares, double done, double block_mean, double block_squares, double n) {
  double delta = block_mean - mean, share = n / (done + n);
  squares += block_squares + delta * delta * done * share;
  mean += delta * share;
}

template <class T>
INLINE Moment block_moments(const T* x, int64_t n) {
  Lanes total0 = {}, total1 = {};
  float rest = 0;
  int64_t j = 0;
  for (; j + 2 * LANES <= n; j += 2 * LANES) {
    total0 += load_lanes(x + j);
    total1 += load_lanes(x + j + LANES);
  }
  for (; j + LANES <= n; j += LANES) total0 += load_lanes(x + j);
  for (; j < n; j++) rest += load(x[j]);
  float share = 1.0f / float(n), centre = (sum_lanes(total0 + total1) + rest) * share;
  Lanes d1 = {}, d2 = {}, e1 = {}, e2 = {};
  float r1 = 0, r2 = 0;
  for (j = 0; j + 2 * LANES <= n; j += 2 * LANES) {
    Lanes d = load_lanes(x + j) - centre, e = load_lanes(x + j + LANES) - centre;
    d1 += d, d2 += d * d, e1 += e, e2 += e * e;
  }
  for (; j + LANES <= n; j += LANES) {
    Lanes d = load_lanes(x + j) - centre;
    d1 += d, d2 += d * d;
  }
  for (; j < n; j++) {
    float d = load(x[j]) - centre;
    r1 += d, r2 += d * d;
  }
  double residual = double(sum_lanes(d1 + e1) + r1) / double(n), squares = double(sum_lanes(d2 + e2) + r2);
  double var = squares / double(n) - residual * residual;
  return {double(centre) + residual, var < 0 ? 0 : var};  // NaN stays
}

template <class T>
INLINE Moment row_moments(const T* x, int64_t n) {
  if (n <= BLOCK) return block_moments(x, n);
  double mean = 0, squares = 0;
  for (int64_t start = 0; start < n; start += BLOCK) {
    int64_t count = std::min(BLOCK, n - start);
    Moment block = block_moments(x + start, count);
    merge_block(mean, squares, double(start), block.mean, block.var * double(count), double(count));
  }
  return {mean, squares / double(n)};
}

template <class T>
void moments(const T* x, int64_t rows, int64_t length, double* mean, double* var) {
  for (int64_t r = 0; r < rows; r++) {
    Moment row = row_moments(x + r * length, length);
    mean[r] = row.mean, var[r] = row.var;
  }
}

template <class T>
void scale(const T* __restrict x, T* __restrict y, int64_t rows, int64_t length, const float* k, const float* a, const float* b) {
  for (int64_t r = 0; r < rows; r++) {
    float kr = k[r], ar = a[r], br = b[r];
    const T* __restrict in = x + r * length;
    T* __restrict out = y + r * length;
    for (int64_t j = 0; j < length; j++) store(out + j, (load(in[j]) - kr) * ar + br);
  }
}

// Add to g and t.
template <class T>
void sums(const T* x, const T* dy, int64_t rows, int64_t length, const float* k, double* g, double* t) {
  for (int64_t r = 0; r < rows; r++) {
    const T *in = x + r * length, *up = dy + r * length;
    float centre = k[r];
    double total = 0, moment = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
      int64_t end = std::min(start + BLOCK, length), j = start;
      Lanes g0 = {}, g1 = {}, t0 = {}, t1 = {};
      float gr = 0, tr = 0;
      for (; j + 2 * LANES <= end; j += 2 * LANES) {
        Lanes up0 = load_lanes(up + j), up1 = load_lanes(up + j + LANES);
        g0 += up0, t0 += up0 * (load_lanes(in + j) - centre);
        g1 += up1, t1 += up1 * (load_lanes(in + j + LANES) - centre);
      }
      for (; j + LANES <= end; j += LANES) {
        Lanes up0 = load_lanes(up + j);
        g0 += up0, t0 += up0 * (load_lanes(in + j) - centre);
      }
      for (; j < end; j++) gr += load(up[j]), tr += load(up[j]) * (load(in[j]) - centre);
      total += double(sum_lanes(g0 + g1) + gr), moment += double(sum_lanes(t0 + t1) + tr);
    }
    g[r] += total, t[r] += moment;
  }
}

template <class T>
void spread(const T* __restrict x, const T* __restrict dy, T* __restrict dx, int64_t rows, int64_t length, const float* k,
            const float* a, const float* p, const float* q) {
  for (int64_t r = 0; r < rows; r++) {
    float kr = k[r], ar = a[r], pr = p[r], qr = q[r];
    const T *__restrict in = x + r * length, *__restrict up = dy + r * length;
    T* __restrict out = dx + r * length;
    for (int64_t j = 0; j < length; j++) store(out + j, load(up[j]) * ar + ((load(in[j]) - kr) * pr + qr));
  }
}

// Channels last: x is (positions, channels). Moments and sums walk down a few channels at a time, in tiles that stay in a cache.

template <class T, int64_t W>
INLINE void strip_moments(const T* x, int64_t positions, int64_t channels, double* mean, double* var) {
  double m[W] = {}, squares[W] = {};
  for (int64_t start = 0; start < positions; start += TILE) {
    int64_t count = std::min(TILE, positions - start);
    const T* tile = x + start * channels;
    float centre[W] = {}, d1[W] = {}, d2[W] = {}, share = 1.0f / float(count);
    for (int64_t s = 0; s < count; s++)
      for (int64_t c = 0; c < W; c++) centre[c] += load(tile[s * channels + c]);
    for (int64_t c = 0; c < W; c++) centre[c] *= share;
    for (int64_t s = 0; s < count; s++)
      for (int64_t c = 0; c < W; c++) {
        float d = load(tile[s * channels + c]) - centre[c];
        d1[c] += d, d2[c] += d * d;
      }
    for (int64_t c = 0; c < W; c++) {
      double residual = double(d1[c]) / double(count);
      double sum = double(d2[c]) - double(count) * residual * residual;
      merge_block(m[c], squares[c], double(start), double(centre[c]) + residual, sum < 0 ? 0 : sum, double(count));
    }
  }
  for (int64_t c = 0; c < W; c++) mean[c] = m[c], var[c] = squares[c] / double(positions);
}

template <class T>
void moments_last(const T* x, int64_t positions, int64_t channels, double* mean, double* var) {
  int64_t c = 0;
  for (; c + 2 * LANES <= channels; c += 2 * LANES) strip_moments<T, 2 * LANES>(x + c, positions, channels, mean + c, var + c);
  for (; c + LANES / 2 <= channels; c += LANES / 2) strip_moments<T, LANES / 2>(x + c, positions, channels, mean + c, var + c);
  for (; c < channels; c++) strip_moments<T, 1>(x + c, positions, channels, mean + c, var + c);
}

template <class T, int64_t W>
INLINE void strip_sums(const T* x, const T* dy, int64_t positions, int64_t channels, const float* k, double* g, double* t) {
  for (int64_t start = 0; start < positions; start += TILE) {
    int64_t end = std::min(start + TILE, positions);
    float total[W] = {}, moment[W] = {};
    for (int64_t s = start; s < end; s++)
      for (int64_t c = 0; c < W; c++) {
        float up = load(dy[s * channels + c]);
        total[c] += up, moment[c] += up * (load(x[s * channels + c]) - k[c]);
      }
    for (int64_t c = 0; c < W; c++) g[c] += double(total[c]), t[c] += double(moment[c]);
  }
}

// Add to g and t.
template <class T>
void sums_last(const T* x, const T* dy, int64_t positions, int64_t channels, const float* k, double* g, double* t) {
  int64_t c = 0;
  for (; c + 2 * LANES <= channels; c += 2 * LANES)
    strip_sums<T, 2 * LANES>(x + c, dy + c, positions, channels, k + c, g + c, t + c);
  for (; c + LANES / 2 <= channels; c += LANES / 2)
    strip_sums<T, LANES / 2>(x + c, dy + c, positions, channels, k + c, g + c, t + c);
  for (; c < channels; c++) strip_sums<T, 1>(x + c, dy + c, positions, channels, k + c, g + c, t + c);
}

template <class T>
void scale_last(const T* __restrict x, T* __restrict y, int64_t positions, int64_t channels, const float* __restrict k,
                const float* __restrict a, const float* __restrict b) {
  for (int64_t s = 0; s < positions; s++)
    for (int64_t c = 0, j = s * channels; c < channels; c++, j++) store(y + j, (load(x[j]) - k[c]) * a[c] + b[c]);
}

template <class T>
void spread_last(const T* __restrict x, const T* __restrict dy, T* __restrict dx, int64_t positions, int64_t channels,
                 const float* __restrict k, const float* __restrict a, const float* __restrict p, const float* __restrict q) {
  for (int64_t s = 0; s < positions; s++)
    for (int64_t c = 0, j = s * channels; c < channels; c++, j++)
      store(dx + j, load(dy[j]) * a[c] + ((load(x[j]) - k[c]) * p[c] + q[c]));
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
