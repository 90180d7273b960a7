// Construction of a `Problem` from the integers that describe a norm and from the shape and memory layout of x.
#pragma once
#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "problem.h"

namespace anynorm {

constexpr double MAX_SAVED =
    0.05;  // maximum size of saved statistics relative to x; larger ones are recomputed in backward
constexpr double MIN_BYTES = 1e5;  // minimum size of x for recomputation; for smaller x, time matters more than memory

// Raise an error with the given message, unless a condition is met.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  message << "anynorm: ";
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

struct Shape {
  int64_t samples, channels, positions;
  bool last;  // whether x is channels_last, or has one position
  bool is_bfloat16;
  bool ragged;  // `positions` is 1 for points, whose samples have different numbers of positions

  bool operator==(const Shape& other) const {
    return samples == other.samples && channels == other.channels && positions == other.positions &&
           last == other.last && is_bfloat16 == other.is_bfloat16 && ragged == other.ragged;
  }
};

// Decode the integers of `ForwardSpec.encoded`.
inline Problem read_problem(const std::vector<int64_t>& spec) {
  size_t at = 0;
  auto next = [&] {
    check(at < spec.size(), "the description of the norm is too short");
    return spec[at++];
  };
  Problem p{};
  p.cuts.resize(next());
  for (Cut& cut : p.cuts) {
    cut.channels = next();
    cut.strips = next();
    cut.samples_per_part = next();
    cut.uses_batch = next();
  }
  for (auto side : {&p.mean, &p.var}) {
    side->resize(next());
    for (int64_t& index : *side) {
      index = next();
      check(index >= 0 && size_t(index) < p.cuts.size(), "no cut ", index);
    }
    for (int64_t index : *side)
      check(std::count(side->begin(), side->end(), index) == 1, "cut ", index, " occurs twice");
  }
  check(!p.var.empty(), "the variance has no cut");
  p.mixing = Mixing(next());
  p.groups = next();
  p.domains = next();
  p.classes = next();
  p.style = next();
  p.in_sequence = next();
  p.activation = Activation(next());
  p.strips = next();
  for (const Cut& cut : p.cuts)
    check(cut.channels >= 0 && cut.strips > 0 && cut.samples_per_part >= 0, "a cut has negative parts");
  check(p.mixing >= Mixing::softmax && p.mixing <= Mixing::precomputed, "no mixing rule ", int64_t(p.mixing));
  check(p.activation >= Activation::none && p.activation <= Activation::hardswish, "no activation ",
        int64_t(p.activation));
  check(p.classes >= 0 && (p.domains == 0 || p.domains == p.classes) && !(p.style && p.classes), p.domains,
        " domains and ", p.classes, " classes do not fit");
  check(!p.in_sequence || !p.domains, "micro-batches have no domains");
  return p;
}

inline void assign_parts(const Problem& p, Cut& cut) {
  if (cut.width == p.columns && (p.strips == 1 || !p.last)) return;  // part j is column j
  cut.part.resize(p.columns);
  for (int64_t channel = 0; channel < p.channels; channel++)
    for (int64_t strip = 0, first = channel * cut.channels / p.channels * cut.strips; strip < p.strips; strip++)
      cut.part[p.last ? strip * p.channels + channel : channel * p.strips + strip] =
          int32_t(first + strip * cut.strips / p.strips);
}

// Divide the columns into segments: a new segment begins where the part of a local cut (except the row cut) or the
// channel group of mixing weights changes.
inline void divide_columns(Problem& p) {
  bool is_divided = p.has_local || p.groups > 1;
  for (int64_t j = 0; j < (is_divided ? p.columns : 1); j++) {
    bool begins = j == 0 || p.group(j) != p.group(j - 1);
    for (size_t i = 0; !begins && p.has_local && i < p.cuts.size(); i++)
      if (p.cuts[i].is_local && int64_t(i) != p.row_cut)
        begins = p.cuts[i].part.empty() || p.cuts[i].part[j] != p.cuts[i].part[j - 1];
    if (begins) p.segments.push_back(int32_t(j));
  }
  p.segments.push_back(int32_t(p.columns));
}

inline void lay_out(Problem& p, const Shape& x) {
  p.samples = x.samples;
  p.channels = x.channels;
  p.is_bfloat16 = x.is_bfloat16;
  p.last = x.last;
  p.ragged = x.ragged;
  check(p.channels > 0 && p.groups > 0 && p.channels % p.groups == 0, p.groups, " groups do not divide ", p.channels,
        " channels");
  check(p.strips > 0 && x.positions % p.strips == 0, x.positions, " positions are not divisible into ", p.strips,
        " strips");
  p.length = x.positions / p.strips;
  p.columns = p.channels * p.strips;
  p.row_cut = -1;
  p.num_updates = p.num_domains();
  check(p.columns < std::numeric_limits<int32_t>::max(), p.columns, " columns are too many");
  bool all_use_batch = true;
  for (size_t i = 0; i < p.cuts.size(); i++) {
    Cut& cut = p.cuts[i];
    cut.channels = cut.channels ? cut.channels : p.channels;
    check(p.channels % cut.channels == 0 && p.strips % cut.strips == 0, "a cut does not fit the input");
    cut.is_local = cut.uses_batch && cut.samples_per_part;
    check(!p.ragged || (cut.strips == 1 && cut.samples_per_part <= 1),
          "masks need cuts without strips and ghost batches");
    check(!cut.is_local || p.samples % cut.samples_per_part == 0, "a cut does not fit the batch size");
    cut.width = cut.channels * cut.strips;
    assign_parts(p, cut);
    bool is_row = p.row_cut < 0 && cut.is_local && cut.samples_per_part == 1 && cut.part.empty() &&
                  (p.has_mean() || !p.is_vector());  // the second moment of a single value is not 0
    if (is_row) p.row_cut = int64_t(i);
    cut.is_input = is_row && p.is_vector();
    cut.rows = cut.is_input ? 0 : cut.is_local ? p.samples / cut.samples_per_part : p.num_domains();
    if (p.in_sequence && cut.is_local && cut.samples_per_part > 1) p.num_updates = cut.rows;
    cut.offset = p.num_stats;
    p.num_stats += cut.rows * cut.width;
    p.has_local |= cut.is_local;
    p.pools_batch |= cut.uses_batch && !cut.is_local;
    all_use_batch &= cut.uses_batch;
  }
  divide_columns(p);
  p.affine_per_sample = p.has_local || p.style || (p.classes && p.samples <= p.classes);
  p.affines = p.affine_per_sample ? p.samples : std::max<int64_t>(p.classes, 1);
  double bytes = double(p.samples * p.columns * p.length) * (p.is_bfloat16 ? 2 : 4);
  p.recompute = all_use_batch && !p.ragged && bytes > MIN_BYTES && 2 * 8 * double(p.num_stats) > MAX_SAVED * bytes;
}

// Return the problem of a pass.
inline Problem make_problem(const std::vector<int64_t>& spec, double eps, double slope, const Shape& x) {
  Problem p = read_problem(spec);
  p.eps = eps;
  p.slope = slope;
  lay_out(p, x);
  return p;
}

}  // namespace anynorm
