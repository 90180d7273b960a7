"""Loading of checkpoints, inputs and factories by path or name, and atomic writing of files."""
