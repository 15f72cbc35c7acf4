"""Expressions of several data sets as the source of a loader."""

import collections
import math
import os
import random
import shutil

import pytest
import spdl_rs
from dataset_files import write_tar
from servers import serving
from spdl_rs import Loader, fields, sources
from spdl_rs.sources import Source, concat, curriculum, mix


@pytest.fixture(scope="module")
def data(photos, tmp_path_factory):
    """Folders `a` (3 cats, 4 dogs) and `b` (2 dogs, 5 owls), and the tar shard `c.tar` of 6 images without names."""
    folder = tmp_path_factory.mktemp("data")
    images = [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    for place, counts in {"a": {"cat": 3, "dog": 4}, "b": {"dog": 2, "owl": 5}}.items():
        for name, count in counts.items():
            (folder / place / name).mkdir(parents=True)
            for number in range(count):
                path = folder / place / name / f"{number}.png"
                path.write_bytes(images[number % len(images)])
    write_tar(folder / "c.tar", [(f"{at:03}", images[at % 4], at % 3) for at in range(6)])
    return folder


@pytest.fixture
def here(data, monkeypatch):
    monkeypatch.chdir(data)


def loader(source, **settings):
    settings = {"batch_size": 4, "key": fields.Key(), "label": fields.Label(), **settings}
    return Loader(source, **settings)


def keys(source, **settings):
    return [key for batch in loader(source, **settings) for key in batch["key"]]


def samples(one):
    return [pair for batch in one for pair in zip(batch["key"], batch["label"].tolist())]


A = [*(f"a/cat/{at}.png" for at in range(3)), *(f"a/dog/{at}.png" for at in range(4))]
B = [*(f"b/dog/{at}.png" for at in range(2)), *(f"b/owl/{at}.png" for at in range(5))]

CHOICES = [
    (concat("a", "b"), A + B),
    (concat("b", "a", "b"), B + A + B),
    (Source("a").take(3), A[:3]),
    (Source("a").skip(3), A[3:]),
    (concat("a", "b").skip(2).take(9), (A + B)[2:11]),
    (Source("a").where([6, 0, 6]), [A[6], A[0], A[6]]),
    (concat("a", "b").where(lambda key: key.endswith("/1.png")), ["a/cat/1.png", "a/dog/1.png", B[1], B[3]]),
    (Source("b").repeat(3), B * 3),
    (concat(Source("a").take(2).repeat(2), Source("b").take(1)), A[:2] * 2 + B[:1]),
    (concat("a", "b").classes("dog", at_most=5), A[3:] + B[:1]),
    (concat("a", "b").classes(at_most=1), [A[0], A[3], B[2]]),
    (curriculum(lambda epoch: Source("a").take(epoch + 1)), A[:1]),
]


# promise: PY6
@pytest.mark.parametrize(("source", "expected"), CHOICES, ids=lambda it: repr(it)[:40])
def test_choices_have_their_samples_in_order_and_shuffled(here, source, expected):
    assert keys(source) == expected
    assert len(loader(source, batch_size=1)) == len(expected)
    shuffled = loader(source, shuffle=True, seed=3, threads=3)
    first, second = samples(shuffled), samples(shuffled)
    assert collections.Counter(key for key, _ in first) == collections.Counter(expected)
    if len(expected) > 4:
        assert [key for key, _ in first] != expected and first != second
    assert first == samples(loader(source, shuffle=True, seed=3, threads=1))


def test_classes_are_united_by_name(here):
    both = loader(concat("a", "b"))
    assert both.classes == ["cat", "dog", "owl"]
    assert [label for _, label in samples(both)] == [0] * 3 + [1] * 4 + [1] * 2 + [2] * 5
    other = loader(concat("b", "a"))
    assert other.classes == ["dog", "owl", "cat"]
    assert [label for _, label in samples(other)] == [0] * 2 + [1] * 5 + [2] * 3 + [0] * 4
    chosen = loader(concat(Source("b").classes("owl", "dog"), Source("a").classes("cat")))
    assert chosen.classes == ["owl", "dog", "cat"]
    assert [label for _, label in samples(chosen)] == [1] * 2 + [0] * 5 + [2] * 3
    names = ["owl", "cat", "emu", "dog"]
    given = loader(concat("a", "b"), label=fields.Label(classes=names))
    assert given.classes == names
    assert [label for _, label in samples(given)] == [1] * 3 + [3] * 4 + [3] * 2 + [0] * 5
    for source, labels in [(Source("a").classes("dog"), [3] * 4), (concat(Source("b").classes("owl"), "a"), [0] * 5)]:
        given = loader(source, label=fields.Label(classes=names))
        assert given.classes == names and [label for _, label in samples(given)][:5] == labels


def test_names_in_columns_are_united(here, tmp_path):
    for place, rows in {"one": ["owl", "emu", "owl"], "two": ["cat", "emu"]}.items():
        lines = [f"{os.path.abspath(path)},{name}" for path, name in zip(A, rows)]
        (tmp_path / f"{place}.csv").write_text("\n".join(["path,species", *lines]))
    species = {"label": fields.Label(stored_as="species")}
    both = loader(concat(tmp_path / "one.csv", tmp_path / "two.csv"), **species)
    assert both.classes == ["emu", "owl", "cat"]
    assert [label for _, label in samples(both)] == [1, 0, 1, 2, 0]
    owls = loader(Source(tmp_path / "one.csv").classes("owl"), **species)
    assert (owls.classes, [label for _, label in samples(owls)]) == (["owl"], [0, 0])
    again = loader(concat(tmp_path / "two.csv", Source(tmp_path / "one.csv").classes("owl")), **species)
    assert again.classes == ["cat", "emu", "owl"]
    assert [label for _, label in samples(again)] == [0, 1, 2, 2]


def test_numbers_and_names_are_not_mixed(here):
    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"c.tar.*class numbers"):
        loader(concat("a", "c.tar"))
    rows = [{"label": 1}, {"label": 0}]
    with pytest.raises(spdl_rs.InvalidArgumentError, match="Python data set has class numbers"):
        Loader(concat("a", rows), batch_size=2, label=fields.Label())
    # Labels that are not used may have any meaning.
    assert len(keys(concat("a", "c.tar"), label=fields.Index())) == 13
    given = loader(concat("a", "c.tar"), label=fields.Label(classes=["dog", "cat", "owl"]))
    assert [label for _, label in samples(given)] == [1] * 3 + [0] * 4 + [0, 1, 2] * 2
    numbers = loader(Source("c.tar").classes(2, 0))
    assert [label for _, label in samples(numbers)] == [0, 2, 0, 2]


