//! What the user sees: formatted numbers, text tables, HTML pages, messages, and the error line.
//!
//! | file | content |
//! |---|---|
//! | `format` | numbers, durations, sizes and names as text |
//! | `advice` | recommends an option that avoids an error of a library |
//! | `changed_options` | which option changed since a checkpoint, and the `--allow-change` names |
//! | `stderr`, `stdout` | messages and results; a closed pipe is no error |
//! | `failure` | [`Failure`](failure::Failure): the error line and the exit code |
//! | `progress` | the progress bar |
//! | `table` | tables of aligned columns |
//! | `html` | HTML pages, SVG charts, and the file that holds them |
//!
//! Lowest module: imports no other module of this crate.

pub(crate) mod advice;
pub(crate) mod changed_options;
pub(crate) mod failure;
pub(crate) mod format;
pub(crate) mod html;
pub(crate) mod progress;
pub(crate) mod stderr;
pub(crate) mod stdout;
pub(crate) mod table;
