//! Reads the fields of one sample: one request per object, objects concurrently.

use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::try_join_all;
use spdl_core::{AsyncContext, Error, ErrorKind, Footprint, Result};
use twox_hash::XxHash3_128;

use crate::fetch::{Fetcher, ItemMemory, Key, ReadMemory, check_size};
use crate::records::field_sizes::{FieldSizes, size_of_field};
use crate::records::{
    Encoding, Extent, FieldRequest, FieldValue, Record, StoredField, StoredRecord,
};
use crate::records::{Remedy, no_such_field};

/// The name of a field of a sample in messages: `SAMPLE.FIELD`.
pub(super) fn field_key(sample: &Key, field: &str) -> Key {
    Key::from_bytes(&[sample.as_bytes(), b".", field.as_bytes()].concat())
}

/// The memory that the values of a sample will use, in bytes; `None` if it is unknown before the read.
pub(super) fn known_bytes(item: &StoredRecord, request: &FieldRequest) -> Option<usize> {
    if item.row.is_some() {
        return None;
    }
    let mut bytes = size_of::<Record>() + item.key.as_bytes().len();
    for (name, field) in item.fields.iter().filter(|(name, _)| request.wants(name)) {
        let of_field = match field {
            StoredField::Known(value) => value.footprint(),
            // The size of a parsed JSON value cannot be derived from the size of its text.
            StoredField::At(_, Encoding::Json) => return None,
            StoredField::At(extent, _) => {
                size_of::<FieldValue>().checked_add(usize::try_from(extent.size()?).ok()?)?
            }
        };
        bytes = bytes.checked_add(of_field)?.checked_add(name.footprint())?;
    }
    Some(bytes)
}

/// Reads the requested fields of a sample.
pub(super) async fn read_record(
    fetcher: &Arc<dyn Fetcher>,
    item: StoredRecord,
    request: &FieldRequest,
    cx: &AsyncContext,
) -> Result<Record> {
    read_part_of_record(fetcher, item, request, cx, &AtomicU64::new(0)).await
}

/// Reads some fields of a sample. `all` counts the bytes of all fields.
pub(super) async fn read_part_of_record(
    fetcher: &Arc<dyn Fetcher>,
    item: StoredRecord,
    request: &FieldRequest,
    cx: &AsyncContext,
    all: &AtomicU64,
) -> Result<Record> {
    if let Some(names) = request.names()
        && let Some(missing) = names.iter().find(|name| !item.names().any(|it| *it == ***name))
    {
        return Err(no_such_field(&item.key, [&**missing], item.names()));
    }
    let mut fields = Vec::with_capacity(item.fields.len());
    let mut extents = Vec::new();
    for (name, field) in item.fields.into_iter().filter(|(name, _)| request.wants(name)) {
        match field {
            StoredField::Known(value) => fields.push((name, Slot::Value(value))),
            StoredField::At(extent, encoding) => {
                extents.push((Arc::clone(&name), extent));
                fields.push((name, Slot::Extent(extents.len() - 1, encoding)));
            }
        }
    }
    let mut sizes = FieldSizes::new(request.max_bytes());
    for (name, slot) in &fields {
        if let Slot::Value(value) = slot {
            sizes.add(name, size_of_field(value));
        }
    }
    let mut parts = read_extents(fetcher, &item.key, &extents, sizes, cx, all).await?;
    let mut record = Record::new(item.key).with_label(item.label);
    for (name, slot) in fields {
        let value = match slot {
            Slot::Value(value) => value,
            Slot::Extent(number, encoding) => {
                let bytes = std::mem::take(&mut parts[number]);
                encoding.decode(bytes).map_err(|error| {
                    let extent = &extents[number].1;
                    let start = extent.range.as_ref().map_or(0, |range| range.start);
                    let offset = start.saturating_add(error.offset().unwrap_or_default());
                    // Statistics list the key of the sample only.
                    let message = format!("field {name:?}: {}", error.message());
                    Error::new(error.kind(), message)
                        .with_offset(offset)
                        .with_key(field_key(&record.key, &name).display_name())
                        .with_cause_of(error)
                })?
            }
        };
        record.fields.push((name, value));
    }
    if let Some(row) = item.row {
        let in_sample = |error: Error| error.with_key(record.key.display_name());
        if let Some(bytes) =
            row.group.row_bytes(fetcher, row.row, request).await.map_err(in_sample)?
        {
            // A row that is too large fails before it is read.
            let bytes = usize::try_from(bytes.min(request.max_bytes())).unwrap_or(usize::MAX);
            let others: usize = record.fields.iter().map(|(_, value)| value.footprint()).sum();
            cx.reserve(others.saturating_add(bytes)).await;
        }
        let mut of_row = row.group.read(fetcher, row.row, request).await.map_err(in_sample)?;
        let mut files = Vec::new();
        for (name, value) in &of_row {
            if let FieldValue::Null = value
                && let Some(file) =
                    row.group.file_of(fetcher, row.row, name).await.map_err(in_sample)?
            {
                files.push((Arc::clone(name), Extent::whole(file)));
            }
        }
        if !files.is_empty() {
            let mut sizes = FieldSizes::new(request.max_bytes());
            for (name, value) in record.fields.iter().chain(&of_row) {
                sizes.add(name, size_of_field(value));
            }
            let contents = read_extents(fetcher, &record.key, &files, sizes, cx, all).await?;
            for ((file, _), bytes) in files.iter().zip(contents) {
                if let Some((_, value)) = of_row.iter_mut().find(|(name, _)| name == file) {
                    *value = FieldValue::Bytes(bytes);
                }
            }
        }
        record.fields.extend(of_row);
    }
    if let Some(names) = request.names() {
        let mut in_order = Vec::with_capacity(names.len());
        for name in names {
            in_order.push((Arc::clone(name), record.take(name)?));
        }
        record.fields = in_order;
    }
    Ok(record)
}

