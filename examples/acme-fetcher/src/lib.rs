//! A custom fetcher: many small objects packed into one large object, with an index.
//!
//! The index is a text file with one line per object: offset in bytes, length in bytes, and name. The pack and
//! the index are objects of any storage that supports range requests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use spdl_io::{Bytes, Capability, Error, ErrorKind, Fetcher, Key, Result, async_trait};

/// Reads the objects of one pack, which is a large object that holds many small ones.
#[derive(Debug)]
pub struct AcmePack {
    storage: Arc<dyn Fetcher>,
    pack: Key,
    ranges: BTreeMap<Key, Range<u64>>,
}

impl AcmePack {
    /// Opens a pack; `pack` and `index` are keys in `storage`.
    ///
    /// # Errors
    /// Errors of the storage; `Corrupt` if a line of the index is invalid.
    pub async fn open(storage: Arc<dyn Fetcher>, pack: Key, index: &Key) -> Result<Self> {
        let text = storage.read(index, None).await?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let ranges = lines.enumerate().map(|(number, line)| {
            parse_line(line).ok_or_else(|| {
                let message = format!(
                    "line {} of the index is invalid: expected `offset length name`",
                    number + 1
                );
                Error::new(ErrorKind::Corrupt, message).with_key(index.display_name())
            })
        });
        Ok(AcmePack { ranges: ranges.collect::<Result<_>>()?, storage, pack })
    }
}

fn parse_line(line: &[u8]) -> Option<(Key, Range<u64>)> {
    let mut parts = std::str::from_utf8(line).ok()?.splitn(3, ' ');
    let start: u64 = parts.next()?.parse().ok()?;
    let len: u64 = parts.next()?.parse().ok()?;
    Some((parts.next()?.into(), start..start.checked_add(len)?))
}

#[async_trait]
impl Fetcher for AcmePack {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let failed = |kind, message| Error::new(kind, message).with_key(key.display_name());
        let object = self.ranges.get(key);
        let object = object.ok_or_else(|| failed(ErrorKind::NotFound, "not in the pack"))?;
        let range = range.unwrap_or(0..object.end - object.start);
        if range.start > range.end {
            return Err(failed(ErrorKind::InvalidArgument, "the range ends before it starts"));
        }
        if range.end > object.end - object.start {
            return Err(failed(ErrorKind::Truncated, "the range exceeds the object"));
        }
        let inside = object.start + range.start..object.start + range.end;
        // Errors of the storage name the pack, so add the name of the object.
        self.storage
            .read(&self.pack, Some(inside))
            .await
            .map_err(|error| failed(error.kind(), "cannot read from the pack").with_source(error))
    }
}
