"""Models in folders and on the Hugging Face hub: norms as JSON, weights as safetensors; nothing is executed on loading."""
