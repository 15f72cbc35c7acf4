"""The images that each rank reads, and resume with another world size."""

import collections
import json
import os
import sys
import types
import warnings

import pytest
import spdl_rs


def labels_of(loader):
    return [label for _, labels in loader for label in labels.tolist()]


def ranks(paths, world, **settings):
    settings = {"batch_size": 4, "size": 8, "labels": range(len(paths)), **settings}
    return [
        spdl_rs.ImageLoader(paths, rank=rank, world_size=world, **settings) for rank in range(world)
    ]


@pytest.fixture(scope="module")
def paths(many):
    return sorted(many.glob("*/*.png"))[:17]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 17, 20])
@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("train", [False, True])
def test_ranks_read_interleaved_positions(paths, world, remainder, train):
    (whole,) = ranks(paths, 1, train=train)
    parts = ranks(paths, world, train=train, remainder=remainder)
    for _ in range(2):
        order = labels_of(whole)
        found = [labels_of(part) for part in parts]
        lens = [len(part) for part in found]
        if remainder == "drop":
            assert set(lens) == {17 // world}
            assert found == [order[: 17 // world * world][rank::world] for rank in range(world)]
        elif remainder == "pad":
            assert set(lens) == {-(-17 // world)}
            again = order * (world // 17 + 2)
            assert found == [again[: -(-17 // world) * world][rank::world] for rank in range(world)]
        else:
            assert found == [order[rank::world] for rank in range(world)]
        for part, count in zip(parts, lens):
            assert len(part) == -(-count // 4)


def test_all_ranks_read_each_image_once(paths):
    parts = ranks(paths[:16], 4, train=True, seed=3)
    for _ in range(3):
        seen = collections.Counter(label for part in parts for label in labels_of(part))
        assert seen == collections.Counter(range(16))


def test_drop_last_applies_to_each_rank(paths):
    for part in ranks(paths, 3, drop_last=True):
        assert len(part) == 1 and [len(labels) for _, labels in part] == [4]
        assert part.stats()["left_out"] == 1


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_each_rank_resumes_from_its_own_state(paths, remainder):
    settings = {"train": True, "remainder": remainder, "batch_size": 2}
    for rank in range(3):
        loader = ranks(paths, 3, **settings)[rank]
        whole = labels_of(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        begun = next(batches)[1].tolist()
        again = ranks(paths, 3, **settings)[rank]
        again.load_state_dict(loader.state_dict())
        assert begun + labels_of(again) == whole
        other = ranks(paths, 3, **settings)[(rank + 1) % 3]
        with pytest.raises(ValueError, match=f"rank {rank} of 3.*rank {(rank + 1) % 3} of 3"):
            other.load_state_dict(loader.state_dict())


def test_repr_contains_the_rank(paths):
    assert "rank 1 of 3, " in repr(ranks(paths, 3)[1])
    assert "rank" not in repr(ranks(paths, 1)[0])


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("train", [False, True])
def test_an_epoch_resumes_with_another_world_size(paths, before, after, train):
    settings = {"train": train, "remainder": "uneven", "batch_size": 2, "seed": 5}
    seen, states = [], []
    for rank, loader in enumerate(ranks(paths, before, **settings)):
        batches = iter(loader)
        # The ranks stop at different positions.
        for _ in range(1 + rank % 2):
            seen += next(batches)[1].tolist()
        batches.close()
        states.append(loader.state_dict())
    state = spdl_rs.ImageLoader.combine_states(reversed(states))
    assert json.loads(json.dumps(state)) == state
    rest = ranks(paths, after, **settings)
    for loader in rest:
        loader.load_state_dict(state)
        seen += labels_of(loader)
    assert sorted(seen) == list(range(17))
    # The next epoch is complete, divided among the new ranks.
    whole = [label for loader in rest for label in labels_of(loader)]
    assert sorted(whole) == list(range(17)) and {loader.epoch for loader in rest} == {2}


def test_pixels_do_not_change_with_the_world_size(paths):
    settings = {"train": True, "remainder": "uneven", "batch_size": 1, "seed": 5, "size": 16}
    (whole,) = ranks(paths, 1, **settings)
    expected = {labels.item(): images.tobytes() for images, labels in whole}
    states = []
    for loader in ranks(paths, 4, **settings):
        next(iter(loader))
        states.append(loader.state_dict())
    for loader in ranks(paths, 2, **settings):
        loader.load_state_dict(spdl_rs.ImageLoader.combine_states(states))
        for images, labels in loader:
            assert images.tobytes() == expected[labels.item()]


def test_a_resumed_rank_saves_and_resumes_its_own_state(paths):
    settings = {"remainder": "uneven", "batch_size": 2}
    states = [next(iter(loader)) and loader.state_dict() for loader in ranks(paths, 4, **settings)]
    first, second = ranks(paths, 2, **settings)
    for loader in (first, second):
        loader.load_state_dict(spdl_rs.ImageLoader.combine_states(states))
    batches = iter(first)
    begun = next(batches)[1].tolist()
    state = first.state_dict()
    rest = [label for _, labels in batches for label in labels.tolist()]
    (again, _) = ranks(paths, 2, **settings)
    again.load_state_dict(state)
    assert labels_of(again) == rest
    assert sorted(begun + rest + labels_of(second)) == list(range(8, 17))


def test_combining_inconsistent_states_is_an_error(paths):
    settings = {"remainder": "uneven", "batch_size": 2}
    states = [loader.state_dict() for loader in ranks(paths, 3, **settings)]
    combine = spdl_rs.ImageLoader.combine_states
    for wrong, error_text in [
        (states[:2], "the state of rank 2 of 3 is missing"),
        ([*states, states[0]], "duplicate state of rank 0"),
        ([], "no states"),
        (
            [*states[:2], ranks(paths, 3, seed=9, train=True, **settings)[2].state_dict()],
            "different run",
        ),
    ]:
        with pytest.raises(spdl_rs.InvalidArgumentError, match=error_text):
            combine(wrong)
    with pytest.raises(ValueError, match="not a state of an ImageLoader"):
        combine([{"loader": "another"}])
    with pytest.raises(TypeError, match="must be the dict"):
        combine([7])
    # Combining states of ranks that have not begun loses no images.
    (loader,) = ranks(paths, 1, **settings)
    loader.load_state_dict(combine(states))
    assert sorted(labels_of(loader)) == list(range(17))
    with pytest.raises(ValueError, match="combine_states"):
        ranks(paths, 2, **settings)[0].load_state_dict(states[0])


@pytest.fixture
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")) or name in {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}:
            monkeypatch.delenv(name)
    for name in ("torch", "jax"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def rank_of(paths, **settings):
    """The rank and the number of ranks of a loader, from its images."""
    loader = spdl_rs.ImageLoader(paths, labels=range(len(paths)), batch_size=1, size=8, **settings)
    first = labels_of(loader)[0]
    return first, round(len(paths) / len(loader))


LAUNCHERS = {
    "no launcher": ({}, (0, 1)),
    "torchrun": ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
    "srun": ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}, (1, 2)),
    "a batch script of Slurm": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),
    "torchrun in srun": (
        {"RANK": "3", "WORLD_SIZE": "4", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        (3, 4),
    ),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"}, (1, 8)),
    "MPICH": ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4)),
    "Open MPI in a job of Slurm": (
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        (5, 8),
    ),
    "MPICH in a job of Slurm": (
        {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        (3, 4),
    ),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_auto_is_that_of_the_launcher(paths, launcher, no_launcher, monkeypatch):
    variables, expected = LAUNCHERS[launcher]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rank_of(paths[:16], rank="auto") == expected
    # Explicit numbers take precedence.
    assert rank_of(paths[:16], rank=1, world_size=2) == (1, 2)
    with pytest.raises(ValueError, match='world_size must be omitted with rank="auto"'):
        rank_of(paths, rank="auto", world_size=2)
    with pytest.raises(TypeError, match='rank must be a whole number or "auto", not \'self\''):
        rank_of(paths, rank="self")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK is '1' and WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "4"}, "RANK is not set and WORLD_SIZE is '4'"),
        ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK is '3' and WORLD_SIZE is '2'"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'.* set both variables, or pass rank and world_size"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "SLURM_STEP_NUM_TASKS is not set"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK is not set"),
    ],
)
def test_rank_auto_refuses_incomplete_variables(paths, no_launcher, monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f'rank="auto": .*{message}'):
        rank_of(paths[:16], rank="auto")
    # Loaders that name no rank do not read the variables.
    assert rank_of(paths[:16]) == (0, 1)
    # The rank of a framework needs no variables.
    jax = types.ModuleType("jax")
    jax.distributed = types.SimpleNamespace(is_initialized=lambda: True)
    jax.process_index, jax.process_count = lambda: 1, lambda: 2
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert rank_of(paths[:16], rank="auto") == (1, 2)


def test_rank_auto_is_that_of_an_initialised_framework(paths, no_launcher, monkeypatch):
    jax = types.ModuleType("jax")
    jax.distributed = types.SimpleNamespace(is_initialized=lambda: True)
    jax.process_index, jax.process_count = lambda: 3, lambda: 8
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert rank_of(paths[:16], rank="auto") == (3, 8)
    torch = types.ModuleType("torch")
    torch.distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert rank_of(paths[:16], rank="auto") == (1, 2)
    torch.distributed.is_initialized = lambda: False
    jax.distributed.is_initialized = lambda: False
    assert rank_of(paths[:16], rank="auto") == (0, 1)


def test_a_rank_that_loads_everything_is_warned(paths, no_launcher, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.warns(spdl_rs.DatasetWarning, match=r'rank 1 of 4 .* pass rank="auto"') as caught:
        rank_of(paths[:16])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank_of(paths[:16], rank="auto")
        assert rank_of(paths[:16], rank=0, world_size=1) == (0, 1)


def test_ranks_of_one_machine_share_its_cpus(no_launcher, monkeypatch):
    ranks = spdl_rs._ranks.Ranks(0, 8, 4, "")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    assert spdl_rs._ranks.threads_of(ranks) == 4
    assert spdl_rs._ranks.threads_of(ranks._replace(on_this_machine=64)) == 1
    assert spdl_rs._ranks.threads_of(ranks._replace(on_this_machine=1)) is None
    # The launcher has assigned four CPUs to this rank.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    assert spdl_rs._ranks.threads_of(ranks) is None


@pytest.mark.parametrize("settings", [{"rank": "auto"}, {"rank": 1, "world_size": 2}])
@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
    ],
)
def test_threads_are_divided_by_the_ranks_of_the_machine(paths, settings, names, no_launcher, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    for name, value in zip(names, ("1", "2", "2"), strict=True):
        monkeypatch.setenv(name, value)
    if names[0] == "SLURM_PROCID":
        monkeypatch.setenv("PMI_RANK", "1")
        monkeypatch.setenv("PMI_SIZE", "2")

    def threads(**more):
        loader = spdl_rs.ImageLoader(paths[:8], batch_size=1, size=8, **settings, **more)
        list(loader)
        return loader.stats()["threads"]

    assert (threads(), threads(threads=5)) == (3, 5)


def test_worker_processes_are_divided_by_the_ranks_of_the_machine(paths, no_launcher, monkeypatch):
    def processes(**settings):
        settings |= {"batch_size": 1, "batch_map": len, "executor": "processes"}
        return spdl_rs.Loader(
            paths[:8], rank="auto", key=spdl_rs.fields.Key(), **settings
        )._functions.processes

    # The CPUs of the machine, of which this process may use fewer.
    monkeypatch.setattr(os, "cpu_count", lambda: 2**16)
    assert 1 <= processes() < 2**16
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert (processes(), processes(threads=5), processes(processes=7)) == (3, 5, 7)
