"""Arrays in `.npy` and `.npz` files, compared with NumPy."""

import io
import struct
import threading
import zipfile

import numpy
import pytest
import spdl_rs
from spdl_rs.io import NpzFile, UnsupportedTypeError, load_npy, load_npz

TYPES = (
    "? b B <h >h <H <i >i <I <q >q <Q <e >e <f >f <d >d <F >F <D S3 <U2 >U2 V5 <M8[s] >m8[25us] g"
)


def saved(array, version=None):
    file = io.BytesIO()
    numpy.lib.format.write_array(file, numpy.asanyarray(array), version=version)
    return file.getvalue()


def header_of(text, data=b""):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def savez(arrays, compressed=False):
    file = io.BytesIO()
    (numpy.savez_compressed if compressed else numpy.savez)(file, **arrays)
    return file.getvalue()


def as_bytes(array):
    return numpy.frombuffer(array, "u1")


@pytest.mark.parametrize("dtype", TYPES.split())
def test_r02_all_dtypes_load_as_in_numpy(dtype):
    bits = numpy.arange(24 * numpy.dtype(dtype).itemsize, dtype="u1") % 2
    array = numpy.frombuffer(bits.tobytes(), dtype).reshape(2, 3, 4)
    for each in [array, numpy.asfortranarray(array), array[0, 0, 0], array[:0]]:
        file = saved(each)
        expected = numpy.load(io.BytesIO(file))
        for data in [file, bytearray(file), memoryview(file), numpy.frombuffer(file, "u1")]:
            found = load_npy(data)
            assert found.dtype == expected.dtype and found.shape == expected.shape
            assert found.tobytes() == expected.tobytes()
            assert found.flags.f_contiguous == expected.flags.f_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_r02_each_version_is_read(version):
    assert (load_npy(saved(numpy.arange(5), version)) == numpy.arange(5)).all()


@pytest.mark.parametrize("len_", [100, 127, 128, 200, 255, 256, 300, 9000])
def test_r02_headers_of_any_length_are_read(len_):
    text = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }".ljust(len_ - 1) + "\n"
    assert load_npy(header_of(text, bytes(range(16))))[0] == 0x0706050403020100


def test_r02_an_array_is_a_view_that_keeps_the_file():
    file = saved(numpy.arange(1000))
    array = load_npy(file)
    assert numpy.shares_memory(as_bytes(array), as_bytes(file))
    assert not array.flags.writeable
    array = load_npy(bytes(bytearray(file)))
    other = [bytes(len(file)) for _ in range(10)]
    assert (array == numpy.arange(1000)).all()
    del other
    # A `bytearray` cannot be resized while a view of it exists.
    mutable = bytearray(file)
    array = load_npy(mutable)
    array[0] = 77
    assert load_npy(mutable)[0] == 77
    with pytest.raises(BufferError):
        mutable.extend(b"x")


def test_r02_copy_allocates_memory():
    file = saved(numpy.asfortranarray(numpy.arange(6).reshape(2, 3)))
    array = load_npy(file, copy=True)
    assert not numpy.shares_memory(as_bytes(array.ravel("K")), as_bytes(file))
    assert array.flags.writeable and array.flags.f_contiguous
    assert (array == numpy.arange(6).reshape(2, 3)).all()


def test_r02_trailing_bytes_are_ignored():
    assert (load_npy(saved(numpy.arange(3)) + b"more") == numpy.arange(3)).all()


def test_r02_objects_and_records_are_type_errors():
    records = numpy.zeros(2, [("a", "i4"), ("b", "f4")])
    file = io.BytesIO()
    numpy.save(file, numpy.array([{}], object), allow_pickle=True)
    for data in [file.getvalue(), saved(records)]:
        with pytest.raises(UnsupportedTypeError) as caught:
            load_npy(data)
        assert isinstance(caught.value, (TypeError, spdl_rs.UnsupportedError))
        assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)
    text = "{'descr': '<M8[ages]', 'fortran_order': False, 'shape': (2,), }"
    with pytest.raises(UnsupportedTypeError, match="ages"):
        load_npy(header_of(text, bytes(16)))


def test_r02_a_later_version_is_unsupported():
    data = bytearray(saved(numpy.arange(3)))
    data[6] = 9
    with pytest.raises(spdl_rs.UnsupportedError, match="version 9.0") as caught:
        load_npy(data)
    assert not isinstance(caught.value, TypeError)


def test_r02_every_truncation_is_detected():
    file = saved(numpy.arange(3, dtype="i2"))
    for len_ in range(len(file)):
        for data in [file[:len_], bytearray(file[:len_])]:
            with pytest.raises(spdl_rs.TruncatedError) as caught:
                load_npy(data)
            assert isinstance(caught.value, ValueError) and caught.value.offset == len_


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<i8', 'fortran_order': False}",
        "__import__('os').abort()",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0)}",
    ],
)
def test_r02_a_malformed_header_is_corrupt(text):
    with pytest.raises(spdl_rs.CorruptError):
        load_npy(header_of(text, bytes(16)))


def test_r02_objects_without_buffer_are_type_errors():
    for data in ["text", None, 3, io.BytesIO()]:
        for load in [load_npy, load_npz]:
            with pytest.raises(TypeError):
                load(data)
    with pytest.raises(ValueError, match="not C-contiguous"):
        load_npy(numpy.frombuffer(saved(numpy.arange(3)), "u1")[::2])


ARRAYS = {"x": numpy.arange(300), "y": numpy.linspace(0, 1, 7, dtype="f4"), "z": numpy.float16(3)}


