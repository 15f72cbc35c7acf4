//! `spdl verify`: checks every checksum and decodes every image, audio file and video.
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | the pass over all members, and its result |
//! | `rescue` | the `spdl pack` command that saves the valid samples |

pub(super) mod arguments;
mod rescue;
pub(super) mod run;
