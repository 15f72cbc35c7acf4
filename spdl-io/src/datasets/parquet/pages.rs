//! Checks of the pages of a column chunk, before anything is decompressed or decoded.
//!
//! The `parquet` crate allocates as many bytes as page headers state. These checks limit the stated sizes.

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;
use spdl_core::{Error, ErrorKind, Result};

use super::thrift::{self, Thrift};
use super::values;

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

/// A page reader that refuses encodings, levels and values that could exhaust memory, or on which the
/// `parquet` crate panics.
pub(super) struct CheckedPages<P> {
    pages: P,
    physical_type: Type,
    /// The bytes of a value of fixed length.
    value_bytes: usize,
    max_repetition: i16,
    max_definition: i16,
    has_dictionary: bool,
}

/// The parts of a page.
struct PageParts<'a> {
    repetition: &'a [u8],
    definition: &'a [u8],
    values: &'a [u8],
    /// Whether the levels are bit-packed instead of a hybrid, as in old files.
    packed_definition: bool,
}

impl<P> CheckedPages<P> {
    pub(super) fn new(pages: P, column: &ColumnDescriptor) -> Self {
        let value_bytes = match column.physical_type() {
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            _ => usize::try_from(column.type_length()).unwrap_or(0),
        };
        CheckedPages {
            pages,
            physical_type: column.physical_type(),
            value_bytes,
            max_repetition: column.max_rep_level(),
            max_definition: column.max_def_level(),
            has_dictionary: false,
        }
    }

    fn check(&mut self, page: Page) -> parquet::errors::Result<Page> {
        if self.parts(&page).is_none() {
            let message = "the repetition and definition levels exceed their page";
            return Err(ParquetError::General(message.into()));
        }
        match page.encoding() {
            encoding @ (Encoding::DELTA_BYTE_ARRAY | Encoding::ALP) => {
                Err(ParquetError::NYI(format!("the encoding {encoding}")))
            }
            encoding if self.values_are_safe(&page).is_none() => {
                let message = format!("invalid values in a page of encoding {encoding}");
                Err(ParquetError::General(message))
            }
            _ => {
                self.has_dictionary |= matches!(page, Page::DictionaryPage { .. });
                Ok(page)
            }
        }
    }

    /// The levels and the values of a page; `None` if the levels exceed the page.
    fn parts<'a>(&self, page: &'a Page) -> Option<PageParts<'a>> {
        let all = &page.buffer()[..];
        match page {
            Page::DataPage { num_values, rep_level_encoding, def_level_encoding, .. } => {
                let (repetition, rest) =
                    levels(all, self.max_repetition, *rep_level_encoding, *num_values)?;
                let (definition, values) =
                    levels(rest, self.max_definition, *def_level_encoding, *num_values)?;
                let packed_definition = *def_level_encoding != Encoding::RLE;
                Some(PageParts { repetition, definition, values, packed_definition })
            }
            Page::DataPageV2 { rep_levels_byte_len, def_levels_byte_len, .. } => {
                let (repetition, rest) =
                    all.split_at_checked(usize::try_from(*rep_levels_byte_len).ok()?)?;
                let (definition, values) =
                    rest.split_at_checked(usize::try_from(*def_levels_byte_len).ok()?)?;
                Some(PageParts { repetition, definition, values, packed_definition: false })
            }
            Page::DictionaryPage { .. } => Some(PageParts {
                repetition: &[],
                definition: &[],
                values: all,
                packed_definition: false,
            }),
        }
    }

    /// `None` if the `parquet` crate may panic on the levels or values.
    fn values_are_safe(&self, page: &Page) -> Option<()> {
        let PageParts { repetition, definition, values: bytes, packed_definition } =
            self.parts(page)?;
        let count = u64::from(page.num_values());
        let is_bytes = self.physical_type == Type::BYTE_ARRAY;
        if matches!(page, Page::DictionaryPage { .. }) {
            return if is_bytes { values::check_byte_arrays(bytes, count) } else { Some(()) };
        }
        let bits = values::level_bits(self.max_definition);
        values::check_hybrid(repetition, values::level_bits(self.max_repetition), count)?;
        if !packed_definition {
            values::check_hybrid(definition, bits, count)?;
        }
        // Nulls are not stored.
        let stored = || match self.max_definition {
            0 => Some(count),
            max if packed_definition => {
                Some(values::count_packed(definition, bits, count, max as u64))
            }
            max => values::count_in_hybrid(definition, bits, count, max as u64),
        };
        match page.encoding() {
            Encoding::PLAIN if is_bytes => values::check_byte_arrays(bytes, stored()?),
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                let (bits, indices) = bytes.split_first().unwrap_or((&0, &[]));
                values::check_hybrid(indices, (*bits).into(), count)?;
                self.has_dictionary.then_some(())
            }
            // Booleans, after their length.
            Encoding::RLE => values::check_hybrid(bytes.get(4..).unwrap_or_default(), 1, count),
            Encoding::BYTE_STREAM_SPLIT => {
                values::check_streams(bytes, self.value_bytes, stored()?)
            }
            Encoding::DELTA_BINARY_PACKED => values::check_deltas(bytes, stored()?),
            Encoding::DELTA_LENGTH_BYTE_ARRAY => values::check_delta_lengths(bytes, count),
            _ => Some(()),
        }
    }
}

