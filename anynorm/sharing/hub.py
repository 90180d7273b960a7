"""Upload to and download from the Hugging Face hub, by the package huggingface_hub (extra `hf`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anynorm.errors import DataError


def _package() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise DataError(f"The hub needs the package huggingface_hub ({error}): pip install 'anynorm[hf]'.") from None
    return huggingface_hub


def upload(folder: str, repo_id: str, *, private: bool | None, commit_message: str, token: str | None) -> str:
    """Upload the files of a folder to a repository, which is created if it does not exist, and return the address of the commit.

    Raises:
        DataError: if huggingface_hub is not installed, or the upload fails.
    """
    package = _package()
    try:
        api = package.HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message)
    except Exception as error:  # the hub raises many types: no network, no token, an invalid name
        raise DataError(f"cannot upload to {repo_id!r}: {type(error).__name__}: {error}") from error
    return str(commit.commit_url)


def download(repo_id: str, names: Iterable[str], revision: str | None) -> Path:
    """Download files of a repository, or find them in the cache, and return the folder that has them.

    Raises:
        DataError: if huggingface_hub is not installed, or a file cannot be downloaded.
    """
    package = _package()
    try:
        paths = [Path(package.hf_hub_download(repo_id, name, revision=revision)) for name in names]
    except Exception as error:  # the hub raises many types: no network, no such repository, file or revision
        raise DataError(
            f"{repo_id!r} is neither a folder nor a repository of the Hugging Face hub that can be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    return paths[0].parent
