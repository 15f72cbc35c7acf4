//! The footer of a Parquet file: its schema and row groups.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use spdl_core::{Error, ErrorKind, Result};

use super::column::{Chunk, failed};
use super::schema::{self, ParquetColumn};
use super::thrift::{self, Thrift};
use crate::datasets::common::{HUGGING_FACE, class_names, u32_at, with_context};
use crate::fetch::{Fetcher, Key};

/// The size of the first read at the end of the file, in bytes. Most footers fit.
const FIRST_READ: u64 = 64 << 10;
/// The maximum size of a footer, in bytes.
const MAX_FOOTER: u64 = 64 << 20;
/// The size of the footer length and the magic number, in bytes.
const TAIL: u64 = 8;
/// The maximum nesting depth of groups.
const MAX_DEPTH: usize = 64;

/// The parsed footer.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) columns: Vec<ParquetColumn>,
    /// The groups that are no field, with the names of their types.
    pub(super) structs: Vec<(Arc<str>, &'static str)>,
    pub(super) groups: Vec<RowGroup>,
    /// The class names of columns of Hugging Face's `ClassLabel`.
    pub(super) classes: HashMap<String, Vec<String>>,
}

/// A row group: the number of rows, and the column chunks in the order of the schema.
#[derive(Debug)]
pub(super) struct RowGroup {
    pub(super) rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// Reads the footer of a file in one or two reads, and returns its offset. Errors have no key.
pub(super) async fn read(fetcher: &Arc<dyn Fetcher>, key: &Key) -> Result<(u64, Bytes)> {
    let size = fetcher.stat(key).await?.size;
    let start = size.saturating_sub(FIRST_READ);
    let end = fetcher.read(key, Some(start..size)).await?;
    let not_parquet = || {
        let message = "not a Parquet file, or truncated: magic number not found at the end";
        Error::new(ErrorKind::Corrupt, message).with_offset(size)
    };
    match end.last_chunk::<4>() {
        Some(b"PAR1") if size >= TAIL + 4 => {}
        Some(b"PARE") => {
            let message = "encrypted Parquet footers are not supported";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        _ => return Err(not_parquet()),
    }
    let len = u32_at(&end, end.len() - TAIL as usize).map_or(0, u64::from);
    let footer_end = size - TAIL;
    let footer_start =
        footer_end.checked_sub(len).filter(|start| *start >= 4).ok_or_else(not_parquet)?;
    if len > MAX_FOOTER {
        let message =
            format!("Parquet footer of {len} bytes exceeds the limit of {MAX_FOOTER} bytes");
        return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(footer_end));
    }
    let footer = if footer_start >= start {
        end.slice((footer_start - start) as usize..(footer_end - start) as usize)
    } else {
        fetcher.read(key, Some(footer_start..footer_end)).await?
    };
    Ok((footer_start, footer))
}

/// Parses the footer of a file whose data end at `data_end`.
pub(super) fn parse(footer: &[u8], data_end: u64) -> Result<Footer> {
    check_depth(footer).map_err(|error| match error.kind() {
        // The footer was read completely, so its content is inconsistent.
        ErrorKind::Truncated => {
            Error::new(ErrorKind::Corrupt, "the Parquet footer ends early").with_source(error)
        }
        _ => error,
    })?;
    // The `parquet` crate may panic on a corrupt footer.
    catch_unwind(AssertUnwindSafe(|| parse_inner(footer, data_end)))
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Corrupt, "inconsistent Parquet footer")))
}

/// Checks the nesting depth of the schema: the `parquet` crate recurses, and a stack overflow kills the
/// process.
fn check_depth(footer: &[u8]) -> Result<()> {
    let mut thrift = Thrift { bytes: footer, at: 0 };
    let mut id = 0;
    while let Some(kind) = thrift.field(&mut id)? {
        // The schema is field 2: all groups and columns, in depth-first order.
        match (id, kind) {
            (2, thrift::LIST) => check_schema(&mut thrift)?,
            (2, _) => {
                return Err(Error::new(ErrorKind::Corrupt, "the Parquet schema is not a list"));
            }
            _ => thrift.skip(kind, 0)?,
        }
    }
    Ok(())
}

