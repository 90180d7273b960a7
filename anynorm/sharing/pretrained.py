"""Saving and loading of models whose norms are anynorm layers.

A folder has two files: `norms.json`, the norms of the model by path with all of their options, and `model.safetensors`, all
parameters and buffers. A saved model is loaded into the model that a factory of the caller makes: its norms are replaced at their
paths, then the weights are loaded. Nothing in a folder is imported or executed.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

import anynorm
from anynorm.errors import AnynormError, DataError, SurgeryError
from anynorm.layers.norm import Norm
from anynorm.sharing import weights
from anynorm.sharing.hub import download, upload
from anynorm.sharing.model_config import FILE_NAME, MAX_TEXT, ModelConfig, read_config_file, write_config
from anynorm.sharing.norm_config import NormConfig, difference, make_norms, read_config
from anynorm.surgery.block_forward import fused_forward
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.fold_statistics import Folded
from anynorm.surgery.new_norm import copy_hooks_and_parametrizations, set_post_modules
from anynorm.surgery.replace import disable_nested_tensors
from anynorm.surgery.undo import UndoLog
from anynorm.table import pluralize

Base = Callable[[], nn.Module]
Model = TypeVar("Model", bound=nn.Module)
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MAX_LISTED = 4
"""Number of tensors that an error message lists."""


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], *, base: Base | str | None = None) -> Path:
    """Save a model: the norms of anynorm with all of their options, and all weights.

    Norms of torch and everything else belong to the base model, which `load_pretrained` gets from its caller. `requires_grad`,
    hooks, the processes of `anynorm.sync` and the fusion of blocks are not saved; `anynorm.fuse` can be called after loading.

    Args:
        model: the model.
        folder: the folder to write to; it is created, and a model in it is replaced.
        base: the function without arguments that makes the base model. It is called once, to check that the saved model can be
            loaded into it; only its name is saved, as information for people. Or that name; or None.

    Returns:
        The folder.

    Raises:
        SurgeryError: if the model cannot be saved: it was folded, is wrapped, or has a norm without a spec.
        DataError: if it does not fit the base model, or has tensors that safetensors cannot hold.
        DiskError: if the files cannot be written.

    >>> import tempfile
    >>> make_base = lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> model = make_base()
    >>> report = anynorm.convert(model, "gn:4")
    >>> folder = save_pretrained(model, tempfile.mkdtemp(), base=make_base)
    >>> load_pretrained(folder, base=make_base)[1]
    GroupNorm('gn:4', 8, eps=1e-05)
    """
    check_model(model)
    sites = _sites(model)
    tensors = weights.tensors_of(model)
    weights.check_storable(tensors)
    name = base if isinstance(base, str) else "" if base is None else _name_of(base)
    config = ModelConfig(
        norms=tuple(_read_configs(sites)),
        base=name[:MAX_TEXT],
        fused_blocks=tuple(path for path, module in model.named_modules() if fused_forward(module) is not None),
        tied=weights.find_tied(tensors),
        dtypes=_other_dtypes(model, tensors),
        anynorm_version=anynorm.__version__,
    )
    if base is not None and not isinstance(base, str):
        _rebuild(config, {key: tuple(tensor.shape) for key, tensor in tensors.items()}, base)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    stored = {key: tensor for key, tensor in tensors.items() if key not in config.tied}
    weights.write_weights(stored, path, replaces=path / FILE_NAME)  # new weights with the old norms must not be loaded
    write_config(config, path)
    return path


def load_pretrained(folder: str | os.PathLike[str], *, base: Callable[[], Model], revision: str | None = None) -> Model:
    """Load a model that `save_pretrained` has saved.

    Args:
        folder: the folder; or a repository of the Hugging Face hub, "owner/name", if there is no such folder. Only the two files
            of the model are downloaded.
        base: a function without arguments that makes the base model, on any device. The weights it has are replaced.
        revision: branch, tag or commit of the repository; None for its main branch.

    Returns:
        The model, in the mode in which `base` makes it: call `model.eval()` for inference. Dtypes are those of the saved model.

    Raises:
        DataError: if the folder cannot be read, has invalid values, or does not fit the base model.
        StateError: if the saved tensors of a norm have NaN.
    """
    path = Path(folder)
    if isinstance(folder, str) and not path.exists() and _REPO_ID.fullmatch(folder):
        path = download(folder, (FILE_NAME, weights.FILE_NAME), revision)
    config = read_config_file(path)
    shapes = weights.read_shapes(path)
    _check_tied(config, shapes)
    shapes |= {name: shapes[source] for name, source in config.tied.items()}
    model = _rebuild(config, shapes, base)
    _load(model, config, path)
    if config.fused_blocks:
        warnings.warn(
            f"{pluralize(len(config.fused_blocks), 'block')} of this model ran with fused activations when it was saved. The "
            "loaded blocks are not fused; anynorm.fuse(model, example) fuses them.",
            stacklevel=2,
        )
    return cast(Model, model)  # of another class only if the base model itself is a norm


def push_to_hub(
    model: nn.Module,
    repo_id: str,
    *,
    base: Base | str | None = None,
    private: bool | None = None,
    commit_message: str = "Upload model with anynorm",
    token: str | None = None,
) -> str:
    """Save a model as `save_pretrained` does, and upload its two files to a repository of the Hugging Face hub.

    Args:
        model: the model.
        repo_id: the repository, "owner/name"; it is created if it does not exist.
        base: as in `save_pretrained`.
        private: whether a new repository is private; None for the default of the owner.
        commit_message: message of the commit.
        token: token of the hub; None for the one that `hf auth login` has stored.

    Returns:
        The address of the commit.

    Raises:
        SurgeryError: if the model cannot be saved.
        DataError: if it cannot be saved or uploaded, or the package huggingface_hub is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, base=base)
        return upload(folder, repo_id, private=private, commit_message=commit_message, token=token)


