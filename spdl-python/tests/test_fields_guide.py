"""The programs of docs/fields.md run."""

import importlib
import io
import json
import pathlib
import re
import shutil
import sys
import types

import numpy
import pytest
from arrow_columns import Columns
from conftest import picture, write_png
from dataset_files import write_members, write_tar, write_zip
from servers import serving
from spdl_rs import Loader, fields
from spdl_rs.io import Stretch
from spdl_rs.io.utils import get_ffmpeg_versions
from test_loader import coco, grey_png, voc

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "fields.md"
VIDEO = pathlib.Path(__file__).parents[2] / "spdl-media/tests/video/h264.mp4"
PARQUET = pathlib.Path(__file__).parents[2] / "spdl-io/tests/data/parquet/images.parquet"
SECTIONS = [
    "Images and captions",
    "Augmentation",
    "Ranks",
    "Boxes and classes",
    "Zoom out and crop around boxes",
    "Masks",
    "Aspect ratio buckets",
    "Functions",
    "Filter",
    "Collate",
    "Executors",
    "Numbers and arrays",
    "Bad files",
    "Sequences of tokens",
]


def members(number, folder):
    """The files of one sample, for all sections."""
    write_png(str(folder / "image.png"), picture(number))
    file = io.BytesIO()
    numpy.save(file, numpy.arange(4.0) + number)
    document = {"boxes": [[5, 5, 20, 30], [30, 20, 9, 9]], "classes": [1, 2]}
    document["tokens"] = list(range(number % 3))
    document["ids"] = list(range(1 + number))
    return {
        "png": (folder / "image.png").read_bytes(),
        "seg.png": grey_png(numpy.full((60, 80), number, "u1")),
        "txt": f"caption {number}".encode(),
        "json": json.dumps(document).encode(),
        "npy": file.getvalue(),
        "cls": str(number % 3).encode(),
    }


