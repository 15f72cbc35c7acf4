"""Statistics of the PyTorch-like loaders."""

import pickle
import threading
import time

import pytest
from pipelines import assert_no_threads
from spdl_rs.dataloader import get_pytorch_dataloader
from spdl_rs.torch import DataLoader
from spdl_rs.torch._statistics import combine


class Slow:
    def __init__(self, seconds=0.0, items=12):
        self.seconds, self.items = seconds, items

    def __len__(self):
        return self.items

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index


class Numbers:
    """An iterable data set."""

    def __iter__(self):
        return iter(range(6))


def make(dataset, **options):
    return DataLoader(dataset, batch_size=2, collate_fn=list, **options)


def counts(loader):
    return {stage["name"]: stage["items"] for stage in loader.stats()["stages"]}


def test_statistics_are_empty_before_the_first_epoch():
    loader = make(Slow())
    reported = loader.stats()
    assert reported["stages"] == [] and reported["consumer"]["items"] == 0
    assert loader.diagnose() == reported["diagnosis"]


def test_batches_are_counted_during_and_after_an_epoch():
    loader = make(Slow(), num_workers=2)
    batches = iter(loader)
    next(batches)
    assert loader.stats()["consumer"]["items"] == 1
    list(batches)
    reported = loader.stats()
    assert counts(loader) == {"source": 6, "fetch": 6}
    assert reported["consumer"]["items"] == 6 and reported["threads"] == 2
    assert reported["stages"][1]["concurrency"] == 2
    del batches
    assert_no_threads()
    assert loader.stats()["stages"] == reported["stages"]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_separate_statistics(workers):
    loader = make(Slow(), num_workers=workers)
    for _ in range(2):
        list(loader)
        assert counts(loader)["fetch"] == 6


def test_without_workers_the_diagnosis_names_num_workers():
    loader = make(Slow(0.002))
    for _ in loader:
        pass
    reported = loader.stats()
    (fetch,) = reported["stages"]
    assert (fetch["name"], fetch["items"], fetch["failures"]) == ("fetch", 6, 0)
    assert 0.024 <= fetch["busy_s"] <= reported["elapsed_s"]
    assert fetch["service_ms"]["p50"] >= 4 and reported["consumer"]["waited_s"] == fetch["busy_s"]
    assert 0 <= reported["data_readiness"] < 0.5 and "num_workers=0" in loader.diagnose()
    elapsed = reported["elapsed_s"]
    time.sleep(0.01)
    assert loader.stats()["elapsed_s"] == elapsed


def test_exceptions_of_the_data_set_are_counted_without_workers():
    class FailingDataset(Slow):
        def __getitem__(self, index):
            raise KeyError(index)

    loader = make(FailingDataset())
    with pytest.raises(KeyError):
        next(iter(loader))
    (fetch,) = loader.stats()["stages"]
    assert (fetch["items"], fetch["failures"]) == (1, 1)


def worker_statistics(diagnosis, waited_s=0.0):
    """Returns statistics of an epoch with a given diagnosis, which depends on the machine."""
    loader = make(Slow(), num_workers=2)
    list(loader)
    (tell,) = loader._worker_statistics
    reported = tell()
    reported["diagnosis"] = diagnosis.format(*(stage["name"] for stage in reported["stages"]))
    reported["stages"][1]["busy_share"] = 0.97
    reported["consumer"]["waited_s"] = waited_s
    return lambda: reported


def test_a_cpu_bottleneck_is_reported_as_that_of_the_workers():
    combined = combine(
        [worker_statistics('The CPU is the bottleneck: 2 threads, all in stage "{1}".')]
    )
    assert combined["diagnosis"].startswith(
        "The workers are the bottleneck: all 2 are busy 97 % of the time."
    )
    assert "num_workers" in combined["diagnosis"]


def test_a_gil_bottleneck_is_answered_with_processes():
    combined = combine([worker_statistics("The GIL is the bottleneck: use to(...).")])
    assert combined["diagnosis"].startswith("The GIL is the bottleneck: the 2 workers are threads")
    assert "multiprocessing_context" in combined["diagnosis"] and "to(" not in combined["diagnosis"]
    waiting = combine([worker_statistics("The worker threads are the bottleneck: num_threads=1.")])
    assert "num_workers" in waiting["diagnosis"] and "num_threads" not in waiting["diagnosis"]


