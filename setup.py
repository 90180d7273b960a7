"""Build the C++ kernels against the installed torch; without torch or a compiler the package is installed without them."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import setup

BINDING = ["operators", "autograd", "passes", "inputs", "plans", "buffers", "threads"]
SOURCES = [*BINDING, "kernels_baseline", "kernels_avx2"]  # the linker keeps the first of several copies
FLAGS = ["-O3", "-g0", "-fopenmp", "-Wno-psabi"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"]  # sums in any order
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def extension_arguments() -> dict[str, Any]:
    """Return the arguments of `setup` that build the extension."""
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class Build(BuildExtension):  # type: ignore[misc]
        def run(self) -> None:
            folder = (Path() if self.inplace else Path(self.build_lib)) / "anynorm" / "kernels"
            if self.inplace and is_up_to_date(Path(self.get_ext_filename(extension.name))):
                self.extensions = []  # another environment of this clone has built them
                return
            for old in [*folder.glob("_native-torch*.so"), *folder.glob("_build_error.txt")]:
                old.unlink()
            try:
                super().run()
            except (Exception, SystemExit) as error:
                self.extensions = []
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "_build_error.txt").write_text(f"{describe(error)}\n")
                self.announce(f"anynorm is installed without its C++ kernels: {error}", level=5)

        def get_ext_filename(self, fullname: str) -> str:
            version = torch.__version__.partition("+")[0]
            return str(Path(*fullname.split(".")).with_name(f"_native-torch{version}-{sys.implementation.cache_tag}.so"))

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # ninja of the environment
    sanitize = SANITIZE if os.environ.get("ANYNORM_SANITIZE") else []
    extension = CppExtension(
        "anynorm.kernels._native",
        [f"csrc/{name}.cpp" for name in SOURCES],
        depends=[str(path) for path in Path("csrc").glob("*.h")],
        extra_compile_args=[*FLAGS, *sanitize],
        extra_link_args=sanitize,
        define_macros=[("USE_DISTRIBUTED", None)] if torch.distributed.is_available() else [],
    )
    return {"ext_modules": [extension], "cmdclass": {"build_ext": Build.with_options(no_python_abi_suffix=True)}}


def is_up_to_date(built: Path) -> bool:
    """Whether kernels for this version of torch exist and are newer than their sources."""
    sources = [*Path("csrc").iterdir(), Path("setup.py")]
    is_plain = not os.environ.get("ANYNORM_SANITIZE")
    return is_plain and built.exists() and built.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def describe(error: BaseException) -> str:
    """Return why a build failed, in one line."""
    compiler = os.environ.get("CXX", "cl" if sys.platform == "win32" else "c++").split()[0]
    if shutil.which(compiler) is None:
        return f"no C++ compiler was found when anynorm was installed: {compiler} does not exist"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"the build failed: {lines[-1]}"


try:
    arguments = extension_arguments()
except ImportError:  # pip's build isolation hides the installed torch
    arguments = {}
setup(**arguments)
