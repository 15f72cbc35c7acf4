"""WAV files."""

from __future__ import annotations

from typing import Any

import numpy
import numpy.typing

from .._spdl_rs import WAVHeader
from ._buffer import Buffer, view_of

# NumPy has no 24-bit integers.
_24_BITS = "<i3"


def parse_wav(data: Buffer) -> WAVHeader:
    """Returns the header of a WAV file.

    Args:
        data: The file: `bytes` or another object with the buffer protocol.

    Raises:
        TruncatedError: The file is truncated, in the header or in the samples.
        CorruptError: The data are not a WAV file, or inconsistent.
        UnsupportedError: The byte order is big-endian (RIFX).
        TypeError: `data` does not support the buffer protocol.
        ValueError: `data` is not contiguous. All errors about data are subclasses of `ValueError`.

    >>> import io, wave
    >>> file = io.BytesIO()
    >>> with wave.open(file, "wb") as out:
    ...     out.setparams((2, 2, 8000, 0, "NONE", None))
    ...     out.writeframes(bytes(12))
    >>> parse_wav(file.getvalue())
    WAVHeader(audio_format=1, num_channels=2, sample_rate=8000, bits_per_sample=16, num_frames=3)
    """
    return WAVHeader(data)


def load_wav(
    data: Buffer,
    time_offset_seconds: float | None = None,
    duration_seconds: float | None = None,
) -> numpy.typing.NDArray[Any]:
    """Returns the samples of a WAV file, or of a part of it: `[frames, channels]`.

    Samples other than 24-bit PCM keep their type, and the array is a view that keeps `data` alive and is
    writable if `data` is. The types are:

    - PCM: `uint8` (silence is 128), `int16`, and `int32`;
    - 24-bit PCM: `int32`, shifted to the upper bits, so that full scale is preserved. The samples are copied,
      because NumPy has no 24-bit integers;
    - floating point: `float32` and `float64`.

    Supported containers are RIFF, RF64, BW64 and Wave64, with plain or extensible format chunks. If the header does not
    give the size of the samples, the samples extend to the end of the file.

    Args:
        data: The file: `bytes` or another object with the buffer protocol.
        time_offset_seconds: The start of the part. Default: the first frame.
        duration_seconds: The length of the part. Default, and for longer durations: to the last frame.
            Boundaries are rounded down to whole frames.

    Raises:
        TruncatedError: The file is truncated, in the header or in the samples.
        CorruptError: The data are not a WAV file, or inconsistent.
        UnsupportedError: The sample format is not supported: A-law, µ-law, ADPCM and so on.
        InvalidArgumentError: A time is negative or not finite, or the part starts after the last frame.
        TypeError: `data` does not support the buffer protocol.
        ValueError: `data` is not contiguous. All errors about data are subclasses of `ValueError`.

    >>> import io, wave
    >>> file = io.BytesIO()
    >>> with wave.open(file, "wb") as out:
    ...     out.setparams((1, 2, 8000, 0, "NONE", None))
    ...     out.writeframes(bytes(16000))
    >>> samples = load_wav(file.getvalue(), time_offset_seconds=0.5, duration_seconds=0.25)
    >>> samples.shape, samples.dtype
    ((2000, 1), dtype('int16'))
    """
    header = WAVHeader(data)
    dtype, start, frames = header._stretch(time_offset_seconds, duration_seconds)
    shape = (frames, header.num_channels)
    if dtype == _24_BITS:
        widened = header._widened(data, start, frames)
        return numpy.asarray(widened).view("<i4").reshape(shape)
    # The array keeps a `memoryview` of the data, so that a `bytearray` cannot be resized.
    samples = numpy.frombuffer(view_of(data), dtype, frames * header.num_channels, start)
    return samples.reshape(shape)
