"""`spdl_rs.huggingface.as_iterable_dataset`: loaders as data sets of Hugging Face."""

# promise of this file: PY8

import json

import numpy
import pytest
import spdl_rs
from spdl_rs import Loader, fields
from spdl_rs.huggingface import as_iterable_dataset
from spdl_rs.sequences import Pack
from test_loader import frozen

pytestmark = pytest.mark.frameworks
ROWS = [
    {"number": number, "text": f"text {number}", "tokens": list(range(number % 4)), "boxes": [[number, 1, 9, 9]] * (number % 3)}
    for number in range(11)
]


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets", reason="datasets is not installed")


def loader_of(**settings):
    settings = {"batch_size": 4, "shuffle": True, "seed": 2, **settings}
    return Loader(
        ROWS,
        number=fields.Number("int64"),
        text=fields.Text(),
        padded=fields.Array(None, "int64", stored_as="tokens", collate="pad"),
        ragged=fields.Array(None, "int64", stored_as="tokens", collate="ragged"),
        boxes=fields.Array((None, 4)),
        **settings,
    )


def values(samples):
    return [{name: frozen(value) for name, value in sample.items()} for sample in samples]


def numbers(samples):
    return [int(sample["number"]) for sample in samples]


def test_examples_are_the_samples_of_the_loader(datasets):
    dataset = as_iterable_dataset(loader_of())
    assert isinstance(dataset, datasets.IterableDataset)
    samples = list(dataset)
    expected = [int(number) for batch in loader_of() for number in batch["number"]]
    assert numbers(samples) == expected and sorted(expected) == list(range(11))
    for sample in samples:
        row = ROWS[sample["number"]]
        assert sample["text"] == row["text"]
        assert sample["padded"].tolist() == sample["ragged"].tolist() == row["tokens"]
        assert sample["boxes"].tolist() == row["boxes"]
    # The next iteration is the next epoch.
    assert sorted(numbers(dataset)) == list(range(11)) and numbers(samples) != numbers(dataset)
    dataset.set_epoch(0)
    assert numbers(dataset) == expected


def test_methods_of_the_data_set_work():
    dataset = as_iterable_dataset(loader_of())
    doubled = dataset.map(lambda sample: {"number": 2 * sample["number"], "text": sample["text"]})
    even = doubled.filter(lambda sample: sample["number"] % 4 == 0)
    assert sorted(numbers(even)) == [4 * number for number in range(6)]
    assert len(list(dataset.take(3))) == 3
    batched = list(dataset.select_columns(["number"]).batch(4))
    assert sum(len(batch["number"]) for batch in batched) == 11
    assert sorted(numbers(dataset.shuffle(seed=1, buffer_size=5))) == list(range(11))


def views(dataset):
    return {
        "plain": dataset,
        "mapped": dataset.map(lambda sample: {**sample, "twice": 2 * sample["number"]}),
    }


@pytest.mark.parametrize("kind", ["plain", "mapped"])
def test_an_epoch_resumes_after_each_example(kind):
    def dataset():
        return views(as_iterable_dataset(loader_of()))[kind]

    expected = values(dataset())
    begun = dataset()
    samples = iter(begun)
    for count in range(len(expected) + 1):
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = dataset()
        resumed.load_state_dict(state)
        assert values(resumed) == expected[count:], count
        next(samples, None)


def test_later_epochs_resume():
    plain = as_iterable_dataset(loader_of())
    expected = []
    for epoch in range(3):
        plain.set_epoch(epoch)
        expected.append(values(plain))
    begun = as_iterable_dataset(loader_of())
    begun.set_epoch(1)
    samples = iter(begun)
    assert values([next(samples) for _ in range(6)]) == expected[1][:6]
    resumed = as_iterable_dataset(loader_of())
    resumed.set_epoch(1)
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert values(resumed) == expected[1][6:]
    resumed.set_epoch(2)
    assert values(resumed) == expected[2]


def test_samples_of_an_image_loader(many):
    loader = spdl_rs.ImageLoader(many, batch_size=6, size=8)
    samples = list(as_iterable_dataset(loader))
    assert len(samples) == 40 and {tuple(sample) for sample in samples} == {("image", "label")}
    images, labels = loader.peek()
    assert (samples[5]["image"] == images[5]).all() and samples[5]["label"] == labels[5]


def test_examples_become_tensors(many):
    torch = pytest.importorskip("torch")
    loader = spdl_rs.ImageLoader(many, batch_size=6, size=8)
    dataset = as_iterable_dataset(loader).with_format("torch")
    sample = next(iter(dataset))
    # The library converts integers to 64 bits.
    assert sample["image"].dtype == torch.int64 and sample["image"].shape == (8, 8, 3)
    loader.set_epoch(0)
    assert (sample["image"].numpy() == loader.peek()[0][0]).all()
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=16))
    assert [len(batch["label"]) for batch in batches] == [16, 16, 8]
    with pytest.raises(RuntimeError, match="use num_workers=0"):
        list(torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=1))


def test_batches_that_are_no_samples_are_refused():
    with pytest.raises(TypeError, match='batches of the loader must be dicts of fields.*output="dict"'):
        next(iter(as_iterable_dataset(loader_of(output="tuple"))))
    rows = [{"tokens": [1] * number} for number in range(1, 6)]
    packed = Loader(rows, batch_size=2, tokens=fields.Array(None, "int64"), key=fields.Key(), group=Pack("tokens", length=8))
    with pytest.raises(TypeError, match="the same number of samples, not {'tokens': 2, 'key': 4"):
        next(iter(as_iterable_dataset(packed)))
    constant = loader_of(batch_map=lambda batch: {"number": 1})
    with pytest.raises(TypeError, match="'number' must have a value for each sample, not 1"):
        next(iter(as_iterable_dataset(constant)))
    with pytest.raises(TypeError, match="must be an ImageLoader or a Loader, not an object of type list"):
        as_iterable_dataset([])


def test_arrays_are_views_of_their_batch(many):
    loader = spdl_rs.ImageLoader(many, batch_size=6, size=8)
    sample = next(iter(as_iterable_dataset(loader)))
    assert isinstance(sample["image"], numpy.ndarray) and sample["image"].base is not None
