//! Tests of Arrow tables: types, slices, files, selected rows, classes.

use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, StringDictionaryBuilder};
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    FixedSizeListArray, Float16Array, Float32Array, Float64Array, Int8Array, Int64Array,
    LargeBinaryArray, LargeListArray, LargeStringArray, ListArray, NullArray, RecordBatch,
    StringArray, StringViewArray, StructArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use serde_json::json;
use spdl_core::{Dataset, Error, ErrorKind, Result, block_on};
use spdl_io::datasets::{ArrowDataset, OpenOptions, OpenedDataset};
use spdl_io::records::{FetchFields, FieldChoice, FieldValue, StoredRecord};
use spdl_io::{FetchRecord, StoreRegistry};

use super::process;

type Half = <Float16Type as ArrowPrimitiveType>::Native;

fn batch(columns: &[(&str, ArrayRef)]) -> RecordBatch {
    let fields = columns
        .iter()
        .map(|(name, values)| Field::new(*name, values.data_type().clone(), true))
        .collect::<Vec<_>>();
    let values = columns.iter().map(|(_, values)| Arc::clone(values)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), values).unwrap()
}

fn table(batches: &[RecordBatch]) -> ArrowDataset {
    ArrowDataset::new("table", &batches[0].schema(), batches.to_vec()).unwrap()
}

fn one(name: &str, values: impl Array + 'static) -> ArrowDataset {
    table(&[batch(&[(name, Arc::new(values))])])
}

fn open(samples: ArrowDataset) -> OpenedDataset {
    let (stores, options) = (StoreRegistry::new(), OpenOptions::default());
    OpenedDataset::of_samples(samples, &stores, &options).unwrap()
}

/// The values of a field in all samples.
fn read(samples: ArrowDataset, field: &str) -> Vec<Result<FieldValue>> {
    let data = open(samples);
    let read_one = |index| {
        let sample = vec![data.samples.item(index)?];
        let fetch = FetchRecord::new(Arc::clone(&data.fetcher)).with_fields([field]);
        process(sample, fetch).remove(0)?.take(field)
    };
    (0..data.samples.len()).map(read_one).collect()
}

fn values(samples: ArrowDataset, field: &str) -> Vec<FieldValue> {
    read(samples, field).into_iter().map(Result::unwrap).collect()
}

fn text(text: &str) -> FieldValue {
    FieldValue::Text(text.into())
}

fn bytes(bytes: &[u8]) -> FieldValue {
    FieldValue::Bytes(bytes.to_vec().into())
}

/// Longer than the texts that a view holds itself.
const LONG: &str = "longer than twelve bytes";

