// Parallel loops, and temporary memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "problem.h"

namespace anynorm {
namespace ANYNORM_ISA {

constexpr double MIN_WORK = 16384;    // minimum number of values per thread
constexpr size_t MAX_KEPT = 1 << 21;  // maximum number of doubles that a thread keeps between passes (16 MB)

// Temporary memory of a pass. Each thread that starts passes keeps its memory for the next pass.
class Arena {
  std::vector<std::unique_ptr<double[]>> blocks;
  size_t capacity = 0, used = 0;

 public:
  void reset() {
    if (capacity > MAX_KEPT) {
      blocks.clear();
      capacity = 0;
    }
    if (blocks.size() > 1) blocks.erase(blocks.begin(), blocks.end() - 1);
    used = 0;
  }
  template <class V>
  V* take(int64_t count) {  // uninitialized
    size_t size =
        (size_t(count) * sizeof(V) + 63) / 64 * 8 + 24;  // + 24, because arrays 2 or 4 KB apart would share cache lines
    if (used + size > capacity) {
      size_t larger = std::max(2 * capacity, size + 4096);
      blocks.emplace_back(new double[larger + 8]);
      capacity = larger;
      used = 0;
    }
    uintptr_t start = (reinterpret_cast<uintptr_t>(blocks.back().get() + used) + 63) / 64 * 64;
    used += size;
    return reinterpret_cast<V*>(start);
  }
  template <class V>
  V* filled(int64_t count, V value) {
    V* values = take<V>(count);
    std::fill(values, values + count, value);
    return values;
  }
};
inline Arena& arena() {
  static thread_local Arena memory;
  return memory;
}

// The samples 0 to n - 1, sorted by label: those of label i are samples[begin[i]] to samples[begin[i + 1] - 1].
struct SamplesByLabel {
  int64_t *samples, *begin;
};
inline SamplesByLabel sort_by_label(const int64_t* labels, int64_t n, int64_t num_labels) {
  SamplesByLabel sorted = {arena().take<int64_t>(n), arena().filled<int64_t>(num_labels + 2, 0)};
  int64_t* next =
      sorted.begin + 1;  // where the next sample of each label goes; in the end, where the next label begins
  for (int64_t s = 0; s < n; s++) next[labels[s] + 1]++;
  for (int64_t i = 1; i <= num_labels; i++) next[i] += next[i - 1];
  for (int64_t s = 0; s < n; s++) sorted.samples[next[labels[s]]++] = s;
  return sorted;
}

// Return the number of chunks for `for_chunks`: the number of threads that have at least MIN_WORK values each.
inline int64_t num_chunks(int64_t items, double work_per_item) {
  int64_t useful = std::min(items, int64_t(double(items) * work_per_item / MIN_WORK));
  return useful < 2 ? 1 : std::min(threads.count(), useful);
}
// Call f(chunk, begin, end) for contiguous chunks of items in parallel; the same number of threads always gives the
// same chunks.
template <class F>
void for_chunks(int64_t chunks, int64_t items, const F& f) {
  auto run = [&](int64_t chunk) { f(chunk, items * chunk / chunks, items * (chunk + 1) / chunks); };
  if (chunks == 1) return run(0);
  threads.run(chunks, run);
}

}  // namespace ANYNORM_ISA
}  // namespace anynorm
