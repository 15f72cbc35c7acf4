//! Advice for errors of libraries, in terms of the options of this program.

use spdl_core::{Error, ErrorKind};
use spdl_io::records::Remedy;

/// If an option avoids `error`, appends the option to the text of the error.
pub(crate) fn with_advice(text: String, error: &Error) -> String {
    if error.kind() == ErrorKind::TooManyFailures {
        return format!("{text}; to skip more, raise --max-skipped");
    }
    match Remedy::of(error) {
        Some(Remedy::ImageField) => {
            format!("{text}; to use another field or column, add --image-field")
        }
        Some(Remedy::LabelField) => {
            format!("{text}; to use another field as the label, add --label-field")
        }
        Some(Remedy::MaxFileBytes) => {
            format!("{text}; to read larger files, raise --max-file-size")
        }
        Some(Remedy::SequentialMemory) => {
            format!("{text}; --sequential=BYTES sets the limit")
        }
        _ => text,
    }
}
