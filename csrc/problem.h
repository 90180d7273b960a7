// The description of a forward or backward pass: the definition of the norm, the shape and layout of x, and pointers to
// tensors.
//
// x has the shape (samples, channels, positions). Positions are divided into `strips` of `length` values. A column is
// one (channel, strip), a row is one (sample, column). Memory layouts:
//
//   rows contiguous   x[sample][channel][strip][length]      columns run over channels, then strips
//   channels last     x[sample][strip][length][channel]      columns run over strips, then channels
//
// A cut has one mean and one variance per (sample part, column part). A cut and its statistics are local if each
// statistic is computed from one sample or a few samples of the batch (in, ln, gn, ghost batches). All others are
// global, with one row of statistics for all samples or one per domain (bn, en, bgn, and running statistics). An affine
// is a set of coefficients of y = act(a (x - mean) + b + residual): one for all samples (bn), one per class or domain,
// or one per sample (in, gn, sn, styles). Without cuts of the mean, all means are 0, and variances are second moments.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace anynorm {

enum class Mixing : int64_t { softmax, argmax, precomputed };
enum class Activation : int64_t { none, relu, relu6, leaky_relu, silu, gelu, gelu_tanh, hardswish };

struct Cut {
  int64_t channels, strips;  // number of parts of the channels and of the positions
  int64_t samples_per_part;  // 0 if all samples, or all samples of a domain, are pooled
  bool uses_batch;           // whether batch statistics are used instead of running statistics
  bool is_local;
  bool is_input;        // whether each statistic has one value: the mean is x, the variance is 0, and nothing is stored
  int64_t width, rows;  // number of column parts and of sample parts (or domains)
  int64_t offset;       // index of the first statistic of this cut in the tables of statistics
  std::vector<int32_t> part;  // part of each column; empty if part j is column j
};

struct Problem {
  std::vector<Cut> cuts;
  std::vector<int64_t> mean, var;  // the cuts of the mean and of the variance; none of the mean if it is 0
  Mixing mixing;
  int64_t groups, domains, classes;  // groups: channel groups of mixing weights; domains, classes: 0 if there are none
  bool style;
  bool in_sequence;  // whether parts of several samples are micro-batches, which update running statistics one by one
  double eps;
  Activation activation;
  double slope;  // of leaky_relu

  int64_t samples, channels, strips, length;
  bool last, is_bfloat16;
  bool ragged;  // whether samples have different numbers of valid positions; `length` is that of a contiguous row
  int64_t columns, affines, num_stats;
  bool affine_per_sample, has_local, pools_batch;  // pools_batch: a global cut uses the batch
  int64_t num_updates;  // number of updates of running statistics: domains, or micro-batches in sequence
  bool recompute;       // whether backward recomputes the statistics, because they are too large to be saved
  int64_t row_cut;      // index of the first local cut with one statistic per row, or -1
  std::vector<int32_t>
      segments;  // boundaries of runs of columns with the same mixing weights and parts of all other local cuts

  bool has_mean() const { return !mean.empty(); }
  bool is_vector() const { return strips == 1 && length == 1 && !ragged; }
  int64_t num_domains() const { return domains ? domains : 1; }
  int64_t channel(int64_t column) const { return last ? column % channels : column / strips; }
  int64_t group(int64_t column) const { return groups == 1 ? 0 : channel(column) * groups / channels; }
};

// Pointers to the tensors of a pass, null for tensors that are not used. second_weight and second_bias have one row per
// class, or per sample for a style. In a backward pass with a residual and an activation, `y` is read, and the gradient
// of the residual is written to `d_residual`, whether it is needed or not.
struct Tensors {
  const void *x, *residual, *dy;
  void *y, *dx, *d_residual;
  const float *weight, *bias, *second_weight, *second_bias, *mean_logits, *var_logits;
  float *d_weight, *d_bias, *d_second_weight, *d_second_bias, *d_mean_logits, *d_var_logits;
  const int64_t* labels;
  double *means, *vars;  // the statistics of all cuts; for cuts that use running statistics, the caller fills them in
  double* counts;        // number of values per column for each domain, over all processes
  // The valid positions of a ragged batch (see ragged.h).
  const int64_t *list, *offsets, *extents;
  const int32_t* valid;

  // Return the number of valid positions of a sample of a ragged batch.
  int64_t num_valid(int64_t sample) const { return offsets[sample + 1] - offsets[sample]; }
};

// Communication between processes; the functions are empty if the pass is not synchronized.
struct Sync {
  std::function<void(double* means, double* vars, double* counts, int64_t columns)>
      merge;  // moments over all processes
  std::function<void(double* table, int64_t size)> sum;
};

// The threads of the program that calls the kernels.
struct Threads {
  int64_t (*count)();  // number of threads that a loop may use: 1 inside of another parallel loop
  void (*run)(int64_t chunks, const std::function<void(int64_t)>& f);  // call f(chunk) in parallel
};
extern const Threads threads;

using Kernel = void (*)(const Problem&, const Tensors&, const Sync&);
struct Kernels {
  const char* name;
  Kernel forward, backward;
};
Kernels baseline_kernels();
Kernels avx2_kernels();

}  // namespace anynorm
