// One forward or backward pass as plain values: the definition of the norm, the shape and memory layout of x, and pointers.
//
// x is (samples, channels, positions). Positions are divided into `strips` of `length` values; a column is one (channel, strip),
// a row one (sample, column). Memory layouts:
//
//   rows contiguous   x[sample][channel][strip][length]      columns run over channels, then strips
//   channels last     x[sample][strip][length][channel]      columns run over strips, then channels
//
// A cut has one mean and one variance per (sample part, column part). Samples with the same coefficients form a set: all samples
// (bn), those of a class or domain, or each sample by itself (in, gn, sn, styles).
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
  bool per_sample;            // uses the batch, and only a part of its samples
  int64_t width, rows;        // column parts, sample parts
  int64_t offset;             // of its first statistic in the tables
  int64_t block;              // columns of a part if they are contiguous, otherwise 0
  std::vector<int32_t> part;  // of each column, if block is 0
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
  int64_t columns, sets, num_stats;
  bool set_per_sample, has_per_sample_cut, has_pooled_cut;  // cuts that use the batch
  bool recompute;  // the statistics of samples are too many to be saved: backward computes them again

  bool is_vector() const { return strips == 1 && length == 1; }
  int64_t num_domains() const { return domains ? domains : 1; }
};

// Pointers to the tensors of a pass; null if there is none. The affine of classes has one row per class, that of a style per sample.
struct Tensors {
  const void *x, *dy;
  void *y, *dx;
  const float *weight, *bias, *own_weight, *own_bias, *mean_logits, *var_logits;
  float *d_weight, *d_bias, *d_own_weight, *d_own_bias, *d_mean_logits, *d_var_logits;
  const int64_t* labels;
  double *means, *vars;  // the statistics of all cuts; those of running statistics are filled in by the caller
  double* counts;        // values behind one column, per domain, over all processes
};

// Exchanges between processes; empty functions if the pass is not synchronized.
struct Sync {
  std::function<void(double* means, double* vars, double* counts, int64_t columns)> merge;  // moments of all samples
  std::function<void(double* table, int64_t size)> sum;
};

// True in a process forked from another: threads of OpenMP do not survive a fork, and waiting for them would never end.
extern bool is_forked;

using Kernel = void (*)(const Problem&, const Tensors&, const Sync&);
struct Kernels {
  const char* name;
  Kernel forward, backward;
};
Kernels baseline_kernels();
Kernels avx2_kernels();
Kernels avx512_kernels();

}  // namespace anynorm
