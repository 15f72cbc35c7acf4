"""Feature group R: zip archives."""

import doctest
import io
import zipfile

import numpy
import pytest
import spdl_rs
import spdl_rs.io._zip
from spdl_rs.io import iter_zipfile

CONTENTS = {"a.txt": b"first", "folder/b.bin": bytes(range(256)) * 40, "empty": b""}


def archive(contents=CONTENTS, method=zipfile.ZIP_DEFLATED, comment=b""):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as zipped:
        zipped.comment = comment
        zipped.mkdir("folder") if hasattr(zipped, "mkdir") else None
        for name, data in contents.items():
            zipped.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("comment", [b"", b"x", b"comment" * 9])
def test_r06_files_are_yielded_in_order(method, comment):
    found = list(iter_zipfile(archive(method=method, comment=comment)))
    assert [(name, bytes(data)) for name, data in found] == list(CONTENTS.items())


def test_r06_stored_files_are_views_of_the_archive():
    data = bytearray(archive(method=zipfile.ZIP_STORED))
    contents = dict(iter_zipfile(data))
    assert contents["folder/b.bin"].obj is data
    array = numpy.frombuffer(contents["folder/b.bin"], "u1")
    assert array.tobytes() == CONTENTS["folder/b.bin"]


def test_r06_files_before_a_corrupt_one_are_yielded():
    data = bytearray(archive(method=zipfile.ZIP_STORED))
    data[data.index(CONTENTS["folder/b.bin"]) + 9] ^= 1
    files = iter_zipfile(data)
    assert bytes(next(files)[1]) == b"first"
    with pytest.raises(spdl_rs.CorruptError, match="checksum mismatch") as raised:
        next(files)
    # As in SPDL.
    assert isinstance(raised.value, RuntimeError)
    assert raised.value.key == "folder/b.bin"
    whole = archive()
    for cut in (whole[:-30], whole[: len(whole) // 2], b"", b"no archive"):
        with pytest.raises(spdl_rs.DataError):
            iter_zipfile(cut)


def test_r06_max_uncompressed_bytes_is_enforced():
    data = archive({"zeros": bytes(100_000)})
    assert len(data) < 1000
    with pytest.raises(spdl_rs.LimitExceededError, match="100000 bytes"):
        iter_zipfile(data, max_uncompressed_bytes=99_999)
    ((_, contents),) = iter_zipfile(data, max_uncompressed_bytes=100_000)
    assert bytes(contents) == bytes(100_000)
    with pytest.raises(ValueError, match="at least 0, not -1"):
        iter_zipfile(data, max_uncompressed_bytes=-1)


def test_r06_unsupported_methods_and_types_are_errors():
    files = iter_zipfile(archive(method=zipfile.ZIP_BZIP2))
    with pytest.raises(spdl_rs.UnsupportedError):
        next(files)
    with pytest.raises(TypeError):
        iter_zipfile("archive.zip")


def test_the_examples_in_docstrings_run():
    result = doctest.testmod(spdl_rs.io._zip)
    assert result.attempted >= 4 and result.failed == 0
