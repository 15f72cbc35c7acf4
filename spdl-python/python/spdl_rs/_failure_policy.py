"""The failure policy of loaders: the argument `on_error`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias

from ._arguments import whole


# Distinct from every float that a caller passes, so that `skip` recognises its default.
_USUAL_SHARE = float("0.01")


class Skip(NamedTuple):
    """A failure policy that drops failed samples up to a limit, created by `skip`."""

    at_most: int | float | None
    """The largest number (int) or share (float) of failed samples of an epoch; `None`: no limit."""
    after: int
    """A share applies from this number of samples on."""
    at_end: bool = False
    """Whether a share also applies at the end of an epoch with fewer samples."""


OnError: TypeAlias = "Literal['raise', 'skip'] | Skip"


def skip(
    *, at_most: SupportsIndex | float | None = _USUAL_SHARE, after: SupportsIndex | None = None
) -> Skip:
    """Returns a failure policy for the argument `on_error` of loaders: drop failed samples, up to a limit.

    If the limit is exceeded, the epoch ends with `TooManyFailuresError`, which names the first failures. `"skip"`
    is the same as `skip()`. A resumed epoch counts from the state from which it resumes.

    Args:
        at_most: The largest number of failed samples of an epoch, if an int. The largest share of the samples
            read so far, if a float in (0, 1]; reading is up to a few hundred samples ahead of the batches. The
            share is checked at each failure and at the end of the epoch. `None`: no limit. An epoch of which
            all samples failed ends with an exception in any case.
        after: A share is checked only after this number of samples, so that a few failures at the start do not
            end the epoch. `None`: 1000, and a share that you pass as `at_most` is also checked at the end of an
            epoch with fewer samples. Has no effect on a number.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.

    >>> import spdl_rs
    >>> policy = spdl_rs.skip(at_most=0.02)
    >>> loader = spdl_rs.ImageLoader("photos", batch_size=4, size=32, on_error=policy)
    >>> len(list(loader))
    1
    """
    limit = _limit(at_most)
    if after is not None:
        return Skip(limit, whole("after", after, 0, 2**63 - 1))
    return Skip(limit, 1000, at_end=isinstance(limit, float) and limit is not _USUAL_SHARE)


def _limit(at_most: Any) -> int | float | None:
    if at_most is None:
        return None
    if isinstance(at_most, float):
        if not 0 < at_most <= 1:
            raise ValueError(
                f"at_most must be in (0, 1] if it is a share of samples, not {at_most}; pass an int for a "
                "number of samples"
            )
        return at_most
    if isinstance(at_most, bool):
        raise TypeError(f"at_most must be an int, a float or None, not {at_most}")
    return whole("at_most", at_most, 0, 2**62)


def max_failures(on_error: object, name: str = "on_error") -> int | tuple[float, int, bool] | None:
    """Returns a failure policy in the engine's form; `None` for `"raise"`.

    Raises:
        ValueError: `on_error` is not a failure policy.
    """
    if isinstance(on_error, str) and on_error in ("raise", "skip"):
        if on_error == "raise":
            return None
        on_error = skip()
    if not isinstance(on_error, Skip):
        raise ValueError(f'{name} must be "raise", "skip" or skip(...), not {on_error!r}')
    if on_error.at_most is None:
        return -1
    if isinstance(on_error.at_most, float):
        return on_error.at_most, on_error.after, on_error.at_end
    return on_error.at_most
