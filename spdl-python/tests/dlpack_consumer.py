"""A consumer of DLPack that is no library: it takes capsules apart as C would."""

import ctypes

import numpy

NAMES = (b"dltensor", b"dltensor_versioned")


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def _function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)

# Names are not copied by capsules, and have to stay.
_USED = b"used_dltensor"


class Consumed:
    """The tensor of a capsule, taken out of it."""

    def __init__(self, capsule):
        self.versioned = bool(_is_valid(capsule, NAMES[1]))
        name = NAMES[self.versioned]
        assert _is_valid(capsule, name)
        self.address = _pointer(capsule, name)
        kind = ManagedVersioned if self.versioned else Managed
        self.managed = kind.from_address(self.address)
        assert _rename(capsule, _USED) == 0
        tensor = self.managed.tensor
        self.data = tensor.data
        self.device = tensor.device_type, tensor.device_id
        self.shape = tuple(tensor.shape[: tensor.ndim])
        # Older producers, NumPy's among them, have none where the last index changes fastest.
        self.strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
        self.element = tensor.code, tensor.bits, tensor.lanes
        self.byte_offset = tensor.byte_offset

    def numpy(self, dtype):
        """The elements, where the device's memory is the host's, as the stub's is."""
        count = int(numpy.prod(self.shape))
        size = count * numpy.dtype(dtype).itemsize
        bytes_ = (ctypes.c_uint8 * size).from_address(self.data)
        return numpy.frombuffer(bytes_, dtype).reshape(self.shape).copy()

    def delete(self):
        """As a library does it: without the GIL, on whatever thread."""
        self.managed.deleter(self.address)
