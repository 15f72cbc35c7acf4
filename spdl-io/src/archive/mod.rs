//! Tar and zip archives, and NumPy files.
//!
//! | format | in memory | as a stream | by range requests | by an index |
//! |---|---|---|---|---|
//! | tar | [`TarSlice`] | [`TarStream`] | [`TarRanges`] | [`TarIndex`] |
//! | compressed tar | | [`TarStream`] over [`Decompress`] | | |
//! | zip (feature `zip`) | `ZipSlice` | | `ZipRanges` | `ZipDirectory` |
//! | `.npy`; `.npz` (feature `zip`) | [`NpyArray`]; `NpzArchive` | | [`NpyHeader`]; `ZipDirectory` | |
//!
//! - This crate never uses the names of members as file paths.
//! - An ambiguous archive fails with `Corrupt`: two names or two sizes for one member, or overlapping members.
//!   Different programs would extract different members from such an archive.
//! - Data in memory may be a file that the caller maps, for example with the crate `memmap2`.
//!   Uncompressed members are views without copies. This crate maps no files, because truncating a
//!   mapped file kills the process.
//! - The error for a damaged archive holds the offset of the damage. The members of a tar archive before
//!   the damage are returned first.
//!
//! | file or folder | what it holds |
//! |---|---|
//! | `tar/` | headers, pax extended headers, the parser, and its three readers |
//! | `tar_index` | [`TarIndex`]: the members of a tar archive by number and by name |
//! | `decompress` | [`Decompress`]: gzip and Zstandard |
//! | `zip/` | central directory, local headers, and the readers |
//! | `npy_header`, `npy` | [`NpyHeader`]; [`NpyArray`] and `NpzArchive` |
//!
//! Imports: `fetch`, `files`.

mod decompress;
mod npy;
mod npy_header;
mod tar;
mod tar_index;
#[cfg(feature = "zip")]
mod zip;

pub(crate) use decompress::decompress;
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