@pytest.mark.parametrize("compressed", [False, True])
def test_r03_arrays_equal_the_saved_arrays(compressed):
    file = savez(ARRAYS, compressed)
    for data in [file, bytearray(file), memoryview(file), memoryview(b"12" + file)[2:]]:
        arrays = load_npz(data)
        assert isinstance(arrays, NpzFile)
        assert arrays.files == list(arrays) == list(arrays.keys()) == ["x", "y", "z"]
        assert len(arrays) == 3 and set(dict(arrays)) == set(ARRAYS)
        for name, expected in ARRAYS.items():
            for key in [name, f"{name}.npy"]:
                assert key in arrays
                assert (arrays[key] == expected).all() and arrays[key].dtype == expected.dtype
    assert repr(arrays) == "NpzFile(3 arrays)"


def test_r03_a_missing_name_is_a_key_error():
    arrays = load_npz(savez(ARRAYS))
    for key in ["", "a", "x.npy.npy", ".npy"]:
        assert key not in arrays
        with pytest.raises(KeyError):
            arrays[key]
    assert 3 not in arrays and arrays.get("a") is None


def test_r03_stored_arrays_are_views():
    file = savez(ARRAYS)
    array = load_npz(file)["x"]
    assert numpy.shares_memory(as_bytes(array), as_bytes(file)) and not array.flags.writeable
    mutable = bytearray(file)
    array = load_npz(mutable)["x"]
    assert array.flags.writeable
    with pytest.raises(BufferError):
        mutable.clear()

    arrays = load_npz(savez(ARRAYS, compressed=True))
    first, second = arrays["x"], arrays["x"]
    first[:] = 0
    assert (second == ARRAYS["x"]).all()
    assert first.ctypes.data % 64 == 0
    del arrays
    assert (second == ARRAYS["x"]).all()


def test_r03_archive_comments_are_skipped():
    for len_ in [0, 1, 2, 3, 4, 21, 22, 65535]:
        file = io.BytesIO(savez(ARRAYS))
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = b"c" * len_
        assert (load_npz(file.getvalue())["x"] == ARRAYS["x"]).all()


def test_r03_zip64_is_supported():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in ARRAYS.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(saved(array))
    arrays = load_npz(file.getvalue())
    assert all((arrays[name] == array).all() for name, array in ARRAYS.items())


@pytest.mark.parametrize("compressed", [False, True])
def test_r03_changed_data_is_corrupt(compressed):
    file = bytearray(savez({"x": ARRAYS["x"], "y": ARRAYS["y"]}, compressed))
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        member = archive.getinfo("x.npy")
    file[member.header_offset + 30 + 5 + 20 + member.compress_size // 2] ^= 1
    for data in [bytes(file), file]:
        arrays = load_npz(data)
        with pytest.raises(spdl_rs.CorruptError) as caught:
            arrays["x"]
        assert caught.value.key == "x.npy" and isinstance(caught.value, ValueError)
        assert (arrays["y"] == ARRAYS["y"]).all()


@pytest.mark.parametrize("compressed", [False, True])
def test_r03_a_wrong_checksum_is_corrupt(compressed):
    file = savez(ARRAYS, compressed)
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        right = struct.pack("<I", archive.getinfo("x.npy").CRC)
    with pytest.raises(spdl_rs.CorruptError, match="(checksum|CRC-32) mismatch"):
        load_npz(file.replace(right, b"\1\2\3\4"))["x"]


def test_r03_folders_are_not_arrays():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/x.npy", saved(ARRAYS["x"]))
    arrays = load_npz(file.getvalue())
    assert arrays.files == ["folder/x"] and "folder/" not in arrays
    assert (arrays["folder/x"] == ARRAYS["x"]).all()


def test_r03_other_compression_methods_are_unsupported():
    for method in [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.writestr("x.npy", saved(ARRAYS["x"]))
        with pytest.raises(spdl_rs.UnsupportedError) as caught:
            load_npz(file.getvalue())["x"]
        assert isinstance(caught.value, ValueError)


def test_r03_max_uncompressed_bytes_limits_the_total():
    file = savez({"x": numpy.zeros(1000, "u1"), "y": numpy.zeros(1000, "u1")}, compressed=True)
    assert len(load_npz(file, max_uncompressed_bytes=2 * 1128)) == 2
    with pytest.raises(spdl_rs.LimitExceededError, match="2256"):
        load_npz(file, max_uncompressed_bytes=2 * 1128 - 1)
    # Stored members need no memory.
    assert len(load_npz(savez(ARRAYS), max_uncompressed_bytes=0)) == 3
    with pytest.raises(ValueError, match="at least 0, not -1"):
        load_npz(file, max_uncompressed_bytes=-1)


def test_r03_truncated_and_corrupt_archives_are_errors():
    for data in [b"", b"PK", b"abc" * 100, savez(ARRAYS)[:-30]]:
        with pytest.raises(spdl_rs.TruncatedError):
            load_npz(data)
    file = savez(ARRAYS)
    random = numpy.random.default_rng(3)
    for _ in range(300):
        damaged = bytearray(file)
        for at in random.integers(0, len(file), 3):
            damaged[at] = random.integers(256)
        try:
            for array in load_npz(damaged).values():
                assert array.nbytes <= len(file)
        except spdl_rs.DataError:
            pass


def test_r03_threads_read_concurrently():
    arrays = load_npz(savez({f"a{i}": numpy.full(20000, i) for i in range(8)}, compressed=True))
    wrong = []

    def read():
        for i in range(8):
            if not (arrays[f"a{i}"] == i).all():
                wrong.append(i)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