def test_images_of_several_kinds_and_stores_are_batched(here, data, tmp_path):
    shutil.copytree(data, tmp_path / "bucket")
    rows = [{"image": (data / path).read_bytes()} for path in A[:2]]
    with serving(tmp_path) as server:
        source = concat("a", f"{server.address}/bucket/c.tar", rows)
        remote = Loader(
            source, batch_size=32, image=fields.Image(16), key=fields.Key(), shuffle=True
        )
        (batch,) = remote
        assert batch["image"].shape == (15, 16, 16, 3)
        pixels = dict(zip(batch["key"], batch["image"]))
    for at, path in enumerate(A[:2]):
        assert (pixels[path] == pixels[f"list:{at}"]).all()
    (local,) = Loader("c.tar", batch_size=6, image=fields.Image(16), key=fields.Key())
    for key, image in zip(local["key"], local["image"]):
        assert (pixels[f"bucket/{key}"] == image).all()


def test_positions_of_several_python_data_sets_are_their_own(here):
    one = [{"n": at} for at in range(3)]
    two = [{"n": 10 + at} for at in range(4)]
    both = Loader(concat(one, two, one), batch_size=20, n=fields.Number("int64"))
    assert next(iter(both))["n"].tolist() == [0, 1, 2, 10, 11, 12, 13, 0, 1, 2]


def counts_of(one, epochs=1):
    found = collections.Counter()
    for _ in range(epochs):
        found.update(key.split("/")[0] for key, _ in samples(one))
    return found


