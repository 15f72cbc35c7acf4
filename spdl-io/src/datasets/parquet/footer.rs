//! The end of a Parquet file, which says what is in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use spdl_core::{Error, ErrorKind, Result};

use super::column::{Chunk, failed};
use super::schema::{self, ParquetColumn};
use super::thrift::{self, Thrift};
use crate::datasets::common::u32_at;
use crate::fetch::{Fetcher, Key};

/// How much of the end of a file is read at first: more than most need.
const FIRST_READ: u64 = 64 << 10;
/// The longest description of a file that is read, in bytes.
const MAX_FOOTER: u64 = 64 << 20;
/// The length of the description, and four letters.
const TAIL: u64 = 8;
/// How deep groups of columns may lie in one another.
const MAX_DEPTH: usize = 64;

/// What a file holds.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) columns: Vec<ParquetColumn>,
    pub(super) groups: Vec<RowGroup>,
}

/// A row group: its rows, and where the columns of the schema lie, in their order.
#[derive(Debug)]
pub(super) struct RowGroup {
    pub(super) rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// Reads the description of a file, in one read or two. Errors have no key yet.
pub(super) async fn read(fetcher: &Arc<dyn Fetcher>, key: &Key) -> Result<(u64, Bytes)> {
    let size = fetcher.stat(key).await?.size;
    let start = size.saturating_sub(FIRST_READ);
    let end = fetcher.read(key, Some(start..size)).await?;
    let no_parquet = || Error::new(ErrorKind::Corrupt, "this is no Parquet file").with_offset(size);
    match end.last_chunk::<4>() {
        Some(b"PAR1") if size >= TAIL + 4 => {}
        Some(b"PARE") => {
            let message = "the description of this file is encrypted";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        _ => return Err(no_parquet()),
    }
    let len = u32_at(&end, end.len() - TAIL as usize).map_or(0, u64::from);
    let footer_end = size - TAIL;
    let footer_start =
        footer_end.checked_sub(len).filter(|start| *start >= 4).ok_or_else(no_parquet)?;
    if len > MAX_FOOTER {
        let message = format!("a description of {len} bytes, of {MAX_FOOTER} allowed");
        return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(footer_end));
    }
    let footer = if footer_start >= start {
        end.slice((footer_start - start) as usize..(footer_end - start) as usize)
    } else {
        fetcher.read(key, Some(footer_start..footer_end)).await?
    };
    Ok((footer_start, footer))
}

/// What a description says, of a file whose data end at byte `data_end`.
pub(super) fn parse(footer: &[u8], data_end: u64) -> Result<Footer> {
    check_depth(footer).map_err(|error| match error.kind() {
        // All of it was read, so nothing is missing: it says more than it holds.
        ErrorKind::Truncated => {
            Error::new(ErrorKind::Corrupt, "the description of the file ends early")
                .with_source(error)
        }
        _ => error,
    })?;
    // The crate is thorough with damaged files, but was not written never to panic on one.
    catch_unwind(AssertUnwindSafe(|| parse_inner(footer, data_end))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Corrupt, "the description of the file makes no sense"))
    })
}

/// Refuses groups that lie too deep in one another: the crate goes down by recursion, and a stack that
/// overflows ends the process.
fn check_depth(footer: &[u8]) -> Result<()> {
    let mut thrift = Thrift { bytes: footer, at: 0 };
    let mut id = 0;
    while let Some(kind) = thrift.field(&mut id)? {
        // The schema is the second field: all groups and columns, each before what it holds.
        match (id, kind) {
            (2, thrift::LIST) => check_schema(&mut thrift)?,
            (2, _) => return Err(Error::new(ErrorKind::Corrupt, "the schema is no list")),
            _ => thrift.skip(kind, 0)?,
        }
    }
    Ok(())
}