def _sites(model: nn.Module) -> list[NormSite]:
    """Return the sites of the anynorm layers of a model; raise SurgeryError if it cannot be saved."""
    if any(cls.__name__ == "OptimizedModule" for cls in type(model).__mro__):
        raise SurgeryError(
            "The model is compiled by torch.compile, which renames its tensors. Save the inner model: model._orig_mod."
        )
    folded = [path for path, module in model.named_modules() if isinstance(module, Folded)]
    if folded:
        raise SurgeryError(
            f"{pluralize(len(folded), 'norm')} of this model {'was' if len(folded) == 1 else 'were'} folded into other layers "
            f"({', '.join(folded[:MAX_LISTED])}{', …' if len(folded) > MAX_LISTED else ''}), so there is no norm to save. Save "
            "the model before anynorm.fold, or undo it with report.undo(); fold after loading."
        )
    sites = [site for site in find_norms(model) if isinstance(site.module, Norm)]
    listed = {id(site.module) for site in sites}
    for path, module in model.named_modules():
        if isinstance(module, Norm) and id(module) not in listed:
            raise SurgeryError(f"'{path}' ({module.spec}) is part of another norm layer, and cannot be saved by itself.")
    return sites


def _read_configs(sites: list[NormSite]) -> list[NormConfig]:
    """Return the configs of norms, from which the same norms can be made."""
    configs = []
    for site in sites:
        norm: Any = site.module
        try:
            configs.append(read_config(norm, site.paths))
        except AnynormError as error:
            raise SurgeryError(f"the norm at '{site.path}' cannot be saved: {error}") from None
    made = make_norms(configs, ["meta"] * len(configs))
    place = {id(norm): index for index, norm in enumerate(made)} | {id(site.module): index for index, site in enumerate(sites)}
    for site, new in zip(sites, made, strict=True):
        norm = site.module
        reason = difference(norm, new)
        previous = [[place.get(id(each)) for each in getattr(side, "_previous", ())] for side in (norm, new)]
        if not reason and previous[0] != previous[1]:
            reason = "it is connected to other layers than anynorm.convert would connect it to"
        if reason:
            raise SurgeryError(f"the norm at '{site.path}' ({norm.spec}) cannot be saved: {reason}.")
    return configs


def _name_of(base: Any) -> str:
    return f"{getattr(base, '__module__', '')}:{getattr(base, '__qualname__', type(base).__name__)}"


