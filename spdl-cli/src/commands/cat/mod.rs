//! `spdl cat`: writes one field of one sample to standard output.
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | finds the member and copies its bytes |
//! | `damaged` | finds a member in an archive with damaged headers |

pub(super) mod arguments;
mod damaged;
pub(super) mod run;
