//! Parsers for the rows of a file list: lines, CSV, JSON Lines.

use std::borrow::Cow;

use serde_json::{Map, Value};
use spdl_core::{Error, ErrorKind, Result};

/// The cells of a CSV row.
pub(super) struct CsvRow<'a> {
    pub(super) cells: Vec<Cow<'a, [u8]>>,
    /// The offset of the next row.
    pub(super) end: usize,
}

/// The maximum number of cells of a CSV row.
const MAX_CELLS: usize = 10_000;

/// Parses the CSV row at offset `start`, by RFC 4180. Lines end with LF or CRLF.
///
/// # Errors
/// - `Corrupt` for a quotation mark in an unquoted cell, and for text after a closing quotation mark.
/// - `Truncated` for a quotation mark that is not closed.
/// - `LimitExceeded` for more than 10,000 cells.
pub(super) fn csv_row(text: &[u8], start: usize) -> Result<CsvRow<'_>> {
    let mut cells = Vec::new();
    let mut at = start;
    loop {
        if cells.len() == MAX_CELLS {
            let message = format!("more than {MAX_CELLS} cells in a row");
            let error = Error::new(ErrorKind::LimitExceeded, message);
            return Err(error.with_offset(start as u64));
        }
        let cell = match text.get(at) {
            Some(b'"') => quoted_cell(text, &mut at)?,
            _ => plain_cell(text, &mut at)?,
        };
        cells.push(cell);
        match &text[at..] {
            [b',', ..] => at += 1,
            [] => return Ok(CsvRow { cells, end: at }),
            [b'\n', ..] => return Ok(CsvRow { cells, end: at + 1 }),
            [b'\r', b'\n', ..] => return Ok(CsvRow { cells, end: at + 2 }),
            _ => return Err(corrupt("text after the closing quotation mark of a cell", at)),
        }
    }
}

fn plain_cell<'a>(text: &'a [u8], at: &mut usize) -> Result<Cow<'a, [u8]>> {
    let start = *at;
    let rest = &text[start..];
    let len = rest.iter().position(|byte| matches!(byte, b',' | b'\n')).unwrap_or(rest.len());
    let is_line_end = rest.get(len) == Some(&b'\n');
    let len = match len.checked_sub(1) {
        Some(before) if is_line_end && rest[before] == b'\r' => before,
        _ => len,
    };
    if let Some(quote) = rest[..len].iter().position(|&byte| byte == b'"') {
        let message = "quotation mark in an unquoted cell; quote the cell and double the mark";
        return Err(corrupt(message, start + quote));
    }
    *at += len;
    Ok(Cow::Borrowed(&rest[..len]))
}

fn quoted_cell<'a>(text: &'a [u8], at: &mut usize) -> Result<Cow<'a, [u8]>> {
    let opened = *at;
    let mut cell = Cow::Borrowed(&text[opened + 1..opened + 1]);
    *at += 1;
    loop {
        let rest = &text[*at..];
        let Some(len) = rest.iter().position(|&byte| byte == b'"') else {
            let error = Error::new(ErrorKind::Truncated, "closing quotation mark not found");
            return Err(error.with_offset(opened as u64));
        };
        let is_twice = rest.get(len + 1) == Some(&b'"');
        let piece = &rest[..len + usize::from(is_twice)];
        match cell.is_empty() {
            true => cell = Cow::Borrowed(piece),
            false => cell.to_mut().extend_from_slice(piece),
        }
        *at += len + 1 + usize::from(is_twice);
        if !is_twice {
            return Ok(cell);
        }
    }
}

/// The line at offset `start` without its line end, and the offset of the next line.
pub(super) fn line(text: &[u8], start: usize) -> (&[u8], usize) {
    let rest = &text[start..];
    let len = rest.iter().position(|&byte| byte == b'\n');
    let next = start + len.map_or(rest.len(), |len| len + 1);
    let line = &rest[..len.unwrap_or(rest.len())];
    (line.strip_suffix(b"\r").unwrap_or(line), next)
}

/// Parses the JSON object in the line at offset `start`.
///
/// # Errors
/// `Corrupt` if the line is not a JSON object, with the offset of the error.
pub(super) fn json_line(text: &[u8], start: usize) -> Result<Map<String, Value>> {
    let (line, _) = line(text, start);
    serde_json::from_slice(line).map_err(|error| {
        let column = error.column().saturating_sub(1).min(line.len());
        // The cause counts lines from the start of this line.
        let cause = error.to_string();
        let cause = cause.split(" at line ").next().unwrap_or_default().to_owned();
        corrupt("the line is not a JSON object", start + column).with_source(cause)
    })
}

pub(super) fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}
