// The kernels for all other processors.
#define ANYNORM_ISA baseline
#define ANYNORM_LANES 4
#include "driver.h"

anynorm::Kernels anynorm::baseline_kernels() { return {"baseline", baseline::forward, baseline::backward}; }
