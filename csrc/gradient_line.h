// Lines, in which the gradient of x is summed over cuts.
#pragma once
#include <cmath>

#include "simd.h"

namespace anynorm {
namespace ANYNORM_ISA {

// The function p (x - centre) + q. Where the variance is 0, p is huge and x is the centre.
struct Line {
  double p, q, centre;
};
// Return the sum of two lines with the centre of the steeper one.
INLINE Line operator+(Line a, Line b) {
  bool is_steeper = std::abs(b.p) > std::abs(a.p);
  double centre = is_steeper ? b.centre : a.centre, distance = is_steeper ? b.centre - a.centre : a.centre - b.centre;
  double flat = is_steeper ? a.p : b.p;
  return {a.p + b.p, a.q + b.q + (flat == 0 ? 0.0 : flat * distance), centre};
}
// Write a line as slope (x - shift) + offset in float32. The shift is the root of the line, so that the product is as
// accurate as the sum; it is `otherwise` if the root is not a normal number.
INLINE void round_line(Line line, float otherwise, float& shift, float& slope, float& offset) {
  double root = line.centre - line.q / line.p;
  shift = std::abs(line.p) > 1e-30 && std::abs(root) < 1e30 ? float(root) : otherwise;
  slope = float(line.p);
  offset = float(line.q + (line.p == 0 ? 0.0 : line.p * (double(shift) - line.centre)));
}

// Rows of lines in float32.
struct RoundedLines {
  const float *shift, *slope, *offset;
};

}  // namespace ANYNORM_ISA
}  // namespace anynorm
