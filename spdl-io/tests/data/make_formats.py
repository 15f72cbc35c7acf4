"""Writes the files of the folders next to it with the usual writers of these formats.

    pip install tfrecord mosaicml-streaming pyarrow datasets pillow brotli python-snappy zstd
    pip install litdata lmdb mxnet 'numpy<2.3'
    python make_formats.py [tfrecord parquet expected litdata recordio lmdb mds]

Install `mosaicml-streaming` and `mxnet` with `--no-deps`: only their writers are loaded, because the first
requires PyTorch, and the second an old NumPy. The output is reproducible, except for the times in gzip headers.
"""

import json
import pathlib
import random
import struct
import sys
import types
from unittest.mock import MagicMock

import numpy as np

HERE = pathlib.Path(__file__).parent


def image(i):
    """Incompressible bytes that are not an image."""
    return random.Random(i).randbytes(200 + 37 * i)


def tfrecord():
    from tfrecord import example_pb2
    from tfrecord.tools import tfrecord2idx
    from tfrecord.writer import TFRecordWriter

    folder = HERE / "tfrecord"
    folder.mkdir(exist_ok=True)

    def sample(i):
        return {
            "image/encoded": (image(i), "byte"),
            "image/class/label": (i - 2, "int"),
            "image/class/text": (f"class {i}".encode(), "byte"),
            "boxes": ([0.5 * i, 0.25, -1.5], "float"),
            "score": (0.125 * i, "float"),
            "tokens": (list(range(i)), "int"),
            "parts": ([b"a", b"", bytes([i])], "byte"),
        }

    for name, numbers in [("a.tfrecord", range(5)), ("b.tfrecord", range(5, 8))]:
        writer = TFRecordWriter(str(folder / name))
        for i in numbers:
            writer.write(sample(i))
        writer.close()
    tfrecord2idx.create_index(str(folder / "b.tfrecord"), str(folder / "b.tfrecord.idx"))

    writer = TFRecordWriter(str(folder / "sequence.tfrecord"))
    for i in range(2):
        writer.write(
            {"length": (i + 1, "int")},
            {"frames": ([[b"f%d" % j] for j in range(i + 1)], "byte"), "ids": ([[1, 2], [3]], "int")},
        )
    writer.close()

    # Valid protocol buffers that the writers do not produce: unpacked numbers, a feature without a kind,
    # a duplicate name, unknown fields.
    def part(number, kind, value):
        return bytes([number << 3 | kind]) + value

    def text(number, value):
        assert len(value) < 128
        return part(number, 2, bytes([len(value)]) + value)

    ints = text(3, part(1, 0, b"\x05") + part(1, 0, b"\xff" * 9 + b"\x01"))
    floats = text(2, part(1, 5, struct.pack("<f", 1.5)) + part(1, 5, struct.pack("<f", -2.0)))
    entry = lambda name, feature: text(1, text(1, name) + text(2, feature))
    features = entry(b"ints", ints) + entry(b"floats", floats) + entry(b"none", b"")
    features += entry(b"twice", text(3, part(1, 0, b"\x01"))) + entry(b"twice", text(1, text(1, b"2")))
    record = text(1, features) + part(9, 0, b"\x07") + part(10, 1, b"8 bytes.") + part(11, 5, b"four")
    parsed = example_pb2.Example.FromString(record).features.feature
    assert list(parsed["ints"].int64_list.value) == [5, -1]
    assert list(parsed["floats"].float_list.value) == [1.5, -2.0]
    assert list(parsed["twice"].bytes_list.value) == [b"2"]
    with open(folder / "unpacked.tfrecord", "wb") as file:
        length = struct.pack("<Q", len(record))
        file.write(length + TFRecordWriter.masked_crc(length))
        file.write(record + TFRecordWriter.masked_crc(record))


