"""The grammar of specs, and a parser from spec strings to `NormSpec`.

spec    =  [ mean "/" ] side { "." suffix }            mean/variance; a single side defines both
mean    =  side | "0"                                  0/pn: the mean is 0, and the variance is E[x²] (RMSNorm)
side    =  term { ("+" | "-") term }                   cuts to mix; sn-bn is sn without bn
term    =  name [ ":" numbers ] [ "@" number ]         a registered norm: gn:32, gbgn:8,32, sabn@10
        |  "[" samples "," channels "," space "]"      a cut: number of parts per axis, * for all; /m for m samples per part
        |  "[" samples "," groups "]"                  channels and space divided jointly into groups; samples is 1 or *
suffix  =  groups:k | hard | none | nobias | cc@k | sa@k | style | sastyle | dom@k | domnone@k | aux@k | saaux@k
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, Protocol

from anynorm.core.cuts import ALL, AnyCut, Cut, JointCut
from anynorm.core.mixing import Argmax, Mixing, Softmax
from anynorm.core.spec import PLAIN_AFFINE, SCALE_AFFINE, NormSpec, affine_specs
from anynorm.errors import SpecError, similar_names

_TOKEN = re.compile(r"\[[^\]]*\]|[a-z]\w*(?::\d{1,9}(?:,\d{1,9})*)?(?:@\d{1,9})?|[-+/.]|.", re.DOTALL)
_NAME = re.compile(r"([a-z]\w*)(?::([\d,]+))?(?:@(\d+))?")
_CUT = re.compile(r"\[(?:(\*|1)|/(\d{1,9})),(\*|\d{1,9}),(\*|\d{1,9})\]")
_JOINT_CUT = re.compile(r"\[(\*|1),(\d{1,9})\]")


class RegisteredClass(Protocol):
    """The members of the class of a registered norm that the parser uses."""

    @property
    def arguments(self) -> Mapping[str, int | None]:
        """Names and defaults of the numbers in a spec."""

    def bind(self, numbers: list[int], num_classes: int | None, keywords: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of all arguments, from the numbers after the colon and after @ and from keywords."""

    def named_spec(self, arguments: Mapping[str, int]) -> NormSpec:
        """Return the definition of the norm for the values of its arguments."""


class ParsedSpec(NamedTuple):
    """A parsed spec.

    Args:
        norm_spec: the definition of the norm.
        usable: the names of the keyword arguments that this spec accepts.
    """

    norm_spec: NormSpec
    usable: set[str]


def parse(text: str, registry: Mapping[str, RegisteredClass], keywords: Mapping[str, Any]) -> ParsedSpec:
    """Parse a spec.

    Args:
        text: the spec string.
        registry: the classes of the registered norms by name.
        keywords: arguments that are not in the spec string, such as num_groups; batch_size and num_features for bgn.

    Raises:
        SpecError: if the spec is invalid, or an argument is missing or given twice.
    """
    if not isinstance(text, str):
        raise SpecError(f"A spec must be a string such as 'bn' or 'hn:32'; got {text!r}.")
    return _Parser(text, registry, keywords).parse()