def _other_dtypes(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, str]:
    """Return the dtypes of the floating-point buffers that are not saved, such as tables of positions."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if name not in tensors and buffer.is_floating_point()}
    return {name: str(buffer.dtype).removeprefix("torch.") for name, buffer in buffers.items()}


def _check_tied(config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, source in config.tied.items():
        if source not in shapes or name in shapes:
            raise DataError(f"{FILE_NAME}: tied: {name[:60]!r} must be stored as {source[:60]!r}, and not by itself.")


def _make_base(base: Any) -> nn.Module:
    if isinstance(base, str):
        raise DataError(
            f"base must be a function that makes the base model; got the name {base!r}. Names are not imported: pass the "
            "function itself, such as base=torchvision.models.resnet18."
        )
    if isinstance(base, nn.Module) or not callable(base):
        raise DataError(
            f"base must be a function that makes the base model; got a {type(base).__name__}. Pass lambda: … instead."
        )
    model = base()
    if not isinstance(model, nn.Module):
        raise DataError(f"base() must return an nn.Module; got a {type(model).__name__}.")
    check_model(model)
    if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]):
        raise DataError("base() must make a model with values; got tensors on the meta device. Call to_empty first.")
    return model


def _rebuild(config: ModelConfig, shapes: dict[str, tuple[int, ...]], base: Base) -> nn.Module:
    """Return the base model with the norms of a config, whose tensors have the given shapes.

    Raises:
        DataError: if they do not fit; nothing of the size of the shapes is allocated before all of them are checked.
    """
    model = _make_base(base)
    sites = _match(model, config)
    devices = [_device(site, model) for site in sites]
    try:
        checked = _install(model, sites, config.norms, make_norms(config.norms, ["meta"] * len(sites)))
        _check_shapes(checked, shapes, config)
        return _install(model, sites, config.norms, make_norms(config.norms, devices))
    except AnynormError as error:
        raise error if isinstance(error, DataError) else DataError(f"{FILE_NAME}: {error}") from None


def _match(model: nn.Module, config: ModelConfig) -> list[NormSite]:
    """Return the site in the base model of each norm of a config."""
    sites = find_norms(model)
    by_path = {path: site for site in sites for path in site.paths}
    matched = []
    for norm in config.norms:
        site = by_path.get(norm.path)
        shown = f"{norm.path[:80]!r} ({norm.spec[:40]})"
        if site is None:
            raise DataError(f"{FILE_NAME} has a norm at {shown}; {_described(config)} has no norm there. {_paths(sites)}")
        if {*norm.paths} != {*site.paths}:
            raise DataError(
                f"{FILE_NAME} has one norm at {' '.join(norm.paths)[:200]}; {_described(config)} at {' '.join(site.paths)}."
            )
        if site.unsupported:
            raise DataError(f"the norm of the base model at {shown} cannot be replaced: {site.unsupported}.")
        if site.info.channels != norm.num_features:
            raise DataError(
                f"{shown} has {norm.num_features} channels in {FILE_NAME}, and {site.info.channels} in {_described(config)}."
            )
        missing = [name for name in norm.post_modules if name not in site.info.post_modules]
        if missing:
            raise DataError(
                f"{shown} is followed by {missing[0][:40]!r} in {FILE_NAME}; {_described(config)} has no such module in it."
            )
        matched.append(site)
    if len({id(site) for site in matched}) < len(matched):
        raise DataError(f"{FILE_NAME} has two norms at one path.")
    others = [site for site in sites if isinstance(site.module, Norm) and not any(site is each for each in matched)]
    if others:
        raise DataError(
            f"{_described(config)} has {others[0].label} at '{others[0].path}', where {FILE_NAME} has no norm of anynorm."
        )
    return matched


def _described(config: ModelConfig) -> str:
    return f"the model of base() (saved from {config.base[:80]!r})" if config.base else "the model of base()"


def _paths(sites: list[NormSite]) -> str:
    return (
        f"Its norms: {' '.join(site.path for site in sites[:8])}{' …' if len(sites) > 8 else ''}."
        if sites
        else "It has no norms."
    )


def _device(site: NormSite, model: nn.Module) -> torch.device:
    tensors = (tensor for owner in (site.module, model) for tensor in [*owner.parameters(), *owner.buffers()])
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _install(model: nn.Module, sites: list[NormSite], configs: tuple[NormConfig, ...], norms: list[Norm]) -> nn.Module:
    """Replace the norms of a base model, and return the model: the new norm, if the model itself is a norm."""
    undo_log = UndoLog()
    for site, config, norm in zip(sites, configs, norms, strict=True):
        set_post_modules(norm, {name: site.info.post_modules[name] for name in config.post_modules})
        norm.sync_group = site.info.sync_group
        if not hasattr(site.module, "parametrizations"):
            copy_hooks_and_parametrizations(site.module, norm)
        norm.training = site.module.training
        undo_log.replace(site, norm)
    disable_nested_tensors(model, dict(zip(sites, norms, strict=True)), undo_log)
    return next((norm for site, norm in zip(sites, norms, strict=True) if not site.parents), model)


def _check_shapes(model: nn.Module, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in weights.tensors_of(model).items()}
    missing, unexpected = [name for name in expected if name not in shapes], [name for name in shapes if name not in expected]
    if missing or unexpected:
        parts = [f"the folder lacks {_listed(missing)}"] if missing else []
        parts += [f"the model lacks {_listed(unexpected)}"] if unexpected else []
        raise DataError(
            f"the weights do not fit {_described(config)}: {'; '.join(parts)}. base must make the network that was saved, and "
            "operations that add tensors, such as anynorm.fold and anynorm.to_rms, come after loading."
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise DataError(f"{name!r} has shape {shapes[name]} in the folder, and {shape} in {_described(config)}.")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(name[:80] for name in names[:MAX_LISTED]) + more


def _load(model: nn.Module, config: ModelConfig, folder: Path) -> None:
    """Load the weights of a folder, whose names and shapes were checked, with their dtypes."""
    loaded = weights.read_weights(folder)
    loaded |= {name: loaded[source] for name, source in config.tied.items()}
    for name, tensor in model.state_dict(keep_vars=True).items():
        saved = loaded[name]
        both_real = tensor.is_floating_point() and saved.is_floating_point()
        if tensor.dtype != saved.dtype and not both_real and not (tensor.is_complex() and saved.is_complex()):
            raise DataError(f"{name!r} has dtype {saved.dtype} in the folder, and {tensor.dtype} in {_described(config)}.")
        tensor.data = tensor.data.to(saved.dtype)
    for name, buffer in model.named_buffers():
        if name in config.dtypes and buffer.is_floating_point():
            buffer.data = buffer.data.to(getattr(torch, config.dtypes[name]))
    try:
        model.load_state_dict(loaded)
    except RuntimeError as error:
        raise DataError(f"the weights do not fit {_described(config)}: {error}") from None