def mds():
    import importlib.util

    base = pathlib.Path(importlib.util.find_spec("streaming").submodule_search_locations[0])
    for name in ["streaming", "streaming.base", "streaming.base.format", "streaming.base.format.base"]:
        module = types.ModuleType(name)
        module.__path__ = [str(base.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    for name in ["torch", "torch.distributed"]:
        sys.modules[name] = MagicMock()
    for name in ["distributed", "shared", "shared.prefix", "storage", "storage.upload"]:
        sys.modules[f"streaming.base.{name}"] = MagicMock()
    from PIL import Image
    from streaming.base import compression, hashing
    from streaming.base.format.index import get_index_basename
    from streaming.base.format.mds.encodings import get_mds_encoded_size
    from streaming.base.format.mds.writer import MDSWriter

    columns = {
        "array": "ndarray",
        "array_f32": "ndarray:float32",
        "array_2x3": "ndarray:int16:2,3",
        "blob": "bytes",
        "f16": "float16",
        "f32": "float32",
        "f64": "float64",
        "i16": "int16",
        "i8": "int8",
        "image": "png",
        "info": "json",
        "label": "int",
        "pil": "pil",
        "text": "str",
        "u16": "uint16",
        "u32": "uint32",
        "u64": "uint64",
        "digits": "str_int",
        "decimal": "str_float",
    }

    def sample(i):
        return {
            "array": np.arange(i + 1, dtype=np.uint8).reshape(1, -1),
            "array_f32": np.array([[i, 0.5], [-1, 2]], np.float32),
            "array_2x3": np.array([[1, 2, 3], [-4, -5, i]], np.int16),
            "blob": image(i),
            "f16": 0.5 * i,
            "f32": 0.25 * i,
            "f64": 0.1 * i,
            "i16": -i * 300,
            "i8": -i,
            "image": Image.new("RGB", (3, 2), (i, 2, 3)),
            "info": {"id": i, "tags": ["a", None]},
            "label": i - 1,
            "pil": Image.new("L", (2, 2), i),
            "text": f"größe {i}",
            "u16": 60000 + i,
            "u32": 4_000_000_000 + i,
            "u64": i,
            "digits": 123456 + i,
            "decimal": 1.5 * i,
        }

    def write(folder, columns, samples, **options):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        # As `MDSWriter`, without the upload, which needs the rest of the package.
        writer = MDSWriter.__new__(MDSWriter)
        writer.out_dir = str(folder)
        writer.compression = options.get("compression")
        writer.hashes = options.get("hashes", [])
        writer.size_limit = options.get("size_limit", 1 << 26)
        writer.columns = columns
        writer.new_samples = []
        writer.column_names = sorted(columns)
        writer.column_encodings = [columns[name] for name in writer.column_names]
        writer.column_sizes = [get_mds_encoded_size(e) for e in writer.column_encodings]
        config = writer.get_config()
        writer.config_data = json.dumps(config, sort_keys=True).encode()
        shards = []
        for number, part in enumerate(samples):
            writer.new_samples = [writer.encode_sample(sample) for sample in part]
            raw = writer.encode_joint_shard()
            name = f"shard.{number:05}.mds"
            hashes = lambda data: {h: hashing.get_hash(h, data) for h in writer.hashes}
            info = lambda name, data: {"basename": name, "bytes": len(data), "hashes": hashes(data)}
            shard = dict(config, samples=len(part), raw_data=info(name, raw), zip_data=None)
            if writer.compression:
                packed = compression.compress(writer.compression, raw)
                zip_name = f"{name}.{compression.get_compression_extension(writer.compression)}"
                shard["zip_data"] = info(zip_name, packed)
                (folder / zip_name).write_bytes(packed)
            else:
                (folder / name).write_bytes(raw)
            shards.append(shard)
        index = {"version": 2, "shards": shards}
        (folder / get_index_basename()).write_text(json.dumps(index, sort_keys=True))

    folder = HERE / "mds"
    write(folder / "plain", columns, [[sample(i) for i in range(3)], [sample(i) for i in range(3, 5)]], hashes=["sha1", "xxh64"])
    few = {"blob": "bytes", "label": "int"}
    small = lambda numbers: [{"blob": image(i), "label": i} for i in numbers]
    shards = lambda: [small(range(3)), small(range(3, 5))]
    write(folder / "zstd", few, shards(), compression="zstd", hashes=["xxh64", "xxh3_128", "md5"])
    write(folder / "gz", few, shards(), compression="gz", hashes=["xxh3_64"])
    write(folder / "br", few, shards(), compression="br")
    write(folder / "pickle", {"label": "int", "object": "pkl"}, [[{"label": 1, "object": {"a": 1}}]])


def parquet():
    import io

    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder = HERE / "parquet"
    folder.mkdir(exist_ok=True)

    # Images as `datasets` writes them: a struct of bytes and path, described in the metadata.
    def png(i):
        buffer = io.BytesIO()
        Image.new("RGB", (4, 3), (i, 10, 20)).save(buffer, format="PNG")
        return buffer.getvalue()

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
            "caption": datasets.Value("string"),
            "boxes": datasets.Sequence(datasets.Value("float32")),
        }
    )
    rows = [
        {
            "image": {"bytes": png(i), "path": f"{i}.png"},
            "label": i % 3,
            "caption": f"the größe of {i}",
            "boxes": [0.5 * i] * (i % 3),
        }
        for i in range(10)
    ]
    table = datasets.Dataset.from_list(rows, features=features)
    table.to_parquet(str(folder / "images.parquet"), batch_size=4)

    # Images whose bytes are in separate files, or nowhere.
    paths = ["images/0.png", "../1.png", "/2.png", None, "http://host/3.png", "images/absent.png"]
    column = [{"bytes": None, "path": path} for path in paths]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(column, kind), "number": pa.array(range(len(paths)))})
    pq.write_table(table, folder / "paths.parquet", compression="none")

    # All kinds of columns, with nulls, in all compressions.
    def maybe(i, value):
        return None if i % 4 == 1 else value

    count = 9
    table = pa.table(
        {
            "flag": pa.array([maybe(i, i % 2 == 0) for i in range(count)], pa.bool_()),
            "i8": pa.array([maybe(i, -i) for i in range(count)], pa.int8()),
            "u8": pa.array([250 + i % 5 for i in range(count)], pa.uint8()),
            "i32": pa.array([maybe(i, -(10**9) - i) for i in range(count)], pa.int32()),
            "u32": pa.array([4 * 10**9 + i for i in range(count)], pa.uint32()),
            "i64": pa.array([maybe(i, -(10**18) - i) for i in range(count)], pa.int64()),
            "u64": pa.array([2**63 + i if i == 8 else i for i in range(count)], pa.uint64()),
            "f16": pa.array([np.float16(0.5 * i) for i in range(count)], pa.float16()),
            "f32": pa.array([maybe(i, 0.25 * i) for i in range(count)], pa.float32()),
            "f64": pa.array([0.1 * i for i in range(count)], pa.float64()),
            "blob": pa.array([maybe(i, bytes([i]) * i) for i in range(count)], pa.binary()),
            "text": pa.array([maybe(i, "ä" * (i % 3)) for i in range(count)], pa.string()),
            "fixed": pa.array([bytes([i]) * 4 for i in range(count)], pa.binary(4)),
            "ints": pa.array([maybe(i, list(range(i % 3))) for i in range(count)], pa.list_(pa.int64())),
            "words": pa.array([maybe(i, ["a", None, "b"][: i % 4]) for i in range(count)], pa.list_(pa.string())),
            "matrix": pa.array([[[i, 1], [2]] for i in range(count)], pa.list_(pa.list_(pa.int32()))),
            "price": pa.array([i for i in range(count)], pa.decimal128(10, 2)),
            "pair": pa.array([maybe(i, {"x": i, "y": str(i)}) for i in range(count)], pa.struct({"x": pa.int32(), "y": pa.string()})),
            "when": pa.array([i * 1000 for i in range(count)], pa.timestamp("ms")),
        }
    )
    for name in ["none", "snappy", "zstd", "gzip", "lz4", "brotli"]:
        pq.write_table(table, folder / f"{name}.parquet", compression=name, row_group_size=4)
    kinds = table.drop_columns(["matrix", "price", "pair"])
    pq.write_table(kinds, folder / "v2.parquet", data_page_version="2.0", row_group_size=4, write_page_checksum=True)
    encodings = {"i32": "DELTA_BINARY_PACKED", "i64": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}
    encodings |= {"blob": "DELTA_LENGTH_BYTE_ARRAY", "f32": "BYTE_STREAM_SPLIT", "f64": "BYTE_STREAM_SPLIT"}
    some = table.select(list(encodings))
    pq.write_table(some, folder / "delta.parquet", use_dictionary=False, column_encoding=encodings)


