"""Capsules of DLPack, which other libraries take memory out of."""

from __future__ import annotations

import ctypes

from .. import _spdl_rs

# `PyCapsule_New`, with the GIL; a prototype of our own, as `ctypes.pythonapi`'s functions are shared.
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


def capsule(
    memory: _spdl_rs.DeviceMemory,
    offset: int,
    shape: tuple[int, ...],
    dtype: tuple[int, int],
    versioned: bool,
) -> object:
    """A capsule with the array that begins `offset` bytes into `memory`.

    Whoever takes the array out of it gives it back from any thread, with or without the GIL. Where
    nobody does, the capsule gives it back itself.
    """
    return _new_capsule(*memory.dlpack(offset, shape, dtype, versioned))
