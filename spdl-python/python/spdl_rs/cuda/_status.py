"""Which parts of CUDA are available, and how to install the missing parts."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Sequence
from typing import overload

from .. import _spdl_rs
from ._devices import wheel_folders

_COLUMNS = ("part", "state", "version and location, or reason", "remedy")


@dataclasses.dataclass(frozen=True)
class PartStatus:
    """Whether a part of CUDA is available."""

    name: str
    """`driver`, `device`, `nvjpeg` (decodes JPEG), `nvrtc` (compiles kernels; optional, because kernels are
    precompiled) or `nvcuvid` (decodes video)."""
    available: bool
    """Whether the part can be used."""
    detail: str
    """The version and location, or the reason why the part is not available."""
    remedy: str
    """What to do if the part is not available, else empty."""


class Status(Sequence[PartStatus]):
    """The result of `status`: the parts by index or name. `str` formats the parts as a table."""

    def __init__(self, parts: Sequence[PartStatus]) -> None:
        self._parts = tuple(parts)

    @property
    def available(self) -> bool:
        """Whether batches can be uploaded: a driver and a device are available. Other parts are optional."""
        return all(part.available for part in self._parts if part.name in ("driver", "device"))

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int | str) -> PartStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PartStatus]: ...
    def __getitem__(self, index: int | str | slice) -> PartStatus | Sequence[PartStatus]:
        """Returns a part by index or name, or several parts by slice.

        Raises:
            IndexError: The index is out of range.
            KeyError: There is no part with that name.
        """
        if not isinstance(index, str):
            return self._parts[index]
        for part in self._parts:
            if part.name == index:
                return part
        raise KeyError(f"no part is named {index!r}; the parts are {[part.name for part in self._parts]}")

    def __iter__(self) -> Iterator[PartStatus]:
        return iter(self._parts)

    def __str__(self) -> str:
        lines = []
        for part in self._parts:
            lines.append(f"{part.name:<8} {_state(part):<8} {part.detail}")
            if part.remedy:
                lines.append(f"{'':<17} {part.remedy}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Status({list(self._parts)})"

    def _repr_html_(self) -> str:
        rows = [(part.name, _state(part), part.detail, part.remedy) for part in self._parts]
        head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def status() -> Status:
    """Reports which parts of CUDA are available, and how to install the missing parts.

    Loads the libraries and queries the driver, but uses no device. Libraries are searched at the paths in
    `SPDL_CUDA_DRIVER`, `SPDL_NVJPEG`, `SPDL_NVRTC` and `SPDL_NVCUVID`, in NVIDIA's wheels, and in the
    library path of the system. Never raises.

    >>> import spdl_rs
    >>> status = spdl_rs.cuda.status()
    >>> [part.name for part in status]
    ['driver', 'device', 'nvjpeg', 'nvrtc', 'nvcuvid']
    >>> status["nvjpeg"].name
    'nvjpeg'
    """
    return Status([PartStatus(*part) for part in _spdl_rs.CudaDevice.status(wheel_folders())])


def _state(part: PartStatus) -> str:
    return "ok" if part.available else "missing"
