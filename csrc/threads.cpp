// The threads of the kernels are those of torch.
#include <ATen/Parallel.h>

#include "problem.h"
#ifndef _WIN32
#include <pthread.h>
#endif

namespace anynorm {

namespace {

// Whether this process was forked. OpenMP threads do not survive a fork; a parallel loop would wait forever for the
// parent's.
bool is_forked = false;
#ifndef _WIN32
const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
#endif

}  // namespace

const Threads threads = {[]() -> int64_t { return is_forked || at::in_parallel_region() ? 1 : at::get_num_threads(); },
                         [](int64_t chunks, const std::function<void(int64_t)>& f) {
                           at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
                             for (int64_t chunk = begin; chunk < end; chunk++) f(chunk);
                           });
                         }};

}  // namespace anynorm
