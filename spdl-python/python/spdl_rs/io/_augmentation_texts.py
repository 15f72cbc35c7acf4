"""Augmentations described by text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .. import _arguments as check

_Parts: TypeAlias = "dict[str, tuple[str, Callable[[str], Any]]]"

# Parts of timm's names of RandAugment and AugMix, the parameters of our classes, and their types.
_RAND: _Parts = {
    "n": ("num_ops", int),
    "m": ("magnitude", float),
    "mstd": ("magnitude_std", float),
    "mmax": ("magnitude_max", float),
    "inc": ("increasing", lambda digits: int(digits) != 0),
    "p": ("p", float),
}
_AUGMIX: _Parts = {
    "m": ("magnitude", float),
    "mstd": ("magnitude_std", float),
    "w": ("mixture_width", int),
    "d": ("chain_depth", int),
    "a": ("alpha", float),
    # Whether the chains are blended one after another: the result is the same but for rounding.
    "b": ("blended", int),
}
# timm draws magnitudes uniformly above this standard deviation.
_MAX_STD = 100


def described(name: str, text: str, classes: Mapping[str, Callable[..., Any]]) -> Any:
    """Returns the augmentation that a text describes. `name` is the argument that holds the text.

    Raises:
        ValueError: The text names no augmentation, or is not an expression of Python.
        TypeError, ValueError: The arguments in the text are not those of the class.
    """
    kind, _, rest = text.strip().partition("-")
    if kind == "rand":
        found = _of_timm(name, text, rest, _RAND, "RandAugment", "rand-m9-mstd0.5-inc1")
        if found.get("magnitude_std", 0) > _MAX_STD:
            found["magnitude_std"] = "uniform"
        return classes["TimmRandAugment"](**found)
    if kind == "augmix" and rest:
        found = _of_timm(name, text, rest, _AUGMIX, "AugMix", "augmix-m5-w4-d2")
        found.pop("blended", None)
        return classes["TimmAugMix"](**found)
    by_name = {known.lower(): made for known, made in classes.items()}
    by_name["trivialaugment"] = classes["TrivialAugmentWide"]
    return evaluated(name, text, by_name, tuple(classes))


def _of_timm(
    name: str, text: str, rest: str, parts: _Parts, kind: str, example: str
) -> dict[str, Any]:
    """The parameters in timm's name of a policy."""
    found: dict[str, Any] = {}
    for part in rest.split("-") if rest else ():
        key = part.rstrip("0123456789.")
        try:
            parameter, convert = parts[key]
            if parameter in found:
                raise ValueError
            found[parameter] = convert(part[len(key) :])
        except (KeyError, ValueError):
            known = ", ".join(parts)
            raise ValueError(
                f"{name}={check.shown(text)}: {part!r} is not a parameter of {kind}; expected each of "
                f'{known} at most once, and a number, as in "{example}"'
            ) from None
    return found


def evaluated(
    name: str, text: str, classes: Mapping[str, Callable[..., Any]], names: tuple[str, ...]
) -> Any:
    """Evaluates an expression of the classes, numbers, strings and tuples."""
    # Imported here, so that `import spdl_rs` stays fast.
    import ast

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(map(value, node.elts))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = value(node.operand)
            if isinstance(number, (int, float)):
                return -number
        if isinstance(node, ast.Name):
            return made(node)()
        if isinstance(node, ast.Call):
            options = {word.arg: value(word.value) for word in node.keywords if word.arg}
            if len(options) == len(node.keywords):
                return made(node.func)(*map(value, node.args), **options)
        raise ValueError(f"{name}={check.shown(text)}: expected names, numbers and tuples")

    def made(node: ast.expr) -> Callable[..., Any]:
        if isinstance(node, ast.Name) and node.id.lower() in classes:
            return classes[node.id.lower()]
        raise ValueError(
            f"{name}={check.shown(text)}: {ast.unparse(node)!r} is not an augmentation; expected "
            f'{", ".join(names)}, or RandAugment of timm, such as "rand-m9-mstd0.5-inc1"'
        )

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            f'{name}={check.shown(text)}: expected an expression such as "randaugment(2, 9)"'
        ) from None
