//! Statistics of pipelines and epochs for Python.
//!
//! | file | content |
//! |---|---|
//! | `dict` | statistics as Python dictionaries |
//! | `diagnosis` | CPU times and the GIL, which the diagnosis of the engine uses |
//! | `monitor` | a view of an epoch or a pipeline that does not keep it running |
//! | `intervals` | statistics of each interval, for a reporting thread |
//! | `setting_names` | the arguments that change settings, for the advice of a diagnosis |
//! | `pace` | counts of items over time |
//!
//! May import: `interop`.

mod diagnosis;
mod dict;
mod intervals;
mod monitor;
mod pace;
mod setting_names;

pub(crate) use diagnosis::{ThreadTimes, add_cpu_time, external_times};
pub(crate) use dict::{address_in, dropped, has_gil};
pub(crate) use intervals::Intervals;
pub(crate) use monitor::{HasState, Monitor, state_to_json};
pub(crate) use setting_names::{of_loader, of_pipeline};
