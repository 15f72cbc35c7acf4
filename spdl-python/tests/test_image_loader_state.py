"""Checkpoint state of `ImageLoader`: resumed runs deliver identical batches."""

import copy
import gc
import hashlib
import json
import pickle
import random
import subprocess
import sys
import threading

import numpy
import pytest
import spdl_rs
from dataset_files import write_tar
from servers import serving
from spdl_rs import fields
from spdl_rs.io import ResizedCenterCrop


def copies(batches):
    return [(images.tobytes(), labels.tolist()) for images, labels in batches]


def uninterrupted(make, epochs):
    loader = make()
    return [batch for _ in range(epochs) for batch in copies(loader)]


def in_pieces(make, epochs, draw, through):
    """The batches of a run that is interrupted and resumed after random numbers of batches."""
    loader, found = make(), []
    for _ in range(1000):
        batches = iter(loader)
        for batch in batches:
            found.extend(copies([batch]))
            if draw.random() < 0.3:
                break
        state = through(loader.state_dict())
        if draw.random() < 0.5:
            batches.close()
        del batches
        if state["epoch"] == epochs:
            return found
        loader = make()
        loader.load_state_dict(state)
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("seed", range(12))
def test_resumed_runs_deliver_the_batches_of_an_uninterrupted_run(many, damaged, seed):
    draw = random.Random(seed)
    skips = bool(seed % 2)
    settings = {
        "batch_size": draw.choice([1, 3, 7, 16, 50]),
        "size": 16,
        "train": draw.random() < 0.7,
        "drop_last": draw.random() < 0.3,
        "seed": seed,
        "on_error": "skip" if skips else "raise",
    }

    def make():
        threads = draw.choice([1, 2, 5])
        return spdl_rs.ImageLoader(damaged[0] if skips else many, threads=threads, **settings)

    through = draw.choice(
        [
            lambda state: pickle.loads(pickle.dumps(state)),
            lambda state: json.loads(json.dumps(state)),
            copy.deepcopy,
        ]
    )
    found = in_pieces(make, 3, draw, through)
    assert found == uninterrupted(make, 3)


