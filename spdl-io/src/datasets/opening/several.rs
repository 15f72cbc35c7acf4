//! Data sets that are made of others: concatenations, mixtures, and chosen samples.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::source::Subset;
use spdl_core::source::sampler::{Concatenated, Mixed, Sampler, Until};
use spdl_core::{Dataset, DatasetSource, Error, ErrorKind, PipelineBuilder, Result};

use super::order::{MixedPart, ReadOrder};
use super::{DatasetKind, OpenedDataset};
use crate::fetch::{Capability, Fetcher, Key, address_in};
use crate::layers::PinnedVersions;
use crate::records::{FetchFields, StoredRecord};

/// The maximum number of class names in a message.
const MAX_LISTED: usize = 20;

/// The class numbers of a data set that takes part in another one.
#[derive(Clone, Debug)]
pub(super) struct Renumbered {
    /// The names of the classes as the data set numbers them.
    pub(super) names: Vec<String>,
    /// The number of each in the list [`OpenedDataset::classes`], or -1.
    pub(super) others: Arc<[i64]>,
}

/// # Making data sets of others
///
/// The results are data sets like others: they are shuffled, divided among ranks, and resumed by positions.
impl OpenedDataset {
    /// The samples of several data sets, one data set after the other. They may be of different kinds, in different
    /// stores.
    ///
    /// If the lists of classes differ, the new list is that of the first data set, followed by the further names of
    /// the other data sets, and labels become numbers in this list. [`StoredRecord::part`] is the number of
    /// the sample's data set in [`parts`](OpenedDataset::parts).
    ///
    /// ```
    /// use spdl_core::{Dataset, DatasetSource, PipelineBuilder, Result};
    /// use spdl_io::StoreRegistry;
    /// use spdl_io::datasets::OpenedDataset;
    /// # let folder = tempfile::tempdir()?;
    /// # for path in ["photos/cat/1.jpg", "photos/dog/1.jpg", "more/dog/1.jpg", "more/owl/1.jpg"] {
    /// #     let path = folder.path().join(path);
    /// #     std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
    /// #     std::fs::write(path, "not really")?;
    /// # }
    /// # let address = |name: &str| folder.path().join(name);
    /// # #[cfg(feature = "local")] {
    /// let stores = StoreRegistry::new();
    /// let open = |name: &str| spdl_core::block_on(OpenedDataset::open(&[address(name)], &stores));
    /// // The folder `photos` has the classes cat and dog, and `more` has dog and owl.
    /// let both = OpenedDataset::concatenated([open("photos")?, open("more")?])?;
    /// assert_eq!((both.samples.len(), &both.classes[..]), (4, &["cat", "dog", "owl"].map(String::from)[..]));
    ///
    /// let images = PipelineBuilder::new(DatasetSource::new(both.samples.clone()))
    ///     .async_stage("fetch", both.fetch_labeled())
    ///     .deterministic();
    /// let labels = images.build()?.map(|image| Ok(image?.label)).collect::<Result<Vec<_>>>()?;
    /// assert_eq!(labels, [0, 1, 1, 2]);
    /// # }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if there is no data set, if one of them is empty or a [mixture](OpenedDataset::mixed), or if
    /// one has class names and another one has labels that are numbers without names.
    pub fn concatenated(parts: impl IntoIterator<Item = OpenedDataset>) -> Result<Self> {
        let parts: Vec<OpenedDataset> = parts.into_iter().collect();
        if let Some(part) = parts.iter().find(|part| part.order.is_mixture()) {
            return Err(part.mixture_error("concatenate"));
        }
        let orders = parts.iter().map(|part| (part.samples.len(), part.order.clone()));
        let order = ReadOrder::of_parts(orders.collect());
        OpenedDataset::joined(parts, order)
    }

