"""Text: JSON Lines and CSV without files, and ids of tokens."""

import gzip
import json
import pathlib
import pickle

import numpy
import pytest
import spdl_rs
from spdl_rs import Loader, fields
from spdl_rs.sequences import Pack

GOLDEN = pathlib.Path(__file__).parent / "golden" / "tokenizers"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts_of(loader):
    return [text for batch in loader for text in batch["text"]]


@pytest.fixture
def corpus(tmp_path):
    """Three files of JSON Lines with 3 rows each, whose `url` is no path."""
    for file in range(3):
        rows = [{"url": "ftp://user:word@host/", "text": f"{file}.{row}", "n": row} for row in range(3)]
        write(tmp_path / f"corpus-{file}.jsonl", rows)
    return tmp_path


def test_rows_of_json_lines_need_no_path(corpus):
    loader = Loader(
        corpus / "corpus-1.jsonl", batch_size=9, text=fields.Text(), n=fields.Number("int64"), key=fields.Key()
    )
    assert "JSON Lines" in repr(loader)
    (batch,) = loader
    assert batch["text"] == ["1.0", "1.1", "1.2"] and batch["n"].tolist() == [0, 1, 2]
    assert batch["key"] == [f"{corpus}/corpus-1.jsonl:{row}" for row in range(3)]
    with pytest.raises(spdl_rs.SpdlError, match="no path|must not contain user names"):
        Loader(corpus / "corpus-1.jsonl", batch_size=9, image=fields.Image(8))


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\n \n"])
def test_a_byte_order_mark_and_blank_lines_are_no_rows(start, tmp_path):
    path = tmp_path / "marked.jsonl"
    path.write_bytes(start + b'{"text": "a"}\n\n{"text": "b"}')
    assert texts_of(Loader(path, batch_size=2, text=fields.Text())) == ["a", "b"]


def test_files_of_json_lines_are_one_data_set(corpus):
    expected = [f"{file}.{row}" for file in range(3) for row in range(3)]
    for source in ("corpus-*.jsonl", "corpus-{0,1,2}.jsonl"):
        loader = Loader(str(corpus / source), batch_size=2, text=fields.Text())
        assert texts_of(loader) == expected
    files = [corpus / "corpus-2.jsonl", corpus / "corpus-0.jsonl"]
    assert texts_of(Loader(files, batch_size=2, text=fields.Text())) == expected[6:] + expected[:3]
    pattern = str(corpus / "corpus-*.jsonl")
    shuffled = Loader(pattern, batch_size=2, shuffle=True, text=fields.Text())
    epoch = texts_of(shuffled)
    assert epoch != expected and sorted(epoch) == expected
    # An epoch resumes in the middle, and a state belongs to the content.
    started = Loader(pattern, batch_size=2, shuffle=True, text=fields.Text())
    batches = iter(started)
    first = next(batches)["text"] + next(batches)["text"]
    resumed = Loader(pattern, batch_size=2, shuffle=True, text=fields.Text())
    resumed.load_state_dict(started.state_dict())
    assert first + texts_of(resumed) == epoch
    write(corpus / "corpus-2.jsonl", [{"text": f"3.{row}", "url": "ftp://user:word@host/", "n": 1} for row in range(3)])
    with pytest.raises(spdl_rs.SpdlError):
        changed = Loader(pattern, batch_size=2, shuffle=True, text=fields.Text())
        changed.load_state_dict(started.state_dict())
        list(changed)