#[test]
fn each_type_becomes_a_field_also_in_a_part_of_a_batch() {
    use FieldValue::{Bool, Float, Floats, Integer, Integers, Json, List, Null};
    let mut fixed = FixedSizeBinaryBuilder::new(2);
    for value in [b"ab", b"cd", b"ef"] {
        fixed.append_value(value).unwrap();
    }
    let mut names = StringDictionaryBuilder::<Int32Type>::new();
    names.extend([Some("cat"), None, Some("cat")]);
    let lists = vec![Some(vec![Some(1), Some(2)]), Some(vec![]), Some(vec![Some(3), None])];
    let pairs = vec![Some(vec![Some(0.5), Some(1.5)]), None, Some(vec![Some(2.5), Some(3.5)])];
    let structs = StructArray::from(vec![
        (
            Arc::new(Field::new("n", DataType::Int64, true)),
            Arc::new(Int64Array::from(vec![Some(1), Some(2), None])) as ArrayRef,
        ),
        (
            Arc::new(Field::new("t", DataType::Utf8, true)),
            Arc::new(StringArray::from(vec!["x", "y", "z"])) as ArrayRef,
        ),
    ]);
    let of_structs = ListArray::new(
        Arc::new(Field::new("item", structs.data_type().clone(), true)),
        arrow_buffer::OffsetBuffer::from_lengths([2, 0, 1]),
        Arc::new(structs.clone()),
        None,
    );
    let cases: Vec<(ArrayRef, [FieldValue; 3])> = vec![
        (Arc::new(NullArray::new(3)), [Null, Null, Null]),
        (
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
            [Bool(true), Null, Bool(false)],
        ),
        (
            Arc::new(Int8Array::from(vec![Some(-128), None, Some(127)])),
            [Integer(-128), Null, Integer(127)],
        ),
        (
            Arc::new(UInt32Array::from(vec![0, 7, u32::MAX])),
            [Integer(0), Integer(7), Integer(4_294_967_295)],
        ),
        (Arc::new(UInt64Array::from(vec![1, 2, 3])), [Integer(1), Integer(2), Integer(3)]),
        (
            Arc::new(Float16Array::from([0.5, -2.0, 0.0].map(Half::from_f32).to_vec())),
            [Float(0.5), Float(-2.0), Float(0.0)],
        ),
        (Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5])), [Float(0.5), Float(1.5), Float(2.5)]),
        (Arc::new(Float64Array::from(vec![0.1, 0.2, 0.3])), [Float(0.1), Float(0.2), Float(0.3)]),
        (Arc::new(Date32Array::from(vec![1, 2, -3])), [Integer(1), Integer(2), Integer(-3)]),
        (
            Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None, Some(1 << 40)])),
            [Integer(1), Null, Integer(1 << 40)],
        ),
        (
            Arc::new(StringArray::from(vec![Some("a"), None, Some(LONG)])),
            [text("a"), Null, text(LONG)],
        ),
        (Arc::new(LargeStringArray::from(vec!["", "b", LONG])), [text(""), text("b"), text(LONG)]),
        (
            Arc::new(StringViewArray::from(vec![Some("a"), None, Some(LONG)])),
            [text("a"), Null, text(LONG)],
        ),
        (
            Arc::new(BinaryArray::from(vec![&b"\xff"[..], b"", b"abc"])),
            [bytes(b"\xff"), bytes(b""), bytes(b"abc")],
        ),
        (
            Arc::new(LargeBinaryArray::from(vec![&b"a"[..], b"bc", b"d"])),
            [bytes(b"a"), bytes(b"bc"), bytes(b"d")],
        ),
        (
            Arc::new(BinaryViewArray::from(vec![&b"a"[..], LONG.as_bytes(), b"exactly12byt"])),
            [bytes(b"a"), bytes(LONG.as_bytes()), bytes(b"exactly12byt")],
        ),
        (Arc::new(fixed.finish()), [bytes(b"ab"), bytes(b"cd"), bytes(b"ef")]),
        (Arc::new(names.finish()), [text("cat"), Null, text("cat")]),
        (
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists.clone())),
            [Integers(vec![1, 2]), Integers(vec![]), List(vec![Integer(3), Null])],
        ),
        (
            Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(lists)),
            [Integers(vec![1, 2]), Integers(vec![]), List(vec![Integer(3), Null])],
        ),
        (
            Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(pairs, 2)),
            [Floats(vec![0.5, 1.5]), Null, Floats(vec![2.5, 3.5])],
        ),
        (
            Arc::new(structs),
            [
                Json(json!({"n": 1, "t": "x"})),
                Json(json!({"n": 2, "t": "y"})),
                Json(json!({"n": null, "t": "z"})),
            ],
        ),
        (
            Arc::new(of_structs),
            [
                Json(json!([{"n": 1, "t": "x"}, {"n": 2, "t": "y"}])),
                Json(json!([])),
                Json(json!([{"n": null, "t": "z"}])),
            ],
        ),
    ];
    for (array, expected) in cases {
        let data_type = array.data_type().clone();
        let whole = batch(&[("value", array)]);
        let parts = [whole.slice(0, 1), whole.slice(1, 0), whole.slice(1, 2)];
        assert_eq!(values(table(&[whole]), "value"), expected, "{data_type}");
        assert_eq!(values(table(&parts), "value"), expected, "a part of {data_type}");
    }
}

