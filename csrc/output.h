// The end of a forward pass, y = act(z + residual), and the beginning of a backward pass, d = dy act'(z + residual).
// The derivative is computed from z without a residual, and from y with one, so that neither needs more than x and y.
#pragma once
#include "activation.h"

namespace anynorm {
namespace ANYNORM_ISA {

template <class A>
struct Output {
  A act;
  template <class V>
  INLINE V operator()(V z, int64_t) const {
    return act.value(z);
  }
};
template <class A, class T>
struct OutputWithResidual {
  A act;
  const T* residual;
  template <class V>
  INLINE V operator()(V z, int64_t i) const {
    return act.value(V(z + load_as<V>(residual + i)));
  }
};
// Call f(output) for the values of x from `at`.
template <class T, class F>
INLINE void with_output(const Problem& p, const Tensors& t, int64_t at, const F& f) {
  with_activation(p, [&](auto act) {
    using A = decltype(act);
    if constexpr (A::keeps_sign)
      if (t.residual) return f(OutputWithResidual<A, T>{act, static_cast<const T*>(t.residual) + at});
    f(Output<A>{act});
  });
}

// The gradient of z of value i, where z = a centered + b.
template <class A, class T>
struct GradientFromInput {
  A act;
  const T* dy;
  template <class V, class C>
  INLINE V operator()(int64_t i, V centered, C a, C b) const {
    return act.gradient(V(centered * a + b), load_as<V>(dy + i));
  }
};
// The same from y; it is also the gradient of the residual, and written there.
template <class A, class T>
struct GradientFromOutput {
  A act;
  const T *dy, *y;
  T* d_residual;
  template <class V, class C>
  INLINE V operator()(int64_t i, V, C, C) const {
    V d = act.gradient(load_as<V>(y + i), load_as<V>(dy + i));
    store(d_residual + i, d);
    return d;
  }
};
// Call f(gradient) for the values of x from `at`. After the first pass over dy, the gradients of z that it wrote are
// read (is_second).
template <class T, class F>
INLINE void with_gradient(const Problem& p, const Tensors& t, int64_t at, bool is_second, const F& f) {
  const T* dy = static_cast<const T*>(t.dy) + at;
  T* d_residual = static_cast<T*>(t.d_residual);
  if (d_residual && is_second) return f(GradientFromInput<NoActivation, T>{{}, d_residual + at});
  with_activation(p, [&](auto act) {
    using A = decltype(act);
    if constexpr (A::keeps_sign)
      if (d_residual) return f(GradientFromOutput<A, T>{act, dy, static_cast<const T*>(t.y) + at, d_residual + at});
    f(GradientFromInput<A, T>{act, dy});
  });
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
