"""Entry points for torch.hub: layers, conversion and saved models, without installing anynorm.

    norm = torch.hub.load("path/of/a/clone", "make", "hn:32", 64, source="local")

torch.hub executes this file and the package next to it: load it from a source that you trust. There are no pretrained networks;
those that users share are loaded by `load_pretrained`. The C++ kernels are used if they were built in the clone.
"""

from anynorm import convert, layer, load_pretrained, make

dependencies = ["numpy", "rich", "safetensors", "torch", "typer"]
__all__ = ["convert", "dependencies", "layer", "load_pretrained", "make"]