@pytest.mark.parametrize("shuffle", [False, True])
def test_json_lines_may_be_compressed(tmp_path, shuffle):
    rows = [{"text": f"text {row}"} for row in range(50)]
    for number in range(2):
        lines = "".join(json.dumps(row) + "\n\n" for row in rows[number::2])
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    loader = Loader(str(tmp_path / "*.jsonl.gz"), batch_size=7, shuffle=shuffle, text=fields.Text())
    found = texts_of(loader)
    expected = [row["text"] for number in range(2) for row in rows[number::2]]
    assert sorted(found) == sorted(expected) and (found == expected) != shuffle
    (tmp_path / "0.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}')[:-9])
    with pytest.raises(spdl_rs.SpdlError) as error:
        Loader(tmp_path / "0.jsonl.gz", batch_size=7, text=fields.Text())
    assert error.value.key.endswith("0.jsonl.gz")
    with pytest.raises(spdl_rs.UnsupportedError, match="list of files must not be compressed"):
        Loader(tmp_path / "1.jsonl.gz", batch_size=7, image=fields.Image(8))


def test_bad_rows_are_errors_or_dropped(tmp_path):
    path = tmp_path / "bad.jsonl"
    lines = [
        b'\xef\xbb\xbf{"text": "first"}',
        b'{"text": }',
        b"",
        b'{"text": "\xff"}',
        b'{"other": 1}',
        b"[1]",
        b'{"text": "' + b"x" * 1000 + b'"}',
        b'{"text": 5}',
        b'{"text": "last"}',
    ]
    path.write_bytes(b"\r\n".join(lines))
    loader = Loader(path, batch_size=9, text=fields.Text(), on_error=spdl_rs.skip(), max_file_bytes=500)
    assert texts_of(loader) == ["first", "last"]
    dropped = loader.stats()["dropped"]
    assert [one["key"] for one in dropped] == [f"{path}:{row}" for row in range(1, 7)]
    expected = [
        ("corrupt", "not a JSON object (at byte 31)"),
        ("corrupt", "invalid UTF-8 (at byte 46)"),
        ("not-found", 'missing: field "text"'),
        ("corrupt", "not a JSON object"),
        ("limit-exceeded", "exceeds the limit of 500 bytes"),
        ("invalid-argument", 'field "text": expected text, found an integer'),
    ]
    for one, (kind, words) in zip(dropped, expected):
        assert one["kind"] == kind and words in one["reason"], one
    with pytest.raises(spdl_rs.CorruptError) as error:
        list(Loader(path, batch_size=9, text=fields.Text()))
    assert error.value.key == f"{path}:1"
    # Missing members have their default, and the first name that the first row has is read.
    text = fields.Text(stored_as=["caption", "text"], default="none")
    loader = Loader(path, batch_size=9, text=text, on_error=spdl_rs.skip())
    assert texts_of(loader)[:2] == ["first", "none"]


def test_labels_of_json_lines(tmp_path):
    path = write(tmp_path / "labeled.jsonl", [{"text": "a", "label": 3}, {"text": "b", "label": 0}])
    batch = Loader(path, batch_size=2, text=fields.Text(), label=fields.Label()).peek()
    assert batch["label"].tolist() == [3, 0]


def test_csv_needs_no_path_and_empty_cells_are_missing_values(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('text,score\nhello,1\n"two\nlines",\n,3\n')

    def loader(text, score, **more):
        named = {"text": fields.Text(**text), "score": fields.Number(**score)}
        return Loader(path, named, batch_size=3, key=fields.Key(), **more)

    batch = loader({"default": "none"}, {"default": 9}).peek()
    assert batch["text"] == ["hello", "two\nlines", "none"] and batch["score"].tolist() == [1, 9, 3]
    assert batch["key"] == [f"{path}:{row}" for row in range(3)]
    batch = loader({"optional": True}, {"optional": True}).peek()
    assert batch["text"] == ["hello", "two\nlines", ""] and batch["score"].tolist() == [1, 0, 3]
    array = fields.Array(None, stored_as="score", default=[5, 6])
    text = fields.Text(stored_as=["score", "text"])
    with pytest.raises(spdl_rs.InvalidArgumentError):  # A number is no list.
        list(Loader(path, batch_size=3, array=array))
    (tmp_path / "table2.csv").write_text("text,score\na,\n")
    batch = Loader(tmp_path / "table2.csv", batch_size=1, array=array, text=text).peek()
    assert batch["array"][0].tolist() == [5, 6] and batch["text"] == ["a"]
    strict = loader({}, {}, on_error=spdl_rs.skip())
    assert [batch["text"] for batch in strict] == [["hello"]]
    reasons = [one["reason"] for one in strict.stats()["dropped"]]
    assert 'field "score"' in reasons[0] and 'field "text"' in reasons[1]
    with pytest.raises(spdl_rs.InvalidArgumentError, match='no column "words": the columns are text, score'):
        Loader(path, batch_size=1, words=fields.Text())
    (tmp_path / "table3.csv").write_text("text,score,more\na,1,2\n")
    with pytest.raises(spdl_rs.InvalidArgumentError, match="no path column"):
        Loader(tmp_path / "table3.csv", batch_size=1, image=fields.Image(8), score=fields.Number())


def test_several_csv_lists_are_one_data_set(tmp_path):
    (tmp_path / "part-1.csv").write_text("text,label\nbarks,dog\n")
    (tmp_path / "part-2.csv").write_text("label,text\ncat,meows\n,hums\n")
    for source in (str(tmp_path / "part-*.csv"), [tmp_path / "part-1.csv", tmp_path / "part-2.csv"]):
        loader = Loader(source, batch_size=3, text=fields.Text(), label=fields.Label(), key=fields.Key())
        (batch,) = loader
        assert loader.classes == ["cat", "dog"]
        assert (batch["text"], batch["label"].tolist()) == (["barks", "meows", "hums"], [1, 0, -1])
        assert batch["key"] == [f"{tmp_path}/part-1.csv:0", f"{tmp_path}/part-2.csv:0", f"{tmp_path}/part-2.csv:1"]
    loader = Loader(source, batch_size=2, text=fields.Text())
    first = next(iter(loader))
    state = loader.state_dict()
    again = Loader(source, batch_size=2, text=fields.Text())
    again.load_state_dict(state)
    assert first["text"] + next(iter(again))["text"] == ["barks", "meows", "hums"]
    with pytest.raises(spdl_rs.InvalidArgumentError):
        other = Loader(source[::-1], batch_size=2, text=fields.Text())
        other.load_state_dict(state)
        list(other)


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "ids.json").read_text())