def litdata():
    import io

    import torch
    from litdata import Image, Jpeg
    from litdata.streaming.writer import BinaryWriter
    from PIL import Image as PillowImage

    def encoded(i, name):
        buffer = io.BytesIO()
        PillowImage.new("RGB", (4, 3), (i, 10, 20)).save(buffer, format=name)
        return buffer.getvalue()

    def sample(i):
        return {
            "blob": image(i),
            "boxes": np.array([[i, 1, 2, 3.5]] * i, np.float32).reshape(-1, 4),
            "flag": i % 2 == 0,
            "ids": np.arange(i, dtype=np.int64),
            "image": Image(path="a.png", bytes=encoded(i, "PNG")),
            "info": {"id": i, "score": 0.1 * i},
            "label": i - 1,
            "marks": [True, i % 2 == 0],
            "mixed": [i, ["a", None]],
            "photo": Jpeg(bytes=encoded(i, "JPEG"), max_quality=None),
            "pil": PillowImage.new("L", (2, 2), i),
            "pixels": torch.arange(2 * i, dtype=torch.int32).reshape(2, i),
            "rows": [{"a": i, "b": "ß", "c": None, "d": 0.5, "e": True}] * i,
            "scores": [0.5, float("inf")],
            "tags": [i, i + 1],
            "text": f"größe {i}",
            "weights": torch.tensor([0.5 * i, -1], dtype=torch.float16),
            "words": ["a", "ß"],
        }

    def write(name, samples, **options):
        folder = HERE / "litdata" / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        writer = BinaryWriter(str(folder), chunk_size=3, **options)
        for i, sample in enumerate(samples):
            writer[i] = sample
        writer.done()
        writer.merge()
        index = json.loads((folder / "index.json").read_text())
        del index["updated_at"]
        (folder / "index.json").write_text(json.dumps(index, sort_keys=True))

    write("plain", [sample(i) for i in range(5)])
    # Without an image, litdata would write the rows as an Arrow table.
    small = [{"blob": Image(path="a.png", bytes=image(i)), "label": i} for i in range(5)]
    write("zstd", small, compression="zstd", compression_level="chunk")
    write("batch", small, compression="zstd:4", compression_batch_size=2)
    write("sample", small, compression="zstd", compression_level="sample")
    write("tuple", [(image(i), {"a": i, "b": [i, 0.5]}) for i in range(5)])
    write("pickle", [{"blob": b"x", "label": 1, "object": {1, 2}}])
    write("arrow", [{"text": f"row {i}"} for i in range(3)])


