"""Run the commands of a guide and put what they print under them: `python docs/run.py docs/guide/diagnose.md`.

In blocks of `console`, a line that begins with `$` is a command, run in the guide's own folder; what follows is its output.
"""

import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.S)


def commands(text: str) -> list[tuple[str, str]]:
    """List the commands of a guide with the output under each."""
    pairs = []
    for _, block, _ in BLOCK.findall(text):
        pieces = re.split(r"^\$ (.*)\n", block, flags=re.M)[1:]
        pairs += list(zip(pieces[::2], pieces[1::2], strict=True))
    return pairs


def printed(command: str, folder: Path) -> str:
    """Run a command with the Python that runs this."""
    words = command.replace("anynorm ", f"{sys.executable} -m anynorm ", 1) if command.startswith("anynorm ") else command
    words = words.replace("python ", f"{sys.executable} ", 1) if words.startswith("python ") else words
    done = subprocess.run(words, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + (done.stderr if done.returncode else "")


def filled(text: str, folder: Path) -> str:
    """Give the text of a guide with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        lines = [f"$ {command}\n{printed(command, folder)}" for command, _ in commands(found.group())]
        return found.group(1) + "".join(lines) + found.group(3)

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(filled(path.read_text(), path.parent))
