//! `spdl cat`: writes one field of one sample to standard output, or a frame or audio of it.
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | finds the member and copies its bytes |
//! | `decoded` | decodes a frame of a video, or a part of audio |
//! | `damaged` | finds a member in an archive with damaged headers |

pub(super) mod arguments;
mod damaged;
mod decoded;
pub(super) mod run;