@pytest.fixture
def texts(golden, tmp_path):
    return write(tmp_path / "texts.jsonl", [{"text": text} for text in golden["texts"]])


@pytest.mark.parametrize("name", ["bpe", "wordpiece", "unigram"])
def test_ids_equal_those_of_the_python_library(golden, texts, name):
    def ids(**settings):
        tokens = fields.Tokens(GOLDEN / f"{name}.json", stored_as="text", **settings)
        (batch,) = Loader(texts, batch_size=100, tokens=tokens)
        assert {one.dtype.name for one in batch["tokens"]} == {settings.get("dtype", "int64")}
        return [one.tolist() for one in batch["tokens"]]

    expected = golden[name]
    assert ids() == expected["ids"]
    assert ids(special_tokens=False, dtype="int32") == expected["plain"]
    assert ids(max_length=6, truncate=True) == expected["truncated"]


def test_tokens_are_padded_packed_and_pickled(golden, texts):
    tokens = fields.Tokens(GOLDEN / "bpe.json", stored_as="text", collate="pad", default=[1])
    assert pickle.loads(pickle.dumps(tokens)) == tokens
    values, sizes = Loader(texts, batch_size=100, tokens=tokens).peek()["tokens"]
    lengths = [len(one) for one in golden["bpe"]["ids"]]
    assert sizes.ravel().tolist() == lengths and values.shape == (len(lengths), max(lengths))
    tokens = fields.Tokens(GOLDEN / "bpe.json", stored_as="text")
    group = Pack("tokens", length=128)
    loader = Loader(texts, batch_size=1, group=group, tokens=tokens, on_error=spdl_rs.skip())
    # The empty text is dropped.
    packed = [batch["tokens"][batch["segment_ids"] > 0] for batch in loader]
    assert sorted(numpy.concatenate(packed)) == sorted(sum(golden["bpe"]["ids"], []))

    def is_short(sample):
        return len(sample["tokens"]) < 30

    loader = Loader(texts, batch_size=100, tokens=tokens, filter=is_short)
    assert len(loader.peek()["tokens"]) == sum(length < 30 for length in lengths)


def test_tokens_of_one_length_are_one_array(golden, texts):
    def ids(**settings):
        tokens = fields.Tokens(GOLDEN / "wordpiece.json", stored_as="text", truncate=True, **settings)
        loader = Loader(texts, batch_size=100, tokens=tokens)
        return loader.peek()["tokens"], loader.spec["tokens"]

    expected = [one + [77] * (6 - len(one)) for one in golden["wordpiece"]["truncated"]]
    made, spec = ids(length=6, padding=77)
    assert made.tolist() == expected and made.dtype == "int64"
    assert spec == fields.FieldSpec((6,), "int64", "stack")
    made, _ = ids(length=8, padding=-1, max_length=6, dtype="int32")
    assert (made[:, 6:] == -1).all() and made.dtype == "int32"
    values, sizes = ids(collate="pad", padding=9, max_length=6)[0]
    assert values.shape == (len(expected), 6)
    assert all((row[int(size) :] == 9).all() for row, size in zip(values, sizes.ravel()))
    # Missing values, and stored ids.
    tokens = fields.Tokens(length=3, padding=5, optional=True)
    loader = Loader([{"ids": [1, 2]}, {"other": 0}], batch_size=2, ids=tokens)
    assert loader.peek()["ids"].tolist() == [[1, 2, 5], [5, 5, 5]]
    with pytest.raises(spdl_rs.SpdlError, match="4 tokens exceed the maximum of 3"):
        list(Loader([{"ids": [1, 2, 3, 4]}], batch_size=1, ids=tokens))
    assert eval(repr(tokens), vars(fields)) == tokens == pickle.loads(pickle.dumps(tokens))


