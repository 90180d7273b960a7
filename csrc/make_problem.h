// Construction of a `Problem` from the integers that describe a norm and from the shape and memory layout of x.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "problem.h"

namespace anynorm {

constexpr double MAX_SAVED =
    0.05;  // maximum size of saved statistics relative to x; larger ones are recomputed in backward
constexpr double MIN_BYTES = 1e5;  // minimum size of x for recomputation; for smaller x, time matters more than memory

inline int64_t num_positions(const at::Tensor& x) {
  int64_t positions = 1;
  for (int64_t axis = 2; axis < x.dim(); axis++) positions *= x.size(axis);
  return positions;
}

inline bool channels_last(const at::Tensor& x) {
  if (x.is_contiguous()) return num_positions(x) == 1;
  if (x.dim() == 4) return x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

// Decode the integers of `ForwardSpec.encoded`.
inline Problem read_problem(at::IntArrayRef spec, double eps) {
  size_t at = 0;
  auto next = [&] {
    TORCH_CHECK(at < spec.size(), "anynorm: the description of the norm is too short");
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
      TORCH_CHECK(index >= 0 && size_t(index) < p.cuts.size(), "anynorm: no cut ", index);
    }
    for (int64_t index : *side)
      TORCH_CHECK(std::count(side->begin(), side->end(), index) == 1, "anynorm: cut ", index, " occurs twice");
  }
  p.mixing = Mixing(next());
  p.groups = next();
  p.domains = next();
  p.classes = next();
  p.style = next();
  p.strips = next();
  p.eps = eps;
  for (const Cut& cut : p.cuts)
    TORCH_CHECK(cut.channels >= 0 && cut.strips > 0 && cut.samples_per_part >= 0, "anynorm: a cut has negative parts");
  TORCH_CHECK(p.mixing >= Mixing::softmax && p.mixing <= Mixing::precomputed, "anynorm: no mixing rule ",
              int64_t(p.mixing));
  TORCH_CHECK(p.classes >= 0 && (p.domains == 0 || p.domains == p.classes) && !(p.style && p.classes),
              "anynorm: ", p.domains, " domains and ", p.classes, " classes do not fit");
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

inline void lay_out(Problem& p, const at::Tensor& x) {
  int64_t positions = num_positions(x);
  p.samples = x.size(0);
  p.channels = x.size(1);
  p.is_bfloat16 = x.scalar_type() == at::kBFloat16;
  p.last = channels_last(x);
  TORCH_CHECK(p.channels > 0 && p.groups > 0 && p.channels % p.groups == 0, "anynorm: ", p.groups,
              " groups do not divide ", p.channels, " channels");
  TORCH_CHECK(p.strips > 0 && positions % p.strips == 0, "anynorm: ", positions, " positions are not divisible into ",
              p.strips, " strips");
  p.length = positions / p.strips;
  p.columns = p.channels * p.strips;
  p.row_cut = -1;
  TORCH_CHECK(p.columns < std::numeric_limits<int32_t>::max(), "anynorm: ", p.columns, " columns are too many");
  bool all_use_batch = true;
  for (size_t i = 0; i < p.cuts.size(); i++) {
    Cut& cut = p.cuts[i];
    cut.channels = cut.channels ? cut.channels : p.channels;
    TORCH_CHECK(p.channels % cut.channels == 0 && p.strips % cut.strips == 0, "anynorm: a cut does not fit the input");
    cut.is_local = cut.uses_batch && cut.samples_per_part;
    TORCH_CHECK(!cut.is_local || p.samples % cut.samples_per_part == 0, "anynorm: a cut does not fit the batch size");
    cut.width = cut.channels * cut.strips;
    assign_parts(p, cut);
    bool is_row = p.row_cut < 0 && cut.is_local && cut.samples_per_part == 1 && cut.part.empty();
    if (is_row) p.row_cut = int64_t(i);
    cut.is_input = is_row && p.is_vector();
    cut.rows = cut.is_input ? 0 : cut.is_local ? p.samples / cut.samples_per_part : p.num_domains();
    cut.offset = p.num_stats;
    p.num_stats += cut.rows * cut.width;
    p.has_local |= cut.is_local;
    p.pools_batch |= cut.uses_batch && !cut.is_local;
    all_use_batch &= cut.uses_batch;
  }
  divide_columns(p);
  p.affine_per_sample = p.has_local || p.style || (p.classes && p.samples <= p.classes);
  p.affines = p.affine_per_sample ? p.samples : std::max<int64_t>(p.classes, 1);
  double bytes = double(x.numel() * x.element_size());
  p.recompute = all_use_batch && bytes > MIN_BYTES && 2 * 8 * double(p.num_stats) > MAX_SAVED * bytes;
}

}  // namespace anynorm