def test_other_diagnoses_have_plain_stage_names():
    combined = combine(
        [worker_statistics('Nothing is saturated; the busiest stage is "{1}", behind "{0}".')]
    )
    assert (
        combined["diagnosis"]
        == 'Nothing is saturated; the busiest stage is "fetch", behind "source".'
    )


def test_the_diagnosis_is_that_of_the_slowest_worker():
    combined = combine(
        [
            worker_statistics("first", 0.1),
            worker_statistics("second", 0.3),
            worker_statistics("third", 0.2),
        ]
    )
    assert combined["diagnosis"] == "second"
    assert combined["consumer"]["waited_s"] == pytest.approx(0.6)
    assert combined["threads"] == 6 and combined["stages"][1]["busy_share"] == pytest.approx(0.97)


def test_a_slow_loop_finds_its_batches_ready():
    loader = make(Slow(items=40), num_workers=2)
    for _ in loader:
        time.sleep(0.01)
    assert loader.stats()["data_readiness"] > 0.5


def test_the_statistics_of_workers_of_an_iterable_are_added():
    # Each worker iterates the whole data set.
    loader = make(Numbers(), num_workers=3)
    assert len(list(loader)) == 9
    reported = loader.stats()
    assert reported["threads"] == 3 and reported["stages"][1]["concurrency"] == 3
    # Each worker also finds the end, more than once if it prefetches.
    assert 12 <= counts(loader)["fetch"] <= 15
    loader = make(Numbers())
    list(loader)
    assert counts(loader) == {"fetch": 4}


def test_statistics_keep_no_epoch_running_and_are_not_pickled():
    loader = make(Slow(0.001, items=1000), num_workers=2)
    next(iter(loader))
    assert_no_threads()
    again = pickle.loads(pickle.dumps(loader))
    assert again.stats()["stages"] == []


@pytest.mark.parametrize("context", [None, "spawn"])
def test_get_pytorch_dataloader_has_the_same_statistics(context):
    loader = get_pytorch_dataloader(
        range(8), 2, collate_fn=sum, num_workers=2, multiprocessing_context=context
    )
    assert sorted(loader) == [1, 5, 9, 13]
    assert {stage["name"]: stage["items"] for stage in loader.stats()["stages"]} == {
        "source": 4,
        "fetch": 4,
    }
    assert loader.diagnose() == loader.stats()["diagnosis"]


def test_another_thread_may_read_statistics():
    loader = make(Slow(0.002, items=40), num_workers=2)
    reported = []
    asking = threading.Event()

    def ask():
        while not asking.is_set():
            reported.append(loader.stats()["consumer"]["items"])

    thread = threading.Thread(target=ask)
    thread.start()
    list(loader)
    asking.set()
    thread.join()
    assert reported == sorted(reported) and loader.stats()["consumer"]["items"] == 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: DataLoader(range(23), 3, num_workers=2, collate_fn=list),
            "DataLoader(range of 23 samples: 8 batches of 3; sequential, num_workers=2)",
        ),
        (
            lambda: DataLoader([7], None, collate_fn=int),
            "DataLoader(list of 1 sample: 1 batch; sequential, num_workers=0)",
        ),
        (
            lambda: DataLoader(Numbers(), 3, collate_fn=list),
            "DataLoader(Numbers of samples: batches of 3; num_workers=0)",
        ),
        (
            lambda: get_pytorch_dataloader(range(5), 2, collate_fn=list),
            "PyTorchDataLoader(range of 5 samples: 3 batches of 2; sequential, num_workers=1)",
        ),
    ],
)
def test_the_repr_of_a_loader_describes_data_and_batches(make, words):
    loader = make()
    assert repr(loader) == words
    before = loader._repr_html_()
    assert words in before and "<table>" not in before
    list(loader)
    page = loader._repr_html_()
    assert "<td>fetch</td>" in page and "0:" not in page