def test_a_state_is_small_and_json_serializable(many):
    loader = spdl_rs.ImageLoader(many, batch_size=3, size=16, train=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert type(state) is dict and state["loader"] == "spdl_rs.ImageLoader"
    assert (state["epoch"], state["steps_in_epoch"], state["in_epoch"]["delivered"]) == (0, 1, 3)
    assert len(json.dumps(state)) < 2048
    assert json.loads(json.dumps(state)) == state
    assert state == batches.state_dict() == loader.state_dict()


def test_a_state_after_the_last_batch_resumes_with_the_next_epoch(many):
    def make():
        return spdl_rs.ImageLoader(many, batch_size=16, size=16, train=True)

    expected = uninterrupted(make, 2)
    loader = make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    # The consumer has not requested the end of the epoch yet.
    before_the_end = loader.state_dict()
    assert list(batches) == []
    at_the_end = loader.state_dict()
    assert (at_the_end["epoch"], at_the_end["steps_in_epoch"]) == (1, 0)

    loader = make()
    loader.load_state_dict(at_the_end)
    assert loader.epoch == 1
    assert copies(loader) == expected[3:]
    loader.load_state_dict(before_the_end)
    assert loader.epoch == 0
    assert copies(loader) == [] and loader.epoch == 1
    assert copies(loader) == expected[3:]


def test_a_state_is_available_at_any_time(many):
    loader = spdl_rs.ImageLoader(many, batch_size=16, size=16)
    begin = loader.state_dict()
    assert (begin["epoch"], begin["steps_in_epoch"]) == (0, 0)
    for _ in loader:
        break
    gc.collect()
    assert loader.state_dict()["steps_in_epoch"] == 1
    loader.set_epoch(5)
    assert loader.state_dict()["epoch"] == 5
    second = iter(loader)
    assert (loader.state_dict()["epoch"], loader.epoch) == (5, 6)
    second.close()
    assert loader.state_dict() == second.state_dict()
    loader.load_state_dict(begin)
    assert loader.state_dict() == begin


def test_a_state_after_an_error_excludes_undelivered_images(damaged):
    folder, bad = damaged
    settings = {"batch_size": 3, "size": 16}
    loader = spdl_rs.ImageLoader(folder, **settings)
    found = []
    with pytest.raises(spdl_rs.DataError):
        for images, labels in loader:
            found.extend(labels.tolist())
    state = loader.state_dict()
    assert state["in_epoch"]["delivered"] == len(found) == 8
    again = spdl_rs.ImageLoader(folder, on_error="skip", **settings)
    again.load_state_dict(state)
    found.extend(label for _, labels in again for label in labels.tolist())
    assert found == [label for label in range(5) for _ in range(8)]
    assert [one["key"] for one in again.stats()["dropped"]] == bad


def test_set_epoch_keeps_a_loaded_state_of_the_same_epoch(many):
    loader = spdl_rs.ImageLoader(many, batch_size=16, size=16)
    loader.set_epoch(2)
    for _ in loader:
        break
    state = loader.state_dict()
    # Training loops of several ranks call `set_epoch` at the start of each epoch.
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert len(list(loader)) == 2
    loader.load_state_dict(state)
    loader.set_epoch(3)
    loader.set_epoch(2)
    assert len(list(loader)) == 3


def test_another_process_resumes_from_a_saved_state(many, tmp_path):
    settings = {"batch_size": 7, "size": 16, "train": True, "seed": 3}
    loader = spdl_rs.ImageLoader(many, **settings)
    batches = iter(loader)
    before = copies(next(batches) for _ in range(2))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    script = (
        "import hashlib, json, sys, spdl_rs\n"
        f"loader = spdl_rs.ImageLoader(sys.argv[1], **{settings!r})\n"
        "loader.load_state_dict(json.load(open(sys.argv[2])))\n"
        "for images, labels in loader:\n"
        "    print(hashlib.sha256(images.tobytes()).hexdigest(), labels.tolist())\n"
    )
    command = [sys.executable, "-c", script, str(many), str(tmp_path / "state.json")]
    there = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rest = [f"{hashlib.sha256(pixels).hexdigest()} {labels}" for pixels, labels in copies(batches)]
    assert there.stdout.splitlines() == rest and len(before) + len(rest) == 6


def test_a_run_over_remote_shards_resumes(many, tmp_path):
    paths = sorted(many.glob("*/*.png"))
    write_tar(tmp_path / "a.tar", [(path.stem, path.read_bytes(), 3) for path in paths])
    with serving(tmp_path) as server:

        def make():
            return spdl_rs.ImageLoader(
                f"{server.address}/a.tar", batch_size=7, size=16, train=True, threads=2
            )

        found = in_pieces(make, 2, random.Random(1), copy.deepcopy)
        assert found == uninterrupted(make, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": 1}, r"\(seed: was 0, is 1\)"),
        ({"batch_size": 5}, "batch_size: was 4, is 5"),
        ({"size": 24}, "size: was 16, is 24|size: was 16x16, is 24x24"),
        ({"train": False}, "train"),
        ({"shuffle": False}, "shuffle, seed or sequential_memory: was shuffle with seed 0, is no shuffle"),
        ({"layout": "nchw-f32"}, "layout"),
        ({"on_truncated": "partial"}, "on_truncated"),
        ({"drop_last": True}, "drop_last: was absent, is yes"),
        ({"label_field": "image"}, "label_field: was absent, is image"),
        ({"image_field": "jpg"}, "image_field: was absent, is jpg"),
        ({"rank": 1, "world_size": 2}, "rank 0 of 1.*rank 1 of 2"),
        ({"rank": 0, "world_size": 2}, "rank 0 of 1.*rank 0 of 2"),
    ],
    ids=str,
)
def test_a_state_of_other_settings_is_an_error_with_argument_names(many, settings, words):
    usual = {"batch_size": 4, "size": 16, "train": True}
    loader = spdl_rs.ImageLoader(many, **usual)
    for _ in loader:
        break
    state = loader.state_dict()
    other = spdl_rs.ImageLoader(many, **{**usual, **settings})
    other.set_epoch(4)
    with pytest.raises(spdl_rs.InvalidArgumentError, match=words) as caught:
        other.load_state_dict(state)
    assert "State::" not in str(caught.value) and "stage " not in str(caught.value)
    assert other.epoch == 4


def test_a_changed_crop_is_shown_in_words(many):
    state_of = spdl_rs.Loader(many, batch_size=4, image=fields.Image(16, crop=ResizedCenterCrop(20)))
    next(iter(state_of))
    other = spdl_rs.Loader(many, batch_size=4, image=fields.Image(16, crop=ResizedCenterCrop(24)))
    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"ResizedCenter\(covering: 20x20\)") as caught:
        other.load_state_dict(state_of.state_dict())
    assert "24x24" in str(caught.value) and "{" not in str(caught.value)


def test_a_state_of_other_data_is_an_error(many, photos, tmp_path):
    loader = spdl_rs.ImageLoader(many, batch_size=4, size=16)
    for _ in loader:
        break
    state = loader.state_dict()
    with pytest.raises(
        ValueError, match="samples, their names or labels: changed.*number of samples: was 40, is 4"
    ):
        spdl_rs.ImageLoader(photos, batch_size=4, size=16).load_state_dict(state)
    paths = sorted(many.glob("*/*.png"))
    with pytest.raises(ValueError, match="samples, their names or labels"):
        spdl_rs.ImageLoader(paths, batch_size=4, size=16).load_state_dict(state)


