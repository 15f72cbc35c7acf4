//! Tests of labels that are class names.

// promise of this file: DATA7

use std::sync::Arc;

use spdl_core::{ErrorKind, Labeled, block_on};
#[cfg(feature = "cache")]
use spdl_io::Cache;
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::{FetchLabeled, LocalFetcher};

use super::*;

/// A local tar archive with class names as labels.
fn named() -> (tempfile::TempDir, WebDataset) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.tar");
    let files = [("1.jpg", &b"a"[..]), ("1.cls", b"dog\n"), ("2.jpg", b"b"), ("2.cls", b"0")];
    std::fs::write(&path, archive(files)).unwrap();
    (folder, WebDataset::open(path.to_str().unwrap()).unwrap())
}

fn fetch() -> FetchLabeled {
    FetchLabeled::new(Arc::new(LocalFetcher::new()))
}

#[test]
fn class_names_in_tar_shards_are_labels() {
    let (_folder, samples) = named();
    let read = process(samples, fetch().with_classes(["cat", "dog"]));
    let labels: Vec<_> = read.into_iter().map(|image| image.unwrap().label).collect();
    assert_eq!(labels, [1, 0]);
}

#[test]
fn class_names_without_a_list_of_classes_are_refused() {
    for (fetch, words) in [
        (fetch(), "expected an integer label, found \"dog\": the class names are unknown"),
        (fetch().with_classes(["cat", "cow"]), "neither an integer nor one of the 2 class names"),
    ] {
        let (folder, samples) = named();
        let error = process(samples, fetch).remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let key = folder.path().join("shard.tar:1.cls");
        assert_eq!((error.key(), error.offset()), (key.to_str(), Some(3 * 512)));
        assert!(error.message().contains(words), "{error}");
    }
}

#[cfg(feature = "cache")]
#[test]
fn a_cache_distinguishes_lists_of_classes() {
    let cache = Cache::builder().memory(1 << 20).open().unwrap();
    let files = [("1.jpg", &b"a"[..]), ("1.cls", b"dog")];
    let store = Recording::new([("s.tar", archive(files))]);
    for (classes, label, reads) in
        [(["cat", "dog"], 1, 1), (["dog", "cat"], 0, 1), (["cat", "dog"], 1, 0)]
    {
        let options = WebDatasetOptions::default();
        let samples = block_on(WebDataset::fetch(&store.arc(), "s.tar", &options)).unwrap();
        store.requests();
        let fetch = FetchLabeled::new(store.arc()).with_cache(cache.clone()).with_classes(classes);
        let image = process(samples, fetch).remove(0).unwrap();
        assert_eq!(image, Labeled { value: "a".into(), label });
        let requests = store.requests();
        let read = requests.iter().filter(|it| it.starts_with("ranges ")).count();
        assert_eq!(read, reads, "{classes:?}: {requests:?}");
    }
}

#[cfg(feature = "parquet")]
mod parquet {
    use std::sync::Arc;

    use ::parquet::data_type::{
        BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType,
        Int32Type, Int64Type, Int96, Int96Type,
    };
    use ::parquet::file::metadata::KeyValue;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;
    use spdl_core::{ErrorKind, block_on};
    use spdl_io::datasets::{OpenOptions, OpenedDataset};
    use spdl_io::records::Remedy;
    use spdl_io::stores::{Address, StoreFactory};
    use spdl_io::{Key, SourceOptions, StoreRegistry};

    use super::*;

    /// A file with one row group per list of labels, and an image for each label.
    fn file(groups: &[&[&str]]) -> Vec<u8> {
        file_of("label", groups)
    }

    /// [`file`] with another name of the label column.
    fn file_of(label: &str, groups: &[&[&str]]) -> Vec<u8> {
        let schema =
            format!("message rows {{ required binary image; required binary {label} (UTF8); }}");
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        for labels in groups {
            let mut group = file.next_row_group().unwrap();
            for is_label in [false, true] {
                let text = |label: &&str| match is_label {
                    true => ByteArray::from(*label),
                    false => ByteArray::from(format!("picture of {label}").as_str()),
                };
                let values: Vec<ByteArray> = labels.iter().map(text).collect();
                let mut column = group.next_column().unwrap().unwrap();
                column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
                column.close().unwrap();
            }
            group.close().unwrap();
        }
        file.into_inner().unwrap()
    }