enum Slot {
    Value(FieldValue),
    /// The index of the extent.
    Extent(usize, Encoding),
}

/// Reads extents; the results have the order of the arguments. `others` are the sizes of the fields
/// that need not be read.
async fn read_extents<'a>(
    fetcher: &Arc<dyn Fetcher>,
    sample: &Key,
    extents: &'a [(Arc<str>, Extent)],
    others: FieldSizes<'a>,
    cx: &AsyncContext,
    all: &AtomicU64,
) -> Result<Vec<Bytes>> {
    let mut sizes = others;
    for (name, extent) in extents {
        sizes.add(name, extent.size().unwrap_or_default());
    }
    let in_sample = |error: Error| error.with_key(sample.display_name());
    sizes.check().map_err(in_sample)?;
    let known = sizes.bytes();
    all.fetch_add(known, Ordering::Relaxed);
    // Group the extents by object, sorted by offset.
    let mut order: Vec<usize> = (0..extents.len()).collect();
    order.sort_by_key(|&at| {
        let extent = &extents[at].1;
        (&extent.object, extent.range.as_ref().map(|range| range.start))
    });
    let of_one_object = |a: &usize, b: &usize| {
        let (a, b) = (&extents[*a].1, &extents[*b].1);
        a.range.is_some() && b.range.is_some() && a.object == b.object
    };
    let reads = order.chunk_by(of_one_object).map(|numbers| async move {
        let memory = ItemMemory::part(cx, others.limit() - known, all);
        let parts = read_object(fetcher, extents, numbers, &memory).await;
        parts.map_err(|error| of_field(error, sample, extents, numbers))
    });
    let read = try_join_all(reads.collect::<Vec<_>>()).await?;
    let mut parts = vec![Bytes::new(); extents.len()];
    for (number, part) in read.into_iter().flatten() {
        let part = verified(fetcher, &extents[number].1, part).await;
        parts[number] = part.map_err(|error| of_field(error, sample, extents, &[number]))?;
    }
    let mut sizes = others;
    for ((name, _), part) in extents.iter().zip(&parts) {
        sizes.add(name, part.len() as u64);
    }
    sizes.check().map_err(in_sample)?;
    Ok(parts)
}

