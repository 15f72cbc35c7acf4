"""`spdl_rs.sequences`: samples grouped by their number of tokens."""

import json

import numpy
import pytest
import spdl_rs
from conftest import picture, write_png
from spdl_rs import Loader, fields
from spdl_rs.io import Resize
from spdl_rs.sequences import Bucket, ConcatAndSplit, Pack
from test_loader import grey_png

ADDED = ["position_ids", "segment_ids", "cu_seqlens"]


def tokens_of(number, length):
    return [1000 * number + place for place in range(length)]


def write(path, lengths, **more):
    lines = []
    for number, length in enumerate(lengths):
        tokens = tokens_of(number, length)
        row = {"path": str(number), "tokens": tokens, "pairs": [[one, -one] for one in tokens]}
        lines.append(json.dumps(row | more) + "\n")
    path.write_text("".join(lines))
    return path


def lognormal(count, *, median, most, seed=7):
    lengths = numpy.random.default_rng(seed).lognormal(numpy.log(median), 1, count)
    return numpy.clip(lengths, 1, most).astype(int).tolist()


LENGTHS = lognormal(60, median=6, most=20)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sequences") / "small.jsonl", LENGTHS)


def loader_of(path, group, batch_size=3, collate=None, **settings):
    return Loader(
        path,
        batch_size=batch_size,
        tokens=fields.Array(None, "int64", collate=collate),
        pairs=fields.Array((None, 2), "float32"),
        number=fields.Index(),
        key=fields.Key(),
        group=group,
        **settings,
    )


def parts(batch):
    """The start and the end of each part in the flattened tokens, and whether it is padding."""
    ends = batch["cu_seqlens"].tolist()
    segments = batch["segment_ids"].reshape(-1)
    return [(start, end, segments[start] == 0) for start, end in zip(ends, ends[1:])]


def samples(batch):
    """The tokens of the parts that are not padding."""
    flat = batch["tokens"].reshape(-1)
    return [flat[start:end].tolist() for start, end, is_padding in parts(batch) if not is_padding]