def recordio():
    import ctypes
    import importlib.util

    base = pathlib.Path(importlib.util.find_spec("mxnet").submodule_search_locations[0])
    library = ctypes.CDLL(str(base / "libmxnet.so"))

    def check_call(code):
        assert code == 0

    for name in ["mxnet", "mxnet.base"]:
        module = types.ModuleType(name)
        module.__path__ = [str(base)]
        sys.modules[name] = module
    names = {"_LIB": library, "RecordIOHandle": ctypes.c_void_p, "check_call": check_call}
    vars(sys.modules["mxnet.base"]).update(names, c_str=lambda text: ctypes.c_char_p(text.encode()))
    from mxnet.recordio import IRHeader, MXIndexedRecordIO, MXRecordIO, pack

    folder = HERE / "recordio"
    folder.mkdir(exist_ok=True)
    magic = struct.pack("<I", 0xCED7230A)

    def record(i):
        # The header has 24 bytes, so the magic numbers are aligned; the writer then splits the record.
        data = [image(i), b"", magic, b"abcd" + magic + b"ef", magic + magic][i]
        return pack(IRHeader(0, [0.0, 1.0, 2.5, -3.0, 4.0][i], 7 + i, 0), data)

    path = str(folder / "a")
    writer = MXIndexedRecordIO(f"{path}.idx", f"{path}.rec", "w")
    for i in range(5):
        writer.write_idx(i, record(i))
    writer.close()
    writer = MXRecordIO(str(folder / "labels.rec"), "w")
    for i in range(3):
        writer.write(pack(IRHeader(0, np.arange(i + 1) + 0.5, i, 2 * i), image(i)))
    writer.close()