    /// A mixture of several data sets, each with its weight. Mixtures can be mixed again.
    ///
    /// [`sampler`](OpenedDataset::sampler) returns the order: see [`Mixture`](spdl_core::source::sampler::Mixture) for
    /// the proportions, and [`Until`] for the length of an epoch. A smaller data set is repeated, each time
    /// in a new order. A data set of weight 0 is not read. For classes, see
    /// [`concatenated`](OpenedDataset::concatenated).
    ///
    /// ```
    /// use spdl_core::source::sampler::Until;
    /// use spdl_core::{DatasetSource, PipelineBuilder};
    /// use spdl_io::StoreRegistry;
    /// use spdl_io::datasets::OpenedDataset;
    /// # #[cfg(feature = "local")] {
    /// let stores = StoreRegistry::new();
    /// let web = OpenedDataset::of_images(&["1.jpg", "2.jpg", "3.jpg"], None, &stores)?;
    /// let books = OpenedDataset::of_images(&["a.jpg"], None, &stores)?;
    /// // Three pages for each book, until every page was read.
    /// let mixture = OpenedDataset::mixed([(web, 3.0), (books, 1.0)], Until::AllExhausted)?;
    /// assert_eq!(mixture.epoch_len()?, 4);
    /// let source = DatasetSource::new(mixture.samples.clone()).sampler(mixture.sampler(true, 7)?);
    /// let names = PipelineBuilder::new(source).map("key", |sample| Ok(sample.key.to_string()));
    /// assert_eq!(names.build()?.count(), 4);
    /// # }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`concatenated`](OpenedDataset::concatenated) and of
    /// [`Mixture::new`](spdl_core::source::sampler::Mixture::new).
    pub fn mixed(
        parts: impl IntoIterator<Item = (OpenedDataset, f64)>,
        until: Until,
    ) -> Result<Self> {
        let (parts, weights): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let mixed = parts.iter().zip(weights).map(|(part, weight)| MixedPart {
            items: part.samples.len(),
            weight,
            order: part.order.clone(),
        });
        let order = ReadOrder::Mixed(mixed.collect(), until);
        let mixture = OpenedDataset::joined(parts, order)?;
        mixture.sampler(false, 0)?;
        Ok(mixture)
    }

    fn joined(parts: Vec<OpenedDataset>, order: ReadOrder) -> Result<Self> {
        if let Some(number) = parts.iter().position(|part| part.samples.is_empty()) {
            return Err(invalid(format!("data set {number} is empty")));
        }
        let parts = with_common_classes(parts)?;
        let Some(first) = parts.first().cloned() else {
            return Err(invalid("there is no data set to concatenate or mix".to_owned()));
        };
        let (mut firsts, mut flat) = (Vec::new(), Vec::new());
        for part in &parts {
            firsts.push(flat.len() as u32);
            flat.extend(part.parts().iter().cloned());
        }
        let samples = Joined {
            samples: Concatenated::new(parts.iter().map(|part| Arc::clone(&part.samples)))?,
            firsts,
            stores: flat.iter().map(|part| part.store.clone()).collect(),
        };
        let mut seen = HashSet::new();
        let warnings = parts.iter().flat_map(|part| part.warnings.iter().cloned());
        let warnings = warnings.filter(|warning| seen.insert(warning.to_string())).collect();
        let classes = parts.iter().find(|part| !part.classes.is_empty());
        let is_one_store = flat.iter().all(|part| part.store == first.store);
        Ok(OpenedDataset {
            kind: DatasetKind::Several,
            samples: Arc::new(samples),
            fetcher: match is_one_store {
                true => Arc::clone(&first.fetcher),
                false => Arc::new(SeveralStores),
            },
            is_local: flat.iter().all(|part| part.is_local),
            classes: classes.map(|part| part.classes.clone()).unwrap_or_default(),
            shard_lens: Vec::new(),
            truncated_shards: parts.iter().map(|part| part.truncated_shards).sum(),
            missing_samples: parts.iter().map(|part| part.missing_samples).sum(),
            warnings,
            store: None,
            versions: PinnedVersions::default(),
            path_column: None,
            own_labels: Vec::new(),
            has_named_columns: false,
            box_fields: &[],
            unlabeled: None,
            parts: flat.into(),
            order,
            part_bytes: None,
            renumbered: None,
            ..first
        })
    }

