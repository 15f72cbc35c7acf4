//! Tests of data sets that are made of others: concatenations, mixtures, chosen samples.

use std::collections::BTreeMap;

use proptest::prelude::*;
use spdl_core::source::sampler::Until;
use spdl_core::{ErrorKind, Labeled, Shard, block_on, source::Remainder};
use spdl_io::datasets::{DatasetKind, FileList, OpenedDataset};
use spdl_io::records::{FetchFields, FieldChoice};
use spdl_io::stores::{Address, StoreFactory};
use spdl_io::{FieldValue, SourceOptions, StoreRegistry};

use super::*;

/// Stores that hold `0.png` to `9.png`, whose content is the address.
#[derive(Debug)]
struct Acme;

impl StoreFactory for Acme {
    fn open(&self, address: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        let name = address.authority();
        let objects = (0..10).map(|at| (format!("{at}.png"), format!("{name}/{at}")));
        Ok(Arc::new(MemoryFetcher::from_iter(objects)))
    }
}

/// `count` images of a store, with their numbers as labels.
fn images(store: &str, count: usize) -> OpenedDataset {
    let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
    let names: Vec<String> = (0..count).map(|at| format!("acme://{store}/{at}.png")).collect();
    let labels: Vec<i64> = (0..count as i64).collect();
    OpenedDataset::of_images(&names, Some(&labels), &stores).unwrap()
}

/// Samples in memory with a class name each.
fn named(names: &[&str]) -> OpenedDataset {
    let sample = |name: &&str| {
        StoredRecord::new(*name).with_known("label", FieldValue::Text((*name).into()))
    };
    let samples: Vec<StoredRecord> = names.iter().map(sample).collect();
    let stores = StoreRegistry::new();
    let data = OpenedDataset::of_samples(samples, &stores, &Default::default()).unwrap();
    // Samples of other programs have no groups from which class names are read.
    let mut classes: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    classes.sort();
    classes.dedup();
    data.with_classes(&classes).unwrap()
}

/// The contents and labels of an epoch of several ranks, by rank.
fn read(
    data: &OpenedDataset,
    shuffled: bool,
    seed: u64,
    epoch: u64,
    ranks: u64,
) -> Vec<Vec<String>> {
    let of_rank = |rank| {
        let order = data.sampler(shuffled, seed).unwrap();
        let source = DatasetSource::new(Arc::clone(&data.samples)).sampler(order);
        let pipeline = PipelineBuilder::new(source)
            .async_stage("fetch", data.fetch_labeled())
            .deterministic()
            .epochs(epoch..epoch + 1)
            .shard(Shard::new(rank, ranks).unwrap().remainder(Remainder::Uneven));
        let text = |image: Result<Labeled<Bytes>>| {
            let Labeled { value, label } = image.unwrap();
            format!("{}={label}", String::from_utf8_lossy(&value))
        };
        pipeline.build().unwrap().map(text).collect()
    };
    (0..ranks).map(of_rank).collect()
}

/// A data set, and the contents and labels of its samples.
type Expected = (OpenedDataset, Vec<String>);

fn expression() -> impl Strategy<Value = Expected> {
    let leaf = (prop_oneof![Just("a"), Just("b")], 1..9usize).prop_map(|(store, count)| {
        let names = (0..count).map(|at| format!("{store}/{at}={at}")).collect();
        (images(store, count), names)
    });
    leaf.boxed().prop_recursive(3, 12, 3, |inner| {
        let concat = prop::collection::vec(inner.clone(), 1..4).prop_map(|parts: Vec<Expected>| {
            let (parts, names): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            (OpenedDataset::concatenated(parts).unwrap(), names.concat())
        });
        let chosen = (inner, 0..4, prop::collection::vec(any::<prop::sample::Index>(), 1..6));
        let chosen = chosen.prop_map(|((data, names), how, positions): (Expected, _, Vec<_>)| {
            let positions: Vec<usize> = positions.iter().map(|at| at.index(names.len())).collect();
            let count = positions[0];
            match how {
                0 => (data.take(count as u64 + 1).unwrap(), names[..=count].to_vec()),
                1 => (data.skip(count as u64).unwrap(), names[count..].to_vec()),
                2 => (data.repeated(2).unwrap(), [&names[..], &names[..]].concat()),
                _ => {
                    let at = positions.iter().map(|&at| at as u64);
                    let names = positions.iter().map(|&at| names[at].clone()).collect();
                    (data.at_positions(at).unwrap(), names)
                }
            }
        });
        prop_oneof![concat, chosen]
    })
}