def programs(section):
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^##+ ", text, flags=re.MULTILINE)
    (part,) = [part for part in parts if part.startswith(section)]
    return re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_program_of_each_section_runs(section, tmp_path, monkeypatch):
    (program,) = programs(section)
    (folder,) = re.findall(r'"(\w+)/train-\*\.tar"', program)
    (tmp_path / folder).mkdir()
    for shard in range(2):
        numbers = range(10 * shard, 10 * shard + 10)
        files = [
            (f"{number:03}.{name}", data)
            for number in numbers
            for name, data in members(number, tmp_path).items()
        ]
        if section == "Bad files":
            # One before a batch, and one after the last batch.
            files.insert(shard * len(files), (f"{shard}-bad.png", b"no image"))
        write_members(tmp_path / folder / f"train-{shard}.tar", files)
    monkeypatch.chdir(tmp_path)
    names = {}
    if section == "Executors":
        # Worker processes import the functions.
        (tmp_path / "guide_of_executors.py").write_text(program, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        names = vars(importlib.import_module("guide_of_executors"))
        names["__name__"] = "__main__"
        exec(re.search(r"^if __name__.*", program, re.DOTALL | re.MULTILINE).group(), names)
    else:
        exec(program, names)
    statistics = names["loader"].stats()
    (decode,) = [stage for stage in statistics["stages"] if stage["name"] == "decode"]
    # The captions of 10 samples are short.
    filtered, bad = (10 if section == "Filter" else 0), (2 if section == "Bad files" else 0)
    assert decode["items"] == 20 - filtered + bad and len(statistics["dropped"]) == bad
    assert (statistics["filtered"] or 0) == filtered
    if section == "Images and captions":
        assert names["images"].shape == (20, 3, 224, 224)
        assert sorted(names["captions"])[0] == "caption 0"
    elif section == "Augmentation":
        assert names["batch"]["strong"].shape == (10, 3, 224, 224)
        assert names["batch"]["own"].shape == (10, 3, 192, 256)
        weights = names["batch"]["label"]
        assert weights.shape == (10, 3) and numpy.allclose(weights.sum(axis=1), 1)
    elif section == "Ranks":
        assert names["batch"]["image"].shape == (4, 3, 224, 224) and names["state"]["steps"] == 3
    elif section == "Boxes and classes":
        (found,) = names["targets_of_batch"][-1:]
        assert found["boxes"].shape == (2, 4) and found["labels"].tolist() == [1, 2]
    elif section == "Zoom out and crop around boxes":
        assert names["batch"]["image"].shape == (4, 3, 300, 300)
        assert [len(found) for found in names["batch"]["boxes"]] == [len(found) for found in names["batch"]["classes"]]
    elif section == "Functions":
        assert names["images"].shape == (20, 3, 224, 224) and names["tokens"].shape == (20, 77)
        texts = [bytes(row[row > 0].astype("u1")).decode() for row in names["tokens"]]
        assert {word for text in texts for word in text.split()} > {"caption"}
        assert sum(len(text.split()) for text in texts) < 40
    elif section == "Filter":
        assert len(names["batch"]["image"]) == 10
    elif section == "Collate":
        assert names["images"].shape == (20, 3, 224, 224) and names["texts"].shape == (20, 10)
    elif section == "Executors":
        assert "c a p t i o n" in names["spellings"]
    elif section == "Sequences of tokens":
        assert names["tokens"].shape[1:] == names["positions"].shape[1:] == (8,)
        assert names["ends"][-1] == names["tokens"].size
    elif section == "Aspect ratio buckets":
        assert names["batch"]["image"].shape == (8, 3, 192, 320) and len(names["batch"]["caption"]) == 8
    elif section == "Bad files":
        assert names["batch"]["image"].shape == (4, 3, 224, 224)
        listed = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert listed == statistics["dropped"]
    elif section == "Masks":
        assert names["batch"]["mask"].shape[1:] == (512, 512)
    else:
        assert names["tokens"].shape == (20, 2) and names["sizes"].shape == (20, 1)
        assert names["batch"]["meta"][1]["tokens"] == [0] and not names["batch"]["score"].any()


def test_the_program_for_tokens_from_text_runs(tmp_path, monkeypatch):
    (program,) = programs("Tokens from text")
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"text": f"The cats sat on {number} mats."}) + "\n" for number in range(40)]
    for shard in range(2):
        (tmp_path / "corpus" / f"train-{shard}.jsonl").write_text("".join(lines[shard::2]))
    golden = pathlib.Path(__file__).parent / "golden" / "tokenizers"
    (tmp_path / "tokenizer.json").write_bytes((golden / "bpe.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert names["tokens"].shape[1:] == names["segments"].shape[1:] == (64,)
    assert names["tokens"].dtype == "int64" and not names["loader"].stats()["dropped"]


def test_the_program_for_coco_annotations_runs(tmp_path, monkeypatch):
    program, padded = programs("COCO annotations")
    (tmp_path / "coco").mkdir()
    path = coco(tmp_path / "coco")
    path.rename(path.with_name("instances_train2017.json"))
    (tmp_path / "coco" / "val").rename(tmp_path / "coco" / "train2017")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert names["batch"]["image"].shape == (2, 3, 640, 640)
    assert sorted(names["batch"]["image_id"]) == [70, 71]
    exec(padded, names)
    # One of the boxes is a crowd.
    assert names["boxes"].shape == (2, 1, 4) and names["sizes"].tolist() == [[1], [1]]
    assert (names["is_box"].sum(axis=1) == names["sizes"][:, 0]).all()


def test_the_program_for_gpus_is_valid():
    (program,) = programs("Batches on a GPU")
    compile(program, "fields.md", "exec")


def test_the_program_with_several_data_sets_runs(tmp_path, monkeypatch):
    (program,) = programs("Several data sets")
    for name, count in {"cat": 3, "dog": 2, "owl": 2}.items():
        for number in range(count):
            write_png(str(tmp_path / "photos" / name / f"{number}.png"), picture(number))
    image = (tmp_path / "photos" / "cat" / "0.png").read_bytes()
    (tmp_path / "web").mkdir()
    samples = [(f"{number:03}", image, number % 3) for number in range(4)]
    write_tar(tmp_path / "web" / "shard-0.tar", samples)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    loader = names["loader"]
    loader.set_epoch(1)
    keys = [key for batch in loader for key in batch["key"]]
    web = sum("shard-0.tar" in key for key in keys)
    assert (len(keys), len(loader)) == (2048, 32) and abs(web - 204.8) < 1
    owls = [key for key in keys if "owl" in key]
    # Of 15 samples, 10 are owls. The first and the last pass may be incomplete.
    assert abs(len(owls) - 1843.2 * 10 / 15) <= 10


def test_the_program_for_voc_runs(tmp_path, monkeypatch):
    (program,) = programs("Pascal VOC")
    voc(tmp_path / "VOC2012")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert names["batch"]["mask"].shape == (2, 512, 512)
    assert sum(map(len, names["batch"]["boxes"])) == sum(map(len, names["batch"]["difficult"]))


def test_the_program_for_imagenet_runs(tmp_path, monkeypatch):
    (program,) = programs("ImageNet's validation images")
    (tmp_path / "imagenet/val").mkdir(parents=True)
    rows = ["ImageId,PredictionString"]
    for number in range(3):
        write_png(tmp_path / f"imagenet/val/ILSVRC2012_val_{number:08}.JPEG", picture(number))
        rows.append(f"ILSVRC2012_val_{number:08},n0144076{4 - number} 1 2 3 4")
    (tmp_path / "imagenet/LOC_val_solution.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert names["labels"].tolist() == [2, 1, 0] and names["names"][0] == "n01440764"


@pytest.mark.skipif(not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg")
def test_the_program_for_video_runs(tmp_path, monkeypatch):
    program, of_muxer = programs("Video")
    for number in range(3):
        (tmp_path / "clips" / f"class{number % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(VIDEO, tmp_path / "clips" / f"class{number % 2}" / f"{number}.mp4")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert names["video"].shape == (3, 16, 224, 224, 3) and names["video"].dtype == "uint8"
    # The video has 20 frames in 2 seconds: 8 frames at 4 per second.
    assert names["count"].tolist() == [8, 8, 8]
    assert names["times"].shape == (3, 16)
    exec(of_muxer, names)
    video = fields.Video((64, 96), frames=30, every=1, crop=Stretch())
    (batch,) = Loader(["grey.mp4"], batch_size=1, video=video)
    assert batch["video"].min() >= 126 and batch["video"].max() <= 134


def test_the_program_for_zip_archives_runs(tmp_path, monkeypatch):
    (program,) = programs("Zip archives")
    image = members(1, tmp_path)["png"]
    write_zip(tmp_path / "photos.zip", [(f"photos/{name}/1.png", image) for name in ("cat", "dog")])
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert sorted(names["batch"]["label"]) == [0, 1] and names["loader"].classes == ["cat", "dog"]


def test_the_program_for_hugging_face_runs(tmp_path, monkeypatch):
    (program,) = programs("Files of Hugging Face")
    if not PARQUET.is_file():
        pytest.skip("the golden Parquet files of the repository are missing")
    revision = "refs/convert/parquet"
    files = tmp_path / "datasets/username/pets/resolve" / revision / "default/train"
    files.mkdir(parents=True)
    shutil.copy(PARQUET, files / "0000.parquet")
    tree = tmp_path / "api/datasets/username/pets/tree" / revision / "default"
    tree.mkdir(parents=True)
    entry = {"type": "file", "path": "default/train/0000.parquet", "size": PARQUET.stat().st_size}
    (tree / "train").write_text(json.dumps([entry]))
    names = {}
    with serving(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        exec(program, names)
    assert names["batch"]["image"].shape[1:] == (3, 224, 224)


def test_the_programs_with_data_of_python_run(tmp_path, monkeypatch):
    """With tables in place of those of `datasets` and `polars`."""
    images = [members(number, tmp_path)["png"] for number in range(20)]
    pets = Columns(image=images, label=[number % 2 for number in range(20)])

    class Dataset:
        data = types.SimpleNamespace(table=pets)
        _indices = None

        def shuffle(self, seed):
            return self

        def select(self, rows):
            return self

    frame = Columns(caption=[b"a cat", b"a dog"], score=[1, 2])
    modules = {
        "datasets": types.SimpleNamespace(
            Dataset=Dataset, Features=dict, load_dataset=lambda name, split: Dataset()
        ),
        "polars": types.SimpleNamespace(read_parquet=lambda path: frame),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    of_hugging_face, of_polars, of_items = programs("Data from Python")
    names = {}
    exec(of_hugging_face, names)
    assert names["batch"]["image"].shape == (20, 3, 224, 224)
    assert sorted(names["batch"]["label"]) == [0] * 10 + [1] * 10
    exec(of_polars, names)
    assert sorted(names["batch"]["caption"]) == ["a cat", "a dog"]
    for number in range(3):
        for name in ("png", "npy"):
            path = tmp_path / "clips" / f"{number}.{name}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(members(number, tmp_path)[name])
    monkeypatch.chdir(tmp_path)
    exec(of_items, names)
    assert sorted(names["batch"]["caption"]) == ["0", "1", "2"]
    assert sorted(names["batch"]["embedding"][:, 0]) == [0, 1, 2]
    (of_iterables,) = programs("Iterables")
    exec(of_iterables, names)
    assert sorted(names["batch"]["caption"]) == ["0", "1", "2"]
    assert names["batch"]["image"].shape == (3, 224, 224, 3)
