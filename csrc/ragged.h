// The valid positions of the samples of a ragged batch, from a mask or from the sample of each point.
#pragma once
#include <cstdint>
#include <vector>

namespace anynorm {

// `offsets` has the counts of the samples: sample s has offsets[s + 1] - offsets[s] valid positions, and "sample n" the
// hidden ones. In channels_last memory, they are `list[offsets[s]]` and following. In contiguous memory, `valid` has -1
// or 0 for each position of each sample, and `extents` the end of its last valid position.
struct Ragged {
  std::vector<int64_t> list, offsets, extents;
  std::vector<int32_t> valid;
};

// Sort the rows 0, 1, … by sample(row); a row without a sample has the sample n.
template <class F>
void sort_rows(int64_t rows, int64_t n, const F& sample, Ragged& ragged) {
  ragged.list.resize(rows);
  ragged.offsets.assign(n + 3, 0);
  int64_t* next = ragged.offsets.data() + 1;  // where the next row of each sample goes
  for (int64_t i = 0; i < rows; i++) next[sample(i) + 1]++;
  for (int64_t s = 1; s <= n + 1; s++) next[s] += next[s - 1];
  for (int64_t i = 0; i < rows; i++) ragged.list[next[sample(i)]++] = i;
}

inline Ragged ragged_from_index(const int64_t* batch_index, int64_t points, int64_t n) {
  Ragged ragged;
  sort_rows(points, n, [&](int64_t i) { return batch_index[i]; }, ragged);
  return ragged;
}
inline Ragged ragged_from_mask(const bool* mask, int64_t n, int64_t length, bool last) {
  Ragged ragged;
  if (last) {
    sort_rows(n * length, n, [&](int64_t i) { return mask[i] ? i / length : n; }, ragged);
    return ragged;
  }
  ragged.offsets.assign(n + 1, 0);
  ragged.extents.assign(n, 0);
  ragged.valid.resize(n * length);
  for (int64_t s = 0; s < n; s++) {
    int64_t count = 0;
    for (int64_t j = 0, i = s * length; j < length; j++, i++) {
      ragged.valid[i] = -int32_t(mask[i]);
      count += mask[i];
      if (mask[i]) ragged.extents[s] = j + 1;
    }
    ragged.offsets[s + 1] = ragged.offsets[s] + count;
  }
  return ragged;
}

}  // namespace anynorm
