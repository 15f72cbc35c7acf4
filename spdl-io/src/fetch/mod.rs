//! The [`Fetcher`] trait: how bytes are read from any storage.
//!
//! | file | what it holds |
//! |---|---|
//! | `key` | [`Key`], the name of an object or a file, byte for byte |
//! | `fetcher` | [`Fetcher`], [`Capability`], [`ObjectMeta`], and the checks that all fetchers share |
//! | `body` | [`ReadRequest`], [`ReadMemory`], and [`Body`], a response as a stream of chunks |
//! | `block_reader` | [`BlockReader`], an object that is read by position |
//! | `buffer` | `ObjectBuffer`, memory for the bytes of one object |
//! | `coalesce` | merging of byte ranges that are close to each other |
//! | `unreached` | the error source that marks a store as unreachable |
//! | `stage` | [`Fetch`], the pipeline stage |
//!
//! Imports: no other module of this crate.

mod block_reader;
mod body;
mod buffer;
pub(crate) mod coalesce;
mod fetcher;
mod key;
mod stage;
mod unreached;

pub use self::block_reader::BlockReader;
#[cfg(feature = "http")]
pub(crate) use self::body::HeldConnection;
pub use self::body::{Body, ReadMemory, ReadRequest};
pub(crate) use self::body::{ContentCheck, JoinedPieces, RequestTimes, ResponseMemory};
#[cfg(feature = "local")]
pub(crate) use self::buffer::ObjectBuffer;
pub use self::fetcher::{Capability, Fetcher, ObjectMeta};
pub(crate) use self::fetcher::{
    check_lengths, check_limit, check_size, check_version, past_the_end, range_len,
    read_whole_or_range,
};
pub use self::key::Key;
pub(crate) use self::key::{address_in, quoted};
pub use self::stage::Fetch;
pub(crate) use self::stage::{ItemMemory, medium_of};
pub(crate) use self::unreached::Unreached;
