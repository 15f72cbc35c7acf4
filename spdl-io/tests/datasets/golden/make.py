"""Writes the golden files of this folder with independent programs.

- `shard-*.tar` by Python's tarfile, and `samples.tsv`, the samples that webdataset reads;
- `braces.tsv`, the expansions of braceexpand;
- `list.csv` by Python's csv, and `list.tsv`, the cells that csv reads.

Run `python make.py` with webdataset 1.0.2, braceexpand 0.1.7 and NumPy.
"""

import csv
import io
import json
import tarfile
from pathlib import Path

import braceexpand
import numpy
from webdataset.autodecode import basichandlers
from webdataset.tariterators import group_by_keys, tar_file_expander

HERE = Path(__file__).parent


def npy(array):
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def write(name, members, format):
    with tarfile.open(HERE / name, "w", format=format) as archive:
        for member, data in members:
            info = tarfile.TarInfo(member)
            if data is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)


FIRST = [
    ("0001.jpg", b"first picture"),
    ("0001.cls", b"7\n"),
    ("0001.json", b'{"width": 640, "tags": ["a", null]}'),
    ("0001.txt", "ein Bär\n".encode()),
    ("__checksums__", b"of the archive"),
    ("__info__/about.json", b"{}"),
    ("0002.seg.png", b"regions"),
    ("0002.JPG", b"second picture"),
    ("no-extension", b"of no sample"),
    (".hidden", b"of no sample"),
    ("0002.cls2", b" -1 "),
    ("train", None),
    ("train/0003.jpg", b"in a folder"),
    ("train/0003.npy", npy(numpy.arange(6, dtype="<f4").reshape(2, 3))),
    ("val/0003.jpg", b"in another"),
    ("val/link.jpg", "0003.jpg"),
    ("val.d/0003.x.y.index", b"12"),
    ("0001.jpg", b"first name, another sample"),
    ("0005.", b"an empty extension"),
]
LONG = "a-folder-with-a-long-name/" * 6 + "größe"
SECOND = [
    (LONG + ".jpg", b"a long name"),
    (LONG + ".txt", b""),
    ("0001.jpg", b""),
    ("0001.pyd", b"I7\n."),
]
write("shard-000000.tar", FIRST, tarfile.USTAR_FORMAT)
write("shard-000001.tar", SECOND, tarfile.PAX_FORMAT)
write("shard-000002.tar", SECOND, tarfile.GNU_FORMAT)

with open(HERE / "samples.tsv", "w", encoding="utf-8", newline="\n") as lines:
    names = [f"shard-{number:06}.tar" for number in range(3)]
    shards = (dict(url=name, stream=open(HERE / name, "rb")) for name in names)
    for sample in group_by_keys(tar_file_expander(shards)):
        for field, data in sample.items():
            if field.startswith("__"):
                continue
            value = None if field == "pyd" else basichandlers(field, data)
            if value is None:
                shown = "bytes " + data.hex()
            elif isinstance(value, str):
                shown = "text " + value.encode().hex()
            elif isinstance(value, int):
                shown = f"integer {value}"
            elif isinstance(value, numpy.ndarray):
                shown = f"array {value.dtype} {list(value.shape)}"
            else:
                shown = "json " + json.dumps(value, sort_keys=True, separators=(",", ":"))
            print(sample["__url__"], sample["__key__"], field, shown, sep="\t", file=lines)

PATTERNS = r"""
shard-{000000..000011}.tar
{train,val}/{0..2}.tar
{08..10}
{8..010}
{10..8}
{-2..1}
{-02..1}
{1..-1}
{0..9..4}
{9..0..4}
{a..e..2}
{e..a}
{X..Z}
a{b,c{d,e},}f
{{a,b},c}
{a,{b,{c,d}}}x
{a}
{}
x{a}{1,2}
{a{1,2}}
\{a,b\}
{a\,b,c}
{a\\,b}
a,b
{a,b}{c,d}{0..1}
{a,b
a}
{a,{b}
{1..a}
{1..}
{1..2..}
""".strip().splitlines()
with open(HERE / "braces.tsv", "w", encoding="utf-8", newline="\n") as lines:
    for pattern in PATTERNS:
        try:
            names = list(braceexpand.braceexpand(pattern))
        except ValueError:
            names = ["ERROR"]
        print(pattern, *names, sep="\t", file=lines)

ROWS = [
    ["path", "label", "caption", "width"],
    ["cats/1.jpg", "cat", "small, and grey", "640"],
    ["dogs/2, or 3.jpg", "dog", 'he says "wuff"', ""],
    ["/absolute/3.jpg", "cat", "two\nlines", "1"],
    ["s3://bucket/4.jpg", "", "Größe", "2"],
]
with open(HERE / "list.csv", "w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows(ROWS)
with open(HERE / "list.csv", encoding="utf-8", newline="") as file:
    rows = list(csv.reader(file))
assert rows == ROWS
with open(HERE / "list.tsv", "w", encoding="utf-8", newline="\n") as lines:
    for row in rows:
        print(*(cell.encode().hex() for cell in row), sep="\t", file=lines)
