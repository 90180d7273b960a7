"""The CPU kernels in numba; to be replaced by a C++ extension behind the same dispatch."""
