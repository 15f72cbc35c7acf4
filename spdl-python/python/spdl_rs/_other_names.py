"""Arguments of other libraries: messages that name the arguments of this package."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

C = TypeVar("C", bound="type[Any]")

_OF_IMAGES = "an argument of its field: image=fields.Image({})"
_IN_LOADER = "ImageLoader only decodes, crops and flips; use Loader with image=fields.Image({})"
_TIMM = "augment=, with the augmentations of spdl_rs.io or a text such as \"rand-m9-mstd0.5-inc1\""

_LOADERS = {
    "num_workers": "pass threads=; by default, it uses all CPUs of this process",
    "prefetch_factor": "it always prefetches; memory_budget= limits the bytes",
    "pin_memory": "batches are in host memory; batch_map=spdl_rs.io.transfer_tensor copies them to a GPU through "
    "page-locked memory",
    "persistent_workers": "threads and processes stay for later epochs",
    "worker_init_fn": "random numbers depend on seed=; functions may have an argument rng",
    "generator": "pass seed=",
    "multiprocessing_context": 'pass executor="processes" for functions of Python',
    "sampler": "pass shuffle=True, or choose and mix samples with spdl_rs.sources",
    "batch_sampler": "pass batch_size= and shuffle=, or group= for samples of similar lengths",
    "collate_fn": "pass collate=",
    "transform": "describe transforms by fields, such as fields.Image(augment=…), or pass map=",
    "transforms": "describe transforms by fields, such as fields.Image(augment=…), or pass map=",
    "dataset": "pass it as source, the first argument",
    "num_replicas": "pass world_size=",
}

_OTHERS: dict[str, dict[str, str]] = {
    "Loader": {
        **_LOADERS,
        **{
            name: _OF_IMAGES.format(f"{name}=…")
            for name in ("train", "augment", "mean", "std", "size", "layout", "crop", "horizontal_flip", "min_partial")
        },
        "on_truncated": 'an argument of fields.Image, fields.Video and fields.Audio: fields.Image(on_truncated="partial")',
        **dict.fromkeys(
            ("device", "cuda_config", "decode"),
            "its batches are in host memory; upload them with batch_map=spdl_rs.io.transfer_tensor, or use ImageLoader "
            "for images and labels",
        ),
    },
    "ImageLoader": {
        **_LOADERS,
        "pin_memory": "pass device= to get batches on a GPU",
        "collate_fn": "use Loader with collate=",
        "transform": "use Loader with fields.Image(augment=…) or map=",
        "transforms": "use Loader with fields.Image(augment=…) or map=",
        "batch_sampler": "pass batch_size= and shuffle=",
        "map": "use Loader with map=",
        "batch_map": "use Loader with batch_map=",
        "output": "use Loader with output=",
        **{
            name: _IN_LOADER.format(f"{name}=…")
            for name in ("augment", "mean", "std", "crop", "horizontal_flip", "vertical_flip", "filter", "color", "exact")
        },
    },
    "Image": {
        "dtype": 'layout= has the dtype: "nchw-f32", "nhwc-u8", "nchw-f16"',
        "normalize": 'the layouts "nchw-f32", "nhwc-f32" and so on are normalised by mean= and std=',
        "interpolation": "pass filter=",
        "antialias": "smaller images are always antialiased",
        "resize": "pass size=, and crop=, such as crop=spdl_rs.io.Stretch()",
        "auto_augment": f"pass {_TIMM}",
        "transform": f"pass {_TIMM}, or map= to the loader",
        "transforms": f"pass {_TIMM}, or map= to the loader",
        "mode": 'pass color="rgb", "grey" or "rgba"',
    },
    "Mask": {
        "ignore_index": "pass outside=, the number outside the image, such as outside=255; the loss ignores it by its own "
        "ignore_index",
        "size": "a mask has the size of the image that like= names",
        "layout": "pass dtype=; a mask is [N, height, width]",
    },
    "Boxes": {
        "labels": "use another field with rows_of=, such as fields.Array(None, \"int64\", rows_of=\"boxes\")",
    },
    "Tokens": {
        "context_length": "pass length=",
        "pad_token_id": "pass padding=",
        "truncation": "pass truncate=True",
        "add_special_tokens": "pass special_tokens=",
    },
    "Label": {"dtype": "labels are int64; use fields.Number for other types"},
    "Video": {
        "num_frames": "pass frames=",
        "dtype": 'layout= has the dtype: "nchw-f32", "nhwc-u8", "nchw-f16"',
        "stride": "pass every=",
        "interpolation": "pass filter=",
    },
    "Audio": {"sr": "pass sample_rate=", "mono": 'pass channels="mono"'},
}


def advice(name: str, argument: str) -> str | None:
    """What to pass to a class instead of an argument that other libraries have; `None` if that is unknown."""
    text = _OTHERS.get(name, {}).get(argument)
    return None if text is None else f"{name} has no argument {argument}: {text}"


def explained(cls: C) -> C:
    """Makes the constructor of a class name its arguments if it gets one of another library.

    The class needs a constructor without `**kwargs`.
    """
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except TypeError as error:
            code = original.__code__
            known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            texts = (advice(cls.__name__, name) for name in kwargs if name not in known)
            text = next(filter(None, texts), None)
            if text is None:
                raise
            raise TypeError(text) from error

    cls.__init__ = __init__
    return cls
