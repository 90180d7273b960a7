"""The DARTS space (Liu et al. 2019): operations, cells, genotypes, the search network and the evaluation network."""
