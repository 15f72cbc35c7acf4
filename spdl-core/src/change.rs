//! What of a pipeline is not as it was when its state was taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A part of a pipeline that is not what it was when a state was taken, or of whatever else was made
/// under other conditions: one of [`Error::changes`](crate::Error::changes).
///
/// Displayed, it reads `PART was VALUE, is VALUE`, with `absent` for what is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which part: of a pipeline `seed`, or a name of [`State::fingerprint`](crate::State::fingerprint),
    /// which is what [`State::allow_change`](crate::State::allow_change) takes.
    pub part: String,
    /// What it was; `None` where there was no such part.
    pub was: Option<String>,
    /// What it is; `None` where there is no such part any more.
    pub is: Option<String>,
}

impl Change {
    /// All between two fingerprints, by the names of parts in ascending order.
    pub(crate) fn between<'a>(
        was: &'a BTreeMap<String, String>,
        is: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = Change> + 'a {
        let parts: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        parts.into_iter().filter(|part| was.get(*part) != is.get(*part)).map(|part| Change {
            part: part.clone(),
            was: was.get(part).cloned(),
            is: is.get(part).cloned(),
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { part, was, is } = self;
        let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("absent"));
        write!(f, "{part} was {was}, is {is}")
    }
}
