//! Between Rust and the Python interpreter: the GIL, signals, forks, exceptions, arrays.
//!
//! | file | content |
//! |---|---|
//! | `wait` | waits without the GIL that handle Ctrl-C; calls into Python that stop at finalization |
//! | `fork` | detection of forked child processes |
//! | `parent` | the end of this process after its parent was killed |
//! | `error` | errors as Python exceptions, and Python exceptions as causes of errors |
//! | `array` | arrays that NumPy reads and writes in place |
//! | `tuning` | the argument `tune`, and the settings of a run |
//! | `warnings` | log messages; warnings about pipelines that make no progress, or whose consumer starves |
//! | `failure_policy` | failure policies from Python; a summary of dropped images |
//!
//! The lowest module of this crate. `interop` may import only the other crates of the workspace.

pub(crate) mod array;
pub(crate) mod error;
pub(crate) mod failure_policy;
pub(crate) mod fork;
pub(crate) mod parent;
pub(crate) mod tuning;
pub(crate) mod wait;
pub(crate) mod warnings;
