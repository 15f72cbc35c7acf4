//! What decides the bytes of a written data set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use spdl_core::resume::Change;
use spdl_core::{Error, ErrorKind, Result};

/// So long may the name of a set of shards be, in bytes.
const LONGEST_NAME: usize = 100;

/// What decides how samples become shards, and by what a set that is there already is known again.
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
    /// The size of a shard where none is given: 256 MB, that is 256,000,000 bytes.
    pub const SHARD_BYTES: u64 = 256_000_000;

    /// Shards `name-000000.tar` and so on, of [`SHARD_BYTES`](Self::SHARD_BYTES) at most.
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

    /// The most bytes of a shard, headers and end marker included. A sample that is larger has a shard
    /// of its own. Default: 256 MB.
    #[must_use]
    pub fn shard_bytes(mut self, bytes: u64) -> Self {
        self.shard_bytes = bytes;
        self
    }

    /// The most samples of a shard. Default: as many as fit.
    #[must_use]
    pub fn shard_samples(mut self, samples: u64) -> Self {
        self.shard_samples = Some(samples);
        self
    }

    /// Something else that decides the samples, by name: where they come from, their order, what was
    /// done to them. It is kept in the manifest, and a set that was made with another value is another
    /// set.
    #[must_use]
    pub fn recipe(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.recipe.insert(name.into(), value.to_string());
        self
    }

    /// The names of the classes, by their numbers. Default: none.
    #[must_use]
    pub fn classes<T: Into<String>>(mut self, classes: impl IntoIterator<Item = T>) -> Self {
        self.classes = classes.into_iter().map(Into::into).collect();
        self
    }

    /// Whether a set that was written by another plan, or that is complete, is removed, and written
    /// anew. Only what a [`ShardWriter`](super::ShardWriter) has written is ever removed. Default: no.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// The name of a shard's file.
    pub fn shard_name(&self, number: usize) -> String {
        format!("{}-{number:06}.tar", self.name)
    }

    /// Checks what can be checked before a folder is looked at; [`ShardWriter::open`] does, too.
    ///
    /// [`ShardWriter::open`]: super::ShardWriter::open
    ///
    /// # Errors
    /// `InvalidArgument` for a name that no file can begin with everywhere, and for shards of nothing.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let name = self.name.as_bytes();
        let starts_well = name.first().is_some_and(u8::is_ascii_alphanumeric);
        if !starts_well || name.len() > LONGEST_NAME || !name.iter().all(|&byte| is_plain(byte)) {
            return invalid(format!(
                "the name of shards has 1 to {LONGEST_NAME} letters, digits, and '-', '_' or '.' \
                 behind the first; found {:?}",
                self.name
            ));
        }
        if self.shard_bytes == 0 || self.shard_samples == Some(0) {
            return invalid("a shard holds a byte and a sample at least; found 0".to_owned());
        }
        Ok(())
    }

    /// An error that says in what the plan of the set that is there differs from this one.
    pub(super) fn check_same(&self, there: &ShardPlan) -> Result<()> {
        let mut changes = Vec::new();
        let mut compare = |part: &str, was: Option<String>, is: Option<String>| {
            if was != is {
                changes.push(Change { part: part.to_owned(), was, is });
            }
        };
        let samples = |plan: &ShardPlan| plan.shard_samples.map(|samples| samples.to_string());
        compare("the name", Some(there.name.clone()), Some(self.name.clone()));
        let bytes = |plan: &ShardPlan| Some(plan.shard_bytes.to_string());
        compare("the bytes of a shard", bytes(there), bytes(self));
        compare("the samples of a shard", samples(there), samples(self));
        for part in there
            .recipe
            .keys()
            .chain(self.recipe.keys().filter(|part| !there.recipe.contains_key(*part)))
        {
            compare(part, there.recipe.get(part).cloned(), self.recipe.get(part).cloned());
        }
        if there.classes != self.classes {
            let classes = |plan: &ShardPlan| Some(plan.classes.join(", "));
            compare("classes", classes(there), classes(self));
        }
        if changes.is_empty() {
            return Ok(());
        }
        let differ = changes.iter().map(|Change { part, was, is }| {
            let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("nothing"));
            match part.as_str() {
                "classes" => format!(
                    "there were {} classes, and are {}, or others",
                    there.classes.len(),
                    self.classes.len()
                ),
                part => format!("{part} was {was} and is {is}"),
            }
        });
        let differ = differ.collect::<Vec<_>>().join("; ");
        let message = format!("another set was written here: {differ}");
        Err(Error::new(ErrorKind::InvalidArgument, message).with_changes(changes))
    }
}