fn check_schema(thrift: &mut Thrift<'_>) -> Result<()> {
    let (len, kind) = thrift.list()?;
    if kind != thrift::STRUCT {
        let message = "the Parquet schema is not a list of schema elements";
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    // The number of remaining members of each open group.
    let mut open: Vec<u64> = Vec::new();
    for _ in 0..len {
        let (mut id, mut members) = (0, 0);
        while let Some(kind) = thrift.field(&mut id)? {
            match (id, kind) {
                // Any integer type: the `parquet` crate does not check the type.
                (5, 4..=6) => members = thrift.size()?,
                (5, _) => {
                    let message = "`num_children` of a Parquet schema element is not an integer";
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
            let message = format!("more than {MAX_DEPTH} nested groups in the Parquet schema");
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
        row_group(group, schema.num_columns(), data_end)
            .map_err(|error| with_context(error, &format!("row group {number}")))
    });
    let groups = groups.collect::<Result<_>>()?;
    let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
    let classes = pairs.filter(|pair| pair.key == HUGGING_FACE).find_map(|it| it.value.as_deref());
    Ok(Footer {
        columns: schema::columns(schema),
        structs: schema::structs(schema),
        groups,
        classes: classes.map_or_else(HashMap::new, class_names),
    })
}

fn row_group(group: &RowGroupMetaData, columns: usize, data_end: u64) -> Result<RowGroup> {
    let corrupt = |message: String| Error::new(ErrorKind::Corrupt, message);
    let rows = u64::try_from(group.num_rows())
        .map_err(|_| corrupt(format!("negative number of rows: {}", group.num_rows())))?;
    if group.columns().len() != columns {
        let found = group.columns().len();
        let message = format!("expected {columns} columns in the row group, found {found}");
        return Err(corrupt(message));
    }
    let chunks = group.columns().iter().map(|column| {
        let name = column.column_path().string();
        if column.file_path().is_some() {
            let message = format!("column {name} is stored in another file");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let dictionary = column.dictionary_page_offset();
        let start = match dictionary {
            // Some writers store 0 if there is no dictionary.
            Some(dictionary) if dictionary > 0 => dictionary.min(column.data_page_offset()),
            _ => column.data_page_offset(),
        };
        let place = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
        let range = place.and_then(|(start, len)| Some((start, start.checked_add(len)?)));
        let (start, end) = range
            .filter(|(_, end)| *end <= data_end)
            .ok_or_else(|| corrupt(format!("column chunk {name} extends beyond the file data")))?;
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

    /// The footer of a file without rows, with one column in nested groups.
    fn nested(groups: u32) -> Vec<u8> {
        // The version, and the header of the schema list with a three-byte length.
        let mut footer = vec![0x15, 0x02, 0x19, 0xFC];
        let len = groups + 1;
        footer.extend([len as u8 | 0x80, (len >> 7) as u8 | 0x80, (len >> 14) as u8]);
        for _ in 0..groups {
            // Required, with the name "a" and one member.
            footer.extend([0x35, 0x00, 0x18, 0x01, b'a', 0x15, 0x02, 0x00]);
        }
        // A required column of type INT32; no rows, no row groups.
        footer.extend([0x15, 0x02, 0x25, 0x00, 0x18, 0x01, b'b', 0x00]);
        footer.extend([0x16, 0x00, 0x19, 0x0C, 0x00]);
        footer
    }

    #[test]
    fn nested_groups_do_not_overflow_the_stack() {
        let footer = parse(&nested(MAX_DEPTH as u32), 4).unwrap();
        assert_eq!(footer.columns.len(), 1);
        for groups in [MAX_DEPTH as u32 + 1, 1_000_000] {
            let error = parse(&nested(groups), 4).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let mut footer = nested(1);
        // A field with the largest number, and one more.
        footer.pop();
        footer.extend([0x05, 0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0x00]);
        footer.extend([0x15, 0x00, 0x00]);
        assert!(check_depth(&footer).is_ok());
    }

    #[test]
    fn the_depth_check_cannot_be_bypassed_by_another_number_or_type() {
        let deep = nested(1000);
        // Field 2, encoded as 2 + 2^16.
        let mut footer = vec![0x15, 0x02, 0x09, 0x84, 0x80, 0x08];
        footer.extend(&deep[3..]);
        assert_eq!(check_depth(&footer).unwrap_err().kind(), ErrorKind::LimitExceeded);
        // The member count of the first group as a 64-bit integer, and as a boolean.
        for (kind, expected) in [(0x16, ErrorKind::LimitExceeded), (0x11, ErrorKind::Corrupt)] {
            let mut footer = deep.clone();
            footer[12] = kind;
            assert_eq!(check_depth(&footer).unwrap_err().kind(), expected);
        }
    }
}
