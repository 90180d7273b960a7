"""The recipe `xbn_perturbation`: Fig. 8 of the paper xbn."""
