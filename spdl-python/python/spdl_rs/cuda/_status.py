"""What there is of CUDA, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Sequence
from typing import overload

from .. import _spdl_rs
from ._devices import wheel_folders

_COLUMNS = ("part", "state", "what it is, or why it is missing", "what to do")


@dataclasses.dataclass(frozen=True)
class PartStatus:
    """Whether a part of CUDA can be used."""

    name: str
    """`driver`, `device`, `nvjpeg` (decodes JPEG), `nvrtc` (compiles kernels, and is not needed, as they
    come compiled) or `nvcuvid` (decodes video)."""
    available: bool
    """Whether it is there."""
    detail: str
    """What it is, and where; or why it is not to be had."""
    remedy: str
    """What to do; empty where there is nothing to do."""


class Status(Sequence[PartStatus]):
    """What `status` gives: the parts, in the order of their names there. Printed, it is a table."""

    def __init__(self, parts: Sequence[PartStatus]) -> None:
        self._parts = tuple(parts)

    @property
    def available(self) -> bool:
        """Whether batches can be sent to a device: there is one, and a driver. All else is optional."""
        return all(part.available for part in self._parts if part.name in ("driver", "device"))

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int | str) -> PartStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PartStatus]: ...
    def __getitem__(self, index: int | str | slice) -> PartStatus | Sequence[PartStatus]:
        """A part by its place or its name, or several.

        Raises:
            IndexError: There is no such place.
            KeyError: There is no part of that name.
        """
        if not isinstance(index, str):
            return self._parts[index]
        for part in self._parts:
            if part.name == index:
                return part
        raise KeyError(f"{index!r} is none of {[part.name for part in self._parts]}")

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
    """What of CUDA can be used here, and what to do about the rest.

    It opens the libraries and asks the driver, but uses no device. Libraries are looked for where
    `SPDL_CUDA_DRIVER`, `SPDL_NVJPEG`, `SPDL_NVRTC` and `SPDL_NVCUVID` say, in NVIDIA's wheels, and where
    the system does. It never raises.

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
