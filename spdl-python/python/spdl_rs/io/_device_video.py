"""Decoding of video on a CUDA device with NVDEC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

from .. import _arguments as check
from .. import _spdl_rs
from .._errors import CorruptError, CudaUnavailable, UnsupportedError
from ._buffer import Buffer
from ._decoding import Decoder, convert_frames, decode_packets
from ._demuxing import BSF, Demuxer, Source, apply_bsf
from ._device_decoders import decoders_of, decoders_of_array, placed, size_of
from ._media_values import VideoCodec, VideoFrames, VideoPackets
from ._transfer import CUDAConfig

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    from ..cuda import DeviceArray

    HostArray: TypeAlias = numpy.typing.NDArray[numpy.uint8]

Packet: TypeAlias = "Buffer | tuple[Buffer, int | None]"
VideoData: TypeAlias = "Buffer | Iterable[Packet] | VideoPackets"
Codec: TypeAlias = Literal[
    "h264", "hevc", "h265", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video", "mpeg4"
]

_UNLIMITED = 2**63 - 1
_MAX_CROP = 2**24
# `matrix_coefficients` (ITU-T H.273) of matrices with one luma and two colour-difference components.
_MATRICES = (1, 2, 4, 5, 6, 7, 9)
_BYTES = (bytes, bytearray, memoryview)
# Bit stream filters of packets whose headers are in the container. Those of H.264 and HEVC also write start codes.
_WITH_HEADERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb", "mpeg4": "dump_extra"}
# `matrix_coefficients` of a video that names no matrix.
_UNSPECIFIED = 2
_MAX_COUNT = 2**31 - 1


class NvDecDecoder:
    """A video decoder on a CUDA device, created by `nvdec_decoder`. Decodes one video after the other.

    `decode_packets` decodes packets and returns the frames that are complete; `flush` ends the video and
    returns the last frames. `streaming_decode_packets` does both. `init_buffer` limits the number of frames
    per array. Frames are returned in presentation order, so a frame may be returned several packets after
    its own packet. Only the stream of the `device_config` waits for the arrays.

    A corrupt frame raises `CorruptError` with its number in `error.key`; errors are not concealed. The other
    frames remain available, for example through `flush`. After any other error the decoder is unusable.

    Each thread needs a separate `NvDecDecoder`. All `NvDecDecoder`s share a pool of native decoders.
    """

    def __init__(
        self,
        decoder: _spdl_rs.VideoDecoder,
        wanted: tuple[str, tuple[int, int, int, int], tuple[int, int] | None],
        stream: int,
    ) -> None:
        self._decoder = decoder
        self._output = wanted
        self._stream = stream
        self._max_frames = _UNLIMITED

    def init_buffer(self, num_frames: int) -> None:
        """Sets the largest number of frames per array. Discards the current video.

        Nothing is allocated here: each array takes memory for its frames only.

        Raises:
            ValueError: `num_frames` is less than 1.
        """
        self._max_frames = check.whole("num_frames", num_frames, 1, _UNLIMITED)
        self._decoder.forget()

    def decode_packets(self, packets: VideoData) -> DeviceArray | None:
        """Decodes packets. Returns complete frames as one array.

        Args:
            packets: The bytes of a stream: H.264 or HEVC with start codes (Annex B), or an IVF file. Or an
                iterable of packets, one picture each: bytes, or pairs of bytes and a timestamp. Or the packets of
                `demux_video`, from MP4, MOV, Matroska and other files, which are consumed. Packets with a window are
                a separate video, so that all frames in the window are complete. Frames outside it are decoded
                and dropped.

        Returns:
            `uint8 [n, height * 3 / 2, width]` for `pix_fmt="nv12"` (`uint16` for videos with more than 8
            bits, aligned to the most significant bit), `uint8 [n, 3, height, width]` for `"rgb"` and
            `"bgr"`. `None` if no frame is complete. Frames beyond the limit of `init_buffer` stay for the
            next call.

        Raises:
            UnsupportedError: The device cannot decode this video, or its frames are not NV12.
            CorruptError: A frame or the stream is corrupt.
            LimitExceededError: The frames are too large.
            CudaError: The device memory is full, or the device fails for another reason.
            ValueError: Frame sizes differ, or the crop removes the whole frame.
            TypeError: A packet has the wrong type.
        """
        for _ in self._pushed(packets):
            pass
        return self._taken()

    def flush(self) -> DeviceArray | None:
        """Ends the video and returns its last frames. Another video of the same codec may follow.

        Raises:
            The exceptions of `decode_packets`.
        """
        self._decoder.finish()
        return self._taken()

    def streaming_decode_packets(self, packets: VideoData) -> Iterator[DeviceArray]:
        """Decodes a whole video. Yields arrays with the number of frames set by `init_buffer`.

        The last array holds the remaining frames. Packets are taken only when arrays are requested, so that
        few frames are in memory. If the consumer stops early, or `packets` raises an exception, frames that
        were not yielded are discarded.

        Raises:
            The exceptions of `decode_packets`, during iteration. After `CorruptError`, `flush` still
            returns the other frames.
        """
        try:
            for waiting in self._pushed(packets):
                while waiting >= self._max_frames:
                    waiting -= self._max_frames
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
        """Decodes packets. Yields the number of complete frames after each packet."""
        window = None
        if isinstance(packets, VideoPackets):
            window = packets._use().window_stamps()
            packets = payloads(packets)
        if window is not None:
            # Frames of earlier packets are outside the window.
            yield self._decoder.finish()
        if isinstance(packets, _BYTES):
            whole = memoryview(packets).cast("B")
            for start, end, timestamp in self._decoder.cut(packets):
                yield self._decoder.push(whole[start:end], timestamp)
            return
        try:
            several = iter(packets)
        except TypeError:
            expected = "bytes, or an iterable of packets"
            raise TypeError(f"packets must be {expected}, not {check.shown(packets)}") from None
        for packet in several:
            data, timestamp = packet if isinstance(packet, tuple) else (packet, None)
            if timestamp is not None:
                timestamp = check.whole("a timestamp", timestamp, -(2**63), 2**63 - 1)
            yield self._decoder.push(data, timestamp, window)
        if window is not None:
            yield self._decoder.finish()

    def _taken(self) -> DeviceArray | None:
        taken = self._decoder.take(self._max_frames, self._output)
        if taken is None:
            return None
        memory, shape, is_wide = taken
        return placed(memory, shape, "uint16" if is_wide else "uint8", self._stream)


def nvdec_decoder(
    device_config: CUDAConfig | None,
    codec: Codec | VideoCodec,
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
    """Creates a video decoder on a CUDA device.

    Args:
        device_config: The device and stream, from `cuda_config`. `None`: the device with the number in the
            environment variable `LOCAL_RANK`, or else device 0, and the per-thread default stream.
        codec: The codec of the video, or the value `video_codec` of a `Demuxer`. Whether the device supports the video is known only after its headers
            are read.
        use_cache: Whether to reuse native decoders of finished videos of similar size, and to keep this
            decoder for reuse. Creating a decoder is slow.
        crop_left, crop_top, crop_right, crop_bottom: Columns and rows to cut off, before resizing.
        scale_width, scale_height: The size to resize to, for `"rgb"` and `"bgr"`. -1 for both: no resizing.
        pix_fmt: The pixel format of the result. `"nv12"`: as decoded, with even width and height. `"rgb"`
            and `"bgr"`: planar, converted with the matrix and the range of the video.

    Raises:
        CudaUnavailable: There is no CUDA device, or NVDEC is not available.
        CudaError: A call of the driver failed for another reason.
        UnsupportedError: NVDEC does not decode the codec of the `Demuxer`.
        ValueError: An argument is out of range, or NV12 frames are to be resized.
        TypeError: An argument has the wrong type.

    >>> decoder = nvdec_decoder(cuda_config(0), "h264", pix_fmt="rgb")  # doctest: +SKIP
    >>> decoder.init_buffer(32)  # doctest: +SKIP
    >>> for frames in decoder.streaming_decode_packets(data):  # doctest: +SKIP
    ...     print(frames.shape)
    (32, 3, 1080, 1920)
    (7, 3, 1080, 1920)
    >>> nvdec_decoder(None, "h264", scale_width=320, scale_height=240)
    Traceback (most recent call last):
    ValueError: NV12 frames cannot be resized: scale_width requires pix_fmt="rgb" or "bgr"
    """
    check.choice("pix_fmt", pix_fmt, ("nv12", "rgb", "bgr"))
    check.flag("use_cache", use_cache)
    name = codec.name if isinstance(codec, VideoCodec) else codec
    if not isinstance(name, str):
        raise TypeError(f'codec must be a str such as "h264", not {check.shown(codec)}')
    sides = {"left": crop_left, "top": crop_top, "right": crop_right, "bottom": crop_bottom}
    left, top, right, bottom = (
        check.whole(f"crop_{side}", count, 0, _MAX_CROP) for side, count in sides.items()
    )
    size = size_of(scale_width, scale_height)
    if size is not None and pix_fmt == "nv12":
        raise ValueError('NV12 frames cannot be resized: scale_width requires pix_fmt="rgb" or "bgr"')
    if isinstance(codec, VideoCodec) and name not in get_args(Codec):
        raise UnsupportedError(f"NVDEC does not decode {name} video", kind="unsupported")
    decoders, stream = decoders_of(device_config)
    decoder = _spdl_rs.VideoDecoder(decoders, name, use_cache)
    return NvDecDecoder(decoder, (pix_fmt, (left, top, right, bottom), size), stream)


@overload
def decode_packets_nvdec(
    packets: VideoData,
    *,
    device_config: CUDAConfig | None = ...,
    codec: Codec | None = ...,
    pix_fmt: Literal["rgb", "bgr"] = ...,
    crop_left: int = ...,
    crop_top: int = ...,
    crop_right: int = ...,
    crop_bottom: int = ...,
    scale_width: int = ...,
    scale_height: int = ...,
    fallback: Literal[False] = ...,
) -> DeviceArray: ...
@overload
def decode_packets_nvdec(
    packets: VideoPackets,
    *,
    device_config: CUDAConfig | None = ...,
    codec: Codec | None = ...,
    pix_fmt: Literal["rgb", "bgr"] = ...,
    crop_left: int = ...,
    crop_top: int = ...,
    crop_right: int = ...,
    crop_bottom: int = ...,
    scale_width: int = ...,
    scale_height: int = ...,
    fallback: bool,
) -> DeviceArray | HostArray: ...
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
    fallback: bool = False,
) -> DeviceArray | HostArray:
    """Decodes a whole video on a CUDA device: `uint8 [frames, 3, height, width]`.

    Colours are converted with the matrix and the range that the video specifies. If it specifies no
    matrix, BT.709 is used for 720 rows or more, and BT.601 below. Samples of 8 to 12 bits, 4:2:0 and 4:4:4
    are supported, and odd sizes are kept.

    All frames are in device memory at the same time. For long videos use
    `NvDecDecoder.streaming_decode_packets`. Of packets with a window, only the frames in it are returned.

    Args:
        packets: See `NvDecDecoder.decode_packets`.
        device_config, crop_left, crop_top, crop_right, crop_bottom, scale_width, scale_height: As for
            `nvdec_decoder`.
        codec: The codec. `None`: `packets` is an IVF file or the result of `demux_video`, which name their codec.
        pix_fmt: `"rgb"` or `"bgr"`.
        fallback: Whether the CPU decodes if there is no CUDA device or no NVDEC, or if NVDEC cannot decode the video:
            see `streaming_load_video_nvdec`. Only for packets of `demux_video`.

    Raises:
        ValueError: `codec` is missing, the video or the window has no frame, or an argument is out of range.
        The exceptions of `nvdec_decoder` and `NvDecDecoder.decode_packets`.

    >>> frames = decode_packets_nvdec(file.read(), codec="hevc", pix_fmt="bgr")  # doctest: +SKIP
    >>> frames.shape  # doctest: +SKIP
    (250, 3, 720, 1280)
    """
    check.choice("pix_fmt", pix_fmt, ("rgb", "bgr"))
    output: dict[str, Any] = {
        "crop_left": crop_left,
        "crop_top": crop_top,
        "crop_right": crop_right,
        "crop_bottom": crop_bottom,
        "scale_width": scale_width,
        "scale_height": scale_height,
        "pix_fmt": pix_fmt,
    }
    kept: VideoPackets | None = None
    if check.flag("fallback", fallback):
        if not isinstance(packets, VideoPackets) or packets.codec is None:
            raise ValueError("fallback=True requires the packets of demux_video")
        kept = packets.clone()
    try:
        decoder = nvdec_decoder(device_config, _codec(packets) if codec is None else codec, **output)
        for _ in decoder._pushed(packets):
            pass
        frames: DeviceArray | HostArray | None = decoder.flush()
    except (CudaUnavailable, UnsupportedError) as error:
        if kept is None:
            raise
        _count_fallback(error)
        decoded = decode_packets(kept, _host_filters(kept.codec, **output))
        frames = _planar(decoded) if len(decoded) else None
    if frames is None:
        raise ValueError("the packets contain no frame")
    return frames


def nv12_to_rgb(
    buf: DeviceArray,
    *,
    device_config: CUDAConfig | None = None,
    coeff: int = 1,
    full_range: bool = False,
    sync: bool = False,
) -> DeviceArray:
    """Converts NV12 frames on a CUDA device to planes of red, green and blue, `uint8`.

    Each pixel value is the result of the exact matrix, rounded to the nearest integer, even at edges. (SPDL
    scales limited-range chroma by 255 / 219 instead of 255 / 224. So chroma in SPDL is 2.3 % too strong, an
    error of up to 5 of 255 levels.)

    Args:
        buf: `uint8 [height * 3 / 2, width]`, or `[n, height * 3 / 2, width]`, with even width and height:
            luma, followed by rows of interleaved Cb and Cr. Or `uint16`, for videos with more than 8 bits,
            aligned to the most significant bit. With `full_range`, 65,535 is white, whereas white in 10 bits
            is 65,472, so colours may be one level too dark. Without `full_range` any bit depth is exact.
        device_config: The stream that waits for the result. Work queued on the stream so far, for example
            writing `buf`, is completed first. `None`: the per-thread default stream. The allocator of
            `device_config` is not used: memory comes from the allocator of `buf`.
        coeff: The matrix, as `matrix_coefficients` of ITU-T H.273: 1 BT.709; 5 and 6 BT.601; 4 FCC; 7 SMPTE
            240M; 9 BT.2020; 2 (unspecified) BT.709 for 720 rows or more, else BT.601.
        full_range: Whether samples use the full range, instead of 16 to 235 (luma) and 16 to 240 (chroma).
        sync: Whether to wait for completion.

    Returns:
        `uint8 [3, height, width]`, or `[n, 3, height, width]`.

    Raises:
        CudaError: The device memory is full, or the device fails for another reason.
        ValueError: `buf` has another shape or type, `coeff` is not supported, or `buf` and `device_config`
            are for different devices.
        TypeError: `buf` is not a `DeviceArray`.

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
    """Converts NV12 frames as `nv12_to_rgb` does, to planes of blue, green and red."""
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
    is_valid = buf.dtype in ("uint8", "uint16") and len(frames) == 3 and buf.size > 0
    if not is_valid or frames[1] % 3 or frames[2] % 2:
        raise ValueError(
            "buf must be a non-empty uint8 or uint16 array of shape [height * 3 / 2, width] or "
            "[frames, height * 3 / 2, width], with even width and height, not "
            f"{buf.dtype} {list(buf.shape)}"
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


def payloads(packets: VideoPackets) -> list[tuple[bytes, int | None]]:
    """Consumes packets, and returns their bytes with start codes, and their time stamps."""
    form = _WITH_HEADERS.get(packets.codec.name) if packets.codec is not None else None
    converted = packets if form is None else apply_bsf(packets, form)
    return [] if converted is None else converted._take("NVDEC").payloads()


@overload
def streaming_load_video_nvdec(
    src: Source,
    device_config: CUDAConfig | None,
    *,
    num_frames: int,
    post_processing_params: Mapping[str, Any] | None = ...,
    use_cache: bool = ...,
    fallback: Literal[False] = ...,
) -> Iterator[DeviceArray]: ...
@overload
def streaming_load_video_nvdec(
    src: Source,
    device_config: CUDAConfig | None,
    *,
    num_frames: int,
    post_processing_params: Mapping[str, Any] | None = ...,
    use_cache: bool = ...,
    fallback: bool,
) -> Iterator[DeviceArray] | Iterator[HostArray]: ...
def streaming_load_video_nvdec(
    src: Source,
    device_config: CUDAConfig | None,
    *,
    num_frames: int,
    post_processing_params: Mapping[str, Any] | None = None,
    use_cache: bool = True,
    fallback: bool = False,
) -> Iterator[DeviceArray] | Iterator[HostArray]:
    """Decodes a file on a CUDA device, and yields arrays of `num_frames` frames; the last may have fewer.

    Tested without a device only, with a decoder that records the packets.

    Args:
        src: A path, an address, or the content of a file: see `Demuxer`.
        device_config: The device and stream: see `nvdec_decoder`.
        num_frames: The number of frames of each array, and of the packets that are read at a time.
        post_processing_params: Arguments of `nvdec_decoder`: crops, size and `pix_fmt`.
        use_cache: See `nvdec_decoder`.
        fallback: Whether the CPU decodes if there is no CUDA device or no NVDEC, or if NVDEC cannot decode the video.
            The arrays then are NumPy arrays of the same shape, in host memory. FFmpeg converts and resizes,
            so that pixel values differ, mostly at edges of colours. Damaged packets are logged, as by `decode_packets`.
            The first fallback issues a `CudaFallbackWarning`; `spdl_rs.cuda.fallbacks` counts all. Requires
            `pix_fmt="rgb"` or `"bgr"`.

    Raises:
        The exceptions of `Demuxer`, `nvdec_decoder` and `NvDecDecoder.streaming_decode_packets`.
        ValueError: `fallback` is set, and `pix_fmt` is `"nv12"`.
    """
    count = check.whole("num_frames", num_frames, 1, _MAX_COUNT)
    output = dict(post_processing_params or {})
    if check.flag("fallback", fallback) and output.get("pix_fmt") not in ("rgb", "bgr"):
        raise ValueError('fallback=True requires pix_fmt="rgb" or "bgr" in post_processing_params')
    return _streamed(src, device_config, count, output, use_cache, fallback)


def _streamed(
    src: Source,
    device_config: CUDAConfig | None,
    count: int,
    output: dict[str, Any],
    use_cache: bool,
    fallback: bool,
) -> Iterator[Any]:
    with Demuxer(src) as demuxer:
        codec = demuxer.video_codec
        have_frames = False
        try:
            decoder = nvdec_decoder(device_config, codec, use_cache=use_cache, **output)
            decoder.init_buffer(count)
            for frames in decoder.streaming_decode_packets(_payloads_of(demuxer, codec, count)):
                have_frames = True
                yield frames
            return
        except (CudaUnavailable, UnsupportedError) as error:
            if not fallback or have_frames:
                raise
            _count_fallback(error)
    with Demuxer(src) as demuxer:
        portions = demuxer.streaming_demux(demuxer.video_stream_index, num_packets=count)
        yield from _on_host(codec, portions, count, output)


def _payloads_of(demuxer: Demuxer, codec: VideoCodec, count: int) -> Iterator[tuple[bytes, int | None]]:
    """Yields the packets of a file as NVDEC reads them, and their time stamps."""
    form = _WITH_HEADERS.get(codec.name)
    filters = None if form is None else BSF(codec, form)
    for portion in demuxer.streaming_demux(demuxer.video_stream_index, num_packets=count):
        ready = portion if filters is None else filters.filter(cast("VideoPackets", portion))
        if ready is not None:
            yield from ready._take("NVDEC").payloads()
    rest = None if filters is None else filters.flush()
    if rest is not None:
        yield from rest._take("NVDEC").payloads()


def _count_fallback(error: Exception) -> None:
    from ..cuda import _devices

    _devices.count_host_decode(f"the CPU decodes video: {error}")


def _on_host(
    codec: VideoCodec, portions: Iterable[Any], count: int, output: Mapping[str, Any]
) -> Iterator[HostArray]:
    """Decodes packets on the CPU. Yields arrays as the device does, of `count` frames."""
    decoder = Decoder(codec, filter_desc=_host_filters(codec, **output))
    decoder.set_buffer_size(count)
    for portion in portions:
        yield from map(_planar, decoder.streaming_decode_packets(portion))
    yield from map(_planar, decoder.flush())


def _planar(frames: VideoFrames) -> HostArray:
    import numpy

    pixels = numpy.asarray(convert_frames(frames))
    return numpy.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _host_filters(
    codec: VideoCodec,
    *,
    pix_fmt: str,
    crop_left: int = 0,
    crop_top: int = 0,
    crop_right: int = 0,
    crop_bottom: int = 0,
    scale_width: int = -1,
    scale_height: int = -1,
) -> str:
    """Describes filters that crop, resize and convert as the device does."""
    filters = []
    if crop_left or crop_top or crop_right or crop_bottom:
        width, height = f"iw-{crop_left + crop_right}", f"ih-{crop_top + crop_bottom}"
        filters.append(f"crop=w={width}:h={height}:x={crop_left}:y={crop_top}:exact=1")
    options = ["flags=bilinear+accurate_rnd+full_chroma_int"]
    size = size_of(scale_width, scale_height)
    if size is not None:
        options.append(f"w={size[0]}:h={size[1]}")
    if codec.color_matrix == _UNSPECIFIED and codec.height >= 720:
        options.append("in_color_matrix=bt709")
    return ",".join([*filters, f"scale={':'.join(options)}", f"format=pix_fmts={pix_fmt}24"])


def _codec(packets: Any) -> Any:
    """Returns the codec in the header of an IVF file, or of packets."""
    if isinstance(packets, VideoPackets) and packets.codec is not None:
        return packets.codec
    found = _spdl_rs.VideoDecoder.codec_of_ivf(packets) if isinstance(packets, _BYTES) else None
    if found is None:
        raise ValueError('codec is required, for example "h264": only IVF files name their codec')
    return found