    #[derive(Debug)]
    struct Acme(Recording);

    impl StoreFactory for Acme {
        fn open(&self, _: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
            Ok(self.0.arc())
        }
    }

    fn open(files: &[(&str, Vec<u8>)]) -> (Recording, Result<OpenedDataset>) {
        open_with(files, &OpenOptions::default())
    }

    fn open_with(
        files: &[(&str, Vec<u8>)],
        options: &OpenOptions,
    ) -> (Recording, Result<OpenedDataset>) {
        let store = Recording::new(files.iter().cloned());
        let plain = SourceOptions::default().without_resilience();
        let stores = StoreRegistry::new()
            .register("acme", Arc::new(Acme(store.clone())))
            .with_options("acme:", plain);
        let addresses: Vec<_> = files.iter().map(|(name, _)| format!("acme://x/{name}")).collect();
        let opened = block_on(OpenedDataset::open_with(&addresses, &stores, options));
        (store, opened)
    }

    fn labels(data: &OpenedDataset) -> Vec<i64> {
        let read = process(Arc::clone(&data.samples), data.fetch_labeled());
        read.into_iter().map(|image| image.unwrap().label).collect()
    }

    /// The label of each sample, or `None` if reading it fails.
    fn each_label(data: &OpenedDataset) -> Vec<Option<i64>> {
        let label = |number| {
            let sample = vec![data.samples.item(number).unwrap()];
            process(sample, data.fetch_labeled()).remove(0).ok().map(|image| image.label)
        };
        (0..data.samples.len()).map(label).collect()
    }

    #[test]
    fn the_texts_of_a_label_column_are_sorted_classes() {
        let first = file(&[&["dog", "cat", "dog"], &["Emu"]]);
        let files = [("1.parquet", first), ("2.parquet", file(&[&["ant", "cat", "7a"]]))];
        let (store, data) = open(&files);
        let data = data.unwrap();
        assert_eq!(data.classes, ["7a", "Emu", "ant", "cat", "dog"]);
        // One or two reads per footer, and one read per row group for the labels.
        let requests = store.requests();
        assert!(
            requests.iter().filter(|it| it.starts_with("read ")).count() <= 2 * 2 + 3,
            "{requests:?}"
        );
        assert_eq!(labels(&data), [4, 3, 4, 1, 2, 3, 0]);
    }

    /// A file of two images with the labels 0 and 1, and the names of a `ClassLabel` of Hugging Face.
    fn class_labels(names: Option<[&str; 2]>) -> Vec<u8> {
        let schema = "message rows { required binary image; required int64 label; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        let mut group = file.next_row_group().unwrap();
        let mut images = group.next_column().unwrap().unwrap();
        let image = ByteArray::from("picture");
        images.typed::<ByteArrayType>().write_batch(&[image.clone(), image], None, None).unwrap();
        images.close().unwrap();
        let mut labels = group.next_column().unwrap().unwrap();
        labels.typed::<Int64Type>().write_batch(&[0, 1], None, None).unwrap();
        labels.close().unwrap();
        group.close().unwrap();
        if let Some(names) = names {
            let label = serde_json::json!({"names": names, "_type": "ClassLabel"});
            let features = serde_json::json!({"info": {"features": {"label": label}}});
            let metadata = KeyValue::new("huggingface".to_owned(), features.to_string());
            file.append_key_value_metadata(metadata);
        }
        file.into_inner().unwrap()
    }

