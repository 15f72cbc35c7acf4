//! Data sets as `ls`, `cat`, `verify` and `stat` read them: tar archives with their manifests, or samples.
//!
//! ```text
//! addresses ──► open ──► DataSet (tar archives, each at its Place, or samples of any other kind)
//!                          ├── indexes, or sample records ──► ls, cat
//!                          └── members, one pass over all bytes ──► verify, stat
//! ```
//!
//! | file | content |
//! |---|---|
//! | `bad`, `bad_list` | one defect; all defects of a pass, as text and JSON |
//! | `found` | what a pass yields: samples, members, defects, ends of archives |
//! | `place` | where an archive is stored: its bytes and the files beside it |
//! | `archive` | a tar archive, its index and its manifest record |
//! | `samples` | samples of data sets that are not local tar archives |
//! | `data_set` | [`DataSet`](data_set::DataSet): archives or samples |
//! | `stored` | tar archives in a store |
//! | `open` | opens a `DataSet` from addresses |
//! | `members` | the pass over all members |
//!
//! `ls` and `cat` read archives in a store as samples, so that only their headers are read.
//!
//! May import: `ui`, `datasets`.

pub(crate) mod archive;
pub(crate) mod bad;
pub(crate) mod bad_list;
pub(crate) mod data_set;
pub(crate) mod found;
pub(crate) mod members;
pub(crate) mod open;
pub(crate) mod place;
pub(crate) mod samples;
mod stored;