#[test]
fn lists_of_lists_and_of_texts_are_lists() {
    let inner = ListArray::from_iter_primitive::<Float32Type, _, _>([
        Some(vec![Some(1.0), Some(2.0)]),
        Some(vec![Some(3.0), Some(4.0)]),
    ]);
    let outer = ListArray::new(
        Arc::new(Field::new("item", inner.data_type().clone(), true)),
        arrow_buffer::OffsetBuffer::from_lengths([2, 0]),
        Arc::new(inner),
        None,
    );
    let pair = |a, b| FieldValue::Floats(vec![a, b]);
    let expected =
        [FieldValue::List(vec![pair(1.0, 2.0), pair(3.0, 4.0)]), FieldValue::List(vec![])];
    assert_eq!(values(one("boxes", outer), "boxes"), expected);
    let texts = ListArray::new(
        Arc::new(Field::new("item", DataType::Utf8, true)),
        arrow_buffer::OffsetBuffer::from_lengths([2]),
        Arc::new(StringArray::from(vec![Some("a"), None])),
        None,
    );
    let expected = [FieldValue::List(vec![text("a"), FieldValue::Null])];
    assert_eq!(values(one("texts", texts), "texts"), expected);
}

#[test]
fn bytes_share_the_memory_of_the_table() {
    let array = BinaryArray::from(vec![&b"abc"[..], b"defg"]);
    let memory = array.values().as_slice().as_ptr_range();
    for value in values(one("value", array), "value") {
        let bytes = value.as_bytes().unwrap().as_ptr_range();
        assert!(memory.start <= bytes.start && bytes.end <= memory.end);
    }
}

#[test]
fn members_of_structs_are_fields_and_null_with_their_struct() {
    let members = vec![
        Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef,
        Arc::new(StringArray::from(vec!["a", "b"])),
    ];
    let fields =
        vec![Field::new("n", DataType::Int64, true), Field::new("t", DataType::Utf8, true)];
    let structs = StructArray::new(fields.into(), members, Some(vec![false, true].into()));
    let samples = || one("object", structs.clone());
    let names: Vec<_> = samples().item(0).unwrap().names().map(str::to_owned).collect();
    assert_eq!(names, ["object", "object.n", "object.t"]);
    assert_eq!(values(samples(), "object.n"), [FieldValue::Null, FieldValue::Integer(2)]);
    let data = open(samples());
    let choice = FieldChoice::of(["object"]).at("t").optional();
    let fetch = FetchFields::new(data.fetcher).with("t", choice);
    let read = process(data.samples, fetch).into_iter();
    let read: Vec<_> = read.map(|record| record.unwrap().take("t").unwrap()).collect();
    assert_eq!(read, [FieldValue::Null, text("b")]);
}

#[test]
fn unsupported_columns_are_omitted_and_refused_by_name() {
    let decimals = Decimal128Array::from(vec![1, 2]).with_precision_and_scale(20, 2).unwrap();
    let inside = StructArray::from(vec![(
        Arc::new(Field::new("raw", DataType::Binary, true)),
        Arc::new(BinaryArray::from(vec![&b"a"[..], b"b"])) as ArrayRef,
    )]);
    let columns: [(&str, ArrayRef); 3] = [
        ("price", Arc::new(decimals)),
        ("object", Arc::new(inside)),
        ("n", Arc::new(Int64Array::from(vec![1, 2]))),
    ];
    let samples = table(&[batch(&columns)]);
    let first = samples.item(0).unwrap();
    assert_eq!(first.names().collect::<Vec<_>>(), ["object.raw", "n"]);
    let data = open(samples);
    for (name, message) in [
        (
            "price",
            "cannot read column \"price\" of type Decimal128(20, 2): decimals are not supported",
        ),
        ("object", "binary members of structs are not supported"),
    ] {
        let fetch = FetchFields::new(Arc::clone(&data.fetcher)).with("a", FieldChoice::of([name]));
        let error = fetch.check(&first).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(message), "{error}");
        assert!(process(Arc::clone(&data.samples), fetch)[0].is_err());
    }
    let fetch = FetchFields::new(data.fetcher).with("a", FieldChoice::of(["m"]));
    assert_eq!(fetch.check(&first).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_number_that_no_field_can_hold_is_an_error_of_its_sample() {
    let read = read(one("n", UInt64Array::from(vec![1, u64::MAX])), "n");
    assert_eq!(read[0].as_ref().unwrap(), &FieldValue::Integer(1));
    let error = read[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("table:1")));
    assert!(error.message().starts_with("column n: number 18446744073709551615"), "{error}");
}

