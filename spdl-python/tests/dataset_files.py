"""Writers of data sets in all formats, with the standard library."""

import csv
import functools
import io
import json
import struct
import tarfile
import zipfile


def write_members(path, members):
    """Writes a tar archive of `members`: names and their data."""
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_tar(path, samples):
    """Writes a tar archive of `samples` (name, image, label) in the layout of `webdataset`."""
    members = []
    for name, image, label in samples:
        members += [(f"{name}.png", image), (f"{name}.cls", str(label).encode())]
    write_members(path, members)


def write_zip(path, members):
    """Writes a zip archive of `members`, stored and compressed in turn, in reverse order."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, data) in enumerate(reversed(members)):
            method = zipfile.ZIP_STORED if number % 2 else zipfile.ZIP_DEFLATED
            archive.writestr(name, data, compress_type=method)


def write_csv(path, rows):
    """Writes a CSV file of `rows`: paths and labels."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *rows])


def write_jsonl(path, rows):
    lines = [json.dumps({"path": name, "label": label}) for name, label in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_mds(folder, samples):
    """Writes one shard of MosaicML Streaming, with the columns `image` and `label`."""
    folder.mkdir(parents=True)
    columns = {"column_encodings": ["bytes", "int"], "column_names": ["image", "label"]}
    columns |= {"column_sizes": [None, 8], "compression": None, "format": "mds", "hashes": []}
    columns |= {"size_limit": 1 << 26}
    header = json.dumps(columns, sort_keys=True).encode()
    rows = [
        struct.pack("<I", len(image)) + image + struct.pack("<q", label)
        for _, image, label in samples
    ]
    ends = [4 + 4 * (len(rows) + 1) + len(header)]
    for row in rows:
        ends.append(ends[-1] + len(row))
    shard = struct.pack(f"<I{len(ends)}I", len(rows), *ends) + header + b"".join(rows)
    (folder / "shard.00000.mds").write_bytes(shard)
    raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
    entry = {**columns, "raw_data": raw, "samples": len(rows), "version": 2, "zip_data": None}
    (folder / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}))


def write_litdata(folder, samples, **config):
    """Writes one chunk of LitData, with the leaves `image` and `label`."""
    folder.mkdir(parents=True)
    items = [
        struct.pack("<II", len(image), 8) + image + struct.pack("<q", label)
        for _, image, label in samples
    ]
    ends = [4 + 4 * (len(items) + 1)]
    for item in items:
        ends.append(ends[-1] + len(item))
    chunk = struct.pack(f"<I{len(ends)}I", len(items), *ends) + b"".join(items)
    (folder / "chunk-0-0.bin").write_bytes(chunk)
    leaf = {"type": None, "context": None, "children_spec": []}
    names = json.dumps(["image", "label"])
    spec = {"type": "builtins.dict", "context": names, "children_spec": [leaf, leaf]}
    config = {"compression": None, "data_format": ["jpeg", "int"], "encryption": None, **config}
    config["data_spec"] = json.dumps([1, spec])
    entry = {"chunk_bytes": len(chunk), "chunk_size": len(items), "filename": "chunk-0-0.bin"}
    (folder / "index.json").write_text(json.dumps({"chunks": [entry], "config": config}))


def write_recordio(path, samples):
    """Writes a RecordIO file with the headers of MXNet. The images do not contain the magic number."""
    with open(path, "wb") as file:
        for number, (_, image, label) in enumerate(samples):
            data = struct.pack("<IfQQ", 0, label, number, 0) + image
            file.write(struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4))


