"""Exceptions: one class for each error kind of the Rust crates."""

from __future__ import annotations

import sys
import warnings
from typing import Any


class SpdlError(Exception):
    """Base class of the exceptions of `spdl_rs` itself. `PipelineFailure` and `WorkerError` are not subclasses.

    `str(error)` has the form `stage: key: message (at byte N): cause`. Unknown parts are omitted.
    """

    key: str | None
    """The key of the sample that failed, usually a path. Bytes that are not UTF-8 appear as `\\xff`."""
    stage: str | None
    """The name of the stage that failed, as in statistics, for example `fetch` or `decode`."""
    kind: str
    """The error kind as in statistics, for example `truncated` or `not-found`."""
    offset: int | None
    """The byte offset in the file at which the error was detected."""

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
        # `OSError.__str__` would repeat the error number and the file name.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__, getattr(self, "errno", None))


class NotFoundError(SpdlError, FileNotFoundError):
    """The file or folder does not exist or contains no images."""


class PermissionDeniedError(SpdlError, PermissionError):
    """This process has no permission to read the file, folder or object."""


class IoError(SpdlError, OSError):
    """An input/output error that has no more specific class."""


class UnavailableError(SpdlError, OSError):
    """The service is temporarily unavailable. A retry may succeed."""


class TimedOutError(SpdlError, TimeoutError):
    """An operation exceeded its time limit. A retry may succeed."""


class ChangedError(SpdlError, OSError):
    """The file changed while it was read. A retry may succeed."""


class DataError(SpdlError, ValueError):
    """The file was read, but cannot be decoded. Subclasses give the reason."""


class CorruptError(DataError):
    """The data contradict the specification of their format."""


class TruncatedError(DataError):
    """The data end before the end that the format specifies."""


class UnsupportedError(DataError):
    """The format, or a feature of it, is not supported."""


class LimitExceededError(DataError):
    """A limit is exceeded, for example the bytes of a file, the pixels of an image, or the usable memory."""


class TooManyFailuresError(SpdlError, RuntimeError):
    """More samples failed than the failure policy `on_error` allows.

    The message names the limit and the first failures. `__cause__` is the failure that exceeded the limit. Its sample
    is not dropped: a run that resumes reads it again. `__cause__` is `None` if the share was exceeded at the end of the
    epoch.
    """


class InvalidArgumentError(SpdlError, ValueError):
    """An argument is invalid, or arguments are inconsistent."""


class PanickedError(SpdlError, RuntimeError):
    """A stage panicked in Rust, which is a bug in the stage. The panic message is the error message."""


class StoppedError(SpdlError, RuntimeError):
    """The pipeline was stopped during the operation."""


class ForkedProcessError(SpdlError, RuntimeError):
    """A forked child process used what only its parent can use, such as a running pipeline."""

    def __init__(self, message: str = "", *, kind: str = "stopped", **options: Any) -> None:
        super().__init__(message, kind=kind, **options)


def interrupted() -> StoppedError:
    """Returns the exception for an iterator that lost a batch because of Ctrl-C."""
    return StoppedError(
        "the loader was stopped by Ctrl-C while it delivered a batch; create a new iterator, or resume "
        "from a checkpoint state",
        kind="stopped",
    )


class InternalError(SpdlError, RuntimeError):
    """An internal invariant does not hold, which is a bug in SPDL."""


class CudaError(SpdlError, RuntimeError):
    """A call of the CUDA driver, of a CUDA library or of an allocator failed.

    The message names the remedy. If the device memory is full, `kind` is `limit-exceeded`.
    """


class CudaUnavailable(CudaError):
    """No usable CUDA device, or a library such as nvJPEG is missing. See `spdl_rs.cuda.status()`."""


class CudaFallbackWarning(UserWarning):
    """`device="auto"` found no CUDA device or no nvJPEG, or NVDEC with `fallback=True` cannot decode a video, so the
    host is used instead."""


class DatasetWarning(UserWarning):
    """A data set was opened, but files are ignored, labels are missing, or no batch remains."""


class MediaError(SpdlError, RuntimeError):
    """FFmpeg could not read, decode or write media. Errors of `spdl_rs.io` with a more specific class are also of
    that class, such as `CorruptError`."""


_BY_KIND: dict[str, type[SpdlError]] = {
    "not-found": NotFoundError,
    "permission-denied": PermissionDeniedError,
    "io": IoError,
    "unavailable": UnavailableError,
    "timeout": TimedOutError,
    "changed": ChangedError,
    "missing-value": NotFoundError,
    "corrupt": CorruptError,
    "truncated": TruncatedError,
    "unsupported": UnsupportedError,
    "limit-exceeded": LimitExceededError,
    "too-many-failures": TooManyFailuresError,
    "invalid-argument": InvalidArgumentError,
    "panicked": PanickedError,
    "stopped": StoppedError,
    "user": SpdlError,
    "internal": InternalError,
}

# Tracebacks show the public name, by which users catch the exceptions.
_OTHERS = [DataError, DatasetWarning, ForkedProcessError, MediaError]
_OTHERS += [CudaError, CudaUnavailable, CudaFallbackWarning]
for _error in [*_BY_KIND.values(), *_OTHERS]:
    _error.__module__ = "spdl_rs"


def _media_error(error: type[SpdlError]) -> type[MediaError]:
    # A class of the module, so that its instances can be pickled.
    made = type(f"Media{error.__name__}", (MediaError, error), {"__doc__": error.__doc__})
    made.__module__ = __name__
    globals()[made.__name__] = made
    return made


_MEDIA_ERRORS = {kind: _media_error(error) for kind, error in _BY_KIND.items() if error is not SpdlError}


def of_media(error: SpdlError) -> MediaError:
    """Returns an error of the same kind that is also a `MediaError`. The native module calls this function."""
    media_error = _MEDIA_ERRORS.get(error.kind, MediaError)
    return media_error(
        str(error),
        kind=error.kind,
        key=error.key,
        stage=error.stage,
        offset=error.offset,
        errno=getattr(error, "errno", None),
    )


def _fill_in_os_error(
    error: BaseException, errno: int | None, message: str, filename: str | None
) -> None:
    # `OSError` sets these attributes only if its constructor receives them.
    if isinstance(error, OSError):
        error.errno = errno
        error.strerror = message
        error.filename = filename


def of_kind(kind: str) -> type[SpdlError]:
    """Returns the class of errors of a kind, such as `corrupt`."""
    return _BY_KIND.get(kind, SpdlError)


def from_native(
    message: str,
    kind: str,
    key: str | None,
    stage: str | None,
    offset: int | None,
    errno: int | None,
    is_of_cuda: bool = False,
) -> SpdlError:
    """Makes the exception for an error of the native module. The native module calls this function."""
    error = of_kind(kind)
    # A device number that does not exist is an invalid argument, not a CUDA failure.
    if is_of_cuda and kind != "invalid-argument":
        error = CudaUnavailable if kind in ("unsupported", "unavailable") else CudaError
    return error(message, kind=kind, key=key, stage=stage, offset=offset, errno=errno)


def _restore(
    error: type[SpdlError], args: tuple[Any, ...], state: dict[str, Any], errno: int | None
) -> SpdlError:
    restored = error(*args, kind=state["kind"], key=state["key"], errno=errno)
    restored.__dict__.update(state)
    return restored


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issues a warning to the code that called this package."""
    package, level = __name__.partition(".")[0], 1
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
