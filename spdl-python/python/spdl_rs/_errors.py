"""What can go wrong, as exceptions: one class per kind of the Rust error."""

from __future__ import annotations

from typing import Any


class SpdlError(Exception):
    """The base of all errors of this package.

    `str(error)` reads `stage: key: message (at byte N): cause`, each part where it is known.
    """

    key: str | None
    """The sample for which it happened, mostly a path. Bytes that are no text read `\\xff`."""
    stage: str | None
    """The stage of the pipeline in which it happened: `source`, `fetch`, `decode` or `upload`."""
    kind: str
    """The kind as in statistics: one lower-case word with hyphens, `truncated` say."""
    offset: int | None
    """The byte of the file at which it was noticed."""

    def __init__(
        self,
        message: str = "",
        *,
        kind: str = "user",
        key: str | None = None,
        stage: str | None = None,
        offset: int | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.stage = stage
        self.kind = kind
        self.offset = offset
        _fill_in_os_error(self, errno, message, key)

    def __str__(self) -> str:
        # An OSError would print its number and file name once more.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__, getattr(self, "errno", None))


class NotFoundError(SpdlError, FileNotFoundError):
    """The file or folder does not exist, or holds no images."""


class PermissionDeniedError(SpdlError, PermissionError):
    """It exists, but may not be read."""


class IoError(SpdlError, OSError):
    """The operating system or a device failed for another reason."""


class UnavailableError(SpdlError, OSError):
    """A service refused for now. Trying again later may help."""


class TimedOutError(SpdlError, TimeoutError):
    """Something took longer than it was allowed to. Trying again later may help."""


class ChangedError(SpdlError, OSError):
    """The file is another one than it was when reading it began. Trying again may help."""


class DataError(SpdlError, ValueError):
    """The file was read, but gives no image or array. Its subclasses say why."""


class CorruptError(DataError):
    """The data contradict their own format."""


class TruncatedError(DataError):
    """The data end before they should."""


class UnsupportedError(DataError):
    """Valid perhaps, but of a format, or with a feature, that is not supported."""


class LimitExceededError(DataError):
    """The image is larger than the limits of pixels and bytes allow."""


class InvalidArgumentError(SpdlError, ValueError):
    """The caller asked for something that makes no sense."""


class PanickedError(SpdlError, RuntimeError):
    """A stage panicked, which is a bug in it; the message is the panic's own."""


class StoppedError(SpdlError, RuntimeError):
    """The pipeline was stopped while this was under way."""


def interrupted() -> StoppedError:
    """What a loader's iterator raises once Ctrl-C has kept a batch from a loop."""
    return StoppedError(
        "the loader was stopped with a batch on its way; iterate it anew, from its state if it has one",
        kind="stopped",
    )


class InternalError(SpdlError, RuntimeError):
    """What should hold does not, which is a bug in SPDL."""


class CudaError(SpdlError, RuntimeError):
    """A call of the CUDA driver failed, or an earlier one on the same device; the message says what to
    do, and `kind` what sort of failure it is: `limit-exceeded` where the device's memory is full."""


class CudaUnavailable(CudaError):
    """There is no CUDA device that can be used here. `spdl_rs.cuda.status()` says what is missing."""


class CudaFallbackWarning(UserWarning):
    """Batches stay on the host, since `device="auto"` found no CUDA device."""


class DatasetWarning(UserWarning):
    """A file or folder was left out of a data set, or is not as one might think."""


_BY_KIND: dict[str, type[SpdlError]] = {
    "not-found": NotFoundError,
    "permission-denied": PermissionDeniedError,
    "io": IoError,
    "unavailable": UnavailableError,
    "timeout": TimedOutError,
    "changed": ChangedError,
    "corrupt": CorruptError,
    "truncated": TruncatedError,
    "unsupported": UnsupportedError,
    "limit-exceeded": LimitExceededError,
    "invalid-argument": InvalidArgumentError,
    "panicked": PanickedError,
    "stopped": StoppedError,
    "user": SpdlError,
    "internal": InternalError,
}

# Tracebacks shall show the name by which users catch them.
_OTHERS = [DataError, DatasetWarning, CudaError, CudaUnavailable, CudaFallbackWarning]
for _error in [*_BY_KIND.values(), *_OTHERS]:
    _error.__module__ = "spdl_rs"


def _fill_in_os_error(
    error: BaseException, errno: int | None, message: str, filename: str | None
) -> None:
    # `OSError` sets these only when it is made with its own arguments.
    if isinstance(error, OSError):
        error.errno = errno
        error.strerror = message
        error.filename = filename


def from_native(
    message: str,
    kind: str,
    key: str | None,
    stage: str | None,
    offset: int | None,
    errno: int | None,
    is_of_cuda: bool = False,
) -> SpdlError:
    """Makes the exception for an error of the native module, which calls this."""
    error = _BY_KIND.get(kind, SpdlError)
    # A device that does not exist is the caller's mistake, as any other argument.
    if is_of_cuda and kind != "invalid-argument":
        error = CudaUnavailable if kind in ("unsupported", "unavailable") else CudaError
    return error(message, kind=kind, key=key, stage=stage, offset=offset, errno=errno)


def _restore(
    error: type[SpdlError], args: tuple[Any, ...], state: dict[str, Any], errno: int | None
) -> SpdlError:
    restored = error(*args, kind=state["kind"], key=state["key"], errno=errno)
    restored.__dict__.update(state)
    return restored
