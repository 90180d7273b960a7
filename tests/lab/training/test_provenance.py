"""What is recorded about code, versions and hardware."""

from importlib import metadata

from anynorm.lab.training import provenance as module
from anynorm.lab.training.provenance import cpu_count, provenance


def test_versions_of_installed_packages_are_recorded(monkeypatch):
    recorded = provenance()
    assert recorded["torch"] == metadata.version("torch")
    assert {"commit", "python", "numpy", "hardware", "cores"} <= set(recorded)
    assert recorded["cores"] == cpu_count() >= 1
    monkeypatch.setattr(module, "PACKAGES", ("torch", "no-such-package"))
    assert "no-such-package" not in provenance()
    assert provenance()["torch"] == recorded["torch"]
