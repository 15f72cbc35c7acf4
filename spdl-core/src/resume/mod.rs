//! Resuming a run: the checkpoint state, the ledger of outcomes, and recorded orders.
//!
//! | file | what |
//! |---|---|
//! | `ledger` | outcome of every sample of an epoch; checks that every sample has exactly one |
//! | `delivery` | what the consumer received; makes the [`State`] |
//! | `state` | [`State`]: checkpoint state as data, for one rank or for all |
//! | `state_file` | `StateFile`, `StateSaver`: a state in a file, written atomically |
//! | `audit` | [`OrderAudit`]: lists the positions that a set of states has done or misses |
//! | `replay` | [`OrderRecord`]: records the order of a run, to replay it |
//!
//! Imports: `error`, `sync`, `runtime`, `source`, `item`.

pub(crate) mod audit;
pub(crate) mod delivery;
pub(crate) mod ledger;
pub(crate) mod replay;
pub(crate) mod state;
#[cfg(feature = "serde")]
pub(crate) mod state_file;

pub use crate::error::Change;
pub use audit::OrderAudit;
pub use replay::{OrderDifference, OrderRecord};
pub use state::{SampleCounts, State};
#[cfg(feature = "serde")]
pub use state_file::{StateFile, StateLock, StateSaver};
