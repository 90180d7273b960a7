// Selection of the implementation: VectorPass or Pass, for float32 or bfloat16.
#pragma once
#include "forward_backward_vectors.h"

namespace anynorm {
namespace ANYNORM_ISA {

// Call f(pass) with the implementation for the shape, dtype and norm of the problem.
template <class F>
void with_pass(const Problem& p, const Tensors& t, const Sync& sync, const F& f) {
  bool by_sample = p.is_vector() && p.affine_per_sample;
  arena().reset();
  if (by_sample && p.is_bfloat16) f(VectorPass<BFloat16>(p, t, sync));
  else if (by_sample) f(VectorPass<float>(p, t, sync));
  else if (p.is_bfloat16) f(Pass<BFloat16>(p, t, sync));
  else f(Pass<float>(p, t, sync));
}

inline void forward(const Problem& p, const Tensors& t, const Sync& sync) {
  with_pass(p, t, sync, [](auto pass) { pass.forward(); });
}
inline void backward(const Problem& p, const Tensors& t, const Sync& sync) {
  with_pass(p, t, sync, [](auto pass) { pass.backward(); });
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