def lmdb():
    import shutil
    import tempfile

    import lmdb

    def write(name, entries, *, folder=True, transactions=1, database=None):
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary) / "x"
            environment = lmdb.open(str(path), map_size=1 << 22, subdir=folder, lock=False, max_dbs=2)
            entries = list(entries)
            for part in range(transactions):
                with environment.begin(write=True) as transaction:
                    for key, value in entries[part::transactions]:
                        transaction.put(key, value)
            if database:
                environment.open_db(database)
            environment.close()
            target = HERE / "lmdb" / name
            target.parent.mkdir(exist_ok=True)
            if folder:
                target.mkdir(exist_ok=True)
                path, target = path / "data.mdb", target / "data.mdb"
            shutil.copy(path, target)

    # Values in leaf pages and in overflow pages; a branch page, because the keys fill several leaf pages.
    def files():
        for i in range(60):
            yield f"{i:06}.txt".encode(), f"größe {i}".encode()
            yield f"{i:06}.jpg".encode(), image(0) if i % 20 else image(60)
            yield f"{i:06}.meta-{'x' * 40}.json".encode(), json.dumps({"id": i}).encode()

    write("files", files())
    pairs = [(f"image-{i:09}".encode(), image(i)) for i in range(1, 8)]
    pairs += [(f"label-{i:09}".encode(), f"word {i}".encode()) for i in range(1, 7)]
    write("pairs", [*pairs, (b"num-samples", b"7")], transactions=3)
    png = lambda i: b"\x89PNG\r\n\x1a\n" + image(i)
    write("plain.lmdb", [(struct.pack(">I", i), png(i)) for i in range(5)], folder=False)
    write("pickle", [(str(i).encode(), __import__("pickle").dumps((i, b"x"))) for i in range(3)])
    datum = b"\x08\x03\x10\x20\x18\x20\x22\x04abcd\x28\x07"
    write("datum", [(f"{i:08}".encode(), datum) for i in range(3)])
    write("named", [], database=b"train")
    write("empty", [])


def expected():
    """Writes the content of the Parquet files, as pyarrow reads it."""
    import pyarrow.parquet as pq

    def plain(value):
        if isinstance(value, bytes):
            return {"hex": value.hex()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, (bool, int, str, float)) or value is None:
            return value
        if isinstance(value, np.floating):
            return float(value)
        return str(value)

    for path in sorted((HERE / "parquet").glob("*.parquet")):
        if path.stem in ["none", "images", "delta"]:
            rows = [plain(row) for row in pq.read_table(path).to_pylist()]
            path.with_suffix(".json").write_text(json.dumps(rows, ensure_ascii=False, indent=0))


if __name__ == "__main__":
    # MDS last, because it replaces PyTorch by a mock.
    makers = [tfrecord, parquet, expected, litdata, recordio, lmdb, mds]
    for make in makers:
        if make.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            make()
