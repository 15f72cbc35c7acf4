"""`Loader(mix=..., map=..., collate=..., batch_map=...)`: what happens to whole batches."""

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass

import numpy
import pytest
from conftest import picture, write_png
from dataset_files import write_members
from spdl_rs import InvalidArgumentError, Loader, fields
from spdl_rs.io import Resize
from spdl_rs.recipes import Mix, deit_mix

SAMPLES = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    for number in range(SAMPLES):
        path = folder / "ab"[number % 2] / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        write_png(path, picture(number))
    return folder


def loader_of(folder, *, more=None, **settings):
    settings = {"batch_size": 5, "shuffle": True, "seed": 3, **settings}
    return Loader(
        folder,
        {"image": fields.Image(16), "label": fields.Label(), "key": fields.Key(), **(more or {})},
        **settings,
    )


def name_of(key):
    return key.rsplit("/", 1)[-1]


def number_of(key):
    return int(name_of(key)[:3])


def test_map_gets_each_sample_and_its_results_become_the_batch(folder):
    def function(sample):
        assert sorted(sample) == ["image", "key", "label"]
        assert sample["image"].shape == (16, 16, 3)
        number = number_of(sample["key"])
        return {
            "mean": sample["image"].mean(),
            "count": number,
            "half": sample["image"][::2],
            "uneven": [numpy.arange(number)],
            "text": sample["key"].upper(),
            "mixed": number if number % 2 else "even",
        }

    plain = list(loader_of(folder))
    mapped = list(loader_of(folder, map=function))
    assert [len(batch["count"]) for batch in mapped] == [5, 5, 5, 5, 3]
    for batch, before in zip(mapped, plain, strict=True):
        numbers = [number_of(key) for key in before["key"]]
        assert list(batch) == ["mean", "count", "half", "uneven", "text", "mixed"]
        assert numpy.array_equal(batch["mean"], before["image"].mean((1, 2, 3)))
        assert batch["count"].tolist() == numbers
        assert numpy.array_equal(batch["half"], before["image"][:, ::2])
        assert [len(one) for (one,) in batch["uneven"]] == numbers
        assert batch["text"] == [key.upper() for key in before["key"]]
        assert batch["mixed"] == [number if number % 2 else "even" for number in numbers]


def test_map_gets_samples_of_their_own_size(folder, tmp_path):
    lines = "".join(f'{{"image": "{number}", "r": {list(range(number))}}}\n' for number in range(4))
    (tmp_path / "samples.jsonl").write_text(lines)
    seen = {}

    def function(sample):
        seen[len(sample["ragged"])] = sample["ragged"].tolist(), sample["padded"].tolist()
        return {"length": len(sample["ragged"]), "padded": sample["padded"][:1]}

    shape = {"shape": (None,), "dtype": "int64", "stored_as": "r"}
    loader = Loader(
        tmp_path / "samples.jsonl",
        batch_size=4,
        ragged=fields.Array(collate="ragged", **shape),
        padded=fields.Array(collate="pad", **shape),
        map=function,
    )
    batch = loader.peek()
    assert batch["length"].tolist() == [0, 1, 2, 3]
    # Results with the name of a field of several sizes are always a list.
    assert [one.tolist() for one in batch["padded"]] == [[], [0], [0], [0]]
    loader.set_epoch(0)
    assert seen == {number: (list(range(number)),) * 2 for number in range(4)}


def test_batch_map_gets_the_batch_as_output_makes_it(folder):
    @dataclass
    class Sample:
        image: numpy.ndarray
        label: numpy.ndarray
        key: list

    plain = list(loader_of(folder))
    for output, kind in [("dict", dict), ("tuple", tuple), (Sample, Sample)]:
        seen = []

        def function(batch, seen=seen):
            seen.append(type(batch))
            return batch

        batches = list(loader_of(folder, output=output, batch_map=function))
        assert seen == [kind] * 5
        for batch, before in zip(batches, plain, strict=True):
            values = (
                batch.values()
                if kind is dict
                else batch
                if kind is tuple
                else vars(batch).values()
            )
            image, label, key = values
            assert numpy.array_equal(image, before["image"])
            assert numpy.array_equal(label, before["label"]) and key == before["key"]
    doubled = loader_of(folder, map=lambda sample: {"two": 2 * sample["label"]}, output="tuple")
    assert [len(batch) for batch in doubled] == [1] * 5
    both = loader_of(
        folder,
        map=lambda sample: {"label": sample["label"]},
        batch_map=lambda batch: batch["label"].sum(),
    )
    assert list(both) == [batch["label"].sum() for batch in plain]


