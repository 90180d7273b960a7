// Activations, as torch.nn.functional defines them: their value at z, and the product of their derivative with dy. The
// derivative of the relu family can also be computed from y = act(z).
#pragma once
#include "problem.h"
#include "simd.h"

namespace anynorm {
namespace ANYNORM_ISA {

// exp(x) with a relative error of 2e-7 for |x| < 20; x is limited to [-87, 88], and NaN stays NaN.
template <class V>
INLINE V exponential(V x) {
  const V low = V{} - 87.0f, high = V{} + 88.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  V scaled = x * 1.44269504f, rounded, power;  // log2(e)
  if constexpr (WIDTH<V> == 1) rounded = float(int32_t(scaled + (scaled < 0 ? -0.5f : 0.5f)));
  else
    rounded = __builtin_convertvector(__builtin_convertvector(scaled + (scaled < 0.0f ? V{} - 0.5f : V{} + 0.5f), Bits),
                                      Vector);
  V rest = x - rounded * 0.693147182f;  // log(2); |rest| < 0.35
  V series = 1.0f + rest * (1.0f + rest * (0.5f + rest * (1.66666672e-1f +
                                                          rest * (4.16666679e-2f +
                                                                  rest * (8.33333377e-3f + rest * 1.38888892e-3f)))));
  if constexpr (WIDTH<V> == 1) {
    int32_t bits = (int32_t(rounded) + 127) << 23;
    std::memcpy(&power, &bits, sizeof bits);
  } else {
    Bits bits = (__builtin_convertvector(rounded, Bits) + 127) << 23;
    std::memcpy(&power, &bits, sizeof bits);
  }
  return series * power;
}
template <class V>
INLINE V sigmoid(V x) {
  return 1.0f / (1.0f + exponential(-x));
}

// Each activation has value(z), and gradient(z, dy) = dy times the derivative at z. For those that keep the sign,
// gradient(y, dy) with y = value(z) is the same.
struct NoActivation {
  static constexpr bool keeps_sign = true;
  template <class V>
  INLINE V value(V z) const {
    return z;
  }
  template <class V>
  INLINE V gradient(V, V dy) const {
    return dy;
  }
};

struct Relu {
  static constexpr bool keeps_sign = true;
  template <class V>
  INLINE V value(V z) const {
    return z <= 0.0f ? V{} : z;  // keeps NaN
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    return z <= 0.0f ? V{} : dy;
  }
};

struct Relu6 {
  static constexpr bool keeps_sign = true;
  template <class V>
  INLINE V value(V z) const {
    V six = V{} + 6.0f, y = z <= 0.0f ? V{} : z;
    return y >= six ? six : y;
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    V d = z <= 0.0f ? V{} : dy;
    return z >= 6.0f ? V{} : d;
  }
};

struct LeakyRelu {
  static constexpr bool keeps_sign = true;
  float slope;
  template <class V>
  INLINE V value(V z) const {
    return z > 0.0f ? z : z * slope;
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    return z > 0.0f ? dy : dy * slope;
  }
};

struct Silu {
  static constexpr bool keeps_sign = false;
  template <class V>
  INLINE V value(V z) const {
    return z * sigmoid(z);
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    V s = sigmoid(z);
    return dy * (s + z * s * (1.0f - s));
  }
};

// z P(z), with the distribution function P of the normal distribution.
struct Gelu {
  static constexpr bool keeps_sign = false;
  // Return P(z); `density` is exp(-z^2 / 2). For z < 0, P is approximated by t q(t) density with t = 1 / (1 + 0.24 |z|)
  // and a polynomial q (absolute error 3e-10).
  template <class V>
  INLINE V distribution(V z, V density) const {
    V t = 1.0f / (1.0f + 0.24f * (z < 0.0f ? -z : z));
    V q = 0.0895245619f +
          t * (0.155534427f +
               t * (-0.154111553f + t * (0.6256905f + t * (-0.646160387f + t * (0.554616593f + t * -0.125094143f)))));
    V tail = t * q * density;
    return z < 0.0f ? tail : 1.0f - tail;
  }
  template <class V>
  INLINE V value(V z) const {
    return z * distribution(z, exponential(-0.5f * z * z));
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    V density = exponential(-0.5f * z * z);
    return dy * (distribution(z, density) + z * density * 0.39894228f);  // 1 / sqrt(2 pi)
  }
};

// z sigmoid(2 u), with u = sqrt(2 / pi) (z + 0.044715 z^3).
struct GeluTanh {
  static constexpr bool keeps_sign = false;
  template <class V>
  INLINE V gate(V z) const {
    return sigmoid(z * (1.59576912f + 0.0713548163f * z * z));
  }
  template <class V>
  INLINE V value(V z) const {
    return z * gate(z);
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    V s = gate(z);
    return dy * (s + z * s * (1.0f - s) * (1.59576912f + 0.214064449f * z * z));
  }
};

struct Hardswish {
  static constexpr bool keeps_sign = false;
  template <class V>
  INLINE V value(V z) const {
    V one = V{} + 1.0f, gate = z * (1.0f / 6.0f) + 0.5f;
    gate = z <= -3.0f ? V{} : gate;
    return z * (z >= 3.0f ? one : gate);
  }
  template <class V>
  INLINE V gradient(V z, V dy) const {
    V d = z <= -3.0f ? V{} : dy * (z * (1.0f / 3.0f) + 0.5f);
    return z >= 3.0f ? dy : d;
  }
};

// Call f(activation) with the activation of a problem.
template <class F>
INLINE void with_activation(const Problem& p, const F& f) {
  switch (p.activation) {
    case Activation::none:
      return f(NoActivation());
    case Activation::relu:
      return f(Relu());
    case Activation::relu6:
      return f(Relu6());
    case Activation::leaky_relu:
      return f(LeakyRelu{float(p.slope)});
    case Activation::silu:
      return f(Silu());
    case Activation::gelu:
      return f(Gelu());
    case Activation::gelu_tanh:
      return f(GeluTanh());
    case Activation::hardswish:
      return f(Hardswish());
  }
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
