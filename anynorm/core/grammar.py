"""The string ↔ the parts of a norm; the only parser.

spec    =  side [ "/" side ] { "." ending }            mean/variance; one side serves for both
side    =  atom { ("+" | "-") atom }                   sn-bn is sn without bn
atom    =  name [ ":" numbers ] [ "@" number ]         a row of the zoo: gn:32, gbgn:8,32, sabn@10
        |  "[" samples "," channels "," space "]"      a cut itself: parts of each axis, * for all; samples also /m, m a part
        |  "[1," groups "]"                            channels and space cut jointly
ending  =  groups:k | hard | none | cc@k | sa@k | style | sastyle | dom@k | aux@k | saaux@k
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from anynorm.core.cuts import ALL, Cut, JointCut
from anynorm.core.mixing import Argmax
from anynorm.core.spec import AnyCut, NormSpec, affine_specs
from anynorm.errors import SpecError

_TOKEN = re.compile(r"\[[^\]]*\]|[a-z]\w*(?::\d{1,9}(?:,\d{1,9})*)?(?:@\d{1,9})?|[-+/.]")
_NAMED = re.compile(r"(\w+)(?::([\d,]+))?(?:@(\d+))?")
_CUT = re.compile(r"\[(?:(\*|1)|/(\d{1,9})),(\*|\d{1,9}),(\*|\d{1,9})\]")
_JOINT = re.compile(r"\[1,(\d{1,9})\]")
_PLAIN = NormSpec((), ())


def rows() -> Mapping[str, Any]:
    """Give the class of every named norm."""
    import anynorm.layers.baselines
    import anynorm.registry  # noqa: F401  # here, for rows are norms, which need the parser; reading them enters them
    from anynorm.layers.registered import REGISTRY

    return REGISTRY


def parse(spec: str, **options: Any) -> NormSpec:
    """Read a spec.

    Args:
        options: numbers that the spec leaves open: num_groups, num_classes, …; batch_size and num_features for bgn's rule.

    >>> parse("hn:32") == parse("bn/en:32")
    True
    >>> print(parse("bgn", batch_size=4, num_features=64))
    bgn:2
    """
    if not isinstance(spec, str):
        raise SpecError(f"A spec is a string such as 'bn' or 'hn:32'; {spec!r} came.")
    text = spec.strip().lower()
    tokens = _TOKEN.findall(text)
    cuts, *ends = _split(tokens, ".")
    sides = _split(cuts, "/")
    if "".join(tokens) != text or len(sides) > 2 or not all([*sides, *ends]):
        _refuse(spec)
    atoms = {token: _atom(token, spec, options) for token in cuts if token not in "+-/"}
    parts = atoms[cuts[0]] if len(cuts) == 1 else _combine([_side(side, atoms, spec) for side in sides], atoms.values(), spec)
    for end in ends:
        parts = _end(parts, end, spec)
    kinds = [end[0].split(":")[0] if end[0].split(":")[0] in ("groups", "hard") else "affine" for end in ends]
    own = ["affine"] if len(cuts) == 1 and atoms[cuts[0]].affine != _PLAIN.affine else []
    if len({*kinds}) < len(kinds) or {*own} & {*kinds}:
        raise SpecError(f"{spec!r} has two endings of a kind; one affine can follow the cuts, as in 'bn.sa@10'.")
    name = "".join(str(atoms.get(token, token)) for token in cuts) + "".join(f".{token}" for (token,) in ends)
    return replace(parts, name=name)


def arguments(spec: str) -> set[str]:
    """Name the options that could complete a spec."""
    tokens = _TOKEN.findall(spec.strip().lower())
    named = [rows()[name] for name in (re.split("[:@]", token)[0] for token in tokens) if name in rows()]
    return {argument for row in named for argument in row.arguments}


def row_of(spec: str) -> Any:
    """Give the class of the row that a spec is the name of, with numbers or without; None where it is more than a name."""
    tokens = _TOKEN.findall(spec)
    return rows().get(re.split("[:@]", spec)[0]) if len(tokens) == 1 else None


def _split(tokens: list[str], sign: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for token in tokens:
        if token == sign:
            found.append([])
        else:
            found[-1].append(token)
    return found


def _atom(token: str, spec: str, options: Mapping[str, Any]) -> NormSpec:
    """Read one name or one cut."""
    if token[0] == "[":
        cut = _literal(token, spec)
        return replace(_PLAIN, mean=(cut,), var=(cut,), name=token)
    name, numbers, classes = _NAMED.fullmatch(token).groups()  # type: ignore[union-attr]  # _TOKEN is stricter
    if name not in rows():
        known = {word: row for row, kind in rows().items() for word in (row, kind.__name__.lower())}
        near = dict.fromkeys(known[word] for word in difflib.get_close_matches(name, known))
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {' '.join(rows())}."
        raise SpecError(f"{spec!r}: there is no norm called {name!r}. {hint}")
    given = [int(number) for number in numbers.split(",")] if numbers else []
    text, meaning, foreign = rows()[name].expand(given, int(classes) if classes else None, options)
    parts = parse(meaning)
    mean, var = (tuple(cut if cut.name else replace(cut, name=text) for cut in cuts) for cuts in (parts.mean, parts.var))
    return replace(parts, mean=mean, var=var, custom=foreign, name=text)


def _literal(token: str, spec: str) -> AnyCut:
    """Read a cut written out; it has no name yet."""
    if joint := _JOINT.fullmatch(token):
        return JointCut(_counted(joint[1], spec))
    if not (found := _CUT.fullmatch(token)):
        _refuse(spec)
    samples, per_part, channels, space = (ALL if part in ("*", None) else _counted(part, spec) for part in found.groups())
    return Cut(samples, channels, space, samples_per_part=per_part or 1)


def _counted(number: str, spec: str) -> int:
    if int(number) < 1:
        raise SpecError(f"{spec!r}: {number} parts are none; numbers start at 1.")
    return int(number)


def _side(tokens: list[str], atoms: Mapping[str, NormSpec], spec: str) -> tuple[list[AnyCut], list[AnyCut]]:
    """Add up one side: the cuts its atoms bring for the mean, and for the variance."""
    if len(tokens) % 2 == 0 or not all((token in "+-") == (k % 2 == 1) for k, token in enumerate(tokens)):
        _refuse(spec)
    mean: list[AnyCut] = []
    var: list[AnyCut] = []
    for sign, token in zip(["+", *tokens[1::2]], tokens[::2], strict=True):
        for cuts, brought in ((mean, atoms[token].mean), (var, atoms[token].var)):
            for cut in brought:
                if (cut in cuts) == (sign == "+"):
                    there = "is there twice" if sign == "+" else "is not there to take away"
                    hint = " HN with SN's weights is bn/bn+en or bn/bn+ln+in." if "hn" in spec else ""
                    raise SpecError(f"{spec!r}: {cut} {there}.{hint}")
                (cuts.append if sign == "+" else cuts.remove)(cut)
    if not mean or not var:
        raise SpecError(f"{spec!r}: no cut is left.")
    return mean, var


def _combine(sides: list[tuple[list[AnyCut], list[AnyCut]]], atoms: Iterable[NormSpec], spec: str) -> NormSpec:
    """Put sides together; what an atom brings beside cuts can only be its channel groups."""
    weighings = {atom.mixing for atom in atoms} - {_PLAIN.mixing}
    for atom in atoms:
        if atom.custom:
            raise SpecError(f"{spec!r}: {atom} is no cut, and cannot be put together with others.")
        if atom.affine != _PLAIN.affine or isinstance(atom.mixing, Argmax) or len(weighings) > 1:
            raise SpecError(
                f"{spec!r}: {atom} brings more than cuts; write that behind the cuts, as in 'bn+in.sa@10' or 'in+ln.groups:2'."
            )
    return NormSpec(tuple(sides[0][0]), tuple(sides[-1][1]), mixing=next(iter(weighings), _PLAIN.mixing))


def _end(parts: NormSpec, tokens: list[str], spec: str) -> NormSpec:
    """Apply one ending."""
    found = _NAMED.fullmatch(tokens[0]) if len(tokens) == 1 else None
    name, numbers, classes = found.groups() if found else (None, None, None)
    if parts.custom and name in ("groups", "hard", *affine_specs(1)) and name != "none":
        raise SpecError(f"{spec!r}: {parts.custom.text} is no norm of the algebra, and takes no ending but .none.")
    if name in ("groups", "hard"):
        if classes or bool(numbers) != (name == "groups") or len(parts.mean + parts.var) == 2:
            raise SpecError(f"{spec!r}: .groups:k and .hard need several cuts to weigh, as in 'sn.groups:2' or 'sn.hard'.")
        groups = _counted(numbers, spec) if numbers else parts.mixing.groups
        kind = Argmax if name == "hard" else type(parts.mixing)
        return replace(parts, mixing=kind(groups))
    wants_classes = NormSpec((), (), affine=affine_specs(1).get(name or "none", _PLAIN.affine)).num_classes > 0
    if not name or name not in affine_specs(1) or numbers or bool(classes) != wants_classes:
        track = " ".join(
            f".{end}{'@k' if NormSpec((), (), affine=e).num_classes else ''}" for end, e in affine_specs(1).items() if end
        )
        raise SpecError(f"{spec!r}: '.{''.join(tokens)}' is no ending. Known: .groups:k .hard {track}.")
    return parts.with_affine(name, _counted(classes, spec) if classes else 0)


def _refuse(spec: str) -> NoReturn:
    raise SpecError(
        f"{spec!r} is malformed. A spec is a name (bn, hn:32, sabn@10), cuts for mean/variance (bn/en:32), or a weighted set "
        "(in+ln+bn); endings may follow (.none, .sa@10, .hard)."
    )
