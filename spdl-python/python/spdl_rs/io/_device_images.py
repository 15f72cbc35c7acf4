"""JPEGs that are decoded on a CUDA device."""

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
    """Decodes a JPEG on a CUDA device by nvJPEG, or many at once, and returns before they are there.

    The result is of `uint8`: `[3, height, width]` for `"rgb"` and `"bgr"`, `[height, width, 3]` for
    `"rgbi"` and `"bgri"`, `[1, height, width]` for `"y"`, which is the luma of red, green and blue. Of
    a list, it has one more dimension in front: `[n, 3, height, width]`, say. Images are turned upright,
    as `DecodeImage` turns them, and resized as that does by its bilinear filter.

    The images of a list are decoded together, by the engines for JPEGs that some devices have and by the
    multiprocessors. The stream of `device_config` waits for the result, and nobody else does. Paths are
    read one after the other; in a pipeline, `Fetch` reads many at once. Damage behind a file's header may
    go unnoticed.

    Args:
        src: A path or an address, or the bytes of a file; or a list of such.
        device_config: On which device, as of `cuda_config`. `None`: the device that the environment
            variable `LOCAL_RANK` numbers, or else device 0, and the default stream of this thread.
        scale_width, scale_height: What images are resized to, 1 to 16,384 pixels, whatever becomes of their
            proportions. -1 for both: they keep their size, which is the same for all images of a list.
        pix_fmt: What the result holds, see above.

    Raises:
        CudaUnavailable: There is no CUDA device, or no nvJPEG.
        CudaError: The device's memory is full, or it fails for another reason.
        DataError: An image is damaged, or no JPEG that the device decodes; `error.key` says which:
            `image 3`, with its path where it has one. The others of the list are lost with it.
        ValueError: The list is empty, its images differ in size, or an argument is out of range.
        TypeError: An argument is of the wrong type.

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
        raise ValueError("src must be an image, or a list of one or more, not an empty list")
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
    """The same as `decode_image_nvjpeg` of a list: `[n, 3, height, width]`, say.

    Args:
        srcs: Paths, addresses, or the bytes of files.
        device_config, pix_fmt: As of `decode_image_nvjpeg`.
        width, height: What images are resized to. `None` for both: they keep their size, which is the same
            for all.

    Raises:
        TypeError: `srcs` is one image, or no list; as of `decode_image_nvjpeg`.
    """
    if isinstance(srcs, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise TypeError(
            f"srcs must be a list of images, not one, of type {type(srcs).__name__}: give a list of it, or "
            "give it to decode_image_nvjpeg"
        )
    sources = check.listed("srcs", srcs, "a list of paths, addresses or bytes")
    if (width is None) != (height is None):
        raise ValueError(
            f"width and height go together: both, or neither, not {width} and {height}"
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
    """The bytes of a file."""
    return Fetch()(source) if _is_path(source) else source


def _name(at: int, source: Any, is_list: bool) -> str:
    """What an image is called where it fails."""
    path = without_secrets(os.fspath(source)) if _is_path(source) else ""
    if not is_list:
        return path or "bytes"
    return f"image {at} ({path})" if path else f"image {at}"
