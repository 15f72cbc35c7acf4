"""Statistics of the loader."""

import spdl_rs


def test_statistics_have_the_documented_names(many):
    loader = spdl_rs.ImageLoader(many, batch_size=8, size=32, threads=2)
    for statistics in [loader.stats(), list(loader) and loader.stats()]:
        assert list(statistics) == list(spdl_rs.Statistics.__annotations__)
        assert list(statistics["consumer"]) == list(spdl_rs.ConsumerStatistics.__annotations__)
        assert list(statistics["buffers"]) == list(spdl_rs.BufferStatistics.__annotations__)
        quantiles = [statistics["consumer"]["wait_ms"]]
        for stage in statistics["stages"]:
            assert list(stage) == list(spdl_rs.StageStatistics.__annotations__)
            quantiles.append(stage["service_ms"])
        for queue in statistics["queues"]:
            assert list(queue) == list(spdl_rs.QueueStatistics.__annotations__)
        for one in quantiles:
            assert list(one) == list(spdl_rs.Quantiles.__annotations__)


def test_loader_statistics_are_empty_before_the_first_epoch(many):
    statistics = spdl_rs.ImageLoader(many, batch_size=8).stats()
    assert statistics["elapsed_s"] == 0 and statistics["stages"] == []
    assert statistics["consumer"]["first_item_s"] is None


def test_counts_add_up(many):
    loader = spdl_rs.ImageLoader(many, batch_size=8, size=32, threads=2)
    batches = list(loader)
    statistics = loader.stats()
    assert statistics["threads"] == 2
    assert [stage["name"] for stage in statistics["stages"]] == ["source", "fetch", "decode"]
    assert [stage["kind"] for stage in statistics["stages"]] == ["source", "async", "fill"]
    assert all(stage["items"] == 40 for stage in statistics["stages"])
    assert len(statistics["queues"]) == 3
    assert statistics["queues"][-1]["items"] == len(batches) == statistics["consumer"]["items"]
    assert 0 < statistics["consumer"]["first_item_s"] <= statistics["elapsed_s"]
    decode = statistics["stages"][-1]
    assert 0 < decode["service_ms"]["p50"] <= decode["service_ms"]["max"]
    # 40 decodes of at most `max` each; the sum is the busy time of the stage.
    assert decode["busy_s"] * 1e3 <= 40 * decode["service_ms"]["max"]
    assert 0 <= statistics["data_readiness"] <= 1
    assert statistics["diagnosis"].endswith(".")


def test_statistics_of_an_ended_epoch_do_not_change(many):
    loader = spdl_rs.ImageLoader(many, batch_size=8, size=32)
    first = iter(loader)
    list(first)
    before = loader.stats()
    assert loader.stats() == before == first.stats()
    second = iter(loader)
    next(second)
    assert first.stats() == before
    assert loader.stats()["consumer"]["items"] == 1