fn files(rows: &[(Option<&[u8]>, Option<&str>)]) -> ArrowDataset {
    let bytes = BinaryArray::from(rows.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>());
    let paths = StringArray::from(rows.iter().map(|(_, path)| *path).collect::<Vec<_>>());
    let fields =
        vec![Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)];
    let nulls = rows.iter().map(|row| *row != (None, Some("null"))).collect::<Vec<_>>();
    let columns: Vec<ArrayRef> = vec![Arc::new(bytes), Arc::new(paths)];
    one("image", StructArray::new(fields.into(), columns, Some(nulls.into())))
}

#[test]
fn files_are_read_from_their_bytes_or_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.jpg");
    std::fs::write(&path, "on disk").unwrap();
    let path = path.to_str().unwrap();
    let missing = folder.path().join("2.jpg");
    let samples = || {
        files(&[
            (Some(b"in memory"), Some("1.jpg")),
            (None, Some(path)),
            (None, None),
            (None, Some("null")),
            (None, Some("")),
            (None, Some("https://host/1.jpg")),
            (None, missing.to_str()),
        ])
    };
    let names: Vec<_> = samples().item(0).unwrap().names().map(str::to_owned).collect();
    assert_eq!(names, ["image", "image.path"]);
    // Only a request for the file itself fails.
    assert_eq!(values(samples(), "image.path")[5], text("https://host/1.jpg"));
    let mut read = read(samples(), "image");
    let error = |read: Result<FieldValue>| {
        let error: Error = read.unwrap_err();
        (error.kind(), error.key().map(str::to_owned))
    };
    assert_eq!(
        error(read.pop().unwrap()),
        (ErrorKind::NotFound, missing.to_str().map(str::to_owned))
    );
    assert_eq!(error(read.pop().unwrap()), (ErrorKind::Unsupported, Some("table:5".to_owned())));
    let read: Vec<_> = read.into_iter().map(Result::unwrap).collect();
    let null = FieldValue::Null;
    assert_eq!(read, [bytes(b"in memory"), bytes(b"on disk"), null.clone(), null.clone(), null]);
}

