"""ImageNet (ILSVRC 2012), as paths of images and the indices of their classes.

The classes are named by WordNet IDs (`n01440764`), and numbered in the order of these. This package
holds no list of them: they are read from the data set, see `get_mappings`.
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
from .local_directory import _Files

__all__ = ["ImageNet", "get_mappings", "parse_wnid"]

_SPLITS = ("train", "val")
_CLASSES = 1000
_CLASS_INDEX = "imagenet_class_index.json"
_SYNSET_MAPPING = "LOC_synset_mapping.txt"
_WNID = re.compile("n[0-9]{8}")


class ImageNet(_Files["tuple[Path, int]"]):
    """The images of ImageNet's training or validation set, each with the index of its class.

    A pass gives `(path, class index)`, sorted by path until it is shuffled. The images lie in a
    folder for each class, `root/train/n01440764/n01440764_18.JPEG` say, for validation too.

    `state_dict` and `load_state_dict` go on within a pass.

    Args:
        root: The folder with `train` and `val`.
        split: `"train"` or `"val"`.
        mappings: The index of each class by WordNet ID; `None`: as `get_mappings(root)` finds it.

    Raises:
        NotFoundError: There is no such folder, or there are no images in it, or no classes.
        ValueError: `split` is something else, or a folder belongs to none of the classes.
        CorruptError: A list of classes cannot be read.

    >>> from spdl_rs.source.imagenet import ImageNet
    >>> images = ImageNet("imagenet", split="val", mappings={"n01440764": 0, "n01443537": 1})
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
        mappings = get_mappings(self.root) if mappings is None else mappings
        self._labels: dict[str, int] = {}
        for folder in {path.parent for path in self._files}:
            self._labels[folder.name] = _label(folder, mappings)

    def _item(self, path: Path) -> tuple[Path, int]:
        return path, self._labels[path.parent.name]

    def __repr__(self) -> str:
        return f"ImageNet({str(self.root)!r}, {self.pattern!r}, {len(self)} images)"


def parse_wnid(s: str) -> str:
    """Finds the first WordNet ID in a text: an `n`, and eight digits.

    Raises:
        ValueError: There is none.

    >>> parse_wnid("train/n01440764/n01440764_18.JPEG")
    'n01440764'
    """
    found = _WNID.search(s)
    if found is None:
        raise ValueError(f"there is no WordNet ID, such as n01440764, in {s!r}")
    return found.group()


def get_mappings(source: str | os.PathLike[str] | None = None) -> dict[str, int]:
    """Reads which index each class of a data set has, by its WordNet ID.

    In the folder `source` these are looked for, in this order:

    1. `imagenet_class_index.json`, with `{"0": ["n01440764", "tench"], …}`;
    2. `LOC_synset_mapping.txt`, with a WordNet ID at the start of each line;
    3. the folders in `train` and `val` that have a WordNet ID in their names.

    The first says each index, for the others they are the places of the sorted IDs, which is what
    most models expect. That needs all 1,000 classes: where there are fewer or more folders, a
    `DatasetWarning` says so. `source` may also be one of the two files.

    Raises:
        NotFoundError: There is no `source`, or none of these is in it.
        CorruptError: A file cannot be understood.
        InvalidArgumentError: No `source` is given; this package holds no list of the classes.

    >>> from spdl_rs.source.imagenet import get_mappings
    >>> get_mappings("imagenet/LOC_synset_mapping.txt")
    {'n01440764': 0, 'n01443537': 1}
    """
    if source is None:
        message = (
            "the classes of ImageNet are read from the data set: get_mappings(folder), where the "
            f"folder has {_CLASS_INDEX}, {_SYNSET_MAPPING}, or a folder for each class in train"
        )
        raise InvalidArgumentError(message, kind="invalid-argument")
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
        raise _corrupt(path, f'not as {{"0": ["n01440764", "tench"], …}}: {error}') from error
    if not mappings:
        raise _corrupt(path, "there are no classes in it")
    if len({*mappings.values()}) != len(table):
        raise _corrupt(path, "a class or an index is there twice")
    for wnid, index in mappings.items():
        if not isinstance(wnid, str) or not _WNID.fullmatch(wnid):
            raise _corrupt(path, f"{wnid!r} is no WordNet ID")
        if index < 0:
            raise _corrupt(path, f"{index} is no index of a class")
    return mappings


def _from_lines(path: Path) -> dict[str, int]:
    found: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _corrupt(path, f"no text: {error}") from error
    for number, line in enumerate(lines, start=1):
        wnid = line.split(maxsplit=1)[0] if line.strip() else None
        if wnid is None:
            continue
        if not _WNID.fullmatch(wnid):
            raise _corrupt(path, f"line {number} does not begin with a WordNet ID")
        found.append(wnid)
    if not found or len({*found}) != len(found):
        raise _corrupt(path, "a class is there twice" if found else "there are no classes in it")
    return _in_order(found)


def _from_folders(root: Path) -> dict[str, int]:
    folders = [path for split in _SPLITS for path in (root / split).glob("*") if path.is_dir()]
    found = {match.group() for folder in folders if (match := _WNID.search(folder.name))}
    if not found:
        key = str(root)
        message = (
            f"{key}: the classes of ImageNet cannot be told: there is no {_CLASS_INDEX}, no "
            f"{_SYNSET_MAPPING}, and no folder of a class in train or val"
        )
        raise NotFoundError(message, kind="not-found", key=key)
    if len(found) != _CLASSES:
        warnings.warn(
            f"{root}: there are {len(found)} folders of classes, and ImageNet has {_CLASSES}: "
            "labels are places among these folders, and not what models of ImageNet say",
            DatasetWarning,
            stacklevel=3,
        )
    return _in_order(found)


def _in_order(wnids: Iterable[str]) -> dict[str, int]:
    return {wnid: index for index, wnid in enumerate(sorted(wnids))}


def _label(folder: Path, mappings: Mapping[str, int]) -> int:
    found = _WNID.search(folder.name)
    if found is None or found.group() not in mappings:
        message = f"{folder}: its name is none of the {len(mappings)} classes"
        raise InvalidArgumentError(message, kind="invalid-argument", key=str(folder))
    return mappings[found.group()]


def _no_images(folder: Path) -> NotFoundError:
    message = f"{folder}: there are no images in it, as <class>/<name>.JPEG"
    if any(folder.glob("*.JPEG")):
        message += "; they lie there without a folder for each class"
    return NotFoundError(message, kind="not-found", key=str(folder))


def _corrupt(path: Path, message: str) -> CorruptError:
    return CorruptError(f"{path}: {message}", kind="corrupt", key=str(path))
