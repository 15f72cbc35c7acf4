//! Checks of the pages of a column chunk, before anything is decompressed or decoded.
//!
//! The `parquet` crate allocates as many bytes as page headers state. These checks limit the stated sizes.

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;
use spdl_core::{Error, ErrorKind, Result};

use super::thrift::{self, Thrift};

/// The maximum number of values of a column chunk. A page may encode any number of values in a few bytes.
const MAX_VALUES: u64 = 1 << 24;

/// The sizes in a page header.
#[derive(Debug, Default)]
struct PageHeader {
    uncompressed: u64,
    compressed: u64,
    data_values: u64,
    dictionary_values: u64,
}

/// Checks the pages of a chunk of `rows` rows: their decompressed size must not exceed `max_bytes`, and
/// their value counts must be possible. Returns the decompressed size. Offsets of errors are relative to
/// the chunk.
pub(super) fn check(
    chunk: &[u8],
    column: &ColumnDescriptor,
    rows: u64,
    max_bytes: u64,
) -> Result<u64> {
    let (mut at, mut bytes, mut values) = (0, 0_u64, 0_u64);
    while at < chunk.len() {
        let located = |error: Error| error.with_offset(at as u64);
        let mut thrift = Thrift { bytes: chunk, at };
        let header = thrift.header().map_err(located)?;
        let end = usize::try_from(header.compressed).ok();
        let end = end.and_then(|size| thrift.at.checked_add(size));
        let end = end.filter(|end| *end <= chunk.len()).ok_or_else(|| {
            let message = format!("page of {} bytes exceeds its column chunk", header.compressed);
            located(Error::new(ErrorKind::Truncated, message))
        })?;
        bytes = bytes.saturating_add(header.uncompressed);
        values = values.saturating_add(header.data_values);
        if bytes > max_bytes || values > MAX_VALUES {
            let message = format!(
                "{values} values in {bytes} bytes of pages exceed the limit of {MAX_VALUES} values \
                 or {max_bytes} bytes"
            );
            return Err(located(Error::new(ErrorKind::LimitExceeded, message)));
        }
        // A dictionary stores each value separately.
        let min_size = match column.physical_type() {
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY | Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
        };
        if header.dictionary_values > header.uncompressed / min_size {
            let message = format!(
                "dictionary of {} values does not fit in {} bytes",
                header.dictionary_values, header.uncompressed
            );
            return Err(located(Error::new(ErrorKind::Corrupt, message)));
        }
        at = end;
    }
    // A row has one value or null. A list has at least one entry, which may mark it as empty.
    let is_list = column.max_rep_level() > 0;
    if values < rows || values > rows && !is_list {
        let message = format!("the pages have {values} values for {rows} rows");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(bytes)
}

impl Thrift<'_> {
    fn header(&mut self) -> Result<PageHeader> {
        let mut header = PageHeader::default();
        let mut id = 0;
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (2, 5) => header.uncompressed = self.size()?,
                (3, 5) => header.compressed = self.size()?,
                // Data page v1 and v2, and dictionary page: the first field of each header.
                (5 | 8, thrift::STRUCT) => header.data_values = self.values()?,
                (7, thrift::STRUCT) => header.dictionary_values = self.values()?,
                (_, kind) => self.skip(kind, 0)?,
            }
        }
        Ok(header)
    }

    /// The number of values, from the header of a data or dictionary page.
    fn values(&mut self) -> Result<u64> {
        let (mut id, mut values) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (1, 5) => values = self.size()?,
                (_, kind) => self.skip(kind, 0)?,
            }
        }
        Ok(values)
    }
}

/// A page reader that refuses encodings and level lengths that could exhaust memory.
pub(super) struct CheckedPages<P> {
    pub(super) pages: P,
    pub(super) max_repetition: i16,
    pub(super) max_definition: i16,
}

impl<P> CheckedPages<P> {
    fn check(&self, page: Page) -> parquet::errors::Result<Page> {
        let (encoding, values) = (page.encoding(), page.num_values());
        // The `parquet` crate may panic on levels that exceed their page.
        let Some(levels) = self.levels_end(&page) else {
            let message = "the repetition and definition levels exceed their page";
            return Err(ParquetError::General(message.into()));
        };
        match encoding {
            Encoding::DELTA_BYTE_ARRAY => {
                Err(ParquetError::NYI(format!("the encoding {encoding}")))
            }
            // The values start with the number of lengths, which determines an allocation.
            Encoding::DELTA_LENGTH_BYTE_ARRAY => match delta_count(&page.buffer()[levels..]) {
                Some(lengths) if lengths <= u64::from(values) => Ok(page),
                _ => Err(ParquetError::General("invalid number of lengths in a page".into())),
            },
            _ => Ok(page),
        }
    }