    /// The data sets of which this one was made; only this one if it was not made of several.
    ///
    /// Nested concatenations and mixtures are flattened. If samples were chosen later, `samples` of a part are all of its
    /// samples.
    pub fn parts(&self) -> &[OpenedDataset] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }

    /// The first `samples` samples.
    ///
    /// # Errors
    /// `InvalidArgument` if there are fewer samples, if `samples` is 0, and for a [mixture](OpenedDataset::mixed).
    pub fn take(self, samples: u64) -> Result<Self> {
        self.chosen("take", |all| Subset::range(all, 0..samples))
    }

    /// All samples except the first `samples`.
    ///
    /// # Errors
    /// `InvalidArgument` if no sample remains, and for a [mixture](OpenedDataset::mixed).
    pub fn skip(self, samples: u64) -> Result<Self> {
        let len = self.samples.len();
        self.chosen("skip", |all| Subset::range(all, samples..len.max(samples)))
    }

    /// The samples at these positions, in this order. A position may occur several times.
    ///
    /// # Errors
    /// `InvalidArgument` if a position is out of range, if there is no position, and for a
    /// [mixture](OpenedDataset::mixed).
    pub fn at_positions(self, positions: impl IntoIterator<Item = u64>) -> Result<Self> {
        self.chosen("choose", |all| Subset::at(all, positions))
    }

    /// Each sample `times` times in an epoch.
    ///
    /// # Errors
    /// `InvalidArgument` if `times` is 0, and for a [mixture](OpenedDataset::mixed).
    pub fn repeated(self, times: u64) -> Result<Self> {
        let len = self.samples.len();
        self.chosen("repeat", |all| Subset::range(all, 0..len)?.repeated(times))
    }

    fn chosen(
        self,
        verb: &str,
        choose: impl FnOnce(
            Arc<dyn Dataset<Item = StoredRecord>>,
        ) -> Result<Subset<Arc<dyn Dataset<Item = StoredRecord>>>>,
    ) -> Result<Self> {
        if self.order.is_mixture() {
            return Err(self.mixture_error(verb));
        }
        let subset = choose(Arc::clone(&self.samples))?;
        if subset.is_empty() {
            return Err(invalid(format!("none of {} samples is left", self.samples.len())));
        }
        let runs: Vec<_> = subset.runs().collect();
        let order = self.order.of_runs(&runs, subset.times());
        Ok(OpenedDataset { samples: Arc::new(subset), shard_lens: Vec::new(), order, ..self })
    }

    fn mixture_error(&self, verb: &str) -> Error {
        invalid(format!(
            "cannot {verb} samples of a mixture, which has no fixed samples; choose samples of the mixed data sets, or \
             end the epochs of the mixture after a number of samples"
        ))
    }

    /// The samples of these classes, in the order of the data set, and at most the first `at_most` of each class.
    ///
    /// The classes of the result are `names`, numbered in this order. If `names` is empty, samples of all classes are
    /// chosen, and classes keep their numbers. If the data set has no class names, `names` are class numbers, and labels
    /// do not change. Samples without a label are left out.
    ///
    /// The call blocks while it reads the label of each sample. Labels of folders, lists, and tables in memory are known
    /// without a read. For labels in members of tar shards, there is a read for each sample.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not a class, for a class without samples, if `at_most` is 0, and for a
    /// [mixture](OpenedDataset::mixed). The errors of reading the labels.
    pub fn of_classes(self, names: &[impl AsRef<str>], at_most: Option<u64>) -> Result<Self> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let number = |name: &&str| {
            let known = self.classes.iter().position(|class| class == name).map(|at| at as i64);
            let number = name.parse().ok().filter(|_| self.classes.is_empty());
            known.or(number).ok_or_else(|| self.unknown_class(name))
        };
        let wanted = names.iter().map(number).collect::<Result<Vec<i64>>>()?;
        let mut counts: HashMap<i64, u64> = wanted.iter().map(|&label| (label, 0)).collect();
        let mut positions = Vec::new();
        for (position, label) in (0..).zip(self.labels()?) {
            let count = match counts.get_mut(&label) {
                Some(count) => count,
                None if names.is_empty() && label >= 0 => counts.entry(label).or_default(),
                None => continue,
            };
            if at_most.is_none_or(|most| *count < most) {
                *count += 1;
                positions.push(position);
            }
        }
        for (name, label) in names.iter().zip(&wanted) {
            if counts.get(label) == Some(&0) {
                return Err(invalid(format!("no sample has the class {name:?}")));
            }
        }
        let chosen = self.at_positions(positions)?;
        if names.is_empty() || chosen.classes.is_empty() {
            return Ok(chosen);
        }
        let names = names.into_iter().map(str::to_owned).collect();
        Ok(chosen.renumbered_to(names))
    }

    /// The class number of each sample; -1 for samples without a label. The call blocks: see
    /// [`of_classes`](OpenedDataset::of_classes).
    ///
    /// # Errors
    /// The errors of reading the labels.
    pub fn labels(&self) -> Result<Vec<i64>> {
        let fetch = self.fetch_labeled();
        let mut labels = Vec::new();
        for index in 0..self.samples.len() {
            let sample = self.samples.item(index)?;
            let field = fetch.fields_of(&sample).1;
            let Some(label) = fetch.known_label(&sample, field.as_deref()) else { break };
            labels.push(label);
        }
        if labels.len() as u64 == self.samples.len() {
            return Ok(labels);
        }
        let fetch = FetchFields::like(&fetch).with_labels_of(&fetch);
        PipelineBuilder::new(DatasetSource::new(Arc::clone(&self.samples)))
            .async_stage("labels", fetch)
            .deterministic()
            .build()?
            .map(|sample| Ok(sample?.label))
            .collect()
    }

    /// Numbers the classes as in the list `names`, which must contain the classes of the data set.
    ///
    /// Use a common list if data sets are used in turn, for example training and validation data.
    ///
    /// # Errors
    /// `InvalidArgument` if a class of the data set is not in the list.
    pub fn with_classes(self, names: &[impl AsRef<str>]) -> Result<Self> {
        let names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
        let known: HashSet<&String> = names.iter().collect();
        if let Some(other) = self.classes.iter().find(|class| !known.contains(class)) {
            return Err(invalid(format!(
                "the data set has a class {other:?}, which is not in the list of classes"
            )));
        }
        Ok(self.renumbered_to(names))
    }

    /// Numbers the classes as in the list `names`. Classes that are not in it become -1.
    fn renumbered_to(self, names: Vec<String>) -> Self {
        if self.classes == names {
            return self;
        }
        let numbers: HashMap<&str, i64> = names.iter().map(String::as_str).zip(0..).collect();
        let number = |class: &String| numbers.get(class.as_str()).copied().unwrap_or(-1);
        let others: Arc<[i64]> = self.classes.iter().map(number).collect();
        let is_same = self.classes.iter().zip(&names).all(|(old, new)| old == new);
        match is_same && self.classes.len() <= names.len() {
            true => OpenedDataset { classes: names, ..self },
            false => self.renumbered(&others, names),
        }
    }

    fn renumbered(self, others: &Arc<[i64]>, classes: Vec<String>) -> Self {
        let parts = self.parts.iter().map(|part| part.clone().renumbered(others, classes.clone()));
        let parts = parts.collect();
        let convert = |number: i64| match usize::try_from(number) {
            Ok(number) => others.get(number).copied().unwrap_or(-1),
            Err(_) => number,
        };
        let renumbered = match &self.renumbered {
            Some(before) => Renumbered {
                names: before.names.clone(),
                others: before.others.iter().map(|number| convert(*number)).collect(),
            },
            None => Renumbered { names: self.classes.clone(), others: Arc::clone(others) },
        };
        let samples = Relabeled { samples: self.samples, others: Arc::clone(others) };
        OpenedDataset {
            samples: Arc::new(samples),
            classes,
            parts,
            renumbered: Some(Arc::new(renumbered)),
            ..self
        }
    }

    fn unknown_class(&self, name: &str) -> Error {
        let known = self.classes.len();
        let listed: Vec<String> =
            self.classes.iter().take(MAX_LISTED).map(|name| format!("{name:?}")).collect();
        invalid(match known {
            0 => format!("the data set has no class names, and {name:?} is not a class number"),
            _ if known <= MAX_LISTED => {
                format!("unknown class {name:?}: the classes are {}", listed.join(", "))
            }
            _ => format!(
                "unknown class {name:?}: the {known} classes begin with {}",
                listed.join(", ")
            ),
        })
    }

    /// The order of epochs, shuffled with `seed` or in the order of the data set.
    ///
    /// - Parquet files are shuffled by row groups and within windows of 10,000 samples, because row groups are read as
    ///   a whole. If only some of several concatenated data sets are Parquet files, the shuffled data
    ///   sets are mixed in proportion to their sizes, so that an epoch has each sample once.
    /// - Tar shards that are [read sequentially](super::OpenOptions::sequential) are shuffled by shards, and within
    ///   windows that the memory allows.
    /// - [Mixtures](OpenedDataset::mixed) are shuffled by part, or keep the order of each part. The seed also determines
    ///   the order of the parts.
    /// - In other data sets, all samples are shuffled together.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of samples exceeds the limits of the sampler.
    pub fn sampler(&self, shuffled: bool, seed: u64) -> Result<Arc<dyn Sampler>> {
        self.order.sampler(shuffled, seed)
    }

    /// The number of samples of the windows within which [`sampler`](OpenedDataset::sampler) shuffles the samples. `None`
    /// if all samples are shuffled together, and for several data sets.
    pub fn shuffle_window(&self) -> Option<u64> {
        self.order.window()
    }

    /// The number of samples in an epoch: all samples, except for a [mixture](OpenedDataset::mixed).
    ///
    /// # Errors
    /// The errors of [`sampler`](OpenedDataset::sampler).
    pub fn epoch_len(&self) -> Result<u64> {
        let len = self.samples.len();
        Ok(self.sampler(false, 0)?.epoch_len(len).unwrap_or(len))
    }

    /// Whether the samples have labels that are numbers without class names.
    fn has_numbers_as_labels(&self) -> bool {
        let fetch = self.fetch_labeled();
        self.classes.is_empty()
            && self
                .first_samples()
                .any(|sample| sample.label >= 0 || fetch.fields_of(&sample).1.is_some())
    }
}

