"""Models are pushed to and pulled from the Hugging Face hub; a folder takes the place of the hub, and no network is used."""

import inspect
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import anynorm
from anynorm.errors import DataError, SurgeryError

hub = pytest.importorskip("huggingface_hub")


def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A hub in a folder; calls must have the signatures of the real functions."""
    root = tmp_path / "hub"
    signatures = {name: inspect.signature(getattr(hub.HfApi, name)) for name in ("__init__", "create_repo", "upload_folder")}
    download = inspect.signature(hub.hf_hub_download)
    state = SimpleNamespace(calls=[], root=root)

    class Api:
        def __init__(self, **options):
            signatures["__init__"].bind(self, **options)
            state.calls.append(("login", options))

        def create_repo(self, repo_id, **options):
            signatures["create_repo"].bind(self, repo_id, **options)
            (root / repo_id).mkdir(parents=True, exist_ok=options["exist_ok"])
            state.calls.append(("create_repo", options))

        def upload_folder(self, **options):
            signatures["upload_folder"].bind(self, **options)
            shutil.copytree(options["folder_path"], root / options["repo_id"], dirs_exist_ok=True)
            state.calls.append(("upload_folder", sorted(path.name for path in (root / options["repo_id"]).iterdir())))
            return SimpleNamespace(commit_url=f"https://hub/{options['repo_id']}/commit/1")

    def hf_hub_download(repo_id, filename, **options):
        download.bind(repo_id, filename, **options)
        state.calls.append((filename, options))
        path = root / repo_id / filename
        if not path.is_file():
            raise FileNotFoundError(f"404 Client Error: {repo_id}")
        return str(path)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "hf_hub_download", hf_hub_download)
    monkeypatch.chdir(tmp_path)
    return state


def test_a_pushed_model_is_pulled_by_its_name(fake):
    model = base()
    anynorm.convert(model, "hn:4")
    assert anynorm.push_to_hub(model, "me/net", base=base, private=True, token="t") == "https://hub/me/net/commit/1"
    assert fake.calls == [
        ("login", {"token": "t"}),
        ("create_repo", {"private": True, "exist_ok": True}),
        ("upload_folder", ["model.safetensors", "norms.json"]),
    ]
    fake.calls.clear()
    loaded = anynorm.load_pretrained("me/net", base=base, revision="v1")
    assert fake.calls == [(name, {"revision": "v1"}) for name in ("norms.json", "model.safetensors")]
    x = torch.randn(2, 3, 8, 8)
    assert loaded[1].spec == "hn:4"
    assert torch.equal(loaded.eval()(x), model.eval()(x))


def test_a_folder_comes_before_a_repository_and_a_path_is_never_one(fake, tmp_path):
    anynorm.save_pretrained(base(), tmp_path / "me" / "net")
    anynorm.load_pretrained("me/net", base=base)
    with pytest.raises(DataError, match="cannot read"):
        anynorm.load_pretrained(tmp_path / "you" / "net", base=base)
    for name in ("../net", "/me/net", "me", "me/net/more", "me/.."):
        with pytest.raises(DataError, match=r"cannot read .*norms.json"):
            anynorm.load_pretrained(name, base=base)
    assert fake.calls == []


def test_errors_of_the_hub_say_what_was_asked(fake, monkeypatch):
    with pytest.raises(
        DataError, match=r"^'me/other' is neither a folder nor a repository .*FileNotFoundError: 404 Client Error"
    ):
        anynorm.load_pretrained("me/other", base=base)
    (fake.root / "me" / "file").parent.mkdir(parents=True)
    (fake.root / "me" / "file").touch()
    with pytest.raises(DataError, match=r"^cannot upload to 'me/file': FileExistsError"):
        anynorm.push_to_hub(base(), "me/file")
    fake.calls.clear()
    model = base().eval()
    anynorm.fold(model, torch.randn(1, 3, 8, 8))
    with pytest.raises(SurgeryError, match="folded"):
        anynorm.push_to_hub(model, "me/net")
    assert fake.calls == []
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"pip install 'anynorm\[hf\]'"):
        anynorm.load_pretrained("me/net", base=base)
