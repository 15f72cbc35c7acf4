"""`Loader` in training loops and arrays of other libraries: Lightning, Accelerate, TensorFlow, MLX."""

# promise of this file: PY8

import copy

import numpy
import pytest
from spdl_rs import Loader, fields
from spdl_rs.torch import as_iterable_dataset

pytestmark = pytest.mark.frameworks


def loader_of(many, **settings):
    settings = {"batch_size": 6, "shuffle": True, "seed": 4, "output": "torch", **settings}
    return Loader(many, image=fields.Image(8, train=True), index=fields.Index(), key=fields.Key(), **settings)


def keys_of_epochs(many, epochs):
    loader = loader_of(many)
    return [batch["key"] for _ in range(epochs) for batch in loader]


def test_a_run_of_lightning_resumes_in_the_middle_of_an_epoch(many, tmp_path):
    torch = pytest.importorskip("torch")
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen = []

        def training_step(self, batch, number):
            self.seen.append(batch["key"])
            return (self.weight * batch["image"].float().mean()).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trainer(**settings):
        settings = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, **settings}
        return lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, **settings)

    whole = Model()
    trainer(enable_checkpointing=False).fit(whole, loader_of(many))
    # Lightning calls `iter` once before the first epoch, which has the number 1 then.
    loader = loader_of(many)
    loader.set_epoch(1)
    expected = [batch["key"] for _ in range(2) for batch in loader]
    assert whole.seen == expected and len(expected) == 14
    saved = lightning.callbacks.ModelCheckpoint(
        dirpath=tmp_path, every_n_train_steps=9, save_top_k=-1, filename="at"
    )
    begun = Model()
    trainer(callbacks=[saved], max_steps=9).fit(begun, loader_of(many))
    assert begun.seen == expected[:9]
    resumed = Model()
    trainer(enable_checkpointing=False).fit(resumed, loader_of(many), ckpt_path=tmp_path / "at.ckpt")
    assert resumed.seen == expected[9:]


def test_accelerate_saves_the_state_of_a_loader(many, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    expected = keys_of_epochs(many, 2)
    loader = loader_of(many)
    accelerator.register_for_checkpointing(loader)
    # Loaders are not changed by `prepare`.
    assert accelerator.prepare(loader) is loader
    seen = [batch["key"] for batch in loader]
    batches = iter(loader)
    seen += [next(batches)["key"], next(batches)["key"]]
    accelerator.save_state(tmp_path)
    rest = [batch["key"] for batch in batches]
    loader.set_epoch(0)
    accelerator.load_state(tmp_path)
    assert [batch["key"] for batch in loader] == rest
    assert seen + rest == expected


def test_torchdata_saves_the_state_of_the_view_of_a_loader(many):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def dataloader():
        return stateful.StatefulDataLoader(as_iterable_dataset(loader_of(many, output="dict")), batch_size=None)

    expected = keys_of_epochs(many, 1)
    begun = dataloader()
    batches = iter(begun)
    seen = [next(batches)["key"] for _ in range(3)]
    resumed = dataloader()
    resumed.load_state_dict(copy.deepcopy(begun.state_dict()))
    assert seen + [batch["key"] for batch in resumed] == expected


def batch_of(many):
    return loader_of(many, output="dict").peek()


def test_tensorflow_shares_the_memory_of_a_batch(many):
    tensorflow = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    batch = batch_of(many)
    for name in ("image", "index"):
        tensor = tensorflow.experimental.dlpack.from_dlpack(batch[name].__dlpack__())
        assert (tensor.numpy() == batch[name]).all()
        address = numpy.from_dlpack(tensor).__array_interface__["data"][0]
        assert address == batch[name].__array_interface__["data"][0]
        assert (tensorflow.convert_to_tensor(batch[name]).numpy() == batch[name]).all()


def test_mlx_copies_a_batch(many):
    mlx = pytest.importorskip("mlx.core", reason="mlx is not installed")
    batch = batch_of(many)
    for name in ("image", "index"):
        assert (numpy.array(mlx.array(batch[name])) == batch[name]).all()