# promise: PY6
def test_mixtures_have_exact_shares(here):
    exact = loader(mix({"a": 3, "b": 1}, until=2048), shuffle=True, batch_size=64)
    assert counts_of(exact) == {"a": 1536, "b": 512}
    exact.set_epoch(0)
    every = [key for key, _ in samples(exact)]
    # In each pass over a source, each of its samples occurs once.
    assert set(collections.Counter(key for key in every if key[0] == "a").values()) <= {219, 220}
    assert len(loader(mix(["a", "b"], until="first_exhausted"), batch_size=1)) in (13, 14)
    first = keys(mix(["a", "b"], [2, 1], until="first_exhausted"), shuffle=True)
    assert max(collections.Counter(first).values()) == 1 and set(A) <= set(first)
    whole = keys(mix(["a", Source("b").take(2)], [1, 1]), shuffle=True)
    assert set(whole) == {*A, *B[:2]} and len(whole) in (13, 14)
    nested = loader(mix([mix(["a", "b"], [1, 1], until=100), "c.tar"], [3, 1], until=1024), label=fields.Index())
    found = collections.Counter(key.split("/")[0].split(":")[0] for batch in nested for key in batch["key"])
    # The last pass of the inner mixture is incomplete.
    assert found["c.tar"] == 256 and found["a"] + found["b"] == 768 and abs(found["a"] - 384) < 40
    assert counts_of(loader(mix({"a": 0, "b": 1}, until=10))) == {"b": 10}


def test_a_mixture_without_shuffle_keeps_the_order_of_each_source(here):
    found = keys(mix(["a", "b"], [1, 2], until=30))
    for name, order in [("a", A * 5), ("b", B * 5)]:
        of_source = [key for key in found if key[0] == name]
        assert of_source == order[: len(of_source)]


RESUMED = [
    concat("a", Source("b").repeat(2)),
    mix({"a": 1, "b": 2}, until=17),
    mix(["a", Source("b").take(3)], [1, 1]),
    curriculum(lambda epoch: mix(["a", "b"], [1, epoch], until=15)),
]


