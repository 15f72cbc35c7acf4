"""A DLPack consumer that reads capsules with ctypes, as C code would."""

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

# Capsules do not copy their names, so the names must stay alive.
_USED = b"used_dltensor"


class Consumed:
    """The tensor of a capsule, after consumption."""

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
        # Older producers, such as NumPy, omit the strides of C-contiguous arrays.
        self.strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
        self.element = tensor.code, tensor.bits, tensor.lanes
        self.byte_offset = tensor.byte_offset

    def numpy(self, dtype):
        """The elements; requires that device memory is host memory, as in the stub."""
        count = int(numpy.prod(self.shape))
        size = count * numpy.dtype(dtype).itemsize
        bytes_ = (ctypes.c_uint8 * size).from_address(self.data)
        return numpy.frombuffer(bytes_, dtype).reshape(self.shape).copy()

    def delete(self):
        """Calls the deleter without the GIL, as a library may do from any thread."""
        self.managed.deleter(self.address)
