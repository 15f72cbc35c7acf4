//! Finds NVIDIA's shared libraries, and opens them at run time.
//!
//! | file | content |
//! |---|---|
//! | `search.rs` | [`Library`], [`Search`]: where a library is, in which order places are tried |
//! | `shared_library.rs` | a shared library that stays open until the process ends |
//!
//! Imports no other module of this crate.

mod search;
mod shared_library;

pub use self::search::{Library, LibraryLocation, LibraryNotFound, LocatedBy, Search};
pub(crate) use self::shared_library::SharedLibrary;
