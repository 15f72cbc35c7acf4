"""`spdl_rs.torch.as_iterable_dataset`: loaders in PyTorch's `DataLoader`."""

import json

import numpy
import pytest
import spdl_rs
from spdl_rs import Loader, fields
from spdl_rs.sequences import Bucket
from spdl_rs.torch import as_iterable_dataset

pytestmark = pytest.mark.frameworks


def loader_of(many, **settings):
    return spdl_rs.ImageLoader(many, batch_size=6, size=8, train=True, seed=4, **settings)


def in_pytorch(dataset, **settings):
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(dataset, batch_size=None, **settings)


def test_batches_are_those_of_the_loader(many):
    torch = pytest.importorskip("torch")
    dataset = as_iterable_dataset(loader_of(many))
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    batches = in_pytorch(dataset)
    assert len(batches) == len(dataset) == 7
    expected = loader_of(many)
    epochs = [list(expected), list(expected)]
    assert not numpy.array_equal(epochs[0][0][1], epochs[1][0][1])
    for epoch in epochs:
        found = list(batches)
        assert len(found) == len(epoch)
        for (images, labels), (images_before, labels_before) in zip(found, epoch):
            assert isinstance(images, torch.Tensor) and images.dtype == torch.uint8
            assert numpy.array_equal(images.numpy(), images_before)
            assert labels.tolist() == labels_before.tolist()


def test_the_dataset_has_the_state_of_the_loader(many):
    pytest.importorskip("torch")

    def rest(batches):
        return [(images.numpy().tobytes(), labels.tolist()) for images, labels in batches]

    whole = rest(in_pytorch(as_iterable_dataset(loader_of(many))))
    begun = as_iterable_dataset(loader_of(many))
    batches = iter(in_pytorch(begun))
    next(batches), next(batches)
    state = json.loads(json.dumps(begun.state_dict()))
    assert state["steps_in_epoch"] == 2
    resumed = as_iterable_dataset(loader_of(many))
    resumed.load_state_dict(state)
    assert rest(in_pytorch(resumed)) == whole[2:]
    resumed.set_epoch(0)
    assert rest(in_pytorch(resumed)) == whole


def test_the_length_of_grouped_sequences_is_unknown(tmp_path):
    torch = pytest.importorskip("torch")
    rows = [{"path": str(number), "tokens": [number] * number} for number in range(1, 9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loader = Loader(
        tmp_path / "a.jsonl",
        batch_size=4,
        tokens=fields.Array(None, "int64", collate="pad"),
        group=Bucket("tokens", max_tokens=16, boundaries=[4]),
    )
    batches = in_pytorch(as_iterable_dataset(loader))
    with pytest.raises(TypeError, match="depends on the lengths"):
        len(batches)
    found = list(batches)
    assert all(isinstance(batch["tokens"].values, torch.Tensor) for batch in found)
    assert sorted(int(row[0]) for batch in found for row in batch["tokens"].values) == list(range(1, 9))


def test_worker_processes_are_refused(many):
    pytest.importorskip("torch")
    dataset = as_iterable_dataset(loader_of(many))
    with pytest.raises(RuntimeError, match="use num_workers=0"):
        next(iter(in_pytorch(dataset, num_workers=1)))


def test_a_dataloader_of_a_loader_itself_is_explained(many):
    data = pytest.importorskip("torch.utils.data")
    loader = loader_of(many)
    with pytest.raises(TypeError, match=r"^an ImageLoader has no positions: iterate over .*as_iterable_dataset\(loader\)"):
        next(iter(data.DataLoader(loader, batch_size=4)))
    # Iteration does not use positions.
    assert len(list(loader)) == len(loader)


def test_only_loaders_are_accepted():
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match="must be an ImageLoader or a Loader, not an object of type list"):
        as_iterable_dataset([])
