//! Many small objects in one large one, with an index beside it: what ACME Corporation keeps its
//! photographs in.
//!
//! The index is text, a line for each object: where it starts, how long it is, and its name. Both
//! lie in any storage that reads ranges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use spdl_io::{Bytes, Capability, Error, ErrorKind, Fetcher, Key, Result, async_trait};

/// Reads the objects of one pack.
#[derive(Debug)]
pub struct AcmePack {
    storage: Arc<dyn Fetcher>,
    pack: Key,
    places: BTreeMap<Key, Range<u64>>,
}

impl AcmePack {
    /// The objects of `pack`, by the index `index`; both are keys of `storage`.
    ///
    /// # Errors
    /// Those of reading the index; `Corrupt` where a line of it is not one.
    pub async fn open(storage: Arc<dyn Fetcher>, pack: Key, index: &Key) -> Result<Self> {
        let text = storage.read(index, None).await?;
        let places = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let places = places.enumerate().map(|(number, line)| {
            place(line).ok_or_else(|| {
                let message = format!("line {} is not `start length name`", number + 1);
                Error::new(ErrorKind::Corrupt, message).with_key(index.display_name())
            })
        });
        Ok(AcmePack { places: places.collect::<Result<_>>()?, storage, pack })
    }
}

fn place(line: &[u8]) -> Option<(Key, Range<u64>)> {
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
        let place = self.places.get(key);
        let place = place.ok_or_else(|| failed(ErrorKind::NotFound, "not in the pack"))?;
        let range = range.unwrap_or(0..place.end - place.start);
        if range.start > range.end {
            return Err(failed(ErrorKind::InvalidArgument, "the range ends before it starts"));
        }
        if range.end > place.end - place.start {
            return Err(failed(ErrorKind::Truncated, "the range reaches past the end"));
        }
        let inside = place.start + range.start..place.start + range.end;
        // Its errors name the pack, not the object; this one names both.
        self.storage.read(&self.pack, Some(inside)).await.map_err(|error| {
            failed(error.kind(), "cannot be read out of the pack").with_source(error)
        })
    }
}
