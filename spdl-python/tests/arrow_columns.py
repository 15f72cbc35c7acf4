"""A table with the Arrow PyCapsule interface, by the standard library."""

import ctypes
import itertools

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


def _fields(struct, *own):
    """The fields of both structs of the Arrow C data interface, which have the same end."""
    pointer = ctypes.POINTER(struct)
    struct._fields_ = [
        *own,
        ("children", ctypes.POINTER(pointer)),
        ("dictionary", pointer),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


_fields(
    _Schema,
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
)
_fields(
    _Array,
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
)
# The memory of exported structs, by the number in their `private_data`.
_exported = {}
_numbers = itertools.count(1)


def _releaser(struct):
    def release(pointer):
        exported = pointer[0]
        _exported.pop(exported.private_data, None)
        exported.release = None

    return ctypes.CFUNCTYPE(None, ctypes.POINTER(struct))(release)


_releasers = {struct: _releaser(struct) for struct in (_Schema, _Array)}


def _export(struct, name, memory):
    """A capsule with a struct that keeps `memory` until the consumer releases it."""
    struct.private_data = next(_numbers)
    struct.release = ctypes.cast(_releasers[type(struct)], ctypes.c_void_p).value
    _exported[struct.private_data] = struct, memory
    return _new_capsule(ctypes.addressof(struct), name, None)


def _children(structs):
    kind = ctypes.POINTER(type(structs[0]))
    return (kind * len(structs))(*map(ctypes.pointer, structs))


class Columns:
    """Columns of `int` (64-bit integers) or `bytes` (binary). Values may be `None`.

    `exports` is the number of exported tables that no consumer has released.
    """

    def __init__(self, **columns):
        self.columns = columns

    @property
    def exports(self):
        return sum(isinstance(struct, _Array) for struct, _ in _exported.values())

    def __arrow_c_array__(self, requested_schema=None):
        schemas, arrays, memory = [], [], []
        for name, values in self.columns.items():
            is_null = [value is None for value in values]
            bits = sum((not null) << row for row, null in enumerate(is_null))
            buffers = [ctypes.create_string_buffer(bits.to_bytes(len(values) // 8 + 1, "little"))]
            if all(value is None or isinstance(value, int) for value in values):
                kind = b"l"
                buffers.append((ctypes.c_int64 * len(values))(*(value or 0 for value in values)))
            else:
                kind = b"z"
                parts = [value or b"" for value in values]
                ends = itertools.accumulate(map(len, parts), initial=0)
                buffers.append((ctypes.c_int32 * (len(values) + 1))(*ends))
                buffers.append(ctypes.create_string_buffer(b"".join(parts)))
            pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            memory.append((buffers, pointers))
            schemas.append(_Schema(format=kind, name=name.encode(), flags=2))
            arrays.append(
                _Array(
                    length=len(values),
                    null_count=sum(is_null),
                    n_buffers=len(buffers),
                    buffers=pointers,
                )
            )
        # Consumers check that children have not been released, but need not release them.
        for child in schemas + arrays:
            child.release = ctypes.cast(_releasers[type(child)], ctypes.c_void_p).value
        count = len(schemas)
        schema = _Schema(format=b"+s", name=b"", n_children=count, children=_children(schemas))
        pointers = (ctypes.c_void_p * 1)(None)
        array = _Array(
            length=len(next(iter(self.columns.values()))),
            n_buffers=1,
            buffers=pointers,
            n_children=count,
            children=_children(arrays),
        )
        return (
            _export(schema, b"arrow_schema", schemas),
            _export(array, b"arrow_array", (arrays, memory, pointers)),
        )
