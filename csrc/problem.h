// One forward or backward pass as plain values: the definition of the norm, the shape and memory layout of x, and pointers.
//
// x is (samples, channels, positions). Positions are divided into `strips` of `length` values; a column is one (channel, strip),
// a row one (sample, column). Memory layouts:
//
//   rows contiguous   x[sample][channel][strip][length]      columns run over channels, then strips
//   channels last     x[sample][strip][length][channel]      columns run over strips, then channels
//
// A cut has one mean and one variance per (sample part, column part). Its statistics are local if they come from some samples of the
// batch only (in, ln, gn, ghost batches); the others are global, one row for all samples or for each domain (bn, en, bgn, and
// running statistics). Samples with the same coefficients share an affine y = a (x - mean) + b: all samples (bn), those of a class or
// domain, or each sample has its own (in, gn, sn, styles).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace anynorm {

enum class Mixing : int64_t { softmax, argmax, precomputed };

struct Cut {
  int64_t channels, strips;   // parts of the channels and of the positions of a sample part
  int64_t samples_per_part;   // 0: all samples, or all samples of a domain
  bool uses_batch;            // or running statistics
  bool is_local;
  bool is_input;              // one value per statistic: the mean is x, the variance 0, and nothing is stored
  int64_t width, rows;        // column parts, sample parts
  int64_t offset;             // of its first statistic in the tables
  std::vector<int32_t> part;  // of each column; empty if each column is a part
};

struct Problem {
  std::vector<Cut> cuts;
  std::vector<int64_t> mean, var;  // the cuts of the mean and of the variance
  Mixing mixing;
  int64_t groups, domains, classes;  // channel groups with their own mixing weights; 0 without domains or labels
  bool style;
  double eps;

  int64_t samples, channels, strips, length;
  bool last, is_bfloat16;
  int64_t columns, affines, num_stats;
  bool affine_per_sample, has_local, pools_batch;  // pools_batch: a global cut uses the batch
  bool recompute;  // the statistics are too many to be saved: backward computes them again
  int64_t row_cut;  // the first local cut with a statistic for each row, or -1
  std::vector<int32_t> segments;  // limits of runs of columns with the same parts of all other local cuts and mixing weights

  bool is_vector() const { return strips == 1 && length == 1; }
  int64_t num_domains() const { return domains ? domains : 1; }
  int64_t channel(int64_t column) const { return last ? column % channels : column / strips; }
  int64_t group(int64_t column) const { return groups == 1 ? 0 : channel(column) * groups / channels; }
};

// Pointers to the tensors of a pass; null if there is none. The second affine has one row per class, or per sample for a style.
struct Tensors {
  const void *x, *dy;
  void *y, *dx;
  const float *weight, *bias, *weight2, *bias2, *mean_logits, *var_logits;
  float *d_weight, *d_bias, *d_weight2, *d_bias2, *d_mean_logits, *d_var_logits;
  const int64_t* labels;
  double *means, *vars;  // the statistics of all cuts; those of running statistics are filled in by the caller
  double* counts;        // values behind one column, per domain, over all processes
};

// Exchanges between processes; empty functions if the pass is not synchronized.
struct Sync {
  std::function<void(double* means, double* vars, double* counts, int64_t columns)> merge;  // moments of all samples
  std::function<void(double* table, int64_t size)> sum;
};

// True in a process forked from another: threads of OpenMP do not survive a fork, and waiting for those of the parent would never end.
extern bool is_forked;

using Kernel = void (*)(const Problem&, const Tensors&, const Sync&);
struct Kernels {
  const char* name;
  Kernel forward, backward;
};
Kernels baseline_kernels();
Kernels avx2_kernels();

}  // namespace anynorm
