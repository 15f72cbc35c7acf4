//! [`ShardPlan`]: the settings that determine the bytes of a written data set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use spdl_core::resume::Change;
use spdl_core::{Error, ErrorKind, Result};

/// Maximum length of the name of a data set in bytes.
const MAX_NAME_BYTES: usize = 100;

/// The settings of a written data set. To continue a data set with finished shards, the plan must
/// be the same, except for [`overwrite`](ShardPlan::overwrite).
///
/// ```
/// use spdl_io::shards::ShardPlan;
/// let plan = ShardPlan::new("train").shard_bytes(512_000_000).classes(["cat", "dog"]);
/// assert_eq!(plan.shard_name(7), "train-000007.tar");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardPlan {
    pub(super) name: String,
    pub(super) shard_bytes: u64,
    pub(super) shard_samples: Option<u64>,
    pub(super) recipe: BTreeMap<String, String>,
    pub(super) classes: Vec<String>,
    #[serde(skip)]
    pub(super) overwrite: bool,
}

impl ShardPlan {
    /// Default size of a shard: 256 MB (256,000,000 bytes).
    pub const SHARD_BYTES: u64 = 256_000_000;

    /// Creates a plan for shards `name-000000.tar` and so on, with default settings.
    pub fn new(name: impl Into<String>) -> Self {
        ShardPlan {
            name: name.into(),
            shard_bytes: ShardPlan::SHARD_BYTES,
            shard_samples: None,
            recipe: BTreeMap::new(),
            classes: Vec::new(),
            overwrite: false,
        }
    }

    /// Sets the maximum size of a shard in bytes, at least 1, including headers and end marker. A
    /// larger sample gets a separate shard. Default: 256 MB.
    #[must_use]
    pub fn shard_bytes(mut self, bytes: u64) -> Self {
        self.shard_bytes = bytes;
        self
    }

    /// Sets the maximum number of samples of a shard, at least 1. Default: unlimited.
    #[must_use]
    pub fn shard_samples(mut self, samples: u64) -> Self {
        self.shard_samples = Some(samples);
        self
    }

    /// Adds a named setting that determines the samples: their source, order or preprocessing.
    ///
    /// The manifest stores the setting. A plan with another value of the setting cannot continue
    /// the data set.
    #[must_use]
    pub fn recipe(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.recipe.insert(name.into(), value.to_string());
        self
    }

    /// Sets the class names in the order of their numbers. Default: none.
    #[must_use]
    pub fn classes<T: Into<String>>(mut self, classes: impl IntoIterator<Item = T>) -> Self {
        self.classes = classes.into_iter().map(Into::into).collect();
        self
    }

    /// Allows the writer to replace a complete data set, or one with another plan. Only files with
    /// names that a [`ShardWriter`](super::ShardWriter) uses for the old or the new data set are
    /// removed. Default: `false`.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Returns the file name of a shard.
    pub fn shard_name(&self, number: usize) -> String {
        format!("{}-{number:06}.tar", self.name)
    }

    /// Checks the settings. [`ShardWriter::open`] calls this method.
    ///
    /// [`ShardWriter::open`]: super::ShardWriter::open
    ///
    /// # Errors
    /// `InvalidArgument` if the name is not portable as a file name, or a limit is 0.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let name = self.name.as_bytes();
        let starts_well = name.first().is_some_and(u8::is_ascii_alphanumeric);
        if !starts_well || name.len() > MAX_NAME_BYTES || !name.iter().all(|&byte| is_plain(byte)) {
            return invalid(format!(
                "invalid shard name {:?}: expected 1 to {MAX_NAME_BYTES} ASCII characters: a \
                 letter or digit, followed by letters, digits, '-', '_' or '.'",
                self.name
            ));
        }
        if self.shard_bytes == 0 || self.shard_samples == Some(0) {
            return invalid("shard_bytes and shard_samples must be at least 1; found 0".to_owned());
        }
        Ok(())
    }

    /// Returns an error that lists the differences if the plan of an existing data set differs.
    pub(super) fn check_same(&self, existing: &ShardPlan) -> Result<()> {
        let mut changes = Vec::new();
        let mut compare = |part: &str, was: Option<String>, is: Option<String>| {
            if was != is {
                changes.push(Change { part: part.to_owned(), was, is });
            }
        };
        let samples = |plan: &ShardPlan| plan.shard_samples.map(|samples| samples.to_string());
        compare("the name", Some(existing.name.clone()), Some(self.name.clone()));
        let bytes = |plan: &ShardPlan| Some(plan.shard_bytes.to_string());
        compare("the size limit of shards in bytes", bytes(existing), bytes(self));
        compare("the sample limit of shards", samples(existing), samples(self));
        for part in existing
            .recipe
            .keys()
            .chain(self.recipe.keys().filter(|part| !existing.recipe.contains_key(*part)))
        {
            compare(part, existing.recipe.get(part).cloned(), self.recipe.get(part).cloned());
        }
        if existing.classes != self.classes {
            let classes = |plan: &ShardPlan| Some(plan.classes.join(", "));
            compare("classes", classes(existing), classes(self));
        }
        if changes.is_empty() {
            return Ok(());
        }
        let differ = changes.iter().map(|Change { part, was, is }| {
            let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("nothing"));
            match part.as_str() {
                "classes" => format!(
                    "classes differ ({} before, {} now)",
                    existing.classes.len(),
                    self.classes.len()
                ),
                part => format!("{part} was {was} and is {is}"),
            }
        });
        let differ = differ.collect::<Vec<_>>().join("; ");
        let message = format!("the folder holds a data set with different settings: {differ}");
        Err(Error::new(ErrorKind::InvalidArgument, message).with_changes(changes))
    }
}