#[test]
fn selected_rows_have_the_order_and_the_names_of_the_selection() {
    let numbers = |numbers: &[i64]| batch(&[("n", Arc::new(Int64Array::from(numbers.to_vec())))]);
    let batches = [numbers(&[0, 1]), numbers(&[2, 3, 4])];
    let selected = table(&batches).select(vec![4, 0, 4, 2]).unwrap();
    assert_eq!(selected.item(0).unwrap().key.to_string(), "table:0");
    assert_eq!(selected.item(4).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(values(selected, "n"), [4, 0, 4, 2].map(FieldValue::Integer));
    let error = table(&batches).select(vec![0, 5]).unwrap_err();
    assert_eq!(error.message(), "row 5 is out of range: the table has 5 rows");
}

#[test]
fn the_content_hash_depends_on_values_and_not_on_batches() {
    let columns =
        |name: &'static str, texts: Vec<&str>| batch(&[(name, Arc::new(StringArray::from(texts)))]);
    let hash = |samples: ArrowDataset| samples.content_hash().unwrap();
    let whole = columns("t", vec!["a", "b", "c"]);
    let expected = hash(table(std::slice::from_ref(&whole)));
    assert_eq!(hash(table(&[whole.slice(0, 1), whole.slice(1, 2)])), expected);
    assert_eq!(hash(table(std::slice::from_ref(&whole)).select(vec![0, 1, 2]).unwrap()), expected);
    for other in [
        table(&[columns("t", vec!["a", "b", "x"])]),
        table(&[columns("u", vec!["a", "b", "c"])]),
        table(&[columns("t", vec!["a", "b"])]),
        table(&[whole]).select(vec![1, 0, 2]).unwrap(),
    ] {
        assert_ne!(hash(other), expected);
    }
}

#[test]
fn a_text_column_names_the_classes() {
    let mut names = StringDictionaryBuilder::<Int32Type>::new();
    names.extend([Some("dog"), Some("cat"), None, Some("dog")]);
    let columns: [(&str, ArrayRef); 2] = [
        ("label", Arc::new(names.finish())),
        ("kind", Arc::new(StringViewArray::from(vec!["b", LONG, "b", "a"]))),
    ];
    let batch = batch(&columns);
    let samples = || table(&[batch.slice(0, 2), batch.slice(2, 2)]);
    let data = block_on(open(samples()).name_default_classes()).unwrap();
    assert_eq!(data.classes, ["cat", "dog"]);
    let mut data = open(samples());
    block_on(data.name_classes("kind")).unwrap();
    assert_eq!(data.classes, ["a", "b", LONG]);
}

#[test]
fn empty_labels_of_selected_rows_are_counted() {
    let texts = StringArray::from(vec!["dog", "", "cat", ""]);
    let columns: [(&str, ArrayRef); 2] =
        [("label", Arc::new(texts)), ("image", Arc::new(BinaryArray::from(vec![&b"x"[..]; 4])))];
    let samples = table(&[batch(&columns)]).select(vec![3, 0]).unwrap();
    let data = block_on(open(samples).name_default_classes()).unwrap();
    let warning = data.unlabeled().unwrap();
    assert!(warning.message().starts_with("1 of 2 samples has no label"), "{warning}");
    assert_eq!(warning.key(), Some("table:0"));
    let labels = process(Arc::clone(&data.samples), data.fetch_labeled()).into_iter();
    assert_eq!(labels.map(|image| image.unwrap().label).collect::<Vec<_>>(), [-1, 1]);
}

#[test]
fn columns_that_hold_no_labels_are_refused() {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)])]);
    for (array, what) in [
        (Arc::new(list) as ArrayRef, "lists"),
        (Arc::new(BooleanArray::from(vec![true])), "booleans"),
        (Arc::new(NullArray::new(1)), "only nulls"),
    ] {
        let mut data = open(table(&[batch(&[("label", array)])]));
        let error = block_on(data.name_classes("label")).unwrap_err();
        assert!(error.message().starts_with(&format!("column \"label\" holds {what}")), "{error}");
    }
}

