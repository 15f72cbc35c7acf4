"""Tar archives, compared with Python's `tarfile`."""

import gzip
import io
import mmap
import os
import pathlib
import tarfile

import numpy
import pytest
import spdl_rs
from spdl_rs.io import iter_tarfile

CORPORA = pathlib.Path(
    os.environ.get("SPDL_CORPORA", pathlib.Path(__file__).parents[2] / "../shared/corpora")
)
FILES = [("cat/1.txt", b"meow"), ("empty", b""), ("large.bin", bytes(range(256)) * 200)]


def archive_of(files=FILES, form=tarfile.PAX_FORMAT, links=()):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, contents in files:
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
        for name, kind in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "cat/1.txt"
            archive.addfile(member)
    return file.getvalue()


class Source:
    """A file with only `read`, which returns at most `most` bytes."""

    def __init__(self, data, most=1000):
        self._file, self._most = io.BytesIO(data), most
        self.requested = []

    def read(self, size):
        self.requested.append(size)
        return self._file.read(min(size, self._most))


def contents(source, **options):
    return [(name, bytes(data)) for name, data in iter_tarfile(source, **options)]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_r01_memory_and_files_give_equal_members(form):
    archive = archive_of(form=form)
    for source in [
        archive,
        bytearray(archive),
        memoryview(archive),
        numpy.frombuffer(archive, "u1"),
    ]:
        assert contents(source) == FILES
    for source in [io.BytesIO(archive), Source(archive), Source(archive, 1)]:
        assert contents(source) == FILES
    compressed = gzip.compress(archive)
    with gzip.open(io.BytesIO(compressed)) as decompressed:
        assert contents(decompressed) == FILES


def test_r01_memory_yields_views_and_files_yield_bytes(tmp_path):
    archive = archive_of()
    for source in [archive, bytearray(archive)]:
        for name, view in iter_tarfile(source):
            assert type(name) is str and type(view) is memoryview
            assert view.readonly == (source is archive)
            if view:
                assert numpy.shares_memory(
                    numpy.frombuffer(view, "u1"), numpy.frombuffer(source, "u1")
                )
    assert [type(data) for _, data in iter_tarfile(io.BytesIO(archive))] == [bytes] * 3
    path = tmp_path / "archive.tar"
    path.write_bytes(archive)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        views = list(iter_tarfile(mapped))
        assert [(name, bytes(view)) for name, view in views] == FILES
        assert type(views[0][1]) is memoryview
        for _, view in views:
            view.release()
        del views


def test_r01_views_keep_the_archive():
    views = dict(iter_tarfile(bytes(bytearray(archive_of()))))
    other = [bytes(len(archive_of())) for _ in range(10)]
    assert bytes(views["large.bin"]) == FILES[2][1]
    del other
    archive = bytearray(archive_of())
    files = iter_tarfile(archive)
    next(files)
    with pytest.raises(BufferError):
        archive.clear()


def test_r01_views_of_other_shapes_are_bytes():
    archive = numpy.frombuffer(archive_of(), "<u4").reshape(-1, 2)
    assert contents(archive) == FILES
    with pytest.raises(ValueError, match="not C-contiguous"):
        iter_tarfile(archive[:, 0])
    with pytest.raises(spdl_rs.TruncatedError):
        list(iter_tarfile(numpy.zeros((0, 3), "u2")))