/// Splits the levels of a data page v1 from the rest. `None` if they exceed the page.
fn levels(
    page: &[u8],
    max_level: i16,
    encoding: Encoding,
    num_values: u32,
) -> Option<(&[u8], &[u8])> {
    match encoding {
        _ if max_level == 0 => Some((&[], page)),
        // The levels are prefixed with their length in bytes.
        Encoding::RLE => {
            let (len, rest) = page.split_first_chunk()?;
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
        }
        // `BIT_PACKED`. The `parquet` crate refuses other encodings.
        _ => {
            let bits = values::level_bits(max_level) as usize;
            let len = usize::try_from(num_values).ok()?.checked_mul(bits)?.div_ceil(8);
            page.split_at_checked(len)
        }
    }
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
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use parquet::column::reader::ColumnReaderImpl;
    use parquet::data_type::{BoolType, ByteArrayType, DataType, FloatType, Int32Type};
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    fn check(levels: [i16; 2], page: Page) -> bool {
        let [max_repetition, max_definition] = levels;
        let pages = CheckedPages {
            pages: (),
            physical_type: Type::INT32,
            value_bytes: 4,
            max_repetition,
            max_definition,
            has_dictionary: false,
        };
        pages.parts(&page).is_some()
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
            assert_eq!(found, is_valid, "{levels:?} {bytes:?} {encoding:?}");
        }
        for (levels, is_valid) in [
            ([0, 0], true),
            ([3, 2], true),
            ([3, 3], false),
            ([0, 6], false),
            ([u32::MAX, 1], false),
        ] {
            let found = check([1, 1], second_version(b"12345", levels));
            assert_eq!(found, is_valid, "{levels:?}");
        }
    }

    /// A data page v1 of two values.
    fn page(bytes: &[u8], encoding: Encoding) -> Page {
        Page::DataPage {
            buf: bytes.to_vec().into(),
            num_values: 2,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        }
    }

    /// A dictionary of two values.
    fn dictionary(bytes: &[u8]) -> Page {
        Page::DictionaryPage {
            buf: bytes.to_vec().into(),
            num_values: 2,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        }
    }

    /// Pages in memory, without checks.
    struct Unchecked(std::collections::VecDeque<Page>);

    impl Iterator for Unchecked {
        type Item = parquet::errors::Result<Page>;

        fn next(&mut self) -> Option<Self::Item> {
            self.0.pop_front().map(Ok)
        }
    }

    impl PageReader for Unchecked {
        fn get_next_page(&mut self) -> parquet::errors::Result<Option<Page>> {
            Ok(self.0.pop_front())
        }

        fn peek_next_page(&mut self) -> parquet::errors::Result<Option<PageMetadata>> {
            unreachable!("no page is skipped")
        }

        fn skip_next_page(&mut self) -> parquet::errors::Result<()> {
            unreachable!("no page is skipped")
        }
    }

    /// Reads two values of the column `message a { COLUMN b; }` by the crate alone, and with the checks.
    fn read<T: DataType>(column: &str, pages: &[Page]) -> [std::thread::Result<bool>; 2] {
        let schema = parse_message_type(&format!("message a {{ {column} b; }}")).unwrap();
        let column = SchemaDescriptor::new(Arc::new(schema)).column(0);
        let unchecked = || Unchecked(pages.iter().cloned().collect());
        let read = |pages: Box<dyn PageReader>| {
            let mut reader = ColumnReaderImpl::<T>::new(Arc::clone(&column), pages);
            let (mut values, mut levels, mut repetition) = (vec![], vec![], vec![]);
            catch_unwind(AssertUnwindSafe(|| {
                let read =
                    reader.read_records(2, Some(&mut levels), Some(&mut repetition), &mut values);
                read.is_ok()
            }))
        };
        [read(Box::new(unchecked())), read(Box::new(CheckedPages::new(unchecked(), &column)))]
    }

    // The table of faults in `docs/decisions/decoder-crates.md`. If the crate no longer panics on a page,
    // remove its check and its row.
    // promise: R1
    #[test]
    fn pages_on_which_the_crate_panics_are_refused() {
        let endless = [&[11, 0, 0, 0][..], &[128; 11]].concat();
        let faults = [
            read::<ByteArrayType>("required binary", &[page(&[0; 7], Encoding::PLAIN)]),
            read::<ByteArrayType>("required binary", &[dictionary(&[0; 7])]),
            read::<Int32Type>("required int32", &[page(&[1, 4, 0], Encoding::RLE_DICTIONARY)]),
            read::<FloatType>("required float", &[page(&[0; 4], Encoding::BYTE_STREAM_SPLIT)]),
            read::<Int32Type>(
                "required int32",
                &[page(&[128, 1, 4, 0, 0], Encoding::DELTA_BINARY_PACKED)],
            ),
            read::<ByteArrayType>(
                "required binary",
                &[page(&[128, 1, 4, 2, 2, 0, 0, 0, 0, 0], Encoding::DELTA_LENGTH_BYTE_ARRAY)],
            ),
            read::<BoolType>("required boolean", &[page(&endless, Encoding::RLE)]),
            read::<Int32Type>("optional int32", &[page(&endless, Encoding::PLAIN)]),
        ];
        for (number, [by_crate, checked]) in faults.into_iter().enumerate() {
            assert!(by_crate.is_err(), "the crate does not panic on page {number}");
            assert!(checked.is_ok_and(|is_read| !is_read), "page {number} is not refused");
        }
        // Valid pages are read.
        let indices = page(&[1, 4, 0], Encoding::RLE_DICTIONARY);
        for found in [
            read::<ByteArrayType>("required binary", &[page(&[0; 8], Encoding::PLAIN)]),
            read::<ByteArrayType>("required binary", &[dictionary(&[0; 8]), indices]),
            read::<FloatType>("required float", &[page(&[0; 8], Encoding::BYTE_STREAM_SPLIT)]),
            read::<ByteArrayType>(
                "required binary",
                &[page(&[128, 1, 4, 2, 2, 0, 0, 0, 0, 0, 7, 7], Encoding::DELTA_LENGTH_BYTE_ARRAY)],
            ),
            // A null and a value of two bytes.
            read::<ByteArrayType>(
                "optional binary",
                &[page(&[2, 0, 0, 0, 3, 2, 2, 0, 0, 0, 7, 7], Encoding::PLAIN)],
            ),
        ] {
            assert!(found.into_iter().all(|found| found.unwrap()));
        }
    }
}
