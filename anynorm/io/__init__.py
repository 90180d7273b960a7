"""Files and objects named by text: checkpoints, inputs, factories; atomic writing."""
