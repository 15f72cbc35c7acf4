"""The native module: private, and thin. `spdl_rs` is what to use."""

from typing import Any, final

from ._statistics import Statistics

__version__: str

@final
class Array:
    """Owns the memory of an array; `numpy.asarray` reads and writes it in place."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class ImageFolder:
    """The images of a folder or of a list, with their labels."""

    @staticmethod
    def open(root: str) -> ImageFolder: ...
    @staticmethod
    def from_paths(paths: list[str], labels: list[int] | None = None) -> ImageFolder: ...
    def __len__(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def warnings(self) -> list[str]: ...

@final
class Settings:
    """What is made of the images: the same for every epoch."""

    def __new__(
        cls,
        *,
        batch_size: int,
        size: int,
        train: bool,
        layout: str,
        seed: int,
        shuffle: bool,
        threads: int | None,
        skip_errors: bool,
        keep_partial: bool,
        drop_last: bool,
    ) -> Settings: ...

@final
class Epoch:
    """One pass over the images. Any thread may ask for the next batch."""

    def __new__(cls, images: ImageFolder, settings: Settings, epoch: int) -> Epoch: ...
    def next(self) -> tuple[Array, Array] | None: ...
    def close(self) -> None: ...
    @property
    def monitor(self) -> Monitor: ...

@final
class Monitor:
    """Tells an epoch's statistics, while it runs and afterwards. Does not keep it running."""

    def __new__(cls) -> Monitor: ...
    def statistics(self) -> Statistics: ...