fn counts(names: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    names.iter().for_each(|name| *counts.entry(&**name).or_default() += 1);
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn expressions_have_their_samples_in_any_order_on_any_rank(
        (data, names) in expression(), seed: u64, epoch in 0..3u64, ranks in 1..4u64,
    ) {
        prop_assert_eq!(data.epoch_len().unwrap(), names.len() as u64);
        prop_assert_eq!(&read(&data, false, 0, 0, 1)[0], &names);
        let shuffled = read(&data, true, seed, epoch, 1).concat();
        prop_assert_eq!(counts(&shuffled), counts(&names));
        let of_ranks = read(&data, true, seed, epoch, ranks);
        for (rank, found) in of_ranks.into_iter().enumerate() {
            let own = shuffled.iter().skip(rank).step_by(ranks as usize).cloned();
            prop_assert_eq!(found, own.collect::<Vec<_>>());
        }
    }

    #[test]
    fn mixtures_have_exact_shares(first in 0..6u32, second in 1..6u32, seed: u64) {
        let total = u64::from(first + second) * 1024;
        let parts = [(images("a", 7), f64::from(first)), (images("b", 3), f64::from(second))];
        let mixture = OpenedDataset::mixed(parts, Until::Samples(total)).unwrap();
        prop_assert_eq!(mixture.epoch_len().unwrap(), total);
        let order = mixture.sampler(true, seed).unwrap().epoch(10, 1).unwrap();
        let of_first = (0..total).filter(|&position| order.at(position) < 7).count();
        prop_assert_eq!(of_first as u32, first * 1024);
    }
}

