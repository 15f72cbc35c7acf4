"""ImageNet (ILSVRC 2012), as paths of images and class indices.

WordNet IDs such as `n01440764` name the classes. `get_mappings` returns their indices.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._errors import CorruptError, DatasetWarning, InvalidArgumentError, NotFoundError
from ._imagenet_classes import WNIDS
from .local_directory import _Files

__all__ = ["ImageNet", "get_mappings", "parse_wnid"]

_SPLITS = ("train", "val")
_CLASS_INDEX = "imagenet_class_index.json"
_SYNSET_MAPPING = "LOC_synset_mapping.txt"
_WNID = re.compile("n[0-9]{8}")


class ImageNet(_Files["tuple[Path, int]"]):
    """The images of ImageNet's training or validation set, with class indices.

    An epoch consists of pairs `(path, class index)`, sorted by path until `shuffle` is called.
    Each class has a folder, also in the validation set:
    `root/train/n01440764/n01440764_18.JPEG`.

    `state_dict` and `load_state_dict` resume within an epoch.

    Args:
        root: The folder that contains `train` and `val`.
        split: `"train"` or `"val"`.
        mappings: The class index of each WordNet ID. Default: `imagenet_class_index.json` in `root` if it exists,
            else the 1,000 classes of ILSVRC 2012, also if the folder contains only some of them. For other
            classes, pass `get_mappings(root)`.

    Raises:
        NotFoundError: `root` is not a folder, or contains no images.
        ValueError: `split` has another value, or a folder belongs to no class.
        CorruptError: The index file cannot be parsed.

    >>> from spdl_rs.source.imagenet import ImageNet
    >>> images = ImageNet("imagenet", split="val")
    >>> [(path.name, label) for path, label in images]
    [('ILSVRC2012_val_00000293.JPEG', 0), ('ILSVRC2012_val_00000236.JPEG', 1)]
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "val",
        *,
        mappings: Mapping[str, int] | None = None,
    ) -> None:
        if split not in _SPLITS:
            raise ValueError(f'split must be "train" or "val", not {split!r}')
        super().__init__(root, f"{split}/*/*.JPEG")
        if not self._files:
            raise _no_images(self.root / split)
        if mappings is None:
            index = self.root / _CLASS_INDEX
            mappings = _from_json(index) if index.is_file() else get_mappings()
        self._labels: dict[str, int] = {}
        for folder in {path.parent for path in self._files}:
            self._labels[folder.name] = _label(folder, mappings)

    def _item(self, path: Path) -> tuple[Path, int]:
        return path, self._labels[path.parent.name]

    def __repr__(self) -> str:
        return f"ImageNet({str(self.root)!r}, {self.pattern!r}, {len(self)} images)"


def parse_wnid(s: str) -> str:
    """Returns the first WordNet ID in a string: `n` and eight digits.

    Raises:
        ValueError: `s` contains no WordNet ID.

    >>> parse_wnid("train/n01440764/n01440764_18.JPEG")
    'n01440764'
    """
    found = _WNID.search(s)
    if found is None:
        raise ValueError(f"no WordNet ID, such as n01440764, found in {s!r}")
    return found.group()


def get_mappings(source: str | os.PathLike[str] | None = None) -> dict[str, int]:
    """Returns the class index of each WordNet ID.

    Without `source`, these are the 1,000 classes of ILSVRC 2012, with the indices that most models expect.
    Otherwise `source` is a folder in which the function looks for, in this order:

    1. `imagenet_class_index.json`, with `{"0": ["n01440764", "tench"], …}`;
    2. `LOC_synset_mapping.txt`, with a WordNet ID at the start of each line;
    3. folders in `train` and `val` whose names contain a WordNet ID.

    The JSON file lists the indices. For the text file and for folders, the index of a class is its position in
    the sorted WordNet IDs, so a subset of ImageNet has other indices than ImageNet. For folders, a `DatasetWarning`
    reports a number of classes other than 1,000. `source` may also be the path of one of the two files.

    Raises:
        NotFoundError: `source` does not exist, or contains none of these files and folders.
        CorruptError: A file cannot be parsed.

    >>> from spdl_rs.source.imagenet import get_mappings
    >>> get_mappings()["n03709823"]
    636
    >>> get_mappings("imagenet/LOC_synset_mapping.txt")
    {'n01440764': 0, 'n01443537': 1}
    """
    if source is None:
        return {wnid: index for index, wnid in enumerate(WNIDS)}
    path = Path(source)
    if path.is_file():
        return _from_json(path) if path.suffix == ".json" else _from_lines(path)
    for name, read in [(_CLASS_INDEX, _from_json), (_SYNSET_MAPPING, _from_lines)]:
        if (path / name).is_file():
            return read(path / name)
    return _from_folders(path)


