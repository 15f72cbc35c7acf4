//! Opens the data sets that the command line names.
//!
//! | file | content |
//! |---|---|
//! | `address` | paths and URLs of the command line, and how messages show them |
//! | `extensions` | file name extensions of image formats |
//! | `member_name` | sample key and field of a tar member's name |
//! | `input` | [`InputDataset`](input::InputDataset): an opened data set, with its store |
//! | `sample_files` | reads a sample as one file per field |
//!
//! May import: `ui`.

pub(crate) mod address;
pub(crate) mod extensions;
pub(crate) mod input;
pub(crate) mod member_name;
pub(crate) mod sample_files;
