// The kernels for any processor.
#define ANYNORM_ISA baseline
#include "compute.h"

anynorm::Kernels anynorm::baseline_kernels() { return {"baseline", baseline::forward, baseline::backward}; }
