// The same kernels for processors with AVX-512. Headers come first: only our own code is compiled for these instructions.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define ANYNORM_ISA avx512
#include "compute.h"
anynorm::Kernels anynorm::avx512_kernels() { return {"AVX-512", avx512::forward, avx512::backward}; }
#pragma GCC pop_options
#else
#include "problem.h"
anynorm::Kernels anynorm::avx512_kernels() { return baseline_kernels(); }
#endif
