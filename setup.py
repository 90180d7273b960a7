"""Build the C++ kernels against the installed torch; without torch or a compiler the package is installed without them."""

from pathlib import Path

from setuptools import setup

KERNELS = Path(__file__).parent / "anynorm" / "kernels"
ERROR = KERNELS / "_build_error.txt"
SOURCES = ["operator", "kernels_baseline", "kernels_avx2", "kernels_avx512"]  # the linker keeps the first of several copies
FLAGS = ["-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-Wno-psabi"]


def extension_arguments() -> dict[str, object]:
    """Return the arguments of `setup` that build the extension."""
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class Build(BuildExtension):  # type: ignore[misc]
        def run(self) -> None:
            try:
                super().run()
                ERROR.unlink(missing_ok=True)
            except (Exception, SystemExit) as error:
                self.extensions = []
                lines = str(error).strip().splitlines() or [type(error).__name__]
                ERROR.write_text(f"the build failed: {lines[-1]}\n")
                self.announce(f"anynorm is installed without its C++ kernels: {error}", level=5)

        def get_ext_filename(self, fullname: str) -> str:
            version = torch.__version__.partition("+")[0]
            return str(Path(*fullname.split(".")).with_name(f"_native-torch{version}.so"))

    for old in KERNELS.glob("_native-torch*.so"):
        old.unlink()
    define = [("USE_DISTRIBUTED", None)] if torch.distributed.is_available() else []
    extension = CppExtension(
        "anynorm.kernels._native",
        [f"csrc/{name}.cpp" for name in SOURCES],
        depends=[str(path) for path in Path("csrc").glob("*.h")],
        extra_compile_args=FLAGS,
        define_macros=define,
    )
    return {"ext_modules": [extension], "cmdclass": {"build_ext": Build.with_options(no_python_abi_suffix=True)}}


try:
    arguments = extension_arguments()
except ImportError as error:
    ERROR.write_text(f"torch could not be imported during the installation ({error})\n")
    arguments = {}
setup(**arguments)
