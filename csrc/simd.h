// SIMD vectors of float32, and conversion between float32 and bfloat16.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#define INLINE inline __attribute__((always_inline))

namespace anynorm {
namespace ANYNORM_ISA {

constexpr int64_t LANES = ANYNORM_LANES;
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint32_t UnsignedBits __attribute__((vector_size(4 * LANES)));
typedef uint16_t HalfBits __attribute__((vector_size(2 * LANES)));

struct BFloat16 {
  uint16_t bits;
};

INLINE float load(float value) { return value; }
INLINE double load(double value) { return value; }
INLINE float load(BFloat16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
INLINE void store(float* out, float value) { *out = value; }
INLINE void store(BFloat16* out, float value) {  // rounds to nearest even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out->bits = uint16_t(value != value ? 0x7fc0u : rounded);
}

// V in the functions below is Vector, or float (a vector with one lane) for the values that do not fill a Vector.
template <class V>
constexpr int64_t WIDTH = sizeof(V) / sizeof(float);

template <class V, class T>
INLINE V load_as(const T* x) {
  if constexpr (WIDTH<V> == 1) {
    return load(*x);
  } else if constexpr (sizeof(T) == 4) {
    V value;
    std::memcpy(&value, x, sizeof value);
    return value;
  } else {
    HalfBits half;
    std::memcpy(&half, x, sizeof half);
    Bits bits = __builtin_convertvector(half, Bits) << 16;
    V value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
}
INLINE void store(float* out, Vector value) { std::memcpy(out, &value, sizeof value); }
INLINE void store(BFloat16* out, Vector value) {
  UnsignedBits bits, is_nan = (UnsignedBits)(value != value);
  std::memcpy(&bits, &value, sizeof bits);
  UnsignedBits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  HalfBits half = __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & rounded), HalfBits);
  std::memcpy(out, &half, sizeof half);
}

// `keep_last` keeps the last `count` lanes of a vector and sets the others to 0.
struct Masks {
  int32_t bits[2 * LANES] = {};
  constexpr Masks() {
    for (int64_t i = LANES; i < 2 * LANES; i++) bits[i] = -1;
  }
};
inline constexpr Masks MASKS;
INLINE float keep_last(float value, int64_t) { return value; }
INLINE Vector keep_last(Vector value, int64_t count) {
  if (count == LANES) return value;
  Bits bits, kept;
  std::memcpy(&bits, &value, sizeof value);
  std::memcpy(&kept, MASKS.bits + count, sizeof kept);
  bits &= kept;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Return the value where the bits of the mask are set, and 0 elsewhere, also in place of NaN.
INLINE float keep_valid(float value, const int32_t* valid) { return *valid ? value : 0.0f; }
INLINE Vector keep_valid(Vector value, const int32_t* valid) {
  Bits bits, mask;
  std::memcpy(&bits, &value, sizeof value);
  std::memcpy(&mask, valid, sizeof mask);
  bits &= mask;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE float sum(float value) { return value; }
INLINE float sum(Vector v) {
  typedef float Four __attribute__((vector_size(16)));
  Four four = {};
  for (int64_t i = 0; i < LANES; i += 4) {
    Four part;
    std::memcpy(&part, reinterpret_cast<const char*>(&v) + 4 * i, sizeof part);
    four += part;
  }
  return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float inverse_sqrt(float value) { return 1.0f / std::sqrt(value); }
INLINE Vector inverse_sqrt(Vector value) {
#ifdef ANYNORM_AVX2  // an estimate with 12 bits and one third-order step, unless a value might overflow or underflow
  Bits is_normal = (value > 1e-30f) & (value < 1e30f);
  if (_mm256_movemask_ps((__m256)is_normal) == 0xff) {
    Vector r = (Vector)_mm256_rsqrt_ps((__m256)value), error = 1.0f - value * r * r;
    return r + r * error * (0.5f + 0.375f * error);
  }
#endif
  for (int64_t i = 0; i < LANES; i++) value[i] = inverse_sqrt(value[i]);
  return value;
}

// Return a vector with the sum of the lanes of each of LANES vectors: adjacent lanes are added, then pairs of lanes,
// and so on.
#if defined(__clang__) || __GNUC__ >= 12
template <int64_t H, size_t... I>
INLINE Vector add_halves(Vector v, Vector w, std::index_sequence<I...>) {
  return __builtin_shufflevector(v, w, (I & H ? LANES + I - H : I)...) +
         __builtin_shufflevector(v, w, (I & H ? LANES + I : I + H)...);
}
template <int64_t H = 1>
INLINE Vector sum_each(Vector* v) {
  if constexpr (H == LANES) {
    return v[0];
  } else {
    for (int64_t i = 0; i < LANES / H; i += 2)
      v[i / 2] = add_halves<H>(v[i], v[i + 1], std::make_index_sequence<LANES>());
    return sum_each<2 * H>(v);
  }
}
#else
INLINE Vector sum_each(Vector* v) {
  Vector sums = {};
  for (int64_t i = 0; i < LANES; i++) sums[i] = sum(v[i]);
  return sums;
}
#endif

}  // namespace ANYNORM_ISA
}  // namespace anynorm
