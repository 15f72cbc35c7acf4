//! The subcommands of `spdl`: the options of each subcommand, and the function that runs it.
//!
//! | file or folder | subcommand |
//! |---|---|
//! | `bench` | `spdl bench`: measures how fast a data set is loaded as training batches |
//! | `plan` | `spdl plan`: what a training needs of a store, a network, cores and memory |
//! | `bench::profile` | `spdl profile`: whether a training would wait for data |
//! | `bench::tune` | `spdl tune`: measures settings for a program that searches for the best |
//! | `pack` | `spdl pack`: writes a data set as tar shards |
//! | `ls`, `cat`, `verify`, `stat` | list, read, check and summarise data sets |
//! | `verify_order` | `spdl verify-order`: finds missing and repeated samples by checkpoint files |
//! | `top` | `spdl top`: shows the statistics of a running pipeline (feature `top`) |
//! | `doctor` | `spdl doctor`: reports the CUDA libraries and devices of this machine |
//! | `command_line` | the parser of all subcommands |
//! | `process_limits` | prepares the process for limits on memory and files |
//! | `options`, `checkpoint_files` | options and checkpoint files that several subcommands use |
//!
//! Highest module: may import `ui`, `datasets`, `inspection`. A subcommand does not import
//! another, except for `plan`, which measures with `bench`.

mod bench;
mod cat;
mod checkpoint_files;
pub(crate) mod command_line;
mod doctor;
mod ls;
mod options;
mod pack;
mod plan;
pub(crate) mod process_limits;
mod stat;
#[cfg(feature = "top")]
mod top;
mod verify;
mod verify_order;