/// Numbers the classes of all data sets by one list.
fn with_common_classes(parts: Vec<OpenedDataset>) -> Result<Vec<OpenedDataset>> {
    let mut lists = parts.iter().map(|part| &part.classes);
    let first = lists.next();
    if lists.all(|list| Some(list) == first) {
        return Ok(parts);
    }
    if let Some(number) = parts.iter().position(OpenedDataset::has_numbers_as_labels) {
        return Err(invalid(format!(
            "data set {number} has class numbers, but other data sets have class names, so labels would have different \
             meanings; specify the class names of all data sets"
        )));
    }
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for name in parts.iter().flat_map(|part| &part.classes) {
        if seen.insert(name.as_str()) {
            names.push(name.clone());
        }
    }
    Ok(parts.into_iter().map(|part| part.renumbered_to(names.clone())).collect())
}

/// The samples of several data sets.
#[derive(Debug)]
struct Joined {
    samples: Concatenated<StoredRecord>,
    /// The number of the first of the flattened parts of each data set.
    firsts: Vec<u32>,
    /// The store of each of the flattened parts.
    stores: Vec<Option<Arc<str>>>,
}

impl Dataset for Joined {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.samples.len()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let Mixed { dataset, item } = self.samples.item(index)?;
        Ok(StoredRecord { part: self.firsts[dataset] + item.part, ..item })
    }

    fn content_hash(&self) -> Option<u64> {
        self.samples.content_hash()
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        let store = self.stores.get(item.part as usize)?.as_deref();
        Some(address_in(store, &item.key.display_name()).into())
    }
}

