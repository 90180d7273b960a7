"""A site that is built for a host names its addresses; one for local files does not."""

import os
import re
import subprocess
import sys

import pytest

from docs.build import ROOT

pytestmark = pytest.mark.docs


@pytest.mark.parametrize("url", ["", "https://example.org/a&b/"])
def test_the_sitemap_and_canonical_links_have_the_address_of_the_host(url, tmp_path):
    source, out = tmp_path / "source", tmp_path / "html"
    (source / "guide").mkdir(parents=True)
    (source / "index.md").write_text("# Home\n\n```{toctree}\nguide/one\n```\n")
    (source / "guide" / "one.md").write_text("# One\n")
    environment = os.environ | {"ANYNORM_DOCS_URL": url, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--conf-dir",
        str(ROOT / "docs"),
        str(source),
        str(out),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    canonical = re.findall(r'<link rel="canonical" href="(.*?)"', (out / "guide" / "one.html").read_text())
    if not url:
        assert not (out / "sitemap.xml").exists()
        assert canonical == []
        return
    assert canonical == ["https://example.org/a&amp;b/guide/one.html"]
    addresses = re.findall("<loc>(.*?)</loc>", (out / "sitemap.xml").read_text())
    assert addresses == [f"https://example.org/a&amp;b/{name}.html" for name in ("guide/one", "index")]