def write_lmdb(path, samples):
    """Writes an LMDB file of one leaf page, with images in overflow pages and the keys of `write_tar`."""
    size, values, nodes = 4096, b"", []
    for name, image, label in sorted(samples):
        nodes.append((f"{name}.cls".encode(), 0, str(label).encode(), None))
        first = struct.pack("<Q", 3 + len(values) // size)
        nodes.append((f"{name}.png".encode(), 1, first, len(image)))
        pages = -(-(len(image) + 16) // size)
        header = struct.pack("<QHHI", 3 + len(values) // size, 0, 4, pages)
        values += (header + image).ljust(pages * size, b"\0")
    leaf, offsets = b"", []
    for key, flags, data, length in nodes:
        node = struct.pack("<IHH", len(data) if length is None else length, flags, len(key))
        node += key + data
        node += bytes(len(node) % 2)
        leaf = node + leaf
        offsets.append(size - len(leaf))
    lower = 16 + 2 * len(nodes)
    head = struct.pack("<QHHHH", 2, 0, 2, lower, size - len(leaf))
    page = (head + struct.pack(f"<{len(nodes)}H", *offsets)).ljust(size - len(leaf), b"\0") + leaf
    assert len(page) == size
    last, metas = 2 + len(values) // size, b""
    for number in range(2):
        free = struct.pack("<IHHQQQQQ", size, 0, 0, 0, 0, 0, 0, 2**64 - 1)
        main = struct.pack("<IHHQQQQQ", 0, 0, 1, 0, 1, last - 2, len(nodes), 2)
        meta = struct.pack("<QHHI", number, 0, 8, 0) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 0)
        metas += (meta + free + main + struct.pack("<QQ", last, number)).ljust(size, b"\0")
    path.write_bytes(metas + page + values)


def write_coco(folder, images, boxes):
    """Writes annotations of COCO and their images. Returns the path of the annotations.

    `images` are files of 80 × 60 pixels; `boxes` are the boxes of each (left, top, width, height).
    """
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    rows, annotations = [], []
    for number, (image, own) in enumerate(zip(images, boxes, strict=True)):
        name = f"{number:03}.png"
        (folder / "images" / name).write_bytes(image)
        rows.append({"id": number, "file_name": name, "width": 80, "height": 60})
        for box in own:
            one = {"image_id": number, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            kind = 1 + 2 * (len(annotations) % 2)
            annotations.append({"id": 1 + len(annotations), "category_id": kind, **one})
    names = [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}]
    document = {"images": rows, "annotations": annotations, "categories": names}
    path = folder / "annotations" / "instances.json"
    path.write_text(json.dumps(document))
    return path


def write_voc(folder, images, masks, extension="png"):
    """Writes images of 80 × 60 pixels, their masks and annotations as Pascal VOC. Returns the image set."""
    folders = ["Annotations", "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"]
    for name in folders:
        (folder / name).mkdir(parents=True)
    names = [f"{number:03}" for number in range(len(images))]
    for name, image, mask in zip(names, images, masks, strict=True):
        (folder / "JPEGImages" / f"{name}.{extension}").write_bytes(image)
        (folder / "SegmentationClass" / f"{name}.png").write_bytes(mask)
        box = "<xmin>11</xmin><ymin>21</ymin><xmax>30</xmax><ymax>40</ymax>"
        text = f"<object><name>dog</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        text = f"<annotation><filename>{name}.{extension}</filename><segmented>1</segmented>{text}</annotation>"
        (folder / "Annotations" / f"{name}.xml").write_text(text)
    path = folder / "ImageSets/Segmentation/train.txt"
    path.write_text("".join(f"{name}\n" for name in names))
    return path


@functools.cache
def _crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def _masked_crc32c(data):
    table, crc = _crc32c_table(), 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number):
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _field(number, data):
    """A length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def write_tfrecord(path, samples):
    """Writes records of `tf.train.Example` with `image/encoded` and `image/class/label`."""
    with open(path, "wb") as file:
        for _, image, label in samples:
            features = b""
            for name, feature in [
                (b"image/encoded", _field(1, _field(1, image))),
                (b"image/class/label", _field(3, _field(1, _varint(label)))),
            ]:
                features += _field(1, _field(1, name) + _field(2, feature))
            example = _field(1, features)
            length = struct.pack("<Q", len(example))
            file.write(length + struct.pack("<I", _masked_crc32c(length)))
            file.write(example + struct.pack("<I", _masked_crc32c(example)))
