"""How a `Loader` groups samples by their number of tokens: its argument `group`.

| class | batch |
|---|---|
| `Pack` | whole samples, packed into sequences of one length with little padding |
| `ConcatAndSplit` | all samples one after another, split into sequences of one length |
| `Bucket` | samples of similar length: a list of arrays, or with `collate="pad"`, one padded array |
| `SameSize` | images of one size, of `spdl_rs.io.AspectBuckets` |

The tokens are a field `fields.Array(None, …)`: one row for each token, of any dtype and of any further
dimensions, such as the features of audio frames. Several fields with the same number of rows are grouped alike:
`Pack(["tokens", "targets"], length=2048)`.

Batches of `Pack` and `ConcatAndSplit` have these arrays, of which the first has the names of the token fields:

| name | value |
|---|---|
| `tokens` | `[batch_size, length, …]`, with `pad` after the last token of a sequence |
| `position_ids` | `int64 [batch_size, length]`: the position of each token in its sample, or in its part of a divided sample |
| `segment_ids` | `int32 [batch_size, length]`: the number of the sample in its sequence, from 1; 0 for padding |
| `cu_seqlens` | `int32 [parts + 1]`: the start of each sample in `tokens.reshape(-1)`, and the end of the last one |

`flash_attn_varlen_func` takes `cu_seqlens`, and the largest difference of its elements as `max_seqlen`. The padding
of a sequence is one more part, so that `cu_seqlens` ends with `batch_size * length`. A mask for attention within
samples is `segment_ids[:, :, None] == segment_ids[:, None, :]`. If a model predicts the next token, exclude the
places where `position_ids` is 0 from the loss of the previous token, and those where `segment_ids` is 0.

Other fields have one element for each sample, in the order of the sequences: `batch["key"]` is a list. A sample
that is split has an element for each of its parts.

The number of batches depends on the lengths, so `len(loader)` raises `TypeError`, and ranks may have different
numbers of batches: end an epoch when the first rank has no batch left. States are exact, as without `group`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, SupportsIndex, TypeAlias

from . import _arguments as check
from .io._native_settings import NativeSettings, set_frozen

__all__ = ["Bucket", "ConcatAndSplit", "Pack", "SameSize"]

Number: TypeAlias = "SupportsIndex | float"
Values: TypeAlias = "Number | Mapping[str, Number]"

_MOST_TOKENS = 2**31 - 1
_ADDED = ("position_ids", "segment_ids", "cu_seqlens")
_LONG = ("error", "truncate", "split")


class _Grouping(NativeSettings):
    """Base class of groupings."""

    tokens: str | Sequence[str]

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.tokens,) if isinstance(self.tokens, str) else tuple(self.tokens)

    @property
    def _packs(self) -> bool:
        """Whether batches consist of sequences of one length."""
        return True

    def _check_tokens(self) -> None:
        if not isinstance(self.tokens, str):
            set_frozen(self, tokens=tuple(check.names("tokens", self.tokens) or ()))

    def _values(self, name: str, values: Any) -> dict[str, float]:
        """Returns the value of each token field, from one value for all or a `dict`."""
        if not isinstance(values, Mapping):
            return dict.fromkeys(self._names, check.real(name, values))
        unknown = [one for one in values if one not in self._names]
        if unknown:
            raise ValueError(f"{name} has {check.shown(unknown[0])}, which is not in tokens")
        return {one: check.real(name, values.get(one, 0)) for one in self._names}

    def _native(self) -> tuple[str, dict[str, Any]]:
        kind, settings = super()._native()
        for name in ("pad", "separator"):
            if settings.get(name) is not None:
                settings[name] = self._values(name, settings[name])
        return kind, settings


@dataclass(frozen=True)
class Pack(_Grouping):
    """Packs whole samples into sequences of `length` tokens.

    Each sample is added to the fullest open sequence in which it fits. A sequence is complete if it is full, or
    if it is the fullest of more than `open_sequences`. With 64 open sequences and log-normal lengths (σ = 1),
    at least 97 % of the places are tokens if `length` is ten times the median length; longer samples leave more
    padding. `stats()["stages"]` has the share as `fill_rate` of the stage `pack`.

    Args:
        tokens: The name of the field, or a list of names of fields with the same number of rows.
        length: The length of a sequence in tokens.
        long: What happens to longer samples. `"error"`: they are errors, to which `on_error` applies.
            `"truncate"`: the tokens after the first `length` are removed, and `stats()["partial"]` counts such
            samples. `"split"`: each part of `length` tokens, and the rest, is packed like a sample. Samples without
            tokens are errors.
        pad: The value of padding, or a `dict` of values by field, such as `{"targets": -100}`. Default: 0.
        open_sequences: How many incomplete sequences exist. More reduce padding, and need more memory.
        max_samples: The maximum number of samples in a sequence; `None`: no limit.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    >>> import json, os, tempfile
    >>> from spdl_rs import Loader, fields, sequences
    >>> path = os.path.join(tempfile.mkdtemp(), "tokens.jsonl")
    >>> with open(path, "w") as file:
    ...     for tokens in ([1, 2, 3, 4], [5, 6, 7], [8, 9]):
    ...         print(json.dumps({"path": "text", "tokens": tokens}), file=file)
    >>> loader = Loader(
    ...     path,
    ...     batch_size=2,
    ...     tokens=fields.Array(None, "int64"),
    ...     group=sequences.Pack("tokens", length=6),
    ... )
    >>> batch = next(iter(loader))
    >>> batch["tokens"].tolist()
    [[1, 2, 3, 4, 8, 9], [5, 6, 7, 0, 0, 0]]
    >>> batch["cu_seqlens"].tolist()
    [0, 4, 6, 9, 12]
    """

    tokens: str | Sequence[str]
    _: KW_ONLY
    length: SupportsIndex
    long: Literal["error", "truncate", "split"] = "error"
    pad: Values = 0
    open_sequences: SupportsIndex = 64
    max_samples: SupportsIndex | None = None

    def __post_init__(self) -> None:
        self._check_tokens()
        check.choice("long", self.long, _LONG)
        self._values("pad", self.pad)
        most = self.max_samples
        set_frozen(
            self,
            length=check.whole("length", self.length, 1, _MOST_TOKENS),
            open_sequences=check.whole("open_sequences", self.open_sequences, 1, 2**20),
            max_samples=None if most is None else check.whole("max_samples", most, 1, _MOST_TOKENS),
        )


@dataclass(frozen=True)
class ConcatAndSplit(_Grouping):
    """Concatenates all samples and splits the result into sequences of `length` tokens.

    A sample may start in one sequence and continue in the next. The last sequence of an epoch has padding, or
    with `drop_last=True` of the loader, it is left out.

    Args:
        tokens: The name of the field, or a list of names of fields with the same number of rows. Samples without
            tokens are errors.
        length: The length of a sequence in tokens.
        separator: The token after each sample, such as the end of a text, or a `dict` of tokens by field.
            `None`: no separator.
        pad: See `Pack`.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    >>> from spdl_rs import sequences
    >>> group = sequences.ConcatAndSplit("tokens", length=2048, separator=50256)
    """

    tokens: str | Sequence[str]
    _: KW_ONLY
    length: SupportsIndex
    separator: Values | None = None
    pad: Values = 0

    def __post_init__(self) -> None:
        self._check_tokens()
        self._native()
        set_frozen(self, length=check.whole("length", self.length, 1, _MOST_TOKENS))


@dataclass(frozen=True)
class Bucket(_Grouping):
    """Batches samples of similar length.

    A bucket contains the samples in a range of lengths; a batch is complete if it has `batch_size` samples, or if
    a further sample would exceed `max_tokens`. Batches have the values of a loader without `group`: by default, a list
    of arrays; with `fields.Array(None, "int64", collate="pad")`, sequences are padded to the longest of the batch.

    Args:
        tokens: The name of the field that determines the length, or a list of names of fields with the same number
            of rows.
        max_tokens: The maximum of samples × longest sample of a batch; `None`: no maximum.
        boundaries: The upper bounds of the buckets, ascending. A further bucket has all longer samples. Up to
            `batch_size` samples are held for each bucket. `None`: four buckets for each doubling of the length,
            from 16 to 65,536.
        length: The maximum length of a sample; by default `max_tokens`.
        long: What happens to longer samples: see `Pack`.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    >>> from spdl_rs import sequences
    >>> group = sequences.Bucket("tokens", max_tokens=16_384)
    """

    tokens: str | Sequence[str]
    _: KW_ONLY
    max_tokens: SupportsIndex | None = None
    boundaries: Sequence[Number] | None = None
    length: SupportsIndex | None = None
    long: Literal["error", "truncate", "split"] = "error"

    def __post_init__(self) -> None:
        self._check_tokens()
        check.choice("long", self.long, _LONG)
        most = None
        if self.max_tokens is not None:
            most = check.whole("max_tokens", self.max_tokens, 1, _MOST_TOKENS)
        length = most
        if self.length is not None:
            length = check.whole("length", self.length, 1, most or _MOST_TOKENS)
        bounds = self.boundaries
        if bounds is not None:
            listed = check.listed("boundaries", bounds, "a list of numbers")
            bounds = tuple(check.real("boundaries", one) for one in listed)
            pairs = zip(bounds, bounds[1:])
            if not all(one > 0 for one in bounds) or any(one >= other for one, other in pairs):
                raise ValueError(f"boundaries must be positive and ascend, not {bounds!r}")
        set_frozen(self, max_tokens=most, boundaries=bounds, length=length)

    @property
    def _packs(self) -> bool:
        return False


@dataclass(frozen=True)
class SameSize(NativeSettings):
    """Batches images of the same size: aspect ratio buckets, as for Stable Diffusion.

    The image has `crop=AspectBuckets(...)`. Its value is one array `[N, …]`, and so are masks and depth maps that
    follow it; the sizes of batches differ. The size is determined from the header of the file, so that an image is
    decoded once, to its final size. Up to `batch_size` decoded samples are held for each size. A sample that lacks an
    optional image has zeros, in a batch of the first size; the size is 0 if all samples of the batch lack it.

    Args:
        image: The name of the image in the batch.

    >>> from spdl_rs import sequences
    >>> group = sequences.SameSize("image")
    """

    image: str = "image"
    _packs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.text("image", self.image)