# promise: PY6
@pytest.mark.parametrize("source", RESUMED, ids=lambda it: repr(it)[:40])
def test_states_resume_at_every_batch(here, source):
    def begun():
        return loader(source, shuffle=True, seed=5, batch_size=3, threads=2)

    whole = begun()
    epochs = [samples(whole), samples(whole)]
    for epoch in range(2):
        for steps in range(-(-len(epochs[epoch]) // 3) + 1):
            one = begun()
            one.set_epoch(epoch)
            batches = iter(one)
            for _ in range(steps):
                next(batches)
            state = one.state_dict()
            again = begun()
            again.load_state_dict(state)
            assert samples(again) == epochs[epoch][3 * steps :]
            if epoch == 0:
                assert samples(again) == epochs[1]


# promise: PY6
@pytest.mark.parametrize("source", RESUMED, ids=lambda it: repr(it)[:40])
def test_states_of_ranks_combine_to_another_world_size(here, source):
    def rank(number, world):
        return loader(source, shuffle=True, batch_size=2, rank=number, world_size=world, remainder="uneven")

    (whole,) = [samples(rank(0, 1))]
    seen, states = [], []
    for number in range(2):
        one = rank(number, 2)
        batches = iter(one)
        for _ in range(2 + number):
            seen += samples([next(batches)])
        states.append(one.state_dict())
    for number in range(3):
        one = rank(number, 3)
        one.load_state_dict(Loader.combine_states(states))
        seen += samples(one)
    assert collections.Counter(seen) == collections.Counter(whole)


@pytest.mark.parametrize(
    "other",
    [
        concat("b", "a"),
        concat("a", "b").take(13),
        concat("a", "b").where([*range(12), 13, 12]),
        concat("a", Source("b").repeat(1)),
        mix(["a", "b"]),
    ],
    ids=repr,
)
def test_states_belong_to_one_expression(here, other):
    state = loader(concat("a", "b")).state_dict()
    with pytest.raises(spdl_rs.InvalidArgumentError, match="different settings"):
        loader(other).load_state_dict(state)
    mixed = loader(mix({"a": 1, "b": 2}, until=9)).state_dict()
    with pytest.raises(spdl_rs.InvalidArgumentError, match="the weights of mix: was 1 : 2, is 1 : 3"):
        loader(mix({"a": 1, "b": 3}, until=9)).load_state_dict(mixed)


# promise: PY6
def test_random_expressions_have_each_sample_as_often_as_they_say(here):
    random_numbers = random.Random(7)

    def expression(depth):
        kind = random_numbers.choice(["concat", "take", "skip", "where", "repeat"] if depth else ["leaf"])
        if kind == "leaf":
            return random_numbers.choice([(Source("a"), A), (Source("b"), B)])
        if kind == "concat":
            (one, first), (two, second) = expression(depth - 1), expression(depth - 1)
            return concat(one, two), first + second
        source, names = expression(depth - 1)
        if kind == "repeat":
            return source.repeat(2), names * 2
        count = random_numbers.randrange(1, len(names)) if len(names) > 1 else 0
        if kind == "where":
            chosen = random_numbers.choices(range(len(names)), k=count + 1)
            return source.where(chosen), [names[at] for at in chosen]
        if kind == "skip":
            return source.skip(count), names[count:]
        return source.take(count or 1), names[: count or 1]

    for seed in range(25):
        source, expected = expression(3)
        world = random_numbers.randrange(1, min(3, len(expected)) + 1)
        found = [
            key
            for rank in range(world)
            for key in keys(source, shuffle=True, seed=seed, rank=rank, world_size=world, remainder="uneven")
        ]
        assert collections.Counter(found) == collections.Counter(expected), source
        assert keys(source) == expected


def test_curricula_choose_a_source_for_each_epoch(here):
    growing = loader(curriculum(lambda epoch: concat("a", "b").take(2 + 3 * epoch)), batch_size=1)
    assert [len(growing), growing.epoch] == [2, 0]
    assert [len(samples(growing)) for _ in range(3)] == [2, 5, 8]
    growing.set_epoch(0)
    assert len(growing) == 2 and len(growing.peek()["key"]) == 1
    changing = loader(curriculum(lambda epoch: "ab"[epoch]))
    samples(changing)
    with pytest.raises(ValueError, match="epoch 1 of the curriculum has other classes"):
        iter(changing)
    named = loader(
        curriculum(lambda epoch: "ab"[epoch]), label=fields.Label(classes=["cat", "dog", "owl"])
    )
    assert [label for _, label in samples(named)] == [0] * 3 + [1] * 4
    assert [label for _, label in samples(named)] == [1] * 2 + [2] * 5
    with pytest.raises(TypeError, match="must not return a curriculum"):
        loader(curriculum(lambda epoch: curriculum(str)))


def test_a_curriculum_opens_each_data_set_once_and_shares_the_cache(here, tmp_path):
    cached = Loader(
        curriculum(lambda epoch: concat("a", "b") if epoch else "a"),
        batch_size=4,
        cache_memory=10**7,
        image=fields.Image(8),
        label=fields.Label(classes=["cat", "dog", "owl"]),
    )
    found = []
    for _ in range(3):
        list(cached)
        cache = cached.stats()["cache"]
        found.append((cache["hits"], cache["misses"]))
    assert found == [(0, 7), (7, 7), (14, 0)]


def test_equal_keys_in_two_stores_are_cached_separately(data, photos, tmp_path, monkeypatch):
    paths = sorted(photos.glob("*/*.png"))
    for place, path in [("one", paths[0]), ("two", paths[3])]:
        (tmp_path / place).mkdir()
        shutil.copy(path, tmp_path / place / "1.png")
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        both = Loader(
            concat([f"{one.address}/1.png"], [f"{two.address}/1.png"]),
            batch_size=2,
            cache_memory=10**7,
            image=fields.Image(16),
        )
        (first,), (second,) = both, both
    assert (first["image"] == second["image"]).all()
    assert not (first["image"][0] == first["image"][1]).all()


def test_errors_name_the_data_set(here, tmp_path):
    text = {"text": fields.Text(stored_as="txt")}
    with pytest.raises(spdl_rs.NotFoundError, match=r"^b: no field"):
        Loader(concat("b", "b"), batch_size=1, **text)
    (tmp_path / "empty").mkdir()
    with pytest.raises(spdl_rs.NotFoundError, match="empty"):
        loader(concat("a", tmp_path / "empty"))
    with pytest.raises(spdl_rs.InvalidArgumentError, match=r"range 0..8 is out of range for 7") as caught:
        loader(Source("a").take(8))
    assert caught.value.key == "Source('a').take(8)"
    for source, message in [
        (Source("a").skip(7), "none of 7 samples is left"),
        (Source("a").where([7]), "position 7 is out of range for 7"),
        (Source("a").where([]), "none of 7 samples is left"),
        (Source("a").where(lambda key: False), "none of 7"),
        (Source("a").classes("cow"), 'unknown class "cow": the classes are "cat", "dog"'),
        (Source("c.tar").classes("cat"), "no class names"),
        (Source("c.tar").classes(7), 'no sample has the class "7"'),
        (Source([{"label": 1}]).classes(1), "Python data set are unknown"),
        (mix(["a", mix(["a", "b"], until=5)]), "must also use"),
    ]:
        with pytest.raises(spdl_rs.InvalidArgumentError, match=message):
            loader(source)
    with pytest.raises(spdl_rs.InvalidArgumentError, match='has a class "owl"'):
        loader(concat("a", "b"), label=fields.Label(classes=["cat", "dog"]))
    with pytest.raises(ValueError, match="labels can be set only for a list"):
        spdl_rs.ImageLoader(concat("a"), batch_size=1, labels=[1])
    with pytest.raises(spdl_rs.InvalidArgumentError, match="requires labels in a field"):
        loader("a", label=fields.Label(classes=["cat", "dog"]))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mix([]), ValueError),
        (lambda: mix({"a": -1.0, "b": 3}), ValueError),
        (lambda: mix({"a": math.nan, "b": 1}), ValueError),
        (lambda: mix({"a": math.inf, "b": 1}), ValueError),
        (lambda: mix(["a", "b"], [0, 0]), ValueError),
        (lambda: mix(["a", "b"], [1]), ValueError),
        (lambda: mix({"a": 1}, [1]), ValueError),
        (lambda: mix(["a"], until="never"), ValueError),
        (lambda: mix(["a"], until=0), ValueError),
        (lambda: concat(), ValueError),
        (lambda: concat("a", mix(["a"])), TypeError),
        (lambda: concat("a", curriculum(str)), TypeError),
        (lambda: curriculum("a"), TypeError),
        (lambda: Source(Source("a")), TypeError),
        (lambda: Source("a").take(0), ValueError),
        (lambda: Source("a").repeat(0), ValueError),
        (lambda: Source("a").where([-1]), ValueError),
        (lambda: Source("a").where([True, False]), TypeError),
        (lambda: Source("a").where([0.5]), TypeError),
        (lambda: Source("a").classes(), ValueError),
        (lambda: Source("a").classes("cat", "cat"), ValueError),
        (lambda: Source("a").classes(at_most=0), ValueError),
    ],
)
def test_invalid_expressions_are_refused(make, error):
    with pytest.raises(error):
        make()


