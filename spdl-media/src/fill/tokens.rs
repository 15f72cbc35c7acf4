//! [`Tokens`]: ids of tokens, stored or made from text.

use spdl_core::{Error, ErrorKind, Result};
use spdl_io::FieldValue;

use super::numbers::Numbers;

/// How a sample becomes a list of token ids: see [`SampleField::tokens`](super::SampleField::tokens).
///
/// ```
/// use spdl_core::DType;
/// use spdl_media::fill::{SampleField, SampleSpec, Tokens};
/// // Stored ids; a sample with more than 2048 of them is an error.
/// let tokens = Tokens::new().stored_bytes(2).at_most(2048);
/// let spec = SampleSpec::new().with("tokens", SampleField::tokens(tokens, DType::I64));
/// spec.validate()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    most: Option<usize>,
    is_truncated: bool,
    /// The number of ids of each sample.
    length: Option<usize>,
    /// The size of an id in stored bytes.
    stored: Option<usize>,
    #[cfg(feature = "tokenizers")]
    tokenizer: Option<text::TextTokenizer>,
}

impl Tokens {
    /// Stored ids: lists of integers, NumPy arrays, or JSON.
    pub fn new() -> Self {
        Tokens::default()
    }

    /// Sets that stored bytes are unsigned little-endian ids of this size, clamped to 1 to 8 bytes. Default: bytes are
    /// no ids.
    #[must_use]
    pub fn stored_bytes(self, size: usize) -> Self {
        Tokens { stored: Some(size.clamp(1, 8)), ..self }
    }

    /// Sets the maximum number of ids, at least 1. Samples with more ids are errors. Default: no maximum.
    #[must_use]
    pub fn at_most(self, ids: usize) -> Self {
        Tokens { most: Some(ids), ..self }
    }

    /// Removes the ids after the maximum, instead of an error. A tokenizer removes ids of the text, and keeps its
    /// special tokens.
    #[must_use]
    pub fn truncated(self) -> Self {
        Tokens { is_truncated: true, ..self }
    }

    /// Whether the ids are made from text.
    pub(super) fn are_text(&self) -> bool {
        #[cfg(feature = "tokenizers")]
        let are_text = self.tokenizer.is_some();
        #[cfg(not(feature = "tokenizers"))]
        let are_text = false;
        are_text
    }