def _from_json(path: Path) -> dict[str, int]:
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        mappings = {wnid: int(index) for index, (wnid, *_) in table.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _corrupt(path, f'expected {{"0": ["n01440764", "tench"], …}}: {error}') from error
    if not mappings:
        raise _corrupt(path, "no classes found")
    if len({*mappings.values()}) != len(table):
        raise _corrupt(path, "duplicate class or index")
    for wnid, index in mappings.items():
        if not isinstance(wnid, str) or not _WNID.fullmatch(wnid):
            raise _corrupt(path, f"{wnid!r} is not a WordNet ID")
        if index < 0:
            raise _corrupt(path, f"class index {index} is negative")
    return mappings


def _from_lines(path: Path) -> dict[str, int]:
    found: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _corrupt(path, f"not UTF-8: {error}") from error
    for number, line in enumerate(lines, start=1):
        wnid = line.split(maxsplit=1)[0] if line.strip() else None
        if wnid is None:
            continue
        if not _WNID.fullmatch(wnid):
            raise _corrupt(path, f"line {number} does not start with a WordNet ID")
        found.append(wnid)
    if not found or len({*found}) != len(found):
        raise _corrupt(path, "duplicate class" if found else "no classes found")
    return _in_order(found)


def _from_folders(root: Path) -> dict[str, int]:
    folders = [path for split in _SPLITS for path in (root / split).glob("*") if path.is_dir()]
    found = {match.group() for folder in folders if (match := _WNID.search(folder.name))}
    if not found:
        key = str(root)
        message = (
            f'no ImageNet classes found in "{key}": expected {_CLASS_INDEX}, {_SYNSET_MAPPING}, '
            "or a folder for each class in train or val"
        )
        raise NotFoundError(message, kind="not-found", key=key)
    if len(found) != len(WNIDS):
        warnings.warn(
            f'"{root}" has {len(found)} class folders, but ImageNet has {len(WNIDS)} classes: '
            "the labels differ from those of models trained on ImageNet",
            DatasetWarning,
            stacklevel=3,
        )
    return _in_order(found)


def _in_order(wnids: Iterable[str]) -> dict[str, int]:
    return {wnid: index for index, wnid in enumerate(sorted(wnids))}


def _label(folder: Path, mappings: Mapping[str, int]) -> int:
    found = _WNID.search(folder.name)
    if found is None or found.group() not in mappings:
        message = (
            f'folder "{folder}" belongs to none of the {len(mappings)} classes; for other classes, pass '
            "mappings=get_mappings(root)"
        )
        raise InvalidArgumentError(message, kind="invalid-argument", key=str(folder))
    return mappings[found.group()]


def _no_images(folder: Path) -> NotFoundError:
    message = f'no images found in "{folder}": expected <class>/<name>.JPEG'
    if any(folder.glob("*.JPEG")):
        message += "; move each image to a folder of its class, or open LOC_val_solution.csv with spdl_rs.ImageLoader"
    return NotFoundError(message, kind="not-found", key=str(folder))


def _corrupt(path: Path, message: str) -> CorruptError:
    return CorruptError(f'cannot read "{path}": {message}', kind="corrupt", key=str(path))