fn check_schema(thrift: &mut Thrift<'_>) -> Result<()> {
    let (len, kind) = thrift.list()?;
    if kind != thrift::STRUCT {
        return Err(Error::new(ErrorKind::Corrupt, "the schema is no list of columns"));
    }
    // How many members are still to come, of each group that is open.
    let mut open: Vec<u64> = Vec::new();
    for _ in 0..len {
        let (mut id, mut members) = (0, 0);
        while let Some(kind) = thrift.field(&mut id)? {
            match (id, kind) {
                // Of whichever length: the crate does not look at the type.
                (5, 4..=6) => members = thrift.size()?,
                (5, _) => {
                    let message = "the number of a group's members is none";
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                _ => thrift.skip(kind, 0)?,
            }
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if members > 0 {
            open.push(members);
        }
        if open.len() > MAX_DEPTH {
            let message = format!("groups of columns in more than {MAX_DEPTH} levels");
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}

fn parse_inner(footer: &[u8], data_end: u64) -> Result<Footer> {
    let metadata = ParquetMetaDataReader::decode_metadata(footer).map_err(failed)?;
    let schema = metadata.file_metadata().schema_descr();
    let groups = metadata.row_groups().iter().enumerate().map(|(number, group)| {
        row_group(group, schema.num_columns(), data_end).map_err(|error| {
            Error::new(error.kind(), format!("row group {number}: {}", error.message()))
        })
    });
    let groups = groups.collect::<Result<_>>()?;
    Ok(Footer { columns: schema::columns(schema), groups })
}

fn row_group(group: &RowGroupMetaData, columns: usize, data_end: u64) -> Result<RowGroup> {
    let corrupt = |message: String| Error::new(ErrorKind::Corrupt, message);
    let rows = u64::try_from(group.num_rows())
        .map_err(|_| corrupt(format!("{} rows", group.num_rows())))?;
    if group.columns().len() != columns {
        return Err(corrupt(format!("{} columns, of {columns}", group.columns().len())));
    }
    let chunks = group.columns().iter().map(|column| {
        let name = column.column_path().string();
        if column.file_path().is_some() {
            let message = format!("the column {name} lies in another file");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let dictionary = column.dictionary_page_offset();
        let start = match dictionary {
            // Some writers say 0 where there is none.
            Some(dictionary) if dictionary > 0 => dictionary.min(column.data_page_offset()),
            _ => column.data_page_offset(),
        };
        let place = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
        let range = place.and_then(|(start, len)| Some((start, start.checked_add(len)?)));
        let (start, end) = range.filter(|(_, end)| *end <= data_end).ok_or_else(|| {
            corrupt(format!("the column {name} does not lie before the end of the data"))
        })?;
        Ok(Chunk {
            start,
            end,
            codec: column.compression_codec(),
            has_dictionary: dictionary.is_some_and(|offset| offset > 0),
            values: column.num_values(),
        })
    });
    Ok(RowGroup { rows, chunks: chunks.collect::<Result<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The description of a file without rows, whose one column lies in so many groups.
    fn nested(groups: u32) -> Vec<u8> {
        // The version, and the head of the schema's list, whose length is a number of three bytes.
        let mut footer = vec![0x15, 0x02, 0x19, 0xFC];
        let len = groups + 1;
        footer.extend([len as u8 | 0x80, (len >> 7) as u8 | 0x80, (len >> 14) as u8]);
        for _ in 0..groups {
            // Required, of the name "a", with one member.
            footer.extend([0x35, 0x00, 0x18, 0x01, b'a', 0x15, 0x02, 0x00]);
        }
        // A required column of type INT32; no rows, no row groups.
        footer.extend([0x15, 0x02, 0x25, 0x00, 0x18, 0x01, b'b', 0x00]);
        footer.extend([0x16, 0x00, 0x19, 0x0C, 0x00]);
        footer
    }

    #[test]
    fn groups_in_groups_do_not_overflow_the_stack() {
        let footer = parse(&nested(MAX_DEPTH as u32), 4).unwrap();
        assert_eq!(footer.columns.len(), 1);
        for groups in [MAX_DEPTH as u32 + 1, 1_000_000] {
            let error = parse(&nested(groups), 4).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
        }
    }

    #[test]
    fn a_field_of_any_number_is_passed_over() {
        let mut footer = nested(1);
        // One more field behind the last number that there is, and one behind that.
        footer.pop();
        footer.extend([0x05, 0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0x00]);
        footer.extend([0x15, 0x00, 0x00]);
        assert!(check_depth(&footer).is_ok());
    }

    #[test]
    fn a_schema_cannot_hide_behind_another_number_or_type() {
        let deep = nested(1000);
        // The second field, by its number plus 2^16.
        let mut footer = vec![0x15, 0x02, 0x09, 0x84, 0x80, 0x08];
        footer.extend(&deep[3..]);
        assert_eq!(check_depth(&footer).unwrap_err().kind(), ErrorKind::LimitExceeded);
        // The members of the first group, as a number of 64 bits; as a truth value.
        for (kind, expected) in [(0x16, ErrorKind::LimitExceeded), (0x11, ErrorKind::Corrupt)] {
            let mut footer = deep.clone();
            footer[12] = kind;
            assert_eq!(check_depth(&footer).unwrap_err().kind(), expected);
        }
    }
}
