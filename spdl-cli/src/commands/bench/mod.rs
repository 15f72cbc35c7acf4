//! `spdl bench`: measures how fast a data set is loaded as training batches, and finds the bottleneck.
//! `spdl profile` and `spdl tune` measure the same pipeline for a limited time.
//!
//! ```text
//! arguments ──► run ──► outcome ──► summary (text or JSON) ──► standard output
//!                │         └──────► report, charts (HTML) ──► a file
//!                ├── images     the data set, and a cache
//!                ├── delivery   takes the batches; checksum
//!                ├── checkpoints  saves checkpoint states; resume reads them
//!                └── snapshots  counters over time, for the charts
//! ```
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | builds the pipeline and measures it |
//! | `spec` | the fields of `--spec` |
//! | `shorthand` | the options for video and audio, as fields of `--spec` |
//! | `images` | the source of the pipeline: data set, order and cache |
//! | `delivery` | the consumer: counts batches, simulates training steps |
//! | `checksum` | the checksum over all delivered elements |
//! | `resume`, `checkpoints` | reads and writes checkpoint states |
//! | `snapshots`, `counter_history` | counters over time, and rates computed from them |
//! | `baseline`, `comparison` | compares the rates with those of an earlier run |
//! | `machine` | CPU time and memory of the process; the machine |
//! | `outcome` | everything that a run measured |
//! | `verdict` | the bottleneck of the run, and what would help |
//! | `summary` | the result as text and as JSON |
//! | `report`, `charts` | the result as an HTML page |
//! | `rounds` | takes batches for a limited time, with the noise of their rate |
//! | `profile` | `spdl profile` |
//! | `tune`, `protocol` | `spdl tune`: its command line, and its line protocol |
//! | `settings` | the settings that `spdl tune` changes |

pub(super) mod arguments;
mod baseline;
mod charts;
mod checkpoints;
mod checksum;
mod comparison;
mod counter_history;
mod delivery;
mod images;
mod machine;
pub(super) mod outcome;
pub(super) mod profile;
mod protocol;
mod report;
mod resume;
mod rounds;
pub(super) mod run;
mod settings;
mod shorthand;
mod snapshots;
mod spec;
mod summary;
pub(super) mod tune;
mod verdict;