    /// Sets the number of ids of each sample, at least 1, which is also the maximum. Shorter samples end with the
    /// [padding](super::SampleField::padding) of the field. Default: samples have different lengths.
    ///
    /// ```
    /// use spdl_core::DType;
    /// use spdl_media::fill::{SampleField, SampleSpec, Tokens};
    /// let tokens = Tokens::new().padded_to(77).truncated();
    /// let field = SampleField::tokens(tokens, DType::I64).padding(49407.0);
    /// let spec = SampleSpec::new().with("tokens", field);
    /// spec.validate()?;
    /// assert_eq!(spec.layout(8).fields()[0].shape, [77]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn padded_to(self, ids: usize) -> Self {
        let most = Some(self.most.map_or(ids, |most| most.min(ids)));
        Tokens { most, length: Some(ids), ..self }
    }

    /// The number of ids of each sample, if it is fixed.
    pub(super) fn length(&self) -> Option<usize> {
        self.length
    }

    /// Appends the padding to the ids of a sample.
    pub(super) fn pad(&self, numbers: &mut Numbers, padding: f64) {
        if let Some(length) = self.length {
            numbers.pad(length, padding);
        }
    }

    /// Reads the ids of a sample.
    pub(super) fn read(&self, value: &FieldValue, numbers: &mut Numbers) -> Result<()> {
        #[cfg(feature = "tokenizers")]
        if let Some(tokenizer) = &self.tokenizer {
            tokenizer.read(value, numbers)?;
            return self.check(numbers);
        }
        match (value, self.stored) {
            (FieldValue::Bytes(bytes), Some(size)) => {
                if !bytes.len().is_multiple_of(size) {
                    let message = format!(
                        "{} bytes are not a whole number of ids of {size} bytes",
                        bytes.len()
                    );
                    return Err(Error::new(ErrorKind::Truncated, message));
                }
                numbers.set_integers(bytes.chunks_exact(size).map(|id| {
                    let mut bytes = [0; 8];
                    bytes[..size].copy_from_slice(id);
                    i64::from_le_bytes(bytes)
                }));
            }
            (value, _) => numbers.read(value)?,
        }
        self.check(numbers)
    }

    /// Compares the number of ids with the maximum.
    fn check(&self, numbers: &mut Numbers) -> Result<()> {
        match (self.most, numbers.rows()) {
            (Some(most), found) if found > most && self.is_truncated => numbers.truncate(most),
            (Some(most), found) if found > most => {
                let message = format!(
                    "{found} tokens exceed the maximum of {most}; truncate longer samples, or raise the maximum"
                );
                return Err(Error::new(ErrorKind::LimitExceeded, message));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(feature = "tokenizers")]
fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(feature = "tokenizers")]
mod text {
    use std::fmt;
    use std::sync::Arc;

    use spdl_core::{Error, ErrorKind, Result};
    use spdl_io::FieldValue;
    use tokenizers::{PostProcessor, Tokenizer, TruncationParams};
    use twox_hash::XxHash3_128;

    use super::{Numbers, Tokens, invalid};

    /// A tokenizer, and whether it adds special tokens.
    #[derive(Clone)]
    pub(super) struct TextTokenizer {
        tokenizer: Arc<Tokenizer>,
        adds_special: bool,
        /// The hash of `tokenizer.json`, so that a checkpoint state of another tokenizer is refused.
        hash: u64,
    }

    impl fmt::Debug for TextTokenizer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{:016x} (special tokens: {})", self.hash, self.adds_special)
        }
    }

    impl Tokens {
        /// Sets the tokenizer that makes ids from text: the content of a `tokenizer.json` of Hugging Face.
        ///
        /// With `special_tokens`, its post-processor adds special tokens such as `[CLS]`. Its own settings of
        /// truncation and padding are ignored. Call this method after [`at_most`](Self::at_most) and
        /// [`truncated`](Self::truncated).
        ///
        /// # Errors
        /// `InvalidArgument` if this is not a tokenizer, and for a maximum for truncation that leaves no place for
        /// text.
        pub fn tokenizer(self, json: &[u8], special_tokens: bool) -> Result<Self> {
            let fault = |error: tokenizers::Error| {
                invalid("not a tokenizer.json of Hugging Face tokenizers".to_owned())
                    .with_source(error.to_string())
            };
            let mut tokenizer = Tokenizer::from_bytes(json).map_err(fault)?;
            tokenizer.with_padding(None);
            let truncation = self.most.filter(|_| self.is_truncated);
            if let Some(most) = truncation {
                let added = tokenizer.get_post_processor().map_or(0, |it| it.added_tokens(false));
                if most <= added {
                    return Err(invalid(format!(
                        "a maximum of {most} tokens leaves no place for text: the tokenizer adds {added} special \
                         tokens"
                    )));
                }
            }
            let params = |max_length| TruncationParams { max_length, ..Default::default() };
            tokenizer.with_truncation(truncation.map(params)).map_err(fault)?;
            let tokenizer = Some(TextTokenizer {
                tokenizer: Arc::new(tokenizer),
                adds_special: special_tokens,
                hash: XxHash3_128::oneshot(json) as u64,
            });
            Ok(Tokens { tokenizer, ..self })
        }
    }

    impl TextTokenizer {
        /// Makes the ids of a text.
        pub(super) fn read(&self, value: &FieldValue, numbers: &mut Numbers) -> Result<()> {
            let text = match value {
                FieldValue::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|error| {
                    let invalid = Error::new(ErrorKind::Corrupt, "invalid UTF-8");
                    invalid.with_offset(error.valid_up_to() as u64).with_source(error)
                })?,
                value => value
                    .as_str()
                    .ok_or_else(|| invalid(format!("expected text, found {}", value.kind())))?,
            };
            let encoding =
                self.tokenizer.encode_fast(text, self.adds_special).map_err(|error| {
                    invalid("cannot tokenize the text".to_owned()).with_source(error.to_string())
                })?;
            numbers.set_integers(encoding.get_ids().iter().map(|id| i64::from(*id)));
            Ok(())
        }
    }
}
