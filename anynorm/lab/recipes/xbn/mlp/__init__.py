"""The recipe `xbn_mlp`: Figs. 2 to 5 of the paper xbn."""
