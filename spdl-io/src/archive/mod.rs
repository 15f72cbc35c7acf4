//! Archives: many files in one, and their members by name or one after another.
//!
//! | what | in memory | as a stream | by ranges of a store | by an index |
//! |---|---|---|---|---|
//! | tar | [`TarSlice`] | [`TarStream`] | [`TarRanges`] | [`TarIndex`] |
//! | tar, compressed | | [`TarStream`] over [`Decompress`] | | |
//! | zip (feature `zip`) | `ZipSlice` | | `ZipRanges` | its own: `ZipDirectory` |
//! | `.npy`; `.npz` (feature `zip`) | [`NpyArray`]; `NpzArchive` | | [`NpyHeader`]; `ZipDirectory` | |
//!
//! Names of members are data: nothing here writes a file by such a name, or opens one. What can be
//! understood in two ways (two names or two sizes for one member, members inside one another) is
//! `Corrupt`, as that is how one archive shows different members to different programs.
//!
//! What is in memory may be a file that is mapped, by the crate `memmap2` say: members are views of it,
//! without copies. Nothing here maps files by itself, as a mapped file that somebody cuts short ends the
//! process.
//!
//! A damaged archive is an error with the byte at which the damage is. Of a tar archive, what comes
//! before it is delivered first.

mod decompress;
mod npy;
mod npy_header;
mod tar;
mod tar_index;
#[cfg(feature = "zip")]
mod zip;

pub use decompress::{Decompress, DecompressLimits};
#[cfg(feature = "zip")]
pub use npy::NpzArchive;
pub use npy::{NpyArray, NpyType};
pub use npy_header::NpyHeader;
pub use tar::{
    AfterEnd, TarEntry, TarEvent, TarFile, TarKind, TarOptions, TarParser, TarRanges, TarSlice,
    TarStream,
};
pub use tar_index::{ArchiveStamp, TarIndex};
#[cfg(feature = "zip")]
pub use zip::{ZipDirectory, ZipEntry, ZipKind, ZipMethod, ZipOptions, ZipRanges, ZipSlice};