    #[test]
    fn class_labels_of_all_files_must_have_the_same_names() {
        let open_with = |others, options: &OpenOptions| {
            let first = class_labels(Some(["cat", "dog"]));
            open_with(&[("1.parquet", first), ("2.parquet", class_labels(others))], options).1
        };
        let open = |others| open_with(others, &OpenOptions::default());
        let data = open(Some(["cat", "dog"])).unwrap();
        assert_eq!(
            (&data.classes[..], labels(&data)),
            (&["cat", "dog"].map(str::to_owned)[..], vec![0, 1, 0, 1])
        );
        for (others, expected) in [
            (
                Some(["dog", "cat"]),
                "class 0 is \"cat\" for 1.parquet:0, but \"dog\" for 2.parquet:0; set",
            ),
            (
                Some(["cat", "emu"]),
                "class 1 is \"dog\" for 1.parquet:0, but \"emu\" for 2.parquet:0; set",
            ),
            (None, "class 0 is \"cat\" for 1.parquet:0, but absent for 2.parquet:0; set"),
        ] {
            let error = open(others).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(expected), "{error}");
            // The caller knows the classes.
            assert!(open_with(others, &OpenOptions::default().external_classes()).is_ok());
        }
    }

    #[test]
    fn integer_texts_are_labels() {
        let (_, data) = open(&[("1.parquet", file(&[&["7", "-1"], &[" 12", "10.0"]]))]);
        let data = data.unwrap();
        assert!(data.classes.is_empty());
        assert_eq!(labels(&data), [7, -1, 12, 10]);
    }

    #[test]
    fn a_mixture_of_names_and_numbers_is_refused() {
        let files =
            [("1.parquet", file(&[&["7", "3.0"], &["1"]])), ("2.parquet", file(&[&["2", "cat"]]))];
        let error = open(&files).1.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.key(), Some("acme://x/2.parquet:1"));
        let words = "label \"cat\" is not an integer, but \"7\" of 1.parquet:0 is: labels must be";
        assert!(error.message().starts_with(words), "{error}");
        let error = open(&[("1.parquet", file(&[&["7", "2.5"]]))]).1.unwrap_err();
        let words = "label \"2.5\" is a number but not an integer";
        assert!(error.message().starts_with(words), "{error}");
    }

    #[test]
    fn texts_with_exponents_are_class_names() {
        let (_, data) = open(&[("1.parquet", file(&[&["0e1", "7e10", "2e5"]]))]);
        let data = data.unwrap();
        assert_eq!(data.classes, ["0e1", "2e5", "7e10"]);
        assert_eq!(labels(&data), [0, 2, 1]);
    }

    #[test]
    fn a_mixture_of_names_and_numbers_is_read_with_external_classes() {
        let files = [("1.parquet", file(&[&["cat", "7"], &["", "dog"]]))];
        for options in [OpenOptions::default(), OpenOptions::default().label_field("label")] {
            assert!(open_with(&files, &options).1.is_err());
            let (_, data) = open_with(&files, &options.external_classes());
            let mut data = data.unwrap();
            assert!(data.classes.is_empty() && data.warnings.is_empty());
            data.classes = ["7", "cat", "dog"].map(Into::into).into();
            // An explicit label field must not be empty.
            let empty = data.unlabeled().map(|_| -1);
            assert_eq!(each_label(&data), [Some(1), Some(0), empty, Some(2)]);
        }
    }

    #[test]
    fn empty_texts_are_not_labels() {
        for (groups, classes, expected, words, first) in [
            (
                &[&["cat", "dog"][..], &["", "cat", " "]][..],
                &["cat", "dog"][..],
                &[0, 1, -1, 0, -1][..],
                "2 of 5 samples have no label and will get the label -1, starting with this one: the",
                "1.parquet:2",
            ),
            (&[&["1", "", "3"]], &[], &[1, -1, 3], "1 of 3 samples has no label", "1.parquet:1"),
            (
                &[&["", ""]],
                &[],
                &[-1, -1],
                "2 of 2 samples have no label and will get the label -1, starting with this one: the",
                "1.parquet:0",
            ),
        ] {
            let files = [("1.parquet", file(groups))];
            let (_, data) = open(&files);
            let data = data.unwrap();
            assert_eq!(data.classes, classes);
            assert_eq!(labels(&data), expected);
            let warning = data.unlabeled().unwrap();
            assert!(warning.message().starts_with(words), "{warning}");
            assert_eq!(warning.key(), Some(first));
            // An explicit label field must not be empty.
            let (_, data) = open_with(&files, &OpenOptions::default().label_field("label"));
            let data = data.unwrap();
            assert!(data.unlabeled().is_none() && data.classes == classes);
            let expected = expected.iter().map(|label| (*label >= 0).then_some(*label));
            assert_eq!(each_label(&data), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn empty_labels_are_suggested_only_if_allowed() {
        let files = [("1.parquet", file(&[&["7", "cat"]]))];
        let advice = "correct the label, or leave it empty if the sample has no label";
        let error = open(&files).1.unwrap_err();
        assert!(error.message().contains(advice), "{error}");
        let named = OpenOptions::default().label_field("label");
        let error = open_with(&files, &named).1.unwrap_err();
        assert!(error.message().contains("correct the label; to use numbers"), "{error}");
    }

    #[cfg(feature = "cache")]
    #[test]
    fn a_cache_distinguishes_whether_empty_labels_are_errors() {
        let cache = Cache::builder().memory(1 << 20).open().unwrap();
        let files = [("1.parquet", file(&[&["1", ""]]))];
        let named = OpenOptions::default().label_field("label");
        for (options, expected) in [(OpenOptions::default(), Some(-1)), (named, None)] {
            let (_, data) = open_with(&files, &options);
            let data = data.unwrap();
            for _ in 0..2 {
                let fetch = data.fetch_labeled().with_cache(cache.clone());
                let second = vec![data.samples.item(1).unwrap()];
                let read = process(second, fetch).remove(0);
                assert_eq!(read.ok().map(|image| image.label), expected);
            }
        }
    }

    /// A file of images and a column `label` of this type.
    fn typed<T: DataType>(label: &str, values: &[T::T]) -> Vec<u8> {
        with_levels::<T>(&format!("required {label};"), values, values.len(), None)
    }

    /// A file of `rows` images and a column with these definition and repetition levels.
    fn with_levels<T: DataType>(
        column: &str,
        values: &[T::T],
        rows: usize,
        levels: Option<[&[i16]; 2]>,
    ) -> Vec<u8> {
        let schema = format!("message rows {{ required binary image; {column} }}");
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let images = vec![ByteArray::from("a"); rows];
        column.typed::<ByteArrayType>().write_batch(&images, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let [definitions, repetitions] = levels.map_or([None; 2], |levels| levels.map(Some));
        column.typed::<T>().write_batch(values, definitions, repetitions).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        file.into_inner().unwrap()
    }

    #[test]
    fn integral_floats_are_labels() {
        let (_, data) = open(&[("1.parquet", typed::<DoubleType>("double label", &[10.0, 2.0]))]);
        assert_eq!(labels(&data.unwrap()), [10, 2]);
        let (_, data) = open(&[("1.parquet", typed::<FloatType>("float label", &[3.0, -0.0]))]);
        assert_eq!(labels(&data.unwrap()), [3, 0]);
    }

    #[test]
    fn a_label_column_of_fractions_is_refused_when_the_data_set_is_opened() {
        let double = |values: &[f64]| typed::<DoubleType>("double label", values);
        let files = [("1.parquet", double(&[1.0, 2.0])), ("2.parquet", double(&[3.0, 0.5, 0.25]))];
        let float = [("1.parquet", typed::<FloatType>("float label", &[0.5, 1.0]))];
        for (files, key) in [(&files[..], "2.parquet:1"), (&float[..], "1.parquet:0")] {
            let error = open(files).1.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.key().unwrap().ends_with(key), "{error}");
            let words = "column \"label\" holds floating-point numbers: label \"0.5\" is a number but \
                         not an integer";
            assert!(error.message().starts_with(words), "{error}");
        }
    }

    #[test]
    fn a_column_of_an_unsupported_type_is_named_with_its_type() {
        let price = typed::<Int32Type>("int32 price (DECIMAL(9, 2))", &[150]);
        let time = typed::<Int96Type>("int96 time", &[Int96::default()]);
        for (file, name, type_name) in
            [(price, "price", "DECIMAL (INT32): decimals are"), (time, "time", "INT96: 96-bit")]
        {
            let data = open(&[("1.parquet", file)]).1.unwrap();
            let error = data.check_field(name).unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("1.parquet")));
            let words = format!("cannot read column {name:?} of type {type_name}");
            assert!(error.message().starts_with(&words), "{error}");
            assert!(error.message().ends_with("not supported"), "{error}");
            let missing = data.check_field("cost").unwrap_err();
            assert!(missing.message().contains("no sample has a field \"cost\""), "{missing}");
        }
    }

    #[test]
    fn a_struct_or_map_is_named_as_unsupported() {
        let of_struct = "required group label { required int32 id; }";
        let of_struct = with_levels::<Int32Type>(of_struct, &[7], 1, None);
        let of_map =
            "required group label (MAP) { repeated group key_value { required int32 key; } }";
        let of_map = with_levels::<Int32Type>(of_map, &[7], 1, Some([&[1], &[0]]));
        for (file, type_name) in [(of_struct, "struct"), (of_map, "map")] {
            let data = open(&[("1.parquet", file)]).1.unwrap();
            let error = data.check_field("label").unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("1.parquet")));
            let message = format!(
                "cannot read column \"label\" of type {type_name}: {type_name}s are not supported"
            );
            assert_eq!(error.message(), message);
        }
    }

    #[test]
    fn label_columns_of_other_types_are_refused_when_the_data_set_is_opened() {
        let list =
            "required group label (LIST) { repeated group list { required int32 element; } }";
        let list = with_levels::<Int32Type>(list, &[7], 1, Some([&[1], &[0]]));
        let null = "optional int32 label (UNKNOWN);";
        let null = with_levels::<Int32Type>(null, &[], 1, Some([&[0], &[0]]));
        let bool = typed::<BoolType>("boolean label", &[true]);
        for (file, words) in [(list, "lists"), (null, "only nulls"), (bool, "booleans")] {
            let error = open(&[("1.parquet", file)]).1.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.key().unwrap().ends_with("1.parquet"), "{error}");
            let start = format!("column \"label\" holds {words}, which are no labels");
            assert!(error.message().starts_with(&start), "{error}");
            assert_eq!(Remedy::of(&error), Some(Remedy::LabelField));
        }
        // 1, 3 and 0.5.
        let half = |values: &[[u8; 2]]| {
            let values: Vec<_> =
                values.iter().map(|it| ByteArray::from(it.to_vec()).into()).collect();
            typed::<FixedLenByteArrayType>("fixed_len_byte_array (2) label (FLOAT16)", &values)
        };
        let (one, three, fraction) = ([0, 0x3C], [0, 0x42], [0, 0x38]);
        let data = open(&[("1.parquet", half(&[one, three]))]).1.unwrap();
        assert_eq!(labels(&data), [1, 3]);
        let error = open(&[("1.parquet", half(&[one, fraction]))]).1.unwrap_err();
        let words = "column \"label\" holds floating-point numbers: label \"0.5\"";
        assert!(error.message().starts_with(words), "{error}");
    }

    #[test]
    fn name_classes_reads_another_field() {
        let (_, data) = open(&[("1.parquet", file(&[&["dog", "cat"]]))]);
        let mut data = data.unwrap();
        // A column of bytes is not a text column.
        block_on(data.name_classes("image")).unwrap();
        assert!(data.classes.is_empty());
        block_on(data.name_classes("label")).unwrap();
        assert_eq!(data.classes, ["cat", "dog"]);
    }

    #[test]
    fn a_missing_label_column_is_a_warning_with_other_columns() {
        let (_, data) = open(&[("1.parquet", file_of("target", &[&["dog", "cat"]]))]);
        let data = data.unwrap();
        let warning = data.unlabeled().unwrap();
        assert!(warning.message().ends_with("; other fields are `target`"), "{warning}");
        assert_eq!(Remedy::of(&warning), Some(Remedy::LabelField));
        assert_eq!(labels(&data), [-1, -1]);
        let (_, data) = open(&[("1.parquet", file(&[&["dog", "cat"]]))]);
        assert!(data.unwrap().unlabeled().is_none());
    }

    #[test]
    fn a_damaged_label_column_is_a_warning() {
        let mut bytes = file(&[&["dog", "cat"]]);
        let at = bytes.windows(3).rposition(|part| part == b"dog").unwrap();
        // In the dictionary, and in the statistics, which are not read.
        let all: Vec<usize> = (0..=at).filter(|at| &bytes[*at..*at + 3] == b"dog").collect();
        all.into_iter().for_each(|at| bytes[at] = 0xFF);
        let (store, data) = open(&[("1.parquet", bytes)]);
        let data = data.unwrap();
        assert!(data.classes.is_empty());
        let [warning] = &data.warnings[..] else { panic!("{:?}", data.warnings) };
        assert_eq!((warning.kind(), warning.key()), (ErrorKind::Corrupt, Some("1.parquet")));
        assert!(warning.message().starts_with("cannot read the class names: row group 0, column"));
        let fetch = FetchLabeled::new(store.arc()).with_label_fields([""; 0]);
        let images = process(Arc::clone(&data.samples), fetch);
        assert_eq!(images.into_iter().map(Result::unwrap).count(), 2);
        assert_eq!(data.samples.item(0).unwrap().key, Key::from("1.parquet:0"));
    }
}
