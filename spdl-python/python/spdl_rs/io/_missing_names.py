"""Names of SPDL that this package lacks, with alternatives for error messages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from opcode import opmap
from types import FrameType
from typing import NoReturn

_WRITING = "use save_image, or Muxer"
_DEVICE = "transfer_tensor and transfer_buffer return spdl_rs.cuda.DeviceArray instead"
_PINNED = "cpu_storage returns pinned memory as an Array"


def _each(advice: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


NAMES: Mapping[str, str] = {
    **_each(_WRITING, "encode_image"),
    **_each(_PINNED, "CPUStorage"),
    **_each(_DEVICE, "CUDABuffer"),
}
"""Names of `spdl.io` that `spdl_rs.io` lacks, with the advice of the error message."""

def refuse(module: str, name: str, absent: Mapping[str, str]) -> NoReturn:
    """Raises the exception for a missing attribute. Only for `__getattr__` of a module.

    If SPDL has the name, the message gives an alternative.

    Raises:
        ImportError: The caller is `from … import …`, which would hide the message of an AttributeError.
        AttributeError: Otherwise.
    """
    if name not in absent:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    advice = f"; SPDL has this name: {absent[name]}"
    error: Exception
    if _is_imported(sys._getframe(2)):
        error = ImportError(f"cannot import name {name!r} from {module!r}{advice}", name=module)
    else:
        error = AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name)
    # The program is at fault, not an item of a pipeline.
    vars(error)["_ends_pipeline"] = True
    raise error


def _is_imported(caller: FrameType) -> bool:
    return caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