def check_packed(batch, length, *, padding=0):
    tokens = batch["tokens"]
    rows = len(tokens)
    assert tokens.shape == batch["position_ids"].shape == batch["segment_ids"].shape == (rows, length)
    assert batch["pairs"].shape == (rows, length, 2)
    assert (batch["position_ids"].dtype, batch["segment_ids"].dtype) == ("int64", "int32")
    assert (tokens.dtype, batch["pairs"].dtype, batch["cu_seqlens"].dtype) == ("int64", "float32", "int32")
    flat, positions = tokens.reshape(-1), batch["position_ids"].reshape(-1)
    pairs = batch["pairs"].reshape(-1, 2)
    assert batch["cu_seqlens"][0] == 0 and batch["cu_seqlens"][-1] == rows * length
    numbers = batch["number"].tolist()
    assert len(numbers) == len(batch["key"])
    row, segment = -1, 0
    for start, end, is_padding in parts(batch):
        assert start // length == (end - 1) // length, "a part is in one row"
        row, segment = (row, segment + 1) if start % length else (row + 1, 1)
        assert positions[start:end].tolist() == list(range(end - start))
        assert (batch["segment_ids"].reshape(-1)[start:end] == (0 if is_padding else segment)).all()
        if is_padding:
            assert end % length == 0
            assert (flat[start:end] == padding).all() and (pairs[start:end] == 0).all()
        else:
            assert (pairs[start:end, 0] == flat[start:end]).all()
            assert (pairs[start:end, 1] == -flat[start:end]).all()
            number = numbers.pop(0)
            assert (flat[start:end] // 1000 == number).all()
    assert not numbers and row == rows - 1


def copies(batches):
    return [
        {
            name: (value.dtype.str, value.shape, value.tobytes())
            if isinstance(value, numpy.ndarray)
            else repr(value)
            for name, value in batch.items()
        }
        for batch in batches
    ]


def test_packed_sequences_contain_each_sample_once(small):
    loader = loader_of(small, Pack(["tokens", "pairs"], length=20, pad={"tokens": -1}))
    batches = list(loader)
    assert list(batches[0]) == ["tokens", "pairs", "number", "key", *ADDED]
    for batch in batches:
        check_packed(batch, 20, padding=-1)
    assert all(len(batch["tokens"]) == 3 for batch in batches[:-1])
    found = sorted(one for batch in batches for one in samples(batch))
    assert found == sorted(tokens_of(number, length) for number, length in enumerate(LENGTHS))
    again = loader_of(small, Pack(["tokens", "pairs"], length=20, pad={"tokens": -1}), threads=1)
    assert copies(again) == copies(batches)


def test_at_least_97_percent_of_packed_lognormal_lengths_are_tokens(tmp_path):
    path = write(tmp_path / "many.jsonl", lognormal(3000, median=12, most=128))
    shares = {}
    for open_sequences in (1, 64):
        loader = Loader(
            path,
            batch_size=8,
            shuffle=True,
            tokens=fields.Array(None, "int64"),
            group=Pack("tokens", length=128, open_sequences=open_sequences),
        )
        segments = numpy.concatenate([batch["segment_ids"] for batch in loader])
        shares[open_sequences] = (segments > 0).mean()
        (stage,) = [one for one in loader.stats()["stages"] if one["name"] == "pack"]
        assert stage["fill_rate"] == pytest.approx(shares[open_sequences])
    assert shares[64] >= 0.97 and shares[1] < 0.95, shares


def tokens_of_ranks(path, group, ranks, **settings):
    """The number of places and of tokens of each batch, `[rank, step, 2]`, for the steps that all ranks have."""
    counts = []
    for rank in range(ranks):
        tokens = fields.Array(None, "int64", collate="pad" if isinstance(group, Bucket) else None)
        loader = Loader(path, tokens=tokens, shuffle=True, rank=rank, world_size=ranks, group=group, **settings)
        batches = [batch["tokens"] for batch in loader]
        if isinstance(group, Bucket):
            counts.append([(one.values.size, int(one.sizes.sum())) for one in batches])
        else:
            counts.append([(one.size, int((one > 0).sum())) for one in batches])
    steps = min(map(len, counts))
    return numpy.array([of_rank[:steps] for of_rank in counts])


def test_ranks_have_the_same_number_of_tokens_at_each_step(tmp_path):
    path = tmp_path / "many.jsonl"
    lengths = lognormal(6000, median=12, most=128)
    path.write_text("".join(json.dumps({"tokens": [1] * length}) + "\n" for length in lengths))
    counts = tokens_of_ranks(path, Pack("tokens", length=128), 4, batch_size=8, drop_last=True)
    assert counts.shape[1] > 20 and (counts[:, :, 0] == 8 * 128).all()
    # The open sequences are the last 8 batches of an epoch.
    full = counts[:, :-9, 1] / (8 * 128)
    assert full.min() >= 0.97 and (full.max(axis=0) / full.min(axis=0)).max() <= 1.03
    # All ranks have nearly the same number of tokens in an epoch.
    of_rank = counts[:, :, 1].sum(axis=1)
    assert of_rank.max() / of_rank.min() < 1.05
    # Without packing, batches of the same number of samples differ.
    plain = [
        [sum(map(len, batch["tokens"])) for batch in Loader(
            path, batch_size=64, shuffle=True, drop_last=True, rank=rank, world_size=4, tokens=fields.Array(None, "int64")
        )]
        for rank in range(4)
    ]
    plain = numpy.array(plain)
    assert numpy.median(plain.max(axis=0) / plain.min(axis=0)) > 1.1


def test_buckets_bound_the_places_of_each_batch_of_each_rank(tmp_path):
    path = tmp_path / "many.jsonl"
    lengths = lognormal(6000, median=12, most=128)
    path.write_text("".join(json.dumps({"tokens": [1] * length}) + "\n" for length in lengths))
    counts = tokens_of_ranks(path, Bucket("tokens", max_tokens=1024), 4, batch_size=512)
    assert counts[:, :, 0].max() <= 1024
    # A batch is complete if one more sample of its bucket would not fit: 152 is the longest bucket with samples.
    full = counts[:, : counts.shape[1] // 2, 0]
    assert full.min() > 1024 - 152


@pytest.mark.parametrize("separator", [None, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_blocks_continue_each_other(small, separator, drop_last):
    group = ConcatAndSplit("tokens", length=16, separator=separator, pad=-1)
    loader = loader_of(small, group, batch_size=4, drop_last=drop_last)
    batches = list(loader)
    stream = [
        one
        for number, length in enumerate(LENGTHS)
        for one in tokens_of(number, length) + ([] if separator is None else [separator])
    ]
    flat = numpy.concatenate([batch["tokens"].reshape(-1) for batch in batches])
    assert len(stream) % 16 > 0, "the last sequence is shorter"
    count = len(stream) // 64 * 64 if drop_last else len(stream)
    assert flat[:count].tolist() == stream[:count]
    assert (flat[count:] == -1).all() and (len(flat) == count if drop_last else len(flat) % 16 == 0)
    for batch in batches:
        assert len(batch["key"]) == len(samples(batch))
        positions = batch["position_ids"].reshape(-1)
        for start, end, _ in parts(batch):
            assert positions[start:end].tolist() == list(range(end - start))
    if drop_last:
        assert all(len(batch["tokens"]) == 4 for batch in batches)
        assert loader.stats()["left_out"] > 0


def test_separators_differ_by_field(small):
    group = ConcatAndSplit(["tokens", "pairs"], length=30, separator={"tokens": 5, "pairs": -8})
    batch = loader_of(small, group).peek()
    places = batch["position_ids"].reshape(-1)[: LENGTHS[0] + 1].tolist()
    assert places == list(range(LENGTHS[0] + 1))
    assert batch["tokens"][0, LENGTHS[0]] == 5
    assert batch["pairs"][0, LENGTHS[0]].tolist() == [-8, -8]


def test_batches_of_buckets_are_bounded_and_have_little_padding(small):
    group = Bucket("tokens", max_tokens=60, boundaries=[4, 8, 12])
    loader = loader_of(small, group, batch_size=8, collate="pad")
    seen, padded, used = [], 0, 0
    for batch in loader:
        assert list(batch) == ["tokens", "pairs", "number", "key"]
        values, sizes = batch["tokens"]
        assert values.size <= 60 and len(values) <= 8
        lengths = sizes[:, 0].tolist()
        for number, row, length, pairs in zip(batch["number"], values, lengths, batch["pairs"]):
            assert row[:length].tolist() == tokens_of(number, length) and not row[length:].any()
            assert pairs[:, 0].tolist() == tokens_of(number, length)
        bucket = {sum(bound < length for bound in (4, 8, 12)) for length in lengths}
        assert len(bucket) == 1
        seen += batch["number"].tolist()
        padded, used = padded + values.size, used + sum(lengths)
    assert sorted(seen) == list(range(len(LENGTHS)))
    assert used / padded > 0.75
    plain = loader_of(small, None, batch_size=8, collate="pad")
    assert used / sum(batch["tokens"].values.size for batch in plain) < 0.6


GROUPS = {
    "pack": Pack(["tokens", "pairs"], length=20, open_sequences=3),
    "split": Pack(["tokens", "pairs"], length=7, long="split", open_sequences=2, max_samples=2),
    "concatenate": ConcatAndSplit(["tokens", "pairs"], length=9, separator=3),
    "bucket": Bucket(["tokens", "pairs"], max_tokens=60, boundaries=[4, 8, 12]),
}


@pytest.mark.parametrize("collate", ["list", "ragged", "pad"])
@pytest.mark.parametrize("name", GROUPS)
def test_the_spec_describes_samples_before_they_are_grouped(small, name, collate):
    spec = loader_of(small, GROUPS[name], collate=collate).spec
    assert spec == loader_of(small, None, collate=collate).spec
    assert spec["tokens"] == ((None,), "int64", collate)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", GROUPS)
def test_an_epoch_resumes_after_each_batch(small, name, drop_last):
    def loader(threads):
        settings = {"shuffle": True, "seed": 3, "drop_last": drop_last, "threads": threads}
        return loader_of(small, GROUPS[name], batch_size=2, collate="list", **settings)

    whole = loader(2)
    expected = [copies(whole), copies(whole)]
    assert expected[0] != expected[1] and len(expected[0]) > 5
    first = loader(3)
    assert list(copies(first)) == expected[0]
    batches = iter(first)
    for count in range(len(expected[1]) + 1):
        state = json.loads(json.dumps(first.state_dict()))
        assert state["steps_in_epoch"] == count
        resumed = loader(1 + count % 3)
        resumed.load_state_dict(state)
        assert copies(resumed) == expected[1][count:], f"after {count} batches"
        next(batches, None)


@pytest.mark.parametrize("name", ["pack", "split", "bucket"])
def test_incomplete_batches_are_left_out(small, name):
    group = Bucket("tokens", boundaries=[4, 8]) if name == "bucket" else GROUPS[name]
    sizes = {}
    for drop_last in (False, True):
        loader = loader_of(small, group, batch_size=7, drop_last=drop_last, collate="list")
        sizes[drop_last] = [len(batch["tokens"]) for batch in loader]
        assert (loader.stats()["left_out"] > 0) == drop_last
    assert sizes[True] == [size for size in sizes[False] if size == 7] != sizes[False]


def test_a_batch_map_resumes_with_the_same_random_numbers(small):
    def function(batch, rng):
        return batch["tokens"].sum() + rng.integers(1 << 40), batch["key"]

    def loader():
        return loader_of(small, GROUPS["pack"], batch_map=function)

    whole = [repr(one) for one in loader()]
    begun, resumed = loader(), loader()
    batches = iter(begun)
    next(batches)
    resumed.load_state_dict(begun.state_dict())
    assert [repr(one) for one in resumed] == whole[1:]


@pytest.mark.parametrize("name", GROUPS)
def test_ranks_have_each_sample_once(small, name):
    seen, counts = [], []
    for rank in range(3):
        loader = loader_of(
            small, GROUPS[name], shuffle=True, seed=3, rank=rank, world_size=3, collate="list"
        )
        batches = list(loader)
        counts.append(len(batches))
        rows = [row for batch in batches for row in (samples(batch) if name != "bucket" else batch["tokens"])]
        seen += [int(token) for row in rows for token in row if token >= 1000 or name != "concatenate"]
    expected = [one for number, length in enumerate(LENGTHS) for one in tokens_of(number, length)]
    if name == "concatenate":
        expected = [one for one in expected if one >= 1000]
    assert sorted(seen) == sorted(expected)
    assert max(counts) - min(counts) < max(counts)


@pytest.mark.parametrize("name", GROUPS)
def test_states_of_ranks_are_combined(small, name):
    def loader(rank, world_size):
        settings = {"rank": rank, "world_size": world_size, "remainder": "uneven"}
        settings |= {"shuffle": True, "batch_size": 2}
        return loader_of(small, GROUPS[name], collate="list", **settings)

    begun = [loader(rank, 2) for rank in range(2)]
    seen, states = [], []
    for one in begun:
        batches = iter(one)
        seen += [next(batches), next(batches)]
        states.append(one.state_dict())
    if name == "concatenate":
        # A rank has delivered a part of a sample, whose other part belongs to another rank then.
        with pytest.raises(spdl_rs.InvalidArgumentError, match="in part.*; set `repeat_parts` to deliver it again"):
            Loader.combine_states(states)
    combined = Loader.combine_states(states, repeat_parts=name == "concatenate")
    for rank in range(3):
        one = loader(rank, 3)
        one.load_state_dict(combined)
        seen += list(one)
    tokens = [
        int(token)
        for batch in seen
        for row in (batch["tokens"] if name == "bucket" else samples(batch))
        for token in row
    ]
    expected = [one for n, length in enumerate(LENGTHS) for one in tokens_of(n, length)]
    if name == "concatenate":
        # Nothing is lost, and parts are repeated.
        assert set(tokens) >= set(expected) and len(tokens) > len(expected)
        return
    assert sorted(tokens) == sorted(expected)


@pytest.mark.parametrize("name", GROUPS)
def test_samples_of_a_list_of_dicts_are_grouped(small, name):
    rows = [json.loads(line) for line in small.read_text().splitlines()]

    def without_keys(source):
        loader = loader_of(source, GROUPS[name], collate="list", shuffle=True)
        return copies({**batch, "key": len(batch["key"])} for batch in loader)

    assert without_keys(rows) == without_keys(small)


@pytest.mark.parametrize("kind", [Pack, Bucket])
def test_long_samples_are_errors_or_truncated_or_split(tmp_path, kind):
    path = write(tmp_path / "long.jsonl", [3, 9, 4])

    def loader(**settings):
        return loader_of(path, kind(["tokens", "pairs"], length=4, **settings), collate="list")

    with pytest.raises(spdl_rs.LimitExceededError) as caught:
        list(loader())
    assert 'field "tokens": a sequence of 9 tokens exceeds the maximum of 4; ' in str(caught.value)
    assert 'long="split"' in str(caught.value)
    assert caught.value.key.endswith("1")
    dropping = loader_of(
        path, kind(["tokens", "pairs"], length=4), collate="list", on_error=spdl_rs.skip(at_most=1)
    )
    kept = [one for batch in dropping for one in batch["number"].tolist()]
    assert sorted(kept) == [0, 2]
    assert [one["key"].endswith("1") for one in dropping.stats()["dropped"]] == [True]

    def found(loader):
        return sorted(
            row if isinstance(row, list) else row.tolist()
            for batch in loader
            for row in (samples(batch) if kind is Pack else batch["tokens"])
        )

    truncating = loader(long="truncate")
    assert found(truncating) == [tokens_of(0, 3), tokens_of(1, 4), tokens_of(2, 4)]
    assert truncating.stats()["partial"] == 1
    nine = tokens_of(1, 9)
    split = sorted([tokens_of(0, 3), nine[:4], nine[4:8], nine[8:], tokens_of(2, 4)])
    assert found(loader(long="split")) == split


def test_invalid_samples_name_field_and_sample(tmp_path):
    lines = [
        {"path": "0", "tokens": [1, 2], "pairs": [[1, 1], [2, 2]]},
        {"path": "1", "tokens": [], "pairs": []},
        {"path": "2", "tokens": [1, 2], "pairs": [[1, 1]]},
    ]
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    group = Pack(["tokens", "pairs"], length=8)
    loader = loader_of(path, group, on_error=spdl_rs.skip(at_most=2))
    (batch,) = loader
    assert batch["number"].tolist() == [0]
    first, second = loader.stats()["dropped"]
    assert 'field "tokens": the sequence is empty' in first["reason"]
    assert 'field "pairs": expected 2 rows as in field "tokens", found 1' in second["reason"]
    assert first["key"].endswith("1") and second["key"].endswith("2")
    # Empty samples have a place in buckets.
    group = Bucket("tokens")
    assert loader_of(path, group, collate="pad").peek()["number"].tolist() == [0, 1, 2]


def test_the_number_of_batches_is_unknown(small, tmp_path):
    loader = loader_of(small, GROUPS["pack"])
    with pytest.raises(TypeError, match="depends on the lengths"):
        len(loader)
    assert loader and "group=Pack(" in repr(loader) and "batches of 3" in repr(loader)
    assert len(loader_of(small, None)) == 20
    html = loader._repr_html_()
    assert "Pack" in html


def test_a_state_of_another_group_is_refused(small):
    state = loader_of(small, Pack("tokens", length=20)).state_dict()
    for group, words in [
        (Pack("tokens", length=24), "length: was 20, is 24"),
        (Pack("tokens", length=20, open_sequences=3), "open_sequences: was 64, is 3"),
        (Pack("tokens", length=20, pad=1), "group: was tokens .padding 0"),
        (Pack("tokens", length=20, long="truncate"), "group: was tokens"),
        (ConcatAndSplit("tokens", length=20), "concatenate"),
        (None, "pack"),
    ]:
        with pytest.raises(spdl_rs.InvalidArgumentError, match=words):
            loader_of(small, group).load_state_dict(state)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="batch_size: was 3, is 4"):
        loader_of(small, Pack("tokens", length=20), batch_size=4).load_state_dict(state)


def test_arguments_are_checked(small):
    for make, kind, words in [
        (lambda: Pack("tokens", length=0), ValueError, "length must be"),
        (lambda: Pack("tokens", length=8, long="drop"), ValueError, "long must be"),
        (lambda: Pack([], length=8), ValueError, "tokens must contain"),
        (lambda: Pack("tokens", length=8, pad={"a": 1}), ValueError, "'a', which is not in tokens"),
        (lambda: Pack("tokens", length=8, pad="x"), TypeError, "pad must be a number"),
        (lambda: ConcatAndSplit("tokens", length=8, separator=[]), TypeError, "separator"),
        (lambda: Bucket("tokens", boundaries=[4, 4]), ValueError, "ascend"),
        (lambda: Bucket("tokens", max_tokens=8, length=9), ValueError, "length must be 1 to 8"),
        (lambda: loader_of(small, "pack"), TypeError, "group must be"),
        (lambda: loader_of(small, Pack("words", length=8)), ValueError, "'words'"),
        (lambda: loader_of(small, Pack("number", length=8)), ValueError, "'number'"),
        (
            lambda: loader_of(small, GROUPS["pack"], segment_ids=fields.Index()),
            ValueError,
            "'segment_ids' has the name",
        ),
        (
            lambda: Loader(
                small,
                {"tokens": fields.Array(None), "pairs": fields.Array((None, 2))},
                batch_size=1,
                group=GROUPS["concatenate"],
                collate=list,
            ),
            ValueError,
            "collate needs batches of samples, but ConcatAndSplit",
        ),
        (
            lambda: Loader(
                small,
                batch_size=1,
                tokens=fields.Array(None, "uint8"),
                group=Pack("tokens", length=8, pad=-1),
            ),
            spdl_rs.InvalidArgumentError,
            "cannot hold -1 as uint8",
        ),
    ]:
        with pytest.raises(kind, match=words):
            make()


def codes(sample, rng):
    """Tokenizes a text in Python."""
    return {"tokens": numpy.array([ord(one) for one in sample["text"]]) + int(rng.integers(2)) * 1000}


@pytest.mark.parametrize("group", [Pack("tokens", length=24), ConcatAndSplit("tokens", length=24)])
def test_a_function_tokenizes_samples_before_they_are_packed(tmp_path, group):
    path = tmp_path / "texts.jsonl"
    texts = ["abcdefghijklmnopqrstuvwx"[: one % 24 + 1] for one in LENGTHS]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def loader(function=codes, source=path, **settings):
        tokens = fields.Array(None, "int64", optional=True)
        named = {"tokens": tokens, "text": fields.Text(optional=True)}
        return Loader(source, named, batch_size=3, shuffle=True, group=group, map=function, **settings)

    batches = list(loader(threads=1))
    real = [batch["tokens"][batch["segment_ids"] > 0] for batch in batches]
    found = "".join(chr(token % 1000) for token in numpy.concatenate(real))
    assert sorted(found) == sorted("".join(texts))
    assert any((tokens > 1000).any() for tokens in real) and any((tokens < 1000).any() for tokens in real)
    # The same batches on other threads, and after resuming.
    started = loader(threads=3)
    epoch = iter(started)
    first = [next(epoch), next(epoch)]
    resumed = loader(threads=2)
    resumed.load_state_dict(started.state_dict())
    for batch, expected in zip(first + list(resumed), batches, strict=True):
        assert (batch["tokens"] == expected["tokens"]).all() and batch["text"] == expected["text"]
    with pytest.raises(spdl_rs.InvalidArgumentError, match="map"):
        loader(None).load_state_dict(started.state_dict())


def test_exceptions_of_a_function_before_packing_name_the_sample(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')

    def failing(result, **settings):
        def function(sample):
            return result(sample) if sample["text"] == "b" else {"tokens": [1]}

        named = {"tokens": fields.Array(None, "int64", optional=True), "text": fields.Text()}
        return Loader(path, named, batch_size=1, group=Pack("tokens", length=8), map=function, **settings)

    for result, kind, words in [
        (lambda sample: 1 / 0, ZeroDivisionError, "division"),
        (lambda sample: [1], TypeError, "map must return a dict"),
        (lambda sample: {"ids": [1]}, ValueError, "values of the fields tokens, text, not 'ids'"),
    ]:
        with pytest.raises(kind, match=words) as raised:
            list(failing(result))
        assert any(f"map of the sample '{path}:1'" in note for note in raised.value.__notes__)
    # Values of another shape are failures of the sample.
    for tokens, words in [([[1, 2]], "shape"), ([0.5], "cannot store 0.5 as int64"), ([], "is empty")]:
        loader = failing(lambda sample: {"tokens": tokens}, on_error=spdl_rs.skip())
        assert len(list(loader)) == 1
        (dropped,) = loader.stats()["dropped"]
        assert dropped["key"] == f"{path}:1" and words in dropped["reason"] and '"tokens"' in dropped["reason"]


def is_even(sample):
    return sample["number"] % 2 == 0


def number_of(sample):
    return {"number": sample["number"], "length": len(sample["tokens"])}


def sorted_numbers(samples):
    return sorted(int(sample["number"]) for sample in samples)


def total(batch):
    return batch["tokens"].sum(), batch["key"]


@pytest.mark.parametrize("name", GROUPS)
def test_samples_are_filtered_before_they_are_grouped(small, tmp_path, name):
    """As if the other samples did not exist, except for their numbers."""
    even = write(tmp_path / "even.jsonl", LENGTHS[::2])
    loader = loader_of(small, GROUPS[name], collate="list", filter=is_even)
    found, expected = list(loader), list(loader_of(even, GROUPS[name], collate="list"))
    assert loader.stats()["filtered"] == len(LENGTHS) // 2
    assert [batch["number"].tolist() for batch in found] == [
        (2 * batch["number"]).tolist() for batch in expected
    ]
    assert len(found) > 1
    begun = loader_of(small, GROUPS[name], collate="list", filter=is_even)
    next(iter(begun))
    resumed = loader_of(small, GROUPS[name], collate="list", filter=is_even, threads=1)
    resumed.load_state_dict(begun.state_dict())
    assert copies(resumed) == copies(found[1:])
    with pytest.raises(spdl_rs.InvalidArgumentError, match="filter"):
        loader_of(small, GROUPS[name], collate="list").load_state_dict(begun.state_dict())


@pytest.mark.parametrize("executor", ["threads", "processes", "inline"])
def test_functions_of_grouped_samples(small, executor):
    where = {"executor": executor, **({"processes": 2} if executor == "processes" else {})}

    def bucketed(**settings):
        return list(loader_of(small, GROUPS["bucket"], collate="list", **settings))

    plain = bucketed()
    mapped = bucketed(map=number_of, **where)
    assert [batch["number"].tolist() for batch in mapped] == [batch["number"].tolist() for batch in plain]
    lengths = [[len(tokens) for tokens in batch["tokens"]] for batch in plain]
    assert [batch["length"].tolist() for batch in mapped] == lengths

    packed = list(loader_of(small, GROUPS["split"]))
    totals = list(loader_of(small, GROUPS["split"], batch_map=total, **where))
    assert totals == [total(batch) for batch in packed]

    def collated(settings):
        samples = {"tokens": fields.Array(None, "int64"), "number": fields.Index()}
        loader = Loader(
            small, samples, batch_size=3, group=Bucket("tokens"), collate=sorted_numbers, **settings
        )
        return list(loader)

    found = collated(where)
    assert found == collated({}) and all(batch == sorted(batch) for batch in found)
    assert sorted(one for batch in found for one in batch) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("collate", ["list", "pad"])
@pytest.mark.parametrize("group", [Pack("tokens", length=5), Bucket("tokens")])
def test_images_of_different_sizes_in_groups(tmp_path, group, collate):
    sizes, lines = [(30, 20), (40, 40), (20, 50)], []
    for number, (size, length) in enumerate(zip(sizes, [3, 2, 4])):
        write_png(tmp_path / f"{number}.png", picture(number, *size))
        mask = grey_png(numpy.full(size, number + 1, "u1"))
        (tmp_path / f"{number}.mask.png").write_bytes(mask)
        row = {"path": f"{number}.png", "mask": f"{number}.mask.png"}
        lines.append(json.dumps(row | {"tokens": tokens_of(number, length)}) + "\n")
    path = tmp_path / "images.jsonl"
    path.write_text("".join(lines))
    (batch,) = Loader(
        path,
        batch_size=3,
        image=fields.Image(crop=Resize(), collate=collate, stored_as="path"),
        mask=fields.Mask(),
        tokens=fields.Array(None, "int64"),
        number=fields.Index(),
        group=group,
    )
    assert batch["number"].tolist() == [0, 1, 2]
    if collate == "list":
        images, masks = batch["image"], batch["mask"]
    else:
        assert batch["image"].values.shape == (3, 40, 50, 3)
        assert batch["image"].sizes.tolist() == batch["mask"].sizes.tolist() == [list(one) for one in sizes]
        images, masks = (
            [row[:height, :width] for row, (height, width) in zip(batch[name].values, sizes)]
            for name in ("image", "mask")
        )
    for number, (size, image, mask) in enumerate(zip(sizes, images, masks)):
        assert (image == picture(number, *size)).all()
        assert mask.shape == size and (mask == number + 1).all()


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float64"])
def test_arrays_of_other_dtypes(small, dtype):
    tokens, group = fields.Array(None, dtype), Pack("tokens", length=32, pad=7)
    (batch,) = Loader(small, batch_size=100, tokens=tokens, group=group)
    assert batch["tokens"].dtype == dtype and batch["tokens"].max() > 40_000
    assert (batch["tokens"][batch["segment_ids"] == 0] == 7).all()


@pytest.mark.parametrize("memory_budget", [None, 4 * 2**21])
def test_grouped_samples_may_exceed_the_memory_budget(many, memory_budget):
    loader = Loader(
        many,
        batch_size=40,
        image=fields.Image(400, layout="nchw-f32"),
        tokens=fields.Array(None, "int64", optional=True),
        group=Bucket("tokens"),
        memory_budget=memory_budget,
    )
    (batch,) = loader
    assert batch["image"].shape == (40, 3, 400, 400)
    assert batch["image"].nbytes > 4 * 2**24, "the budget for two stages"


def test_the_memory_budget_has_place_for_one_sample_of_each_stage(many):
    loader = Loader(
        many,
        batch_size=40,
        image=fields.Image(400, layout="nchw-f32"),
        tokens=fields.Array(None, "int64", optional=True),
        group=Bucket("tokens"),
        memory_budget=400 * 400 * 12,
    )
    with pytest.raises(spdl_rs.InvalidArgumentError, match=f"for 2 stages.*{400 * 400 * 12} bytes"):
        iter(loader)


def test_parts_of_a_split_sample_draw_their_own_random_numbers(tmp_path):
    path = write(tmp_path / "parts.jsonl", [12, 4])

    def with_number(sample, rng):
        return {"tokens": sample["tokens"], "key": sample["key"], "drawn": float(rng.random())}

    def drawn(**settings):
        loader = loader_of(
            path, Bucket(["tokens", "pairs"], length=4, long="split"), collate="list", map=with_number, **settings
        )
        return {
            tuple(tokens): number
            for batch in loader
            for tokens, number in zip(batch["tokens"], batch["drawn"], strict=True)
        }

    found = drawn()
    assert len(found) == 4 and len(set(found.values())) == 4
    # They depend on the part only, not on its batch.
    assert drawn(batch_size=1, threads=3) == found