/// Reads one whole object, or ranges of one.
async fn read_object(
    fetcher: &Arc<dyn Fetcher>,
    extents: &[(Arc<str>, Extent)],
    numbers: &[usize],
    memory: &ItemMemory<'_>,
) -> Result<Vec<(usize, Bytes)>> {
    let Some(first) = numbers.first().map(|&first| &extents[first].1) else {
        return Ok(Vec::new());
    };
    let object = &first.object;
    let is_read = |number: &&usize| extents[**number].1.size() != Some(0);
    let read: Vec<usize> = numbers.iter().filter(is_read).copied().collect();
    let ranges = read.iter().map(|&number| extents[number].1.range.clone());
    let parts = match ranges.collect::<Option<Vec<Range<u64>>>>() {
        None => vec![read_whole(fetcher, first, memory).await.map_err(|error| {
            // A failed allocation has a source.
            match error.kind() == ErrorKind::LimitExceeded && error.source().is_none() {
                true => error.with_source(Remedy::MaxFileBytes),
                false => error,
            }
        })?],
        Some(ranges) => match &ranges[..] {
            [] => Vec::new(),
            [range] => vec![fetcher.read(object, Some(range.clone())).await?],
            ranges => fetcher.read_ranges(object, ranges).await?,
        },
    };
    let match_request = parts.len() == read.len()
        && parts.iter().zip(&read).all(|(part, &number)| {
            extents[number].1.size().is_none_or(|size| size == part.len() as u64)
        });
    if !match_request {
        let message = format!("{fetcher:?} returned ranges that differ from the requested ones");
        return Err(Error::new(ErrorKind::Internal, message).with_key(object.display_name()));
    }
    Ok(read.into_iter().zip(parts).collect())
}

/// Reads a whole object.
///
/// # Errors
/// The errors of [`Fetcher::read_whole_version`]. `Changed` if the object differs from its listing.
async fn read_whole(
    fetcher: &Arc<dyn Fetcher>,
    extent: &Extent,
    memory: &dyn ReadMemory,
) -> Result<Bytes> {
    let Extent { object, object_size: size, .. } = extent;
    let version = extent.version.as_ref().filter(|_| fetcher.capability().versions);
    let bytes = match (version, size) {
        (None, None) => fetcher.read_whole(object, memory).await?,
        _ => fetcher.read_whole_version(object, memory, version, *size).await?,
    };
    // Not every fetcher compares the size.
    check_size(object, *size, Some(bytes.len() as u64))?;
    Ok(bytes)
}

/// Compares bytes with their checksum, if it is known. Bytes that differ are read again.
async fn verified(fetcher: &Arc<dyn Fetcher>, extent: &Extent, mut part: Bytes) -> Result<Bytes> {
    /// How often bytes that differ are read again.
    const REREADS: u32 = 2;
    let Some(expected) = extent.xxh3 else { return Ok(part) };
    let is_right = |part: &Bytes| XxHash3_128::oneshot(part) as u64 == expected;
    for _ in 0..REREADS {
        if is_right(&part) {
            return Ok(part);
        }
        part = match &extent.range {
            None => read_whole(fetcher, extent, &u64::MAX).await?,
            Some(range) => {
                fetcher.discard(&extent.object, range);
                fetcher.read(&extent.object, Some(range.clone())).await?
            }
        };
    }
    if is_right(&part) {
        return Ok(part);
    }
    let message = format!(
        "checksum mismatch: the data differ from the checksum file, SHARD.sums (read {} times); \
         repair the shard, or delete the checksum file if it is out of date",
        REREADS + 1
    );
    Err(Error::new(ErrorKind::Corrupt, message).with_key(extent.object.display_name()))
}

/// Sets the key of a read error to the field that failed. Errors of whole objects keep their key.
pub(super) fn of_field(
    error: Error,
    sample: &Key,
    extents: &[(Arc<str>, Extent)],
    numbers: &[usize],
) -> Error {
    let parts: Vec<_> =
        numbers.iter().map(|&at| &extents[at]).filter(|(_, it)| it.range.is_some()).collect();
    let (key, start) = match &parts[..] {
        [] => return error,
        [(name, extent)] => (field_key(sample, name), extent.range.as_ref().map(|it| it.start)),
        [(_, first), ..] => (sample.clone(), first.range.as_ref().map(|it| it.start)),
    };
    let has_offset = error.offset().is_some();
    let of_field = error.renamed(key.display_name());
    match start.filter(|_| !has_offset) {
        Some(start) => of_field.with_offset(start),
        None => of_field,
    }
}