def test_tokens_that_are_stored(tmp_path):
    numbers = [1, 70000, 3]
    for name, dtype in (("u2", "uint16"), ("u4", "uint32"), ("i8", "int64")):
        ids = [one % 2**16 for one in numbers] if name == "u2" else numbers
        bytes_of = numpy.array(ids, f"<{name}").tobytes()
        field = fields.Tokens(stored_dtype=dtype, dtype="int32", stored_as="ids")
        (batch,) = Loader([{"ids": bytes_of}], batch_size=1, tokens=field)
        assert batch["tokens"][0].tolist() == ids and batch["tokens"][0].dtype == "int32"
    (batch,) = Loader([{"ids": numbers}], batch_size=1, ids=fields.Tokens(max_length=2, truncate=True))
    assert batch["ids"][0].tolist() == numbers[:2]
    path = write(tmp_path / "ids.jsonl", [{"ids": numbers}, {"ids": numbers[:2]}])
    loader = Loader(path, batch_size=2, ids=fields.Tokens(max_length=2), on_error=spdl_rs.skip())
    assert [one.tolist() for one in loader.peek()["ids"]] == [numbers[:2]]
    assert len(list(loader)) == 1
    (dropped,) = loader.stats()["dropped"]
    assert dropped["key"] == f"{path}:0"
    assert 'field "ids": 3 tokens exceed the maximum of 2' in dropped["reason"]
    with pytest.raises(spdl_rs.TruncatedError, match='field "ids": 3 bytes are not a whole number of ids'):
        list(Loader([{"ids": b"abc"}], batch_size=1, ids=fields.Tokens(stored_dtype="uint16")))


def test_arguments_of_tokens_are_checked(texts, tmp_path):
    def loader(**settings):
        return Loader(texts, batch_size=100, ids=fields.Tokens(stored_as="text", **settings))

    with pytest.raises(FileNotFoundError, match='field "ids": tokenizer: cannot read the tokenizer') as error:
        loader(tokenizer=tmp_path / "absent.json")
    assert error.value.key == str(tmp_path / "absent.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(spdl_rs.InvalidArgumentError, match='field "ids": tokenizer: not a tokenizer.json'):
        loader(tokenizer=tmp_path / "other.json")
    with pytest.raises(spdl_rs.InvalidArgumentError, match="leaves no place for text"):
        loader(tokenizer=GOLDEN / "wordpiece.json", max_length=2, truncate=True)
    with pytest.raises(spdl_rs.InvalidArgumentError, match="expected text, found an integer"):
        ids = fields.Tokens(GOLDEN / "bpe.json")
        list(Loader([{"ids": 3}], batch_size=1, ids=ids))
    for settings in ({"dtype": "uint8"}, {"truncate": True}, {"max_length": 0}, {"collate": "stack"}):
        with pytest.raises(ValueError):
            fields.Tokens(**settings)
    for settings in ({"padding": 1}, {"length": 3, "collate": "pad"}, {"length": 3, "max_length": 4}):
        with pytest.raises(ValueError):
            fields.Tokens(**settings)

    class Tokenizer:
        def save(self, path):
            pass

    with pytest.raises(TypeError, match=r'not an object of type Tokenizer; save it with tokenizer.save\('):
        fields.Tokens(Tokenizer())
    with pytest.raises(TypeError, match="to call a tokenizer of Python, use fields.Text"):
        fields.Tokens(len)
    with pytest.raises(ValueError, match="drop tokenizer or stored_dtype"):
        fields.Tokens("a.json", stored_dtype="uint16")


def test_a_state_belongs_to_the_content_of_the_tokenizer(texts, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes((GOLDEN / "bpe.json").read_bytes())

    def loader():
        return Loader(texts, batch_size=2, ids=fields.Tokens(path, stored_as="text"))

    started = loader()
    next(iter(started))
    state = started.state_dict()
    other = loader()
    other.load_state_dict(state)
    assert len(list(other)) == len(started) - 1
    path.write_bytes((GOLDEN / "unigram.json").read_bytes())
    with pytest.raises(spdl_rs.SpdlError, match="ids: changed"):
        other = loader()
        other.load_state_dict(state)
        list(other)