def test_r01_long_names_and_large_sizes_are_read():
    files = [("n" * 300 + "/" + "m" * 300, b"1"), ("ünïcode", b"2")]
    for form in [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
        assert contents(archive_of(files, form)) == files
    # A binary size, as GNU tar writes from 8 GiB on.
    archive = bytearray(archive_of([("a", b"1234")], tarfile.GNU_FORMAT))
    archive[124:136] = b"\x80" + (4).to_bytes(11, "big")
    header = archive[:148] + b" " * 8 + archive[156:512]
    archive[148:156] = b"%06o\0 " % sum(header)
    assert contents(archive) == [("a", b"1234")]
    # A size in the pax extended header, and 0 in the ustar header.
    member = tarfile.TarInfo("b")
    member.pax_headers = {"size": "4"}
    block = member.tobuf(tarfile.PAX_FORMAT) + b"5678".ljust(512, b"\0") + bytes(1024)
    assert contents(block) == [("b", b"5678")]


def test_r01_undecodable_names_are_decoded_as_fsdecode_does():
    archive = bytearray(archive_of([("aaaa", b"x")], tarfile.USTAR_FORMAT))
    archive[0:4] = b"\xffaa\xfe"
    archive[148:156] = b"%06o\0 " % sum(archive[:148] + b" " * 8 + archive[156:512])
    ((name, _),) = iter_tarfile(archive)
    assert name == "\udcffaa\udcfe"


def test_r01_members_other_than_files_are_skipped():
    links = [("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE), ("pipe", tarfile.FIFOTYPE)]
    for source in [bytes, io.BytesIO]:
        assert contents(source(archive_of(links=links))) == FILES


def test_r01_iteration_continues_after_a_hard_link_error():
    first = archive_of(FILES[:1], links=[("hard", tarfile.LNKTYPE)])
    archive = first[: 3 * 512] + archive_of(FILES[1:])
    for source in [archive, io.BytesIO(archive)]:
        files = iter_tarfile(source)
        assert next(files)[0] == "cat/1.txt"
        with pytest.raises(spdl_rs.UnsupportedError, match="hard link") as caught:
            next(files)
        assert caught.value.key == "hard" and isinstance(caught.value, ValueError)
        assert [name for name, _ in files] == ["empty", "large.bin"]


def test_r01_every_truncation_is_detected():
    archive = archive_of([("a", b"1" * 600), ("b", b"2")])
    end = len(archive_of([("a", b"1" * 600), ("b", b"2")]).rstrip(b"\0"))
    for len_ in [*range(0, 2600, 37), 512, 1536, 2560]:
        if len_ > end + 511:
            continue
        found = []
        for source in [archive[:len_], Source(archive[:len_])]:
            files, given = iter_tarfile(source), []
            with pytest.raises(spdl_rs.TruncatedError) as caught:
                given.extend(name for name, _ in files)
            assert caught.value.offset == len_
            assert list(files) == []
            found.append(given)
        assert found[0] == found[1] == ["a"] * (len_ >= 1112) + ["b"] * (len_ >= 2049)


def test_r01_a_missing_end_is_an_error_by_default():
    archive = archive_of()
    archive = archive[: -(-len(archive.rstrip(b"\0")) // 512) * 512]
    for source in [bytes, io.BytesIO]:
        with pytest.raises(spdl_rs.TruncatedError, match="end-of-archive marker"):
            contents(source(archive))
        assert contents(source(archive), accept_missing_end=True) == FILES


def test_r01_invalid_headers_are_errors():
    archive = bytearray(archive_of())
    archive[512 * 2 + 10] ^= 1
    for source in [bytes(archive), io.BytesIO(archive), b"not a tar archive".ljust(512) * 3]:
        with pytest.raises(spdl_rs.CorruptError):
            contents(source)
    # A header whose size exceeds the archive and any memory.
    huge = bytearray(archive_of([("a", b"1234")], tarfile.GNU_FORMAT))
    huge[124:136] = b"\x80" + (2**60).to_bytes(11, "big")
    huge[148:156] = b"%06o\0 " % sum(huge[:148] + b" " * 8 + huge[156:512])
    source = Source(huge)
    for each in [bytes(huge), source]:
        with pytest.raises(spdl_rs.TruncatedError):
            contents(each)
    assert max(source.requested) <= 16 << 20


def test_r01_exceptions_of_read_propagate():
    class Broken:
        def __init__(self, answer):
            self.answer = answer

        def read(self, size):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    error = ConnectionError("gone")
    with pytest.raises(ConnectionError) as caught:
        list(iter_tarfile(Broken(error)))
    assert caught.value is error
    with pytest.raises(TypeError, match="must return bytes, not str"):
        list(iter_tarfile(Broken("text")))
    with pytest.raises(TypeError, match="not NoneType"):
        list(iter_tarfile(Broken(None)))
    with pytest.raises(ValueError, match="more than requested"):
        list(iter_tarfile(Broken(bytes(513))))
    for source in ["archive.tar", 3, None]:
        with pytest.raises(TypeError, match="must be bytes-like or have a read method"):
            iter_tarfile(source)


def test_r01_a_compressed_stream_is_verified_to_its_end():
    compressed = bytearray(gzip.compress(archive_of()))
    compressed[-5] ^= 1
    with gzip.open(io.BytesIO(compressed)) as decompressed, pytest.raises(gzip.BadGzipFile):
        list(iter_tarfile(decompressed))


def test_r01_corpus_archives_are_read_as_by_tarfile():
    folders = ["cpython/files", "tar-rs/files/tests/archives", "golang-std/files/archive/tar"]
    paths = [path for folder in folders for path in CORPORA.glob(f"{folder}/**/*.tar")]
    if not paths:
        pytest.skip("corpora not present")
    compared = 0
    for path in paths:
        data = path.read_bytes()
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                expected = [
                    archive.extractfile(member).read()
                    for member in archive.getmembers()
                    if member.isreg() and not member.issparse()
                ]
        except (tarfile.TarError, AttributeError):
            continue
        found = []
        files = iter_tarfile(data, accept_missing_end=True)
        while True:
            try:
                _, view = next(files)
            except StopIteration:
                break
            except spdl_rs.UnsupportedError:
                # Hard links and sparse files.
                continue
            except spdl_rs.DataError:
                # This reader is stricter; members before the error must be equal.
                expected = expected[: len(found)]
                break
            found.append(bytes(view))
        assert found == expected, path
        compared += len(found)
    assert compared > 20