    /// The end of the levels of a page, which is the start of its values; `None` if it exceeds the page.
    fn levels_end(&self, page: &Page) -> Option<usize> {
        let all = page.buffer().len();
        let end = match page {
            Page::DataPage { buf, num_values, rep_level_encoding, def_level_encoding, .. } => {
                let levels = [
                    (self.max_repetition, rep_level_encoding),
                    (self.max_definition, def_level_encoding),
                ];
                let mut end = 0_usize;
                for (max_level, encoding) in levels.into_iter().filter(|(level, _)| *level > 0) {
                    let len = match encoding {
                        // The levels are prefixed with their length in bytes.
                        Encoding::RLE => {
                            let len = u32::from_le_bytes(*buf.get(end..)?.first_chunk()?);
                            usize::try_from(len).ok()?.checked_add(4)?
                        }
                        // `BIT_PACKED`. The `parquet` crate refuses other encodings.
                        _ => {
                            let bits = (i16::BITS - max_level.leading_zeros()) as usize;
                            usize::try_from(*num_values).ok()?.checked_mul(bits)?.div_ceil(8)
                        }
                    };
                    end = end.checked_add(len).filter(|end| *end <= all)?;
                }
                end
            }
            Page::DataPageV2 { rep_levels_byte_len, def_levels_byte_len, .. } => {
                usize::try_from(rep_levels_byte_len.checked_add(*def_levels_byte_len)?).ok()?
            }
            Page::DictionaryPage { .. } => 0,
        };
        (end <= all).then_some(end)
    }
}

/// The number of values, which is the third number in a `DELTA_BINARY_PACKED` header.
fn delta_count(values: &[u8]) -> Option<u64> {
    let mut thrift = Thrift { bytes: values, at: 0 };
    thrift.varint().ok()?;
    thrift.varint().ok()?;
    thrift.varint().ok()
}

impl<P: PageReader> Iterator for CheckedPages<P> {
    type Item = parquet::errors::Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<P: PageReader> PageReader for CheckedPages<P> {
    fn get_next_page(&mut self) -> parquet::errors::Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.map(|page| self.check(page)).transpose()
    }

    fn peek_next_page(&mut self) -> parquet::errors::Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> parquet::errors::Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> parquet::errors::Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(levels: [i16; 2], page: Page) -> parquet::errors::Result<Page> {
        let [max_repetition, max_definition] = levels;
        CheckedPages { pages: (), max_repetition, max_definition }.check(page)
    }

    fn first_version(bytes: &[u8], num_values: u32, levels: Encoding) -> Page {
        Page::DataPage {
            buf: bytes.to_vec().into(),
            num_values,
            encoding: Encoding::PLAIN,
            def_level_encoding: levels,
            rep_level_encoding: levels,
            statistics: None,
        }
    }

    fn second_version(bytes: &[u8], levels: [u32; 2]) -> Page {
        let [rep_levels_byte_len, def_levels_byte_len] = levels;
        Page::DataPageV2 {
            buf: bytes.to_vec().into(),
            num_values: 8,
            encoding: Encoding::PLAIN,
            num_nulls: 0,
            num_rows: 8,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed: false,
            statistics: None,
        }
    }

    #[test]
    fn levels_that_exceed_their_page_are_refused() {
        #[expect(deprecated, reason = "old files use it")]
        let bits = Encoding::BIT_PACKED;
        for (levels, bytes, encoding, is_valid) in [
            ([0, 0], &b""[..], Encoding::RLE, true),
            ([0, 1], b"\x02\0\0\0xx", Encoding::RLE, true),
            ([0, 1], b"\x03\0\0\0xx", Encoding::RLE, false),
            ([0, 1], b"\xff\xff\xff\xff", Encoding::RLE, false),
            ([0, 1], b"\x02\0\0", Encoding::RLE, false),
            ([1, 1], b"\x01\0\0\0x\x01\0\0\0x", Encoding::RLE, true),
            ([1, 1], b"\x01\0\0\0x\x02\0\0\0x", Encoding::RLE, false),
            // 20 values of 1 and of 2 bits: 3 bytes and 5.
            ([0, 1], b"xxx", bits, true),
            ([0, 1], b"xx", bits, false),
            ([1, 3], b"xxxxxxxx", bits, true),
            ([1, 3], b"xxxxxxx", bits, false),
        ] {
            let found = check(levels, first_version(bytes, 20, encoding));
            assert_eq!(found.is_ok(), is_valid, "{levels:?} {bytes:?} {encoding:?}");
        }
        for (levels, is_valid) in [
            ([0, 0], true),
            ([3, 2], true),
            ([3, 3], false),
            ([0, 6], false),
            ([u32::MAX, 1], false),
        ] {
            let found = check([1, 1], second_version(b"12345", levels));
            assert_eq!(found.is_ok(), is_valid, "{levels:?}");
        }
    }
}
