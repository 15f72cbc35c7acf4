//! Data sets that `ls`, `cat`, `verify` and `stat` read: tar archives with their manifests, or
//! samples.
//!
//! ```text
//! addresses ──► open ──► DataSet (tar archives, or samples of any other kind)
//!                          ├── indexes, or sample records ──► ls, cat
//!                          └── scan: one pass over all bytes ──► verify, stat
//! ```
//!
//! | file | content |
//! |---|---|
//! | `media` | facts and damage of audio and video files |
//! | `defect`, `defect_list` | one defect; all defects of a pass, as text and JSON |
//! | `scan_item` | the items of a pass: samples, members, defects, ends of archives |
//! | `location` | where an archive is stored: its bytes and the files beside it |
//! | `archive` | a tar archive, its index and its manifest record |
//! | `samples` | samples of data sets that are not local tar archives |
//! | `data_set` | [`DataSet`](data_set::DataSet): archives or samples |
//! | `remote` | tar archives in a store |
//! | `open` | opens a `DataSet` from addresses |
//! | `scan` | the pass over all members |
//!
//! `ls` and `cat` open archives in a store as samples, which reads only the tar headers or an index
//! file.
//!
//! May import: `ui`, `datasets`.

pub(crate) mod archive;
pub(crate) mod data_set;
pub(crate) mod defect;
pub(crate) mod defect_list;
pub(crate) mod location;
pub(crate) mod media;
pub(crate) mod open;
mod remote;
pub(crate) mod samples;
pub(crate) mod scan;
pub(crate) mod scan_item;
