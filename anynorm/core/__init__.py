"""The algebra of normalization: values and small tables, independent of layers.

cut      the number of equal parts into which samples, channels and space are divided before averaging
strip    a contiguous part of the flattened positions of a channel
table    a small tensor (n, c, strips), or with axes of 1 that broadcast to it
stage    one affine step h ← γ h + β
"""