#[test]
fn classes_are_numbered_by_the_common_list() {
    let (one, two) = (named(&["owl", "emu", "owl"]), named(&["cat", "emu"]));
    let labels = |data: &OpenedDataset| data.labels().unwrap();
    assert_eq!((labels(&one), labels(&two)), (vec![1, 0, 1], vec![0, 1]));
    let both = OpenedDataset::concatenated([one.clone(), two.clone()]).unwrap();
    assert_eq!(both.classes, ["emu", "owl", "cat"]);
    assert_eq!(labels(&both), [1, 0, 1, 2, 0]);
    let fetch = both.fetch_labeled();
    let fields = FetchFields::like(&fetch).with_labels_of(&fetch);
    let fields = fields.with("name", FieldChoice::of(["label"]));
    let source = DatasetSource::new(Arc::clone(&both.samples));
    let records = PipelineBuilder::new(source).async_stage("fetch", fields).deterministic();
    let records = records.build().unwrap().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(records.iter().map(|record| record.label).collect::<Vec<_>>(), [1, 0, 1, 2, 0]);
    assert_eq!(records[3].get("name").unwrap().as_str(), Some("cat"));

    // Nested, and chosen by name: the numbers follow the names.
    let owls = one.of_classes(&["owl"], Some(1)).unwrap();
    assert_eq!((&owls.classes[..], labels(&owls)), (&["owl".to_owned()][..], vec![0]));
    let nested = OpenedDataset::concatenated([two.clone(), both, owls]).unwrap();
    assert_eq!(nested.classes, ["cat", "emu", "owl"]);
    assert_eq!(labels(&nested), [0, 1, 2, 1, 2, 0, 1, 2]);
    assert_eq!(nested.parts().len(), 4);
    let other = nested.with_classes(&["owl", "dog", "cat", "emu"]).unwrap();
    assert_eq!(labels(&other), [2, 3, 0, 3, 0, 2, 3, 0]);
    assert_eq!(two.clone().with_classes(&["cat"]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = OpenedDataset::concatenated([two, images("a", 2)]).unwrap_err();
    assert!(error.message().contains("data set 1 has class numbers"), "{error}");
}

#[test]
fn invalid_data_sets_are_refused() {
    let a = || images("a", 4);
    let mixture = || OpenedDataset::mixed([(a(), 1.0), (a(), 2.0)], Until::AllExhausted).unwrap();
    let mixed = |weights: [f64; 2]| {
        OpenedDataset::mixed(weights.map(|weight| (a(), weight)), Until::AllExhausted)
    };
    for made in [
        OpenedDataset::concatenated([]),
        OpenedDataset::concatenated([a(), mixture()]),
        mixture().take(1),
        mixture().skip(1),
        mixture().repeated(2),
        mixture().at_positions([0]),
        a().take(5),
        a().take(0),
        a().skip(4),
        a().skip(9),
        a().at_positions([4]),
        a().at_positions([]),
        a().repeated(0),
        a().of_classes(&["cat"], None),
        a().of_classes(&["7"], None),
        a().of_classes(&[""; 0], Some(0)),
        mixed([0.0, 0.0]),
        mixed([1.0, -1.0]),
        mixed([1.0, f64::NAN]),
    ] {
        assert_eq!(
            made.map(|data| data.samples.len()).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
}

#[test]
fn errors_and_keys_have_the_address_of_their_store() {
    let both = OpenedDataset::concatenated([images("a", 1), images("b", 10)]).unwrap();
    let last = both.samples.item(10).unwrap();
    assert_eq!(both.samples.key(&last).as_deref(), Some("acme://b/9.png"));
    let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
    let missing = OpenedDataset::of_images(&["acme://b/x.png"], None, &stores).unwrap();
    let both = OpenedDataset::concatenated([images("a", 1), missing]).unwrap();
    let source = DatasetSource::new(Arc::clone(&both.samples));
    let images = PipelineBuilder::new(source).async_stage("fetch", both.fetch_labeled());
    let error = images.deterministic().build().unwrap().find_map(|image| image.err()).unwrap();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("acme://b/x.png")));
    let by_key = spdl_core::block_on(both.fetcher.read(&"0.png".into(), None));
    assert_eq!(by_key.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn several_lists_with_the_same_columns_are_one_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let open = |names: &[&str]| {
        let paths: Vec<String> = names.iter().map(|name| path(name)).collect();
        block_on(OpenedDataset::open(&paths, &StoreRegistry::new()))
    };
    write("part-1.csv", "path,label,note\n1.jpg,dog,a\n2.jpg,,b\n");
    write("part-2.csv", "note,path,label\nc,sub/3.jpg,cat\nd,/4.jpg,eel\n");
    for names in [&["part-*.csv"][..], &["part-{1,2}.csv"], &["part-1.csv", "part-2.csv"]] {
        let data = open(names).unwrap();
        assert_eq!(data.kind, DatasetKind::FileList);
        assert_eq!(data.classes, ["cat", "dog", "eel"]);
        let samples: Vec<_> = (0..4).map(|at| data.samples.item(at).unwrap()).collect();
        let of = |sample: &StoredRecord| {
            let key = sample.key.to_string();
            (key.replace(&path(""), ""), sample.label)
        };
        let found: Vec<_> = samples.iter().map(of).collect();
        let expected = [("1.jpg", 1), ("2.jpg", -1), ("sub/3.jpg", 0), ("/4.jpg", 2)];
        assert_eq!(found, expected.map(|(key, label)| (key.to_owned(), label)));
        assert!(samples.iter().all(|sample| sample.names().eq(["file", "note"])));
        assert!(data.is_own_label("label"));
        let warning = data.unlabeled().unwrap();
        assert!(warning.message().starts_with("1 of 4 samples has no label"), "{warning}");
    }
    // The hash of one list is unchanged; that of several depends on their texts and order.
    let hash = |names: &[&str]| open(names).unwrap().samples.content_hash();
    let list = FileList::open(path("part-1.csv")).unwrap();
    assert_eq!(hash(&["part-1.csv"]), list.content_hash());
    assert_ne!(hash(&["part-1.csv", "part-2.csv"]), hash(&["part-2.csv", "part-1.csv"]));
    // A list whose name exists is no pattern.
    write("part-{3}.csv", "1.jpg\n");
    assert_eq!(open(&["part-{3}.csv"]).unwrap().samples.len(), 1);

    write("numbers.csv", "path,label,note\n5.jpg,7,e\n");
    write("other.csv", "path,label\n5.jpg,cat\n");
    for (name, expected) in [("numbers.csv", "are integers"), ("other.csv", "columns label, path")]
    {
        let error = open(&["part-1.csv", name]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(expected), "{error}");
        assert!(error.key().unwrap().ends_with(name), "{error}");
    }
    let error = open(&["missing-*.csv"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