/// Refuses to read keys of several stores, which may be equal.
#[derive(Debug)]
struct SeveralStores;

#[async_trait]
impl Fetcher for SeveralStores {
    fn capability(&self) -> Capability {
        Capability::default()
    }

    async fn read(&self, key: &Key, _: Option<Range<u64>>) -> Result<Bytes> {
        let message = "cannot read by key: the data sets are in several stores; use the stage `fetch_labeled`, or \
                       `FetchFields::like` it";
        Err(Error::new(ErrorKind::Unsupported, message).with_key(key.display_name()))
    }
}

/// Samples whose assigned labels are converted.
#[derive(Debug)]
struct Relabeled {
    samples: Arc<dyn Dataset<Item = StoredRecord>>,
    others: Arc<[i64]>,
}

impl Dataset for Relabeled {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.samples.len()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let item = self.samples.item(index)?;
        Ok(match usize::try_from(item.label) {
            Ok(label) => {
                let label = self.others.get(label).copied().unwrap_or(-1);
                item.with_label(label)
            }
            Err(_) => item,
        })
    }

    fn content_hash(&self) -> Option<u64> {
        let mut hash = crate::datasets::common::ContentHash::new("classes");
        hash.number(self.samples.content_hash().unwrap_or_else(|| self.samples.len()));
        self.others.iter().for_each(|number| hash.number(*number as u64));
        Some(hash.finish())
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        self.samples.key(item)
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