#[test]
fn class_labels_of_hugging_face_have_names() {
    let metadata = json!({"info": {"features": {
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        "n": {"dtype": "int64", "_type": "Value"},
    }}});
    let batch = batch(&[("label", Arc::new(Int64Array::from(vec![1])))]);
    let named = |metadata: String| {
        let metadata = [("huggingface".to_owned(), metadata)].into();
        let schema = Schema::new_with_metadata(batch.schema().fields().clone(), metadata);
        ArrowDataset::new("table", &schema, vec![batch.clone()]).unwrap()
    };
    let classes = |metadata: String, column: &str| {
        let mut data = open(named(metadata));
        block_on(data.name_classes(column)).unwrap();
        data.classes
    };
    assert_eq!(classes(metadata.to_string(), "label"), ["cat", "dog"]);
    assert!(classes(metadata.to_string(), "n").is_empty());
    for other in ["", "{", "[1]", r#"{"info": {"features": {"label": {"_type": "ClassLabel"}}}}"#] {
        assert!(classes(other.to_owned(), "label").is_empty(), "{other}");
    }
    // Of several tables, the names must be equal.
    let several = |other: String| {
        let tables = [named(metadata.to_string()), named(other)];
        let samples = ArrowDataset::concatenated(&tables).unwrap();
        let lens = samples.shard_lens();
        let mut data = open(samples);
        data.shard_lens = lens;
        block_on(data.name_classes("label")).map(|()| data.classes)
    };
    assert_eq!(several(metadata.to_string()).unwrap(), ["cat", "dog"]);
    let swapped = metadata.to_string().replace(r#"["cat","dog"]"#, r#"["dog","cat"]"#);
    for (other, found) in [(swapped, "\"dog\""), (String::new(), "absent")] {
        let error = several(other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let expected = format!("class 0 is \"cat\" for table:0, but {found} for table:0; set the");
        assert!(error.message().contains(&expected), "{error}");
    }
}

#[test]
fn several_tables_are_one_data_set_if_their_columns_are_equal() {
    let numbers = |numbers: Vec<i64>| batch(&[("n", Arc::new(Int64Array::from(numbers)))]);
    let named = |name: &str, batch: &RecordBatch| {
        ArrowDataset::new(name, &batch.schema(), vec![batch.clone()]).unwrap()
    };
    let tables = [
        named("a", &numbers(vec![1, 2])),
        named("b", &numbers(vec![])),
        named("c", &numbers(vec![3])).select(vec![0, 0]).unwrap(),
    ];
    let all = || ArrowDataset::concatenated(&tables).unwrap();
    assert_eq!((all().len(), all().shard_lens()), (4, vec![2, 0, 2]));
    let keys: Vec<String> = (0..4).map(|at| all().item(at).unwrap().key.to_string()).collect();
    assert_eq!(keys, ["a:0", "a:1", "c:0", "c:1"]);
    assert_eq!(values(all(), "n"), [1, 2, 3, 3].map(FieldValue::Integer));
    let whole = named("d", &numbers(vec![1, 2, 3, 3]));
    assert_eq!(all().content_hash(), whole.content_hash());
    assert!(all().item(4).is_err() && all().select(vec![0]).is_err());
    let texts = batch(&[("n", Arc::new(StringArray::from(vec!["a"])))]);
    let none = RecordBatch::new_empty(Arc::new(Schema::empty()));
    for (other, found) in [(texts, "\"n\" of type Utf8"), (none, "absent")] {
        let tables = [named("a.arrow", &numbers(vec![1])), named("b.arrow", &other)];
        let error = ArrowDataset::concatenated(&tables).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let expected = format!(
            "the columns of a.arrow and b.arrow differ: column 0 is \"n\" of type Int64 and {found}; open"
        );
        assert!(error.message().starts_with(&expected), "{error}");
    }
}

#[test]
fn batches_with_other_columns_and_empty_tables_are_refused() {
    let numbers = batch(&[("n", Arc::new(Int64Array::from(vec![1])))]);
    let texts = batch(&[("n", Arc::new(StringArray::from(vec!["a"])))]);
    let error = ArrowDataset::new("table", &numbers.schema(), vec![numbers.clone(), texts]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let empty = ArrowDataset::new("table", &numbers.schema(), Vec::new()).unwrap();
    let (stores, options) = (StoreRegistry::new(), OpenOptions::default());
    let opened = OpenedDataset::of_samples(empty, &stores, &options);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::NotFound);
    let samples = vec![StoredRecord::new("a").with_known("n", FieldValue::Integer(1))];
    assert_eq!(OpenedDataset::of_samples(samples, &stores, &options).unwrap().shard_lens, [1]);
}
