"""Conversion of arrays without copies; consumers keep the memory alive."""

import doctest
import gc
import importlib
import inspect
import weakref

import numpy
import pytest
import spdl_rs
import spdl_rs.io
from spdl_rs.io import (
    Array,
    ArrayInterface,
    CUDAArrayInterface,
    to_jax,
    to_numba,
    to_numpy,
    to_torch,
)

# The name in NumPy 1.22.
from_dlpack = getattr(numpy, "from_dlpack", None) or numpy._from_dlpack
DTYPES = ["uint8", "int32", "int64", "float16", "float32"]
MODULES = ["", "._convert", "._npy", "._tar", "._wav"]


@pytest.mark.parametrize("name", MODULES)
def test_io_doctests_pass(name):
    module = importlib.import_module(f"spdl_rs.io{name}")
    result = doctest.testmod(module)
    assert result.attempted > 2 and result.failed == 0


def test_io_is_documented():
    assert spdl_rs.io is importlib.import_module("spdl_rs.io")
    for name in spdl_rs.io.__all__:
        value = getattr(spdl_rs.io, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            # Fields are documented in the docstring of the class.
            fields = getattr(value, "__dataclass_fields__", ())
            for member, function in vars(value).items():
                is_told = member in fields or isinstance(function, str)
                if not member.startswith("_") and not is_told:
                    assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"


def test_a_new_array_is_zeroed_and_aligned():
    for dtype in DTYPES:
        array = Array((3, 5), dtype)
        assert (array.shape, array.dtype) == ((3, 5), dtype)
        view = numpy.asarray(array)
        assert view.shape == (3, 5) and view.dtype == dtype and not view.any()
        assert view.ctypes.data % 64 == 0 and view.flags.c_contiguous and view.flags.writeable
    assert numpy.asarray(Array([], "int64")).shape == ()
    assert numpy.asarray(Array((0, 4), "float32")).shape == (0, 4)
    assert repr(Array((2,), "bfloat16")) == "Array(bfloat16 [2])"


def test_invalid_dtypes_and_shapes_are_errors():
    with pytest.raises(
        spdl_rs.InvalidArgumentError, match='unsupported dtype "float8".*uint8, uint16'
    ):
        Array((2,), "float8")
    for shape in [(2**62,), (2**40, 2**40)]:
        with pytest.raises(spdl_rs.LimitExceededError):
            Array(shape, "float32")
    with pytest.raises((OverflowError, TypeError)):
        Array((-1,), "uint8")


# promise: PY3
def test_an_array_is_an_array_interface():
    assert isinstance(Array((2,), "uint8"), ArrayInterface)
    assert isinstance(numpy.zeros(2), ArrayInterface)
    assert not isinstance([1], ArrayInterface)
    assert not isinstance(Array((2,), "uint8"), CUDAArrayInterface)


# promise: PY3
@pytest.mark.parametrize("dtype", DTYPES)
def test_v11_numpy_shares_the_memory(dtype):
    array = Array((2, 3), dtype)
    first, second = to_numpy(array), to_numpy(array)
    first[1, 2] = 7
    assert second[1, 2] == 7 and numpy.shares_memory(first, second)
    assert to_numpy(first) is first
    for other in [[1, 2], None, "text"]:
        with pytest.raises(TypeError, match="__array_interface__"):
            to_numpy(other)


def test_v11_bfloat16_is_bytes_in_numpy():
    array = to_numpy(Array((2, 3), "bfloat16"))
    assert array.dtype == "V2" and array.shape == (2, 3)


def released(make):
    """Whether memory that `make` uses lives exactly as long as the result."""
    loader_array = Array((1000,), "float32")
    base = numpy.asarray(loader_array)
    base[:] = numpy.arange(1000)
    alive = weakref.ref(base)
    made = make(base)
    del base, loader_array
    gc.collect()
    kept = alive() is not None
    assert numpy.asarray(made).tolist() == list(range(1000))
    del made
    gc.collect()
    return kept and alive() is None


def test_v11_views_keep_the_memory_alive():
    assert released(lambda array: to_numpy(array)[:])
    assert released(lambda array: to_numba(array)[:])
    assert released(from_dlpack)


# promise: PY3
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_shares_the_memory(dtype):
    array = Array((2, 3), dtype)
    assert array.__dlpack_device__() == (1, 0)
    taken = from_dlpack(array)
    to_numpy(array)[1, 2] = 7
    assert taken[1, 2] == 7 and taken.dtype == dtype and taken.shape == (2, 3)
    assert numpy.shares_memory(taken, to_numpy(array))


@pytest.mark.parametrize("dtype", DTYPES)
def test_memoryview_shares_the_memory(dtype):
    array = Array((2, 3), dtype)
    view = memoryview(to_numpy(array))
    assert not view.readonly and view.c_contiguous and view.shape == (2, 3)
    to_numpy(array)[1, 2] = 7
    del array
    gc.collect()
    taken = numpy.frombuffer(view, dtype)
    assert taken[5] == 7
    taken[0] = 3
    assert view.tobytes()[: view.itemsize] == taken[:1].tobytes()


def names_of(capsule):
    text = repr(capsule)
    return text[text.index('"') + 1 : text.rindex('"')]


# promise: PY3
def test_dlpack_respects_max_version():
    array = Array((2, 3), "float32")
    assert names_of(array.__dlpack__()) == "dltensor"
    if numpy.lib.NumpyVersion(numpy.__version__) < "2.1.0":
        with pytest.raises(TypeError):
            array.__dlpack__(max_version=(1, 0))
        return
    assert names_of(array.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert names_of(array.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    assert names_of(array.__dlpack__(dl_device=(1, 0), copy=False)) == "dltensor"
    copied = from_dlpack(array, copy=True)
    to_numpy(array)[0, 0] = 1
    assert copied[0, 0] == 0
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))
    # The exception type depends on the NumPy version.
    with pytest.raises((BufferError, RuntimeError, ValueError)):
        array.__dlpack__(stream=1)
    with pytest.raises(BufferError):
        Array((2,), "bfloat16").__dlpack__()


# promise: PY3
def test_unused_dlpack_capsules_free_the_memory():
    array = Array((1000,), "float32")
    view = numpy.asarray(array)
    capsules = [array.__dlpack__() for _ in range(100)]
    del array
    gc.collect()
    view[:] = 3
    del capsules
    gc.collect()
    assert (view == 3).all()


def test_the_last_reference_returns_memory_to_the_pool(photos):
    batches = iter(spdl_rs.ImageLoader([photos / "cat" / "1.png"], batch_size=1, size=64))

    def live_bytes():
        gc.collect()
        return batches.stats()["buffers"]["live_bytes"]

    images, labels = next(batches)
    del labels
    pixels = 64 * 64 * 3
    taken = from_dlpack(images.base)
    del images
    assert live_bytes() == pixels
    del taken
    assert live_bytes() == 0


# promise: PY3
@pytest.mark.frameworks
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_v11_torch_shares_the_memory(dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    array = Array((2, 3), dtype)
    tensor = to_torch(array)
    assert tensor.dtype == getattr(torch, dtype) and tensor.shape == (2, 3)
    assert tensor.data_ptr() == array.__array_interface__["data"][0]
    tensor[1, 2] = 1
    assert to_numpy(array)[1, 2].tobytes().strip(b"\0")
    if dtype != "bfloat16":
        assert torch.from_dlpack(array).data_ptr() == tensor.data_ptr()
    del array
    gc.collect()
    assert tensor[1, 2] == 1
    if dtype == "float32":
        assert released(to_torch)
    with pytest.raises(TypeError, match="__array_interface__"):
        to_torch([1])


# promise: PY3
@pytest.mark.frameworks
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "bfloat16"])
def test_v11_jax_shares_the_memory(dtype):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    array = Array((2, 3), dtype)
    taken = to_jax(array).block_until_ready()
    assert taken.dtype == dtype and taken.shape == (2, 3)
    assert taken.unsafe_buffer_pointer() == array.__array_interface__["data"][0]
    if dtype != "bfloat16":
        dlpack = jax.dlpack.from_dlpack(array).block_until_ready()
        assert dlpack.unsafe_buffer_pointer() == taken.unsafe_buffer_pointer()
    del array
    gc.collect()
    assert not numpy.asarray(taken).view("u1").any()
    if dtype == "float32":
        assert released(lambda array: to_jax(array).block_until_ready())
    with pytest.raises(TypeError, match="__array_interface__"):
        to_jax([1])


class OnDevice:
    """An object with `__cuda_array_interface__`."""

    def __init__(self, shape):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (0, False)}


@pytest.mark.frameworks
def test_v11_an_empty_array_on_a_gpu_is_a_value_error():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert isinstance(OnDevice((0,)), CUDAArrayInterface)
    with pytest.raises(ValueError, match="empty"):
        to_torch(OnDevice((2, 0)))


def test_v11_missing_frameworks_are_import_errors(monkeypatch):
    for name in ["torch", "jax", "numba.cuda"]:
        monkeypatch.setitem(__import__("sys").modules, name, None)
    array = Array((2,), "uint8")
    for convert in [to_torch, to_jax]:
        with pytest.raises(ImportError):
            convert(array)
    with pytest.raises(ImportError):
        to_numba(OnDevice((2,)))


def test_v11_numpy_arrays_are_returned_unchanged():
    array = spdl_rs.io.load_npy(saved(numpy.arange(6)))
    assert to_numpy(array) is array and to_numba(array) is array


def saved(array):
    import io

    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()