def test_expressions_print_as_python():
    for text in [
        "Source('a')",
        "concat('a', ['b.png', 'c.png'])",
        "concat(Source('a').take(2).skip(1), 'b').repeat(3)",
        "mix(['a', Source('b').where([1, 2])], weights=[0.5, 1.0], until='first_exhausted')",
        "mix([mix(['a'], weights=[1.0], until=7)], weights=[1.0], until=8)",
        "Source('a').classes('cat', 3, at_most=5)",
    ]:
        assert repr(eval(text, vars(sources))) == text
    assert repr(Source("https://me:secret@host/a.tar?sig=secret")) == "Source('https://host/a.tar?***')"
    assert repr(Source([{"a": 1}]).where(range(100))) == "Source(<list>).where([0, 1, 2, 3, 4, 5, 6, 7, …])"
    assert repr(curriculum(len)) == "curriculum(len)"


def test_the_loader_prints_its_expression(here):
    assert repr(loader(concat("a", "b"))).startswith('''Loader(several data sets "concat('a', 'b')": 14 samples''')


def test_a_forked_child_reads_an_expression(here):
    one = loader(mix(["a", concat("b", "c.tar")], until=20), label=fields.Index(), cache_memory=10**6)
    expected = [batch["key"] for batch in one]
    one.set_epoch(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = [batch["key"] for batch in one]
            os.write(write, b"equal" if found == expected else repr(found).encode()[:1000])
        finally:
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        assert (pipe.read(), status) == (b"equal", 0)
