//! [`IndexParts`]: where the parts of a member are, stored with its shard.

use std::fmt;

/// Makes the part indexes of members: where the parts of a file are, such as the packets of a video.
///
/// A [`ShardWriter`](super::ShardWriter) stores part indexes in the index file of the shard. A
/// [`SelectParts`](crate::records::SelectParts) that uses them reads no headers and tables of a member.
pub trait IndexParts: fmt::Debug + Send + Sync + 'static {
    /// The part index of the content of a field; `None` if it has no parts.
    fn index(&self, field: &str, content: &[u8]) -> Option<Vec<u8>>;
}
