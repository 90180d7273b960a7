// The kernels for processors with AVX2 and FMA. Only our code may use these instructions, so other headers are included
// first.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "problem.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#pragma GCC target("avx2,fma")
#define ANYNORM_ISA avx2
#define ANYNORM_LANES 8
#define ANYNORM_AVX2
#include "driver.h"
anynorm::Kernels anynorm::avx2_kernels() { return {"AVX2", avx2::forward, avx2::backward}; }
#else
anynorm::Kernels anynorm::avx2_kernels() { return baseline_kernels(); }
#endif
