"""WAV files."""

from __future__ import annotations

from typing import Any

import numpy
import numpy.typing

from .._spdl_rs import WAVHeader
from ._buffer import Buffer, view_of

# Which NumPy does not have.
_24_BITS = "<i3"


def parse_wav(data: Buffer) -> WAVHeader:
    """What a WAV file says of its samples.

    Args:
        data: The file: `bytes` or anything else that shows its memory.

    Raises:
        TruncatedError: The file is cut, be it in the samples.
        CorruptError: It is no WAV file, or contradicts itself.
        UnsupportedError: It has the most significant byte first (RIFX).
        TypeError: `data` does not show its memory.
        ValueError: That is not in one piece. The errors about data are of this type, too.

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
    """The samples of a WAV file, or of a stretch of it: `[frames, channels]`.

    They are as they are stored, a view of `data`, which they keep alive, and may be written to where
    `data` may:

    - PCM: `uint8` (silence is 128), `int16`, and `int32`;
    - PCM of 24 bits, which NumPy does not have: `int32`, of which they are the upper bits, so that
      full scale stays full scale. These are a copy, in memory of its own;
    - floating point: `float32` and `float64`.

    Files of the formats RIFF, RF64 and BW64 are read, also where their format is "extensible". Where
    the size of the samples was not known when the file was written, they go to the end of the file.

    Args:
        data: The file: `bytes` or anything else that shows its memory.
        time_offset_seconds: Where the stretch starts. Default: with the first frame.
        duration_seconds: How long it is. Default: to the end. A stretch that is longer ends with the
            file. Each boundary is the frame that begins there, or last before it.

    Raises:
        TruncatedError: The file is cut, be it in the samples.
        CorruptError: It is no WAV file, or contradicts itself.
        UnsupportedError: The samples are others: A-law, µ-law, ADPCM and so on.
        InvalidArgumentError: A time is negative or no finite number, or the stretch starts behind the
            last frame.
        TypeError: `data` does not show its memory.
        ValueError: That is not in one piece. The errors above are of this type, too.

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
    # This keeps a `memoryview` of the data, so that a `bytearray` cannot move it.
    samples = numpy.frombuffer(view_of(data), dtype, frames * header.num_channels, start)
    return samples.reshape(shape)
