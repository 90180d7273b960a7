"""The C++ kernels know no torch: only the binding includes its headers."""

import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
HEADERS = {"passes.h", "inputs.h", "plans.h", "buffers.h", "sync.h"}
BINDING = HEADERS | {"operators.cpp", "autograd.cpp", "passes.cpp", "inputs.cpp", "plans.cpp", "buffers.cpp", "threads.cpp"}


def test_only_the_binding_includes_headers_of_torch_and_python():
    including = {
        path.name
        for path in CSRC.iterdir()
        if re.search(r'#include [<"](torch|ATen|c10|Python|pybind11)', path.read_text(encoding="utf-8"))
    }
    assert including == BINDING & including
    assert {"operators.cpp", "autograd.cpp"} <= including


def test_the_kernels_include_no_file_of_the_binding():
    for path in CSRC.iterdir():
        if path.name not in BINDING:
            included = set(re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8")))
            assert not included & HEADERS, path.name