def test_collate_gets_the_samples_of_a_batch_and_returns_the_batch(folder):
    plain = list(loader_of(folder))
    batches = list(loader_of(folder, collate=list))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]
    for batch, before in zip(batches, plain, strict=True):
        assert [list(sample) for sample in batch] == [["image", "label", "key"]] * len(batch)
        assert [sample["key"] for sample in batch] == before["key"]
        assert all(map(numpy.array_equal, [sample["image"] for sample in batch], before["image"]))

    # After map, whose results may be any objects and differ.
    def each(sample):
        number = number_of(sample["key"])
        return numpy.zeros(number) if number % 2 else sample["key"]

    def whole(samples):
        return [len(one) if isinstance(one, numpy.ndarray) else number_of(one) for one in samples]

    numbers = [[number_of(key) for key in batch["key"]] for batch in plain]
    assert list(loader_of(folder, map=each, collate=whole)) == numbers
    # Before batch_map.
    loader = loader_of(folder, map=each, collate=whole, batch_map=sum)
    assert list(loader) == [sum(batch) for batch in numbers]
    assert [stage["name"] for stage in loader.stats()["stages"]][3:] == ["map", "collate", "batch_map"]
    assert list(loader_of(folder, collate=len, batch_map=str)) == ["5", "5", "5", "5", "3"]


def test_collate_gets_samples_of_their_own_size(folder, tmp_path):
    (tmp_path / "samples.jsonl").write_text('{"image": "a", "r": [1]}\n{"image": "b", "r": [2, 3]}\n')
    for collation in ("list", "ragged", "pad"):
        field = fields.Array(None, "int64", collate=collation, stored_as="r")
        loader = Loader(tmp_path / "samples.jsonl", batch_size=2, field=field, collate=list)
        assert [sample["field"].tolist() for sample in loader.peek()] == [[1], [2, 3]]


def test_collate_makes_the_batch_so_that_output_cannot(folder):
    for output in ("tuple", dict):
        with pytest.raises(ValueError, match="cannot be combined with collate, whose result is"):
            loader_of(folder, collate=list, output=output)


