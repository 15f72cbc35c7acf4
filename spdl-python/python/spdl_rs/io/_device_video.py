"""Videos that are decoded on a CUDA device, by NVDEC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .. import _arguments as check
from .. import _spdl_rs
from .._errors import CorruptError
from ._buffer import Buffer
from ._device_decoders import decoders_of, decoders_of_array, placed, size_of
from ._transfer import CUDAConfig

if TYPE_CHECKING:
    from ..cuda import DeviceArray

Packet: TypeAlias = "Buffer | tuple[Buffer, int]"
VideoData: TypeAlias = "Buffer | Iterable[Packet]"
Codec: TypeAlias = Literal[
    "h264", "hevc", "h265", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video", "mpeg4"
]

_ALL = 2**63 - 1
_MOST_CROPPED = 2**24
# Codes of `matrix_coefficients` (ITU-T H.273) that are matrices of luma and two differences.
_MATRICES = (1, 2, 4, 5, 6, 7, 9)
_BYTES = (bytes, bytearray, memoryview)


class NvDecDecoder:
    """Decodes videos on a CUDA device, one after the other; made by `nvdec_decoder`.

    `init_buffer` says how many frames an array holds at most. `decode_packets` takes packets and gives the
    frames that have come so far, `flush` ends the video and gives the last ones; `streaming_decode_packets`
    does both. Frames come in the order in which they are shown, some packets later than theirs. Their
    arrays are for the stream of the `device_config`, which waits for them; nobody else does.

    A frame that the device calls damaged raises `CorruptError`, with its number in `error.key`; nothing is
    made up. The other frames can still be taken, by `flush` say. Any other error ends the video: make another
    decoder then.

    Threads may not share a decoder's video; each has a decoder of its own, and all share what is expensive.
    """

    def __init__(
        self,
        decoder: _spdl_rs.VideoDecoder,
        wanted: tuple[str, tuple[int, int, int, int], tuple[int, int] | None],
        stream: int,
    ) -> None:
        self._decoder = decoder
        self._wanted = wanted
        self._stream = stream
        self._most = _ALL

    def init_buffer(self, num_frames: int) -> None:
        """Says how many frames an array holds at most. The video so far has ended then, and its frames that
        nobody has taken are let go of.

        Nothing is allocated: memory is taken for as many frames as there are.

        Raises:
            ValueError: `num_frames` is below 1.
        """
        self._most = check.whole("num_frames", num_frames, 1, _ALL)
        self._decoder.forget()

    def decode_packets(self, packets: VideoData) -> DeviceArray | None:
        """Takes packets; gives frames that are decoded, in one array.

        Args:
            packets: The bytes of a stream: H.264 or HEVC with start codes (annex B), or an IVF file. Or
                packets, one picture each: bytes, or pairs of those and a timestamp.

        Returns:
            `uint8 [n, height * 3 / 2, width]` for `pix_fmt="nv12"` (`uint16` for videos of more than 8 bits,
            with the bits at the top), `uint8 [n, 3, height, width]` for `"rgb"` and `"bgr"`. `None`
            where no frame has come yet. Where there are more than `init_buffer` said, they stay for the
            next call.

        Raises:
            UnsupportedError: The device does not decode this video, or its frames are no NV12.
            CorruptError: A frame is damaged, or the video contradicts itself.
            LimitExceededError: The frames are too large.
            CudaError: The device's memory is full, or it fails for another reason.
            ValueError: Frames differ in size, or the crop leaves nothing of them.
            TypeError: A packet is none.
        """
        for _ in self._pushed(packets):
            pass
        return self._taken()

    def flush(self) -> DeviceArray | None:
        """Ends the video, and gives its last frames, as `decode_packets` does. Packets of another video of
        this codec may follow.

        Raises:
            As of `decode_packets`.
        """
        self._decoder.finish()
        return self._taken()

    def streaming_decode_packets(self, packets: VideoData) -> Iterator[DeviceArray]:
        """Decodes a whole video; gives arrays of as many frames as `init_buffer` said, and what is left.

        Packets are taken as arrays are asked for, so that only few frames are in memory. Whoever stops before
        the last array ends the video, and its other frames are let go of; so does what `packets` raises.

        Raises:
            As of `decode_packets`, while it is iterated. Behind `CorruptError` the other frames can still be
            taken, by `flush`.
        """
        try:
            for waiting in self._pushed(packets):
                while waiting >= self._most:
                    waiting -= self._most
                    frames = self._taken()
                    if frames is not None:
                        yield frames
            self._decoder.finish()
            while (frames := self._taken()) is not None:
                yield frames
        except CorruptError:
            raise
        except BaseException:
            self._decoder.forget()
            raise

    def _pushed(self, packets: VideoData) -> Iterator[int]:
        """How many frames are there, after each packet."""
        if isinstance(packets, _BYTES):
            whole = memoryview(packets).cast("B")
            for start, end, timestamp in self._decoder.cut(packets):
                yield self._decoder.push(whole[start:end], timestamp)
            return
        try:
            several = iter(packets)
        except TypeError:
            wanted = "bytes, or packets one by one"
            raise TypeError(f"packets must be {wanted}, not {check.shown(packets)}") from None
        for packet in several:
            data, timestamp = packet if isinstance(packet, tuple) else (packet, None)
            if timestamp is not None:
                timestamp = check.whole("a timestamp", timestamp, -(2**63), 2**63 - 1)
            yield self._decoder.push(data, timestamp)

    def _taken(self) -> DeviceArray | None:
        taken = self._decoder.take(self._most, self._wanted)
        if taken is None:
            return None
        memory, shape, is_wide = taken
        return placed(memory, shape, "uint16" if is_wide else "uint8", self._stream)


def nvdec_decoder(
    device_config: CUDAConfig | None,
    codec: Codec,
    *,
    use_cache: bool = True,
    crop_left: int = 0,
    crop_top: int = 0,
    crop_right: int = 0,
    crop_bottom: int = 0,
    scale_width: int = -1,
    scale_height: int = -1,
    pix_fmt: Literal["nv12", "rgb", "bgr"] = "nv12",
) -> NvDecDecoder:
    """A decoder of videos on a CUDA device.

    Args:
        device_config: On which device, and for which stream, as of `cuda_config`. `None`: the device that
            the environment variable `LOCAL_RANK` numbers, or else device 0, and the default stream of this
            thread.
        codec: How the video is coded. What a device decodes of it shows when its headers are read.
        use_cache: Whether decoders of videos that have ended are used for this one, where they are of
            nearly the same size, and the other way round: to make one takes a while.
        crop_left, crop_top, crop_right, crop_bottom: Columns and rows that are cut off, before all else.
        scale_width, scale_height: What is left is resized to this, with `"rgb"` and `"bgr"`. -1 for both: it
            keeps its size.
        pix_fmt: What frames become. `"nv12"`: as they are decoded, with sides that are even. `"rgb"` and
            `"bgr"`: planes of colours, by the matrix and the range that the video says.

    Raises:
        CudaUnavailable: There is no CUDA device, or no NVDEC.
        CudaError: The driver refuses for another reason.
        ValueError: An argument is out of range, or frames of NV12 are to be resized.
        TypeError: An argument is of the wrong type.

    >>> decoder = nvdec_decoder(cuda_config(0), "h264", pix_fmt="rgb")  # doctest: +SKIP
    >>> decoder.init_buffer(32)  # doctest: +SKIP
    >>> for frames in decoder.streaming_decode_packets(data):  # doctest: +SKIP
    ...     print(frames.shape)
    (32, 3, 1080, 1920)
    (7, 3, 1080, 1920)
    >>> nvdec_decoder(None, "h264", scale_width=320, scale_height=240)
    Traceback (most recent call last):
    ValueError: frames of NV12 are not resized: scale_width goes with pix_fmt="rgb"
    """
    check.choice("pix_fmt", pix_fmt, ("nv12", "rgb", "bgr"))
    check.flag("use_cache", use_cache)
    if not isinstance(codec, str):
        raise TypeError(f'codec must be "h264" or another name, not {check.shown(codec)}')
    sides = {"left": crop_left, "top": crop_top, "right": crop_right, "bottom": crop_bottom}
    left, top, right, bottom = (
        check.whole(f"crop_{side}", count, 0, _MOST_CROPPED) for side, count in sides.items()
    )
    size = size_of(scale_width, scale_height)
    if size is not None and pix_fmt == "nv12":
        raise ValueError('frames of NV12 are not resized: scale_width goes with pix_fmt="rgb"')
    decoders, stream = decoders_of(device_config)
    decoder = _spdl_rs.VideoDecoder(decoders, codec, use_cache)
    return NvDecDecoder(decoder, (pix_fmt, (left, top, right, bottom), size), stream)


def decode_packets_nvdec(
    packets: VideoData,
    *,
    device_config: CUDAConfig | None = None,
    codec: Codec | None = None,
    pix_fmt: Literal["rgb", "bgr"] = "rgb",
    crop_left: int = 0,
    crop_top: int = 0,
    crop_right: int = 0,
    crop_bottom: int = 0,
    scale_width: int = -1,
    scale_height: int = -1,
) -> DeviceArray:
    """Decodes a whole video on a CUDA device: `uint8 [frames, 3, height, width]`.

    Colours follow the matrix and the range that the video says; where it says none, BT.709 from 720 rows
    on, and BT.601 below. Samples of 8 to 12 bits, 4:2:0 and 4:4:4 become what they are worth, and odd sides
    stay whole.

    All frames are in the device's memory at once. For longer videos, see
    `NvDecDecoder.streaming_decode_packets`.

    Args:
        packets: As of `NvDecDecoder.decode_packets`.
        device_config, crop_left, crop_top, crop_right, crop_bottom, scale_width, scale_height: As of
            `nvdec_decoder`.
        codec: How it is coded. `None`: as the IVF file says, which `packets` is then.
        pix_fmt: `"rgb"` or `"bgr"`.

    Raises:
        ValueError: `codec` is missing, the video has no frame, or an argument is out of range.
        As of `nvdec_decoder` and `NvDecDecoder.decode_packets`.

    >>> frames = decode_packets_nvdec(file.read(), codec="hevc", pix_fmt="bgr")  # doctest: +SKIP
    >>> frames.shape  # doctest: +SKIP
    (250, 3, 720, 1280)
    """
    check.choice("pix_fmt", pix_fmt, ("rgb", "bgr"))
    decoder = nvdec_decoder(
        device_config,
        _codec(packets) if codec is None else codec,
        crop_left=crop_left,
        crop_top=crop_top,
        crop_right=crop_right,
        crop_bottom=crop_bottom,
        scale_width=scale_width,
        scale_height=scale_height,
        pix_fmt=pix_fmt,
    )
    for _ in decoder._pushed(packets):
        pass
    frames = decoder.flush()
    if frames is None:
        raise ValueError("the packets hold no frame")
    return frames


def nv12_to_rgb(
    buf: DeviceArray,
    *,
    device_config: CUDAConfig | None = None,
    coeff: int = 1,
    full_range: bool = False,
    sync: bool = False,
) -> DeviceArray:
    """Makes colours of frames of NV12 on a CUDA device: planes of red, green and blue, `uint8`.

    Every byte is the nearest to what the definition of the matrix gives, also at the edges. (SPDL's own
    multiplies chroma by 255 / 219 where limited range has 255 / 224, so that its colours are 2.3 % too
    strong: up to 5 levels.)

    Args:
        buf: `uint8 [height * 3 / 2, width]`, or `[n, height * 3 / 2, width]`, with even sides: luma, and
            below it rows of Cb and Cr side by side. Or `uint16`, as of videos with more than 8 bits, with the
            bits at the top. They are taken as 16 bits, of which 65,535 is white with `full_range`; that of 10
            bits is 65,472, so that colours are up to 0.1 % too dark, which is a level here and there. Without
            `full_range` samples of any number of bits are taken for what they are worth.
        device_config: For which stream the result is; what that was told so far, to write `buf` say, is done
            before. `None`: the default stream of this thread. Its allocator is not asked: memory comes from
            where that of `buf` does.
        coeff: The matrix, as `matrix_coefficients` of ITU-T H.273: 1 is BT.709; 5 and 6 BT.601; 4 FCC; 7 SMPTE
            240M; 9 BT.2020; 2, not known, BT.709 from 720 rows on and BT.601 below.
        full_range: Whether all codes are used, and not 16 to 235 and 240.
        sync: Whether to wait until it is done.

    Returns:
        `uint8 [3, height, width]`, or `[n, 3, height, width]`.

    Raises:
        CudaError: The device's memory is full, or it fails for another reason.
        ValueError: `buf` is no array of this kind, `coeff` no such matrix, or `buf` on another device
            than `device_config` says.
        TypeError: `buf` is no `DeviceArray`.

    >>> nv12 = transfer_tensor(numpy.zeros((48, 64), "u1"))  # doctest: +SKIP
    >>> nv12_to_rgb(nv12, coeff=6).shape  # doctest: +SKIP
    (3, 32, 64)
    """
    return _converted(buf, device_config, coeff, full_range, sync, "rgb")


def nv12_to_bgr(
    buf: DeviceArray,
    *,
    device_config: CUDAConfig | None = None,
    coeff: int = 1,
    full_range: bool = False,
    sync: bool = False,
) -> DeviceArray:
    """The same as `nv12_to_rgb`, with the planes in the order blue, green, red."""
    return _converted(buf, device_config, coeff, full_range, sync, "bgr")


def _converted(
    buf: DeviceArray,
    config: CUDAConfig | None,
    coeff: int,
    full_range: bool,
    sync: bool,
    pix_fmt: str,
) -> DeviceArray:
    from ..cuda import DeviceArray

    if not isinstance(buf, DeviceArray):
        raise TypeError(f"buf must be a DeviceArray, not {check.shown(buf)}")
    if check.whole("coeff", coeff, 0, 255) not in _MATRICES:
        raise ValueError(f"coeff must be one of {_MATRICES}, not {coeff}")
    full_range = check.flag("full_range", full_range)
    frames = (1, *buf.shape) if buf.ndim == 2 else buf.shape
    is_sound = buf.dtype in ("uint8", "uint16") and len(frames) == 3 and buf.size > 0
    if not is_sound or frames[1] % 3 or frames[2] % 2:
        raise ValueError(
            "buf must be uint8 or uint16 [height * 3 / 2, width] with even sides, or several such "
            f"frames, not {buf.dtype} {list(buf.shape)}"
        )
    decoders, stream = decoders_of_array(buf, config)
    memory, shape = decoders.nv12(
        buf._memory,
        buf._offset,
        (frames[0], frames[1] // 3 * 2, frames[2]),
        buf.dtype == "uint16",
        (coeff, full_range),
        pix_fmt,
        stream,
    )
    converted = placed(memory, shape[1:] if buf.ndim == 2 else shape, "uint8", stream)
    if check.flag("sync", sync):
        converted.wait()
    return converted


def _codec(packets: Any) -> Any:
    """The codec that an IVF file says."""
    found = _spdl_rs.VideoDecoder.codec_of_ivf(packets) if isinstance(packets, _BYTES) else None
    if found is None:
        raise ValueError('codec must be "h264", say: only IVF files say it themselves')
    return found
