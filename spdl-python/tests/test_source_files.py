"""The files of a folder, and ImageNet."""

import itertools
import json
import pickle
import shutil
import warnings

import pytest
import spdl_rs
from spdl_rs.source.imagenet import ImageNet, get_mappings, parse_wnid
from spdl_rs.source.local_directory import LocalDirectory

TENCH, GOLDFISH, SHARK = "n01440764", "n01443537", "n01484850"


def make_files(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.fixture
def letters(tmp_path):
    return make_files(tmp_path / "letters", [f"{name}.txt" for name in "hgfedcba"])


@pytest.fixture
def dataset(tmp_path):
    """Two classes in both splits, and a third in `train`."""
    names = [
        f"{split}/{wnid}/{at}.JPEG"
        for split in ["train", "val"]
        for wnid in [GOLDFISH, TENCH]
        for at in "21"
    ]
    return make_files(tmp_path / "imagenet", [*names, f"train/{SHARK}/1.JPEG"])


def test_q07_a_shuffled_order_depends_only_on_the_seed(letters):
    files = LocalDirectory(letters, "*.txt")
    listed = list(files)
    assert [path.name for path in listed] == [f"{name}.txt" for name in "abcdefgh"]
    files.shuffle(1)
    first = list(files)
    files.shuffle(2)
    # In upstream SPDL, the same seed gives a different order each time.
    assert sorted(first) == listed != first != list(files)
    files.shuffle(seed=1)
    assert list(files) == first


def test_q07_files_created_later_are_not_listed(letters):
    files = LocalDirectory(letters, "*.txt")
    make_files(letters, ["i.txt"])
    assert len(files) == len(list(files)) == 8


def test_q07_a_missing_folder_is_an_error_and_an_empty_one_is_not(tmp_path):
    with pytest.raises(FileNotFoundError, match='gone" is not a folder') as caught:
        LocalDirectory(tmp_path / "gone", "*")
    assert isinstance(caught.value, spdl_rs.NotFoundError)
    assert caught.value.key == str(tmp_path / "gone")
    assert list(LocalDirectory(tmp_path, "*")) == []


def test_q07_sources_of_files_can_be_pickled(letters, dataset):
    sources = [LocalDirectory(letters, "*"), ImageNet(dataset, mappings={TENCH: 0, GOLDFISH: 1})]
    for source in sources:
        source.shuffle(3)
        whole = list(source)
        next(iter(source))
        copy = pickle.loads(pickle.dumps(source))
        assert list(copy) == whole and repr(copy) == repr(source)


def test_q08_an_epoch_of_files_resumes_exactly(letters, tmp_path):
    for seed in [None, 0, 5]:
        files = LocalDirectory(letters, "*.txt")
        if seed is not None:
            files.shuffle(seed)
        whole = [path.name for path in files]
        for taken in range(9):
            list(itertools.islice(files, taken))
            state = json.loads(json.dumps(files.state_dict()))
            # The data set may have been moved.
            moved = tmp_path / f"{seed}-{taken}"
            shutil.copytree(letters, moved)
            again = LocalDirectory(moved, "*.txt")
            again.load_state_dict(state)
            assert [path.name for path in again] == whole[taken:]
            assert len(list(again)) == 8


def test_q08_a_state_of_other_files_is_refused(letters):
    state = LocalDirectory(letters, "*.txt").state_dict()
    with pytest.raises(ValueError, match="pattern is"):
        LocalDirectory(letters, "*").load_state_dict(state)
    (letters / "a.txt").rename(letters / "z.txt")
    with pytest.raises(ValueError, match="names is"):
        LocalDirectory(letters, "*.txt").load_state_dict(state)
    make_files(letters, ["i.txt"])
    with pytest.raises(ValueError, match="files is 8 in the state and 9 here"):
        LocalDirectory(letters, "*.txt").load_state_dict(state)


def test_q08_an_epoch_of_images_resumes_exactly(dataset):
    mappings = {TENCH: 0, GOLDFISH: 1}
    images = ImageNet(dataset, mappings=mappings)
    images.shuffle(2)
    whole = list(images)
    list(itertools.islice(images, 3))
    again = ImageNet(dataset, mappings=mappings)
    again.load_state_dict(images.state_dict())
    assert list(again) == whole[3:]
    with pytest.raises(ValueError, match="source is"):
        LocalDirectory(dataset, "val/*/*.JPEG").load_state_dict(images.state_dict())


def test_q07_the_index_file_of_a_data_set_defines_the_classes(dataset):
    table = {"0": [TENCH, "tench"], "7": [GOLDFISH, "goldfish"]}
    (dataset / "imagenet_class_index.json").write_text(json.dumps(table))
    # The index file has precedence over other lists.
    (dataset / "LOC_synset_mapping.txt").write_text("nothing of use")
    assert get_mappings(dataset) == {TENCH: 0, GOLDFISH: 7}
    assert get_mappings(str(dataset / "imagenet_class_index.json")) == {TENCH: 0, GOLDFISH: 7}
    found = [(path.relative_to(dataset).as_posix(), label) for path, label in ImageNet(dataset)]
    assert found == [
        (f"val/{TENCH}/1.JPEG", 0),
        (f"val/{TENCH}/2.JPEG", 0),
        (f"val/{GOLDFISH}/1.JPEG", 7),
        (f"val/{GOLDFISH}/2.JPEG", 7),
    ]


def test_q07_classes_of_a_synset_file_have_the_order_of_their_ids(dataset):
    lines = [
        f"{SHARK} great white shark",
        f"{TENCH} tench, Tinca tinca",
        "",
        f"{GOLDFISH} goldfish",
    ]
    (dataset / "LOC_synset_mapping.txt").write_text("\r\n".join(lines), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_mappings(dataset) == {TENCH: 0, GOLDFISH: 1, SHARK: 2}


def test_q07_classes_of_folders_are_sorted_and_missing_classes_warn(dataset, tmp_path):
    # Files are not classes.
    make_files(dataset, ["train/n01491361.tar"])
    with pytest.warns(spdl_rs.DatasetWarning, match="3 class folders, but ImageNet has 1000"):
        assert get_mappings(dataset) == {TENCH: 0, GOLDFISH: 1, SHARK: 2}
    whole = tmp_path / "whole"
    for at in range(1000):
        (whole / "val" / f"n{at * 7 + 10_000_000:08}").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mappings = get_mappings(whole)
    assert list(mappings.values()) == list(range(1000)) and list(mappings) == sorted(mappings)


# feature: Q07
def test_q07_a_subset_of_imagenet_has_the_indices_of_imagenet(tmp_path):
    files = [f"{split}/{wnid}/1.JPEG" for split in ("train", "val") for wnid in ("n15075141", SHARK)]
    make_files(tmp_path, files)
    for split in ("train", "val"):
        images = ImageNet(tmp_path, split)
        assert {path.parent.name: label for path, label in images} == {SHARK: 2, "n15075141": 999}
    mappings = get_mappings()
    assert len(mappings) == 1000 and list(mappings) == sorted(mappings)
    assert list(mappings.values()) == list(range(1000))
    # Well-known classes: German shepherd, tabby cat, sports car, toilet paper.
    known = {"n02106662": 235, "n02123045": 281, "n04285008": 817, "n15075141": 999}
    assert {wnid: mappings[wnid] for wnid in known} == known
    with pytest.raises(ValueError, match=r"none of the 1000 classes; .* mappings=get_mappings\(root\)"):
        ImageNet(make_files(tmp_path / "other", ["val/n00000001/1.JPEG"]))


def test_q07_the_folder_of_an_image_decides_its_class(tmp_path):
    # Upstream uses the first ID of the whole path.
    root = tmp_path / GOLDFISH
    make_files(root, [f"train/{TENCH}_tench/{SHARK}_1.JPEG"])
    ((_, label),) = ImageNet(root, "train", mappings={TENCH: 4, GOLDFISH: 5, SHARK: 6})
    assert label == 4


def test_q07_without_a_list_of_classes_the_error_names_the_expected_files(tmp_path):
    for missing in [tmp_path, tmp_path / "gone"]:
        with pytest.raises(
            FileNotFoundError, match="expected imagenet_class_index.json, LOC_synset"
        ):
            get_mappings(missing)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"{", "expected {"),
        ("a.json", b"[1]", "expected {"),
        ("a.json", b'{"0": "n01440764"}', "not a WordNet ID"),
        ("a.json", b'{"0": 3}', "expected {"),
        ("a.json", b'{"x": ["n01440764", ""]}', "expected {"),
        ("a.json", b'{"0": [3, ""]}', "not a WordNet ID"),
        ("a.json", b'{"0": [[3], ""]}', "expected {"),
        ("a.json", b"{}", "no classes"),
        ("a.json", b'{"-1": ["n01440764", ""]}', "class index -1 is negative"),
        ("a.json", b"\xff", "expected {"),
        ("a.json", b'{"0": ["n01440764", ""], "1": ["n01440764", ""]}', "duplicate class"),
        ("a.json", b'{"0": ["n01440764", ""], "00": ["n01443537", ""]}', "duplicate class"),
        ("a.txt", b"n01440764 tench\ntench", "line 2 does not start with a WordNet ID"),
        ("a.txt", b"n01440764 a\nn01440764 b", "duplicate class"),
        ("a.txt", b"\n", "no classes"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_q07_an_invalid_list_of_classes_is_corrupt(name, content, words, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(spdl_rs.CorruptError, match=words) as caught:
        get_mappings(path)
    assert caught.value.key == str(path)


def test_q07_invalid_data_sets_raise(dataset, tmp_path):
    with pytest.raises(ValueError, match='split must be "train" or "val", not \'test\''):
        ImageNet(dataset, "test")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        ImageNet(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="expected <class>/<name>.JPEG$"):
        ImageNet(make_files(tmp_path / "empty", ["val/x"]))
    with pytest.raises(FileNotFoundError, match="move each image to a folder"):
        ImageNet(make_files(tmp_path / "flat", ["val/1.JPEG"]))
    with pytest.raises(ValueError, match=f'{GOLDFISH}" belongs to none of the 1 classes'):
        ImageNet(dataset, mappings={TENCH: 0})
    with pytest.raises(ValueError, match="belongs to none of"):
        ImageNet(make_files(tmp_path / "named", ["val/tench/1.JPEG"]), mappings={TENCH: 0})


def test_q07_wordnet_ids_have_ascii_digits():
    assert parse_wnid(f"{TENCH}{GOLDFISH}") == TENCH
    with pytest.raises(ValueError, match="no WordNet ID"):
        parse_wnid("n०१२३४५६७")
