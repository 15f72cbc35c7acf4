//! The end of a Parquet file, which says what is in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use spdl_core::{Error, ErrorKind, Result};

use super::column::{Chunk, failed};
use super::schema::{self, Column};
use crate::datasets::files::u32_at;
use crate::{Fetcher, Key};

/// How much of the end of a file is read at first: more than most need.
const FIRST_READ: u64 = 64 << 10;
/// The longest description of a file that is read, in bytes.
const MAX_FOOTER: u64 = 64 << 20;
/// The length of the description, and four letters.
const TAIL: u64 = 8;

/// What a file holds.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) columns: Vec<Column>,
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
    // The crate is thorough with damaged files, but was not written never to panic on one.
    catch_unwind(AssertUnwindSafe(|| parse_inner(footer, data_end))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Corrupt, "the description of the file makes no sense"))
    })
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
