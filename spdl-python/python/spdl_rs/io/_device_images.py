"""Decoding of JPEG on a CUDA device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .. import _arguments as check
from .._secrets import without_secrets
from ._device_decoders import decoders_of, placed, size_of
from ._operators import Encoded, Fetch
from ._transfer import CUDAConfig

if TYPE_CHECKING:
    from ..cuda import DeviceArray

ImageSource: TypeAlias = "str | os.PathLike[str] | Encoded"

_FORMATS = ("rgb", "bgr", "rgbi", "bgri", "y")


def decode_image_nvjpeg(
    src: ImageSource | Sequence[ImageSource],
    *,
    device_config: CUDAConfig | None = None,
    scale_width: int = -1,
    scale_height: int = -1,
    pix_fmt: Literal["rgb", "bgr", "rgbi", "bgri", "y"] = "rgb",
) -> DeviceArray:
    """Decodes one JPEG, or a list, on a CUDA device with nvJPEG. Returns before decoding is complete.

    The result is `uint8`: `[3, height, width]` for `"rgb"` and `"bgr"`, `[height, width, 3]` for `"rgbi"`
    and `"bgri"`, `[1, height, width]` for `"y"` (luma). A list adds a leading dimension, for example
    `[n, 3, height, width]`. Images are oriented by their metadata and resized with a bilinear filter, as
    `DecodeImage` does.

    The images of a list are decoded together, by the JPEG engines of the device, if it has any, and by its
    multiprocessors. Only the stream of `device_config` waits for the result. Paths are read one after the
    other; in a pipeline, `Fetch` reads them concurrently. Corruption after the header may go undetected.

    Args:
        src: A path or address, or the bytes of a file; or a list of these.
        device_config: The device and stream, from `cuda_config`. `None`: the device with the number in the
            environment variable `LOCAL_RANK`, or else device 0, and the per-thread default stream.
        scale_width, scale_height: The size to resize to, 1 to 16,384 pixels, without keeping the aspect
            ratio. -1 for both: no resizing; all images of a list must then have the same size.
        pix_fmt: The pixel format of the result, see above.

    Raises:
        CudaUnavailable: There is no CUDA device, or nvJPEG is not available.
        CudaError: The device memory is full, or the device fails for another reason.
        DataError: An image is corrupt, or not a JPEG that the device can decode. `error.key` is, for
            example, `image 3`, followed by its path if known. The other images of the list are lost.
        ValueError: The list is empty, image sizes differ, or an argument is out of range.
        TypeError: An argument has the wrong type.

    >>> from spdl_rs.io import cuda_config, decode_image_nvjpeg
    >>> files = ["photos/dog/1.jpg", "photos/dog/2.jpg"]
    >>> images = decode_image_nvjpeg(  # doctest: +SKIP
    ...     files, device_config=cuda_config(0), scale_width=224, scale_height=224
    ... )
    >>> images.shape  # doctest: +SKIP
    (2, 3, 224, 224)
    """
    check.choice("pix_fmt", pix_fmt, _FORMATS)
    size = size_of(scale_width, scale_height)
    is_list = isinstance(src, (list, tuple))
    sources: list[Any] = list(src) if isinstance(src, (list, tuple)) else [src]
    if not sources:
        raise ValueError("src must be an image or a list of at least one image, not an empty list")
    decoders, stream = decoders_of(device_config)
    names = [_name(at, source, is_list) for at, source in enumerate(sources)]
    encoded = [_encoded(source) for source in sources]
    memory, shape = decoders.jpegs(encoded, names, size, pix_fmt)
    return placed(memory, shape if is_list else shape[1:], "uint8", stream)


def load_image_batch_nvjpeg(
    srcs: Sequence[ImageSource],
    *,
    device_config: CUDAConfig | None = None,
    width: int | None = None,
    height: int | None = None,
    pix_fmt: Literal["rgb", "bgr", "rgbi", "bgri", "y"] = "rgb",
) -> DeviceArray:
    """Decodes a list of JPEGs as `decode_image_nvjpeg` does, for example to `[n, 3, height, width]`.

    Args:
        srcs: Paths, addresses, or the bytes of files.
        device_config, pix_fmt: See `decode_image_nvjpeg`.
        width, height: The size to resize to. `None` for both: no resizing; all images must have the same
            size.

    Raises:
        TypeError: `srcs` is not a list.
        CudaUnavailable, CudaError, DataError, ValueError: See `decode_image_nvjpeg`.
    """
    if isinstance(srcs, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise TypeError(
            f"srcs must be a list of images, not one image of type {type(srcs).__name__}; pass a list, or "
            "call decode_image_nvjpeg"
        )
    sources = check.listed("srcs", srcs, "a list of paths, addresses or bytes")
    if (width is None) != (height is None):
        raise ValueError(
            f"width and height must both be given or both be omitted, not {width} and {height}"
        )
    return decode_image_nvjpeg(
        sources,
        device_config=device_config,
        scale_width=-1 if width is None else width,
        scale_height=-1 if height is None else height,
        pix_fmt=pix_fmt,
    )


def _is_path(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike))


def _encoded(source: Any) -> Any:
    """Returns the bytes of an image."""
    return Fetch()(source) if _is_path(source) else source


def _name(at: int, source: Any, is_list: bool) -> str:
    """Returns the name of an image in error messages."""
    path = without_secrets(os.fspath(source)) if _is_path(source) else ""
    if not is_list:
        return path or "bytes"
    return f"image {at} ({path})" if path else f"image {at}"
