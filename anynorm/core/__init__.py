"""The algebra of normalization: definitions of norms and operations on small tensors of statistics, independent of layers.

cut      the number of equal parts into which samples, channels and space are divided; each part has a mean and a variance
strip    a contiguous part of the flattened positions of a channel
table    a small tensor of shape (n, c, strips), or that broadcasts to it, such as the mean of each sample, channel and strip
stage    one affine step h ← γ h + β
"""