@pytest.mark.parametrize("changed", ["threads", "on_error", "cache_memory"])
def test_settings_without_effect_on_batches_may_change(many, changed):
    values = {"threads": 1, "on_error": "skip", "cache_memory": 1 << 20}
    loader = spdl_rs.ImageLoader(many, batch_size=8, size=16, threads=3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    settings = {"batch_size": 8, "size": 16, "threads": 3, changed: values[changed]}
    again = spdl_rs.ImageLoader(many, **settings)
    again.load_state_dict(state)
    assert copies(again) == copies(batches)


@pytest.mark.parametrize("state", [None, [], "state", 3, b"{}"])
def test_a_state_of_another_type_is_a_type_error(many, state):
    with pytest.raises(TypeError, match="must be the dict that state_dict"):
        spdl_rs.ImageLoader(many, batch_size=1).load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"loader": "torch"},
        {"loader": "spdl_rs.ImageLoader", "epoch": 0, "seed": 0},
        {"loader": "spdl_rs.ImageLoader"},
        {"loader": "spdl_rs.ImageLoader", "epoch": {1, 2}},
        {"loader": "spdl_rs.ImageLoader", "format": 99},
    ],
    ids=str,
)
def test_an_invalid_state_is_a_value_error(many, state):
    with pytest.raises(ValueError, match="not a state of an ImageLoader"):
        spdl_rs.ImageLoader(many, batch_size=1).load_state_dict(state)


def test_a_state_of_another_loader_is_an_error(many):
    loader = spdl_rs.ImageLoader(many, batch_size=1)
    with pytest.raises(ValueError, match="its key 'loader' is 'spdl_rs.Pipeline'"):
        loader.load_state_dict({**loader.state_dict(), "loader": "spdl_rs.Pipeline"})


def test_a_modified_state_is_an_error_or_runs(many):
    settings = {"batch_size": 4, "size": 8, "train": True, "threads": 1}
    loader = spdl_rs.ImageLoader(many, **settings)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    draw = random.Random(7)
    values = [
        None,
        -1,
        0,
        1,
        39,
        40,
        41,
        2**63,
        2**64 - 1,
        2**64,
        1.5,
        "",
        "x",
        [],
        [[0, 2**64 - 1]],
    ]
    values += [{}, [[5, 3]], [[0, 10], [5, 20]], True]

    def tampered(value):
        """Replaces one value at random."""
        if isinstance(value, dict) and value and draw.random() < 0.9:
            name = draw.choice(sorted(value))
            return {**value, name: tampered(value[name])}
        if isinstance(value, list) and value and draw.random() < 0.7:
            place = draw.randrange(len(value))
            return [*value[:place], tampered(value[place]), *value[place + 1 :]]
        return draw.choice(values)

    outcomes = set()
    for _ in range(300):
        loader = spdl_rs.ImageLoader(many, **settings)
        try:
            changed = {**state, (name := draw.choice(sorted(state))): tampered(state[name])}
            loader.load_state_dict({**changed, "loader": "spdl_rs.ImageLoader"})
            for _ in loader:
                pass
        except (ValueError, spdl_rs.SpdlError) as error:
            assert not isinstance(error, (spdl_rs.PanickedError,)), error
            outcomes.add("refused")
        else:
            outcomes.add("ran")
    assert outcomes == {"refused", "ran"}


def test_a_state_from_another_thread_is_consistent(many):
    paths = sorted(many.glob("*/*.png")) * 10

    def make():
        return spdl_rs.ImageLoader(paths, batch_size=1, size=8, labels=range(400))

    loader = make()
    batches = iter(loader)
    states, ended = [], threading.Event()

    def watch():
        while not ended.is_set():
            states.append(loader.state_dict())

    watcher = threading.Thread(target=watch)
    watcher.start()
    labels = [label for _, one in batches for label in one.tolist()]
    ended.set()
    watcher.join()
    steps = [state["epoch"] * 400 + state["steps_in_epoch"] for state in states]
    assert steps == sorted(steps) and labels == list(range(400))
    middle = next(state for state in reversed(states) if 0 < state["steps_in_epoch"] < 400)
    again = make()
    again.load_state_dict(middle)
    rest = numpy.concatenate([one for _, one in again]).tolist()
    assert rest == list(range(middle["steps_in_epoch"], 400))


def test_pickling_a_loader_is_an_error_with_advice(many):
    loader = spdl_rs.ImageLoader(many, batch_size=16, size=16)
    batches = iter(loader)
    for unpicklable, words in ((loader, "arguments and its state_dict"), (batches, "state_dict")):
        for ask in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=words):
                ask(unpicklable)
    # A shallow copy, as PyTorch makes for each worker, has independent epochs.
    again = copy.copy(loader)
    assert again.epoch == 1 and len(list(again)) == 3 and loader.epoch == 1
    again = spdl_rs.ImageLoader(many, batch_size=16, size=16)
    next(batches)
    again.load_state_dict(pickle.loads(pickle.dumps(batches.state_dict())))
    assert len(list(again)) == 2
