//! `spdl plan`: what a training needs of a store, a network, cores and memory.
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | measures the costs of a sample with `spdl bench`, if requested, and prints the plan |

pub(super) mod arguments;
pub(super) mod run;