def test_an_exception_of_collate_names_the_first_and_the_last_sample(folder):
    keys = loader_of(folder, shuffle=False).peek()["key"]
    for settings in ({}, {"map": len}, {"batch_map": len}):
        with pytest.raises(ZeroDivisionError) as caught:
            list(loader_of(folder, shuffle=False, collate=lambda batch: 1 // 0, **settings))
        assert caught.value.__notes__ == [f"collate of the samples {keys[0]!r} to {keys[-1]!r}"]
    # The names reach the function after it.
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader_of(folder, shuffle=False, collate=list, batch_map=lambda batch: 1 // 0))
    assert caught.value.__notes__ == [f"batch_map of the samples {keys[0]!r} to {keys[-1]!r}"]


def drawing(folder, **settings):
    def each(sample, rng):
        return {"key": sample["key"], "drawn": rng.integers(2**62)}

    def whole(batch, *, rng):
        return {**batch, "batch": int(rng.integers(2**62))}

    return loader_of(folder, map=each, batch_map=whole, **settings)


def collating(folder, **settings):
    def each(sample, rng):
        return sample["key"], rng.integers(2**62)

    def whole(samples, rng):
        batch = {"batch": int(rng.integers(2**62)), "key": [key for key, _ in samples]}
        return {**batch, "drawn": numpy.array([drawn for _, drawn in samples])}

    return loader_of(folder, map=each, collate=whole, **settings)


def as_lists(batches):
    return [(batch["key"], batch["drawn"].tolist(), batch["batch"]) for batch in batches]


@pytest.mark.parametrize("drawing", [drawing, collating])
def test_random_numbers_depend_on_the_sample_and_not_on_threads_or_resume(folder, drawing):
    chance = random.Random(1)
    loader = drawing(folder, threads=1)
    expected = as_lists(loader), as_lists(loader)
    drawn = [number for epoch in expected for batch in epoch for number in (*batch[1], batch[2])]
    assert len(set(drawn)) == len(drawn) == 2 * (SAMPLES + 5)
    for _ in range(12):
        loader = drawing(folder, threads=chance.randint(1, 5))
        epoch, stop = chance.randint(0, 1), chance.randint(0, 5)
        loader.set_epoch(epoch)
        batches, before = iter(loader), []
        for _ in range(stop):
            before.append(next(batches))
        again = drawing(folder, threads=chance.randint(1, 5))
        again.load_state_dict(loader.state_dict())
        assert as_lists(before) + as_lists(again) == expected[epoch]
    assert as_lists(drawing(folder, seed=4)) != expected[0]


def test_functions_run_on_the_threads_of_the_loader_and_are_named_by_the_statistics(folder):
    lock, threads, running, most = threading.Lock(), set(), 0, 0

    def function(batch):
        nonlocal running, most
        with lock:
            threads.add(threading.get_ident())
            running += 1
            most = max(most, running)
        time.sleep(0.03)
        with lock:
            running -= 1
        return batch

    loader = loader_of(folder, batch_size=1, threads=3, batch_map=function)
    assert len(list(loader)) == SAMPLES
    assert threading.get_ident() not in threads and len(threads) >= 2 and most >= 2
    names = [stage["name"] for stage in loader.stats()["stages"]]
    assert names == ["source", "fetch", "decode", "batch_map"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exception_of_a_function_ends_the_epoch_and_names_the_sample(folder, on_error):
    class Special(Exception):
        pass

    def function(sample):
        if number_of(sample["key"]) == 7:
            raise Special("seven")
        return sample

    loader = loader_of(folder, on_error=on_error, shuffle=False, map=function)
    plain = [[name_of(key) for key in batch["key"]] for batch in loader_of(folder, shuffle=False)]
    position = next(at for at, batch in enumerate(plain) if "007.png" in batch)
    delivered = 0
    with pytest.raises(Special, match="seven") as caught:
        for _ in loader:
            delivered += 1
    assert delivered == position
    assert [note.endswith("007.png'") for note in caught.value.__notes__] == [True]
    # The state is that before the batch, so that the epoch continues with a mended function.
    again = loader_of(folder, on_error=on_error, shuffle=False, map=lambda sample: sample)
    again.load_state_dict(loader.state_dict())
    rest = [[name_of(key) for key in batch["key"]] for batch in again]
    assert rest == plain[position:]


def test_an_exception_of_batch_map_names_the_first_and_the_last_sample(folder):
    loader = loader_of(folder, shuffle=False, batch_map=lambda batch: batch["nothing"])
    with pytest.raises(KeyError) as caught:
        list(loader)
    keys = loader_of(folder, shuffle=False).peek()["key"]
    assert caught.value.__notes__ == [f"batch_map of the samples {keys[0]!r} to {keys[-1]!r}"]
    # After map, and in the class of the batch.
    for settings in [
        {"map": lambda one: {"a": 1}, "batch_map": lambda batch: 1 // 0},
        {"map": lambda one: one, "output": lambda **batch: 1 // 0},
        {"batch_map": len, "output": lambda **batch: 1 // 0},
    ]:
        with pytest.raises(ZeroDivisionError) as caught:
            list(loader_of(folder, shuffle=False, **settings))
        (note,) = caught.value.__notes__
        assert note.endswith(f"of the samples {keys[0]!r} to {keys[-1]!r}")


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (lambda sample: 5, TypeError, "map must return a dict of values by name, not 5"),
        (lambda sample: {sample["key"]: 1}, ValueError, "the same names for all samples"),
        (
            lambda sample: {number_of(sample["key"]) % 2 or "a": 1},
            ValueError,
            "it returned (1 after a|a after 1)",
        ),
        (
            lambda sample: {"x": numpy.zeros(number_of(sample["key"]))},
            ValueError,
            r"cannot stack the values 'x' of map: float64 of shape \(.*pad them, or return each",
        ),
        (
            lambda sample: {"x": numpy.zeros(1) if number_of(sample["key"]) % 2 else None},
            ValueError,
            "an object of type NoneType and float64 of shape",
        ),
        (lambda sample: {"x": 2**63}, OverflowError, "too large|too big"),
    ],
)
def test_wrong_results_of_map_are_errors(folder, function, kind, message):
    with pytest.raises(kind, match=message) as caught:
        list(loader_of(folder, map=function))
    assert "map of the sample" in caught.value.__notes__[0]


async def coroutine(sample):
    return sample


def generator(sample):
    yield sample


class AsyncCall:
    async def __call__(self, sample):
        return sample


@pytest.mark.parametrize("name", ["map", "collate", "batch_map"])
def test_arguments_that_are_no_functions_are_refused(folder, name):
    with pytest.raises(TypeError, match=f"{name} must be callable, not 3"):
        loader_of(folder, **{name: 3})
    for function in (coroutine, generator, AsyncCall()):
        with pytest.raises(TypeError, match=f"{name} must return its result"):
            loader_of(folder, **{name: function})


def test_a_function_of_an_extension_needs_no_signature(folder):
    assert type(loader_of(folder, batch_map=dict).peek()) is dict


def test_an_argument_rng_with_a_default_stays_that_of_the_caller(folder):
    def function(batch, rng="mine"):
        return rng

    assert loader_of(folder, batch_map=function).peek() == "mine"


def test_a_loader_is_collected_although_its_function_refers_to_its_owner(folder):
    class Module:
        def __init__(self):
            self.loader = loader_of(folder, map=self.each, batch_map=self.whole)

        def each(self, sample):
            return sample

        def whole(self, batch):
            return batch

    module = Module()
    assert len(list(module.loader)) == 5
    loader, module = weakref.ref(module.loader), weakref.ref(module)
    gc.collect()
    assert module() is None and loader() is None


def test_a_state_of_a_loader_without_the_function_is_refused(folder):
    state = loader_of(folder).state_dict()
    with pytest.raises(InvalidArgumentError) as caught:
        loader_of(folder, map=lambda sample: sample).load_state_dict(state)
    text = str(caught.value)
    assert "map: was absent" in text and "\0" not in text and "(keys)" not in text


def test_closing_does_not_wait_for_a_slow_function(folder):
    release, entered = threading.Event(), threading.Event()

    def function(batch):
        entered.set()
        release.wait(60)
        return batch

    batches = iter(loader_of(folder, threads=2, batch_map=function))
    assert entered.wait(60)
    start = time.monotonic()
    batches.close()
    elapsed = time.monotonic() - start
    release.set()
    assert elapsed < 30
    assert list(batches) == []


WORK = {
    "sleeps": "time.sleep(3)",
    "computes": "while time.monotonic() < start + 3: pass",
    "short": "time.sleep(0.05)",
}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", ["map", "batch_map"])
@pytest.mark.parametrize("end", ["pass", "batches.close()", "raise SystemExit(3)"])
def test_a_program_ends_while_functions_run(folder, work, kind, end):
    program = f"""
import threading, time
from spdl_rs import Loader, fields

entered = threading.Event()

def function(value):
    entered.set()
    start = time.monotonic()
    {WORK[work]}
    return value

loader = Loader({str(folder)!r}, batch_size=2, image=fields.Image(16), {kind}=function, threads=3)
batches = iter(loader)
entered.wait(60)
print("end", flush=True)
{end}
"""
    command = [sys.executable, "-c", program]
    start = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    expected = 3 if "3" in end else 0
    assert (run.returncode, run.stdout) == (expected, "end\n"), run.stderr
    if work != "short":
        assert f"functions of loaders are still running: {kind}, function at <string>" in run.stderr
    assert time.monotonic() - start < 30


@pytest.mark.frameworks
def test_functions_get_tensors_with_the_output_torch(folder):
    torch = pytest.importorskip("torch")

    def each(sample):
        assert isinstance(sample["image"], torch.Tensor) and sample["image"].shape == (16, 16, 3)
        return {"image": sample["image"].float() / 255, "key": sample["key"], "number": 1}

    def whole(batch):
        assert isinstance(batch["image"], torch.Tensor)
        assert isinstance(batch["number"], torch.Tensor) and isinstance(batch["key"], list)
        return batch["image"].mean((1, 2, 3))

    means = [batch["image"].mean((1, 2, 3)) / 255 for batch in loader_of(folder)]
    loader = loader_of(folder, output="torch", map=each, batch_map=whole)
    for mean, expected in zip(loader, means, strict=True):
        assert torch.allclose(mean.double(), torch.from_numpy(expected), atol=1e-5)


@pytest.mark.frameworks
def test_collate_gets_tensors_with_the_output_torch(folder):
    torch = pytest.importorskip("torch")

    def whole(samples):
        assert all(isinstance(sample["image"], torch.Tensor) for sample in samples)
        return torch.utils.data.default_collate(samples)

    batch = loader_of(folder, output="torch", collate=whole).peek()
    assert batch["image"].shape == (5, 16, 16, 3) and len(batch["key"]) == 5


@pytest.mark.frameworks
def test_an_argument_generator_gets_a_generator_of_pytorch_of_the_sample(folder):
    torch = pytest.importorskip("torch")

    def keeps(sample, generator):
        return bool(torch.rand((), generator=generator) < 0.8)

    def each(sample, generator, rng):
        return {"key": sample["key"], "drawn": torch.rand(2, generator=generator), "n": rng.random()}

    def whole(batch, *, generator):
        return {**batch, "batch": torch.rand(3, generator=generator)}

    def of(loader):
        batches = list(loader)
        drawn = [[batch[name].tolist() for name in ("drawn", "n", "batch")] for batch in batches]
        return [(batch["key"], one) for batch, one in zip(batches, drawn, strict=True)]

    functions = {"filter": keeps, "map": each, "batch_map": whole}
    expected = of(loader_of(folder, threads=1, **functions))
    drawn = [number for _, (rows, _, batch) in expected for row in [*rows, batch] for number in row]
    assert len(set(drawn)) == len(drawn)
    assert 10 < sum(len(keys) for keys, _ in expected) < SAMPLES
    assert of(loader_of(folder, threads=4, **functions)) == expected
    loader = loader_of(folder, threads=3, **functions)
    batches = iter(loader)
    before = of([next(batches), next(batches)])
    again = loader_of(folder, threads=2, **functions)
    again.load_state_dict(loader.state_dict())
    assert before + of(again) == expected


def test_an_argument_generator_needs_pytorch(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        loader_of(folder, map=lambda sample, generator: sample)
    assert loader_of(folder, batch_map=lambda batch, generator=3: generator).peek() == 3


def mixed_and_plain(folder, mix, **settings):
    """Pairs of batches with one-hot labels."""
    settings = {"batch_size": 4, **settings}
    floats = {"image": fields.Image(16, layout="nchw-f32")}
    mixed = list(loader_of(folder, more=floats, mix=mix, **settings))
    plain = list(loader_of(folder, more=floats, **settings))
    for batch in plain:
        batch["label"] = numpy.eye(2, dtype="f4")[batch["label"]]
    return list(zip(mixed, plain, strict=True))


def test_a_mix_without_options_changes_only_the_labels(folder):
    for batch, plain in mixed_and_plain(folder, Mix(2)):
        assert (batch["image"] == plain["image"]).all()
        assert batch["label"].dtype == "float32" and (batch["label"] == plain["label"]).all()


def test_mixup_blends_each_image_and_label_with_the_previous_one(folder):
    ratios = set()
    for batch, plain in mixed_and_plain(folder, Mix(2, mixup=1.0)):
        assert batch["key"] == plain["key"]
        image = plain["image"].astype("f8")
        before = numpy.roll(image, 1, 0)
        label, label_before = plain["label"], numpy.roll(plain["label"], 1, 0)
        # The ratio is a property of the whole batch.
        change = (before - image).ravel()
        other = change @ (batch["image"] - image).ravel() / (change @ change)
        ratios.add(round(float(other), 6))
        assert numpy.allclose(batch["image"], image + other * (before - image), atol=1e-5)
        assert numpy.allclose(batch["label"], label + other * (label_before - label), atol=1e-5)
    assert len(ratios) == 6 and all(0 < ratio < 1 for ratio in ratios)


def test_cutmix_copies_a_rectangle_and_weighs_labels_by_its_area(folder):
    areas = set()
    for batch, plain in mixed_and_plain(folder, Mix(2, cutmix=1.0)):
        before = numpy.roll(plain["image"], 1, 0)
        kept, copied = (batch["image"] == plain["image"]), (batch["image"] == before)
        assert (kept | copied).all()
        changed = ~kept.all((0, 1))
        area = 0.0
        if changed.any():
            rows, columns = (numpy.flatnonzero(changed.any(axis)) for axis in (1, 0))
            area = (rows[-1] + 1 - rows[0]) * (columns[-1] + 1 - columns[0]) / 256
        areas.add(area)
        label = plain["label"]
        expected = label + area * (numpy.roll(label, 1, 0) - label)
        assert numpy.allclose(batch["label"], expected, atol=1e-5)
    assert len(areas) >= 3


def test_mix_depends_on_the_sample_and_not_on_threads_or_resume(folder):
    def of(loader):
        return [(batch["key"], batch["image"].tobytes(), batch["label"].tolist()) for batch in loader]

    mix = deit_mix(2)
    expected = of(loader_of(folder, threads=1, mix=mix))
    assert all(abs(sum(label) - 1) < 1e-5 for *_, labels in expected for label in labels)
    assert of(loader_of(folder, threads=4, mix=mix)) == expected
    loader = loader_of(folder, threads=2, mix=mix)
    batches = iter(loader)
    before = of([next(batches), next(batches)])
    again = loader_of(folder, threads=3, mix=mix)
    again.load_state_dict(loader.state_dict())
    assert before + of(again) == expected
    # Another recipe is another run.
    with pytest.raises(InvalidArgumentError, match="cutmix"):
        loader_of(folder, mix=Mix(2, mixup=0.8, cutmix=0.5, smoothing=0.1)).load_state_dict(
            loader.state_dict()
        )


def test_wrong_arguments_of_mix_are_refused(folder):
    for name, value in [("probability", 1.5), ("smoothing", -0.1), ("mixup", 0), ("cutmix", -1.0)]:
        with pytest.raises(ValueError, match=f"{name} must be"):
            Mix(2, **{"cutmix": 1.0, name: value})
    with pytest.raises(ValueError, match="classes must be"):
        Mix(0)
    with pytest.raises(TypeError, match="must be a CopyPaste, Mix or Mosaic of spdl_rs.recipes, not 2"):
        loader_of(folder, mix=2)
    with pytest.raises(InvalidArgumentError, match='field "photo" is not an image of one crop'):
        loader_of(folder, mix=Mix(2, mixup=1.0, image="photo"))
    with pytest.raises(ValueError, match="mix needs images of one size"):
        sized = fields.Image(crop=Resize(16))
        Loader(folder, batch_size=2, image=sized, label=fields.Label(), mix=Mix(2, mixup=1.0))
    with pytest.raises(InvalidArgumentError, match='mix needs the label "image" to be an int64'):
        loader_of(folder, mix=Mix(2, mixup=1.0, label="image"))
    with pytest.raises(InvalidArgumentError, match='mix needs a label, but there is no field "kind"'):
        loader_of(folder, mix=Mix(2, mixup=1.0, label="kind"))
    with pytest.raises(ValueError, match="mix has 1 classes, but the data set has 2"):
        loader_of(folder, mix=Mix(1, mixup=1.0))


def test_a_label_out_of_range_is_an_error_even_if_samples_may_be_skipped(tmp_path):
    write_png(tmp_path / "image.png", picture(1))
    image = (tmp_path / "image.png").read_bytes()
    files = [(f"{n}.png", image) for n in range(4)]
    files += [(f"{n}.json", b'{"kind": %d}' % n) for n in range(4)]
    shard = tmp_path / "shard.tar"
    write_members(shard, sorted(files))
    settings = {"batch_size": 2, "on_error": "skip", "mix": Mix(3, mixup=1.0, label="kind")}
    image, stored = fields.Image(16), {"stored_as": "json", "at": "kind"}
    loader = Loader(shard, image=image, kind=fields.Number("int64", **stored), **settings)
    with pytest.raises(InvalidArgumentError, match="label 3 is out of range"):
        list(loader)
    with pytest.raises(InvalidArgumentError, match='mix needs the label "kind" to be an int64'):
        Loader(shard, image=image, kind=fields.Number(**stored), **settings)


@pytest.mark.parametrize("function", ["map", "batch_map", "__getitem__"])
def test_the_gil_is_the_bottleneck_of_functions_that_compute(function):
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this Python has no GIL")

    def spin(value):
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            sum(range(1000))
        return value

    class Samples:
        def __len__(self):
            return 120

        def __getitem__(self, number):
            return spin({"number": number}) if function == "__getitem__" else {"number": number}

    given = {} if function == "__getitem__" else {function: spin}
    loader = Loader(Samples(), batch_size=1, number=fields.Number(), threads=4, **given)
    assert len(list(loader)) == 120
    limit = loader.stats()["bottleneck"]["limit"]
    assert limit["kind"] == "gil", loader.diagnose()
    assert limit["stage"] == ("getitem" if function == "__getitem__" else function)
    shown = loader.diagnose()
    assert shown.startswith("The GIL is the bottleneck: the 4 worker threads")
    setting = 'in map, with executor="processes"' if function == "__getitem__" else 'executor="processes"'
    assert f"Python functions in processes ({setting}) would " in shown, shown
    assert "concurrency" not in shown and "threads would give" not in shown, shown