class _Parser:
    """A recursive-descent parser; `position` is the index of the next token."""

    def __init__(self, text: str, registry: Mapping[str, RegisteredClass], keywords: Mapping[str, Any]) -> None:
        self.text, self.registry, self.keywords = text, registry, keywords
        self.tokens: list[str] = _TOKEN.findall(text.strip().lower())
        self.position = 0
        self.terms: list[NormSpec] = []
        self.usable: set[str] = set()
        self.name = ""

    def parse(self) -> ParsedSpec:
        """Parse the whole text."""
        if self._accept("0"):
            if not self._accept("/"):
                self._raise_zero()
            norm_spec = self._combine((), self._side()[1])
        else:
            mean, var = self._side()
            if self._accept("/"):
                var = self._side()[1]
            norm_spec = self.terms[0] if len(self.terms) == 1 else self._combine(mean, var)
        kinds: list[str] = []
        if norm_spec.affine not in (PLAIN_AFFINE, SCALE_AFFINE):
            kinds.append("affine")
        if norm_spec.mixing.groups > 1:
            kinds.append("groups")
        while self._accept("."):
            norm_spec = self._suffix(norm_spec, kinds)
        if self.position < len(self.tokens):
            self._raise_malformed()
        if norm_spec.name != self.name:
            norm_spec = replace(norm_spec, name=self.name)
        return ParsedSpec(norm_spec, self.usable)

    def _accept(self, symbols: str) -> str:
        """Consume and return the next token if it is one of `symbols`; else return ""."""
        token = self.tokens[self.position] if self.position < len(self.tokens) else ""
        if not token or token not in symbols:
            return ""
        self.position += 1
        self.name += token
        return token

    def _next(self) -> str:
        if self.position == len(self.tokens):
            self._raise_malformed()
        self.position += 1
        return self.tokens[self.position - 1]

    def _side(self) -> tuple[tuple[AnyCut, ...], tuple[AnyCut, ...]]:
        """Parse one side of a spec; return the cuts of the mean and the cuts of the variance of its terms."""
        mean: list[AnyCut] = []
        var: list[AnyCut] = []
        sign, has_mean = "+", set()
        while sign:
            term = self._term()
            has_mean.add(bool(term.mean))
            for cuts, new in ((mean, term.mean), (var, term.var)):
                for cut in new:
                    if sign == "+":
                        if cut in cuts:
                            self._raise_repeated(cut)
                        cuts.append(cut)
                    else:
                        if cut not in cuts:
                            raise SpecError(f"{self.text!r} removes {cut}, which is not among the cuts before it.")
                        cuts.remove(cut)
            sign = self._accept("+-")
        if len(has_mean) > 1:
            self._raise_zero()
        if (has_mean == {True} and not mean) or not var:
            raise SpecError(f"{self.text!r} leaves no cut. A norm needs at least one cut for the mean and one for the variance.")
        return tuple(mean), tuple(var)

    def _raise_repeated(self, cut: AnyCut) -> NoReturn:
        hint = " HN with SN's mixing is bn/bn+en or bn/bn+ln+in." if "hn" in self.text.lower() else ""
        raise SpecError(f"{self.text!r} contains {cut} twice; each cut may occur once per side.{hint}")

    def _raise_zero(self) -> NoReturn:
        raise SpecError(
            f"{self.text!r}: 0 must be the whole side of the mean, as in '0/pn' or '0/bn+ln'. A variance needs cuts, and 0 "
            "cannot be mixed with cuts."
        )

    def _term(self) -> NormSpec:
        """Parse a registered name or a cut."""
        token = self._next()
        if token == "0":
            self._raise_zero()
        if token[0] == "[":
            cut = self._cut(token)
            term = NormSpec((cut,), (cut,), name=token)
        else:
            term = self._named(token)
        self.terms.append(term)
        self.name += term.name
        return term

    def _named(self, token: str) -> NormSpec:
        match = _NAME.fullmatch(token)
        if match is None:
            self._raise_malformed()
        name, numbers, num_classes = match.groups()
        if name not in self.registry:
            words = {getattr(norm_class, "__name__", "").lower(): known for known, norm_class in self.registry.items()}
            words |= {known: known for known in self.registry}
            similar = dict.fromkeys(words[word] for word in similar_names(name, words, count=3))
            hint = f"Did you mean {' or '.join(similar)}?" if similar else f"Known: {' '.join(self.registry)}."
            raise SpecError(f"{self.text!r}: unknown norm {name!r}. {hint}")
        norm_class = self.registry[name]
        self.usable.update(norm_class.arguments)
        from_text = [int(number) for number in numbers.split(",")] if numbers else []
        arguments = norm_class.bind(from_text, int(num_classes) if num_classes else None, self.keywords)
        return norm_class.named_spec(arguments)

    def _cut(self, token: str) -> AnyCut:
        if joint := _JOINT_CUT.fullmatch(token):
            return JointCut(self._positive(joint[2]), ALL if joint[1] == "*" else 1)
        match = _CUT.fullmatch(token)
        if match is None:
            raise SpecError(
                f"{self.text!r}: {token} is malformed. A cut is [samples,channels,space]: samples is 1, * or /m (m per part), "
                "the others are numbers or *; [samples,groups] cuts channels and space jointly."
            )
        parts = [ALL if part in ("*", None) else self._positive(part) for part in match.groups()]
        samples, per_part, channels, space = parts
        return Cut(samples, channels, space, samples_per_part=per_part or 1)

    def _positive(self, number: str) -> int:
        if int(number) < 1:
            raise SpecError(f"{self.text!r}: numbers must be at least 1; got {number}.")
        return int(number)

    def _combine(self, mean: tuple[AnyCut, ...], var: tuple[AnyCut, ...]) -> NormSpec:
        """Combine several terms into a definition. Besides its cuts, a term may define the channel groups of mixing weights."""
        plain = Softmax()
        mixings = {term.mixing for term in self.terms} - {plain}
        for term in self.terms:
            if term.custom:
                raise SpecError(f"{self.text!r}: {term} cannot be combined with other terms; it is not made of cuts.")
            if term.affine != PLAIN_AFFINE or isinstance(term.mixing, Argmax) or len(mixings) > 1:
                raise SpecError(
                    f"{self.text!r}: {term} has more than cuts, so it cannot be combined with other terms. Write the rest as a "
                    "suffix, as in 'bn+in.sa@10' or 'in+ln.groups:2'."
                )
        mixing: Mixing = next(iter(mixings), plain)
        return NormSpec(mean, var, mixing=mixing)

    def _suffix(self, norm_spec: NormSpec, kinds: list[str]) -> NormSpec:
        """Parse one suffix and apply it to a definition."""
        token = self._next()
        match = _NAME.fullmatch(token)
        name, numbers, num_classes = match.groups() if match else ("", None, None)
        kind = name if name in ("groups", "hard") else "affine"
        custom = norm_spec.custom
        if custom and name != "none":
            raise SpecError(f"{self.text!r}: {custom.text} takes no suffix except .none; got .{token}.")
        if kind == "affine":
            changed = self._affine_suffix(norm_spec, token, (name, numbers, num_classes))
        else:
            changed = self._mixing_suffix(norm_spec, name, numbers, num_classes)
        if kind in kinds:
            raise SpecError(
                f"{self.text!r}: a norm takes one .hard, one .groups and one affine suffix; .{token} is the second of its kind."
            )
        kinds.append(kind)
        self.name += token
        return changed

    def _mixing_suffix(self, norm_spec: NormSpec, name: str, numbers: str | None, num_classes: str | None) -> NormSpec:
        if num_classes or bool(numbers) != (name == "groups"):
            raise SpecError(f"{self.text!r}: write .groups with a number and .hard without, as in 'sn.groups:2' or 'sn.hard'.")
        if max(len(norm_spec.mean), len(norm_spec.var)) == 1:
            raise SpecError(f"{self.text!r}: .groups:k and .hard need several cuts to mix, as in 'sn.groups:2' or 'sn.hard'.")
        groups = self._positive(numbers) if numbers else norm_spec.mixing.groups
        kind: Callable[[int], Mixing] = Argmax if name == "hard" else type(norm_spec.mixing)
        return norm_spec.with_mixing(kind(groups))

    def _affine_suffix(self, norm_spec: NormSpec, token: str, match: tuple[str, str | None, str | None]) -> NormSpec:
        name, numbers, num_classes = match
        takes_number = {suffix: affine.num_classes > 0 for suffix, affine in affine_specs(1).items() if suffix}
        if name not in takes_number or numbers or bool(num_classes) != takes_number[name]:
            if name in takes_number and takes_number[name] and not num_classes:
                raise SpecError(f"{self.text!r}: .{name} needs a number of classes or domains, as in '.{name}@10'.")
            known = " ".join(f".{suffix}{'@k' if number else ''}" for suffix, number in takes_number.items())
            raise SpecError(f"{self.text!r}: unknown suffix '.{token}'. Known: .groups:k .hard {known}.")
        return norm_spec.with_affine(name, self._positive(num_classes) if num_classes else 0)

    def _raise_malformed(self) -> NoReturn:
        raise SpecError(
            f"{self.text!r} is malformed. A spec is a name (bn, hn:32, sabn@10), cuts for mean/variance (bn/en:32), or cuts to "
            "mix (in+ln+bn), or 0 for the mean (0/pn); suffixes may follow (.none, .sa@10, .hard)."
        )
