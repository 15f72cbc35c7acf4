//! `spdl top`: shows the statistics of a running pipeline in the terminal.
//!
//! ```text
//! monitor socket ──► connection (a thread) ──► sample ──► view (a terminal) or text (--once)
//!                                          └─► prometheus (--prometheus)
//! ```
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | connects, and shows samples until the user quits |
//! | `connection` | reads lines from the monitor socket |
//! | `prometheus` | serves the statistics to Prometheus |
//! | `sample` | the statistics of one line, as the cells that are shown |
//! | `text` | one sample as plain text |
//! | `view` | samples in a terminal |

pub(super) mod arguments;
mod connection;
mod prometheus;
pub(super) mod run;
mod sample;
mod text;
mod view;
