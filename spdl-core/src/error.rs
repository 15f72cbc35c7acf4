//! The error type of the workspace: kind, message, stage, sample key and byte offset.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The result of a fallible call; its error type is [`Error`] unless `E` is given.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, for programs to match on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum ErrorKind {
    /// The file, object or member does not exist.
    NotFound,
    /// The file or object exists, but the process has no permission to read it.
    PermissionDenied,
    /// The operating system or a device reported a failure that no other kind describes.
    Io,
    /// A service is overloaded, throttles, or cannot be reached. Transient.
    Unavailable,
    /// An operation exceeded its time limit. Transient.
    Timeout,
    /// A sample lacks a value, and samples without it are to be dropped: a failed item of this kind is
    /// dropped, counted and listed under every failure policy, and does not count in its limits.
    MissingValue,
    /// The data violate their format.
    Corrupt,
    /// The data end early: a part that the format requires is missing.
    Truncated,
    /// The object was replaced by another version since it was first read.
    Changed,
    /// The input is valid, but this build or codec does not support it.
    Unsupported,
    /// An input, an item or a batch exceeds a limit, for example of pixels, frames or memory.
    LimitExceeded,
    /// More items failed than the failure policy allows. [`Error::failed_item`] is the failure that
    /// exceeded the limit; its item is not dropped, so a run that resumes processes it again.
    TooManyFailures,
    /// An argument is invalid, or arguments are inconsistent.
    InvalidArgument,
    /// A stage or other code of the user panicked. The message contains the panic message.
    Panicked,
    /// The pipeline has ended, or was stopped while the operation was in flight.
    Stopped,
    /// A stage or source written by the user returned this error.
    User,
    /// A bug of this library: an internal invariant is violated. Please report it.
    Internal,
}

impl ErrorKind {
    /// Returns the kind in lower case with hyphens, as statistics and JSON show it.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not-found",
            ErrorKind::PermissionDenied => "permission-denied",
            ErrorKind::Io => "io",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Timeout => "timeout",
            ErrorKind::MissingValue => "missing-value",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Truncated => "truncated",
            ErrorKind::Changed => "changed",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::LimitExceeded => "limit-exceeded",
            ErrorKind::TooManyFailures => "too-many-failures",
            ErrorKind::InvalidArgument => "invalid-argument",
            ErrorKind::Panicked => "panicked",
            ErrorKind::Stopped => "stopped",
            ErrorKind::User => "user",
            ErrorKind::Internal => "internal",
        }
    }

    /// Returns whether a retry may succeed: true for `Unavailable` and `Timeout`.
    pub fn is_transient(self) -> bool {
        matches!(self, ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure: kind, message, and the stage, sample key and byte offset if known.
///
/// `Display` prints `stage: key: message (at byte N)` and omits unknown parts. The cause is
/// available through [`source`](StdError::source) only, so that printers of error chains do not
/// print it twice. [`Error::report`] prints the whole chain in one line.
///
/// ```
/// use spdl_core::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::Truncated, "the file ends inside the image data")
///     .with_key("cats/7.jpg")
///     .with_stage("decode")
///     .with_offset(512);
/// assert_eq!(
///     error.to_string(),
///     "decode: cats/7.jpg: the file ends inside the image data (at byte 512)"
/// );
/// assert!(!error.kind().is_transient());
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    stage: Option<Arc<str>>,
    key: Option<Arc<str>>,
    offset: Option<u64>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    others: Vec<Error>,
    changes: Vec<Change>,
    fatal: bool,
    retry_after: Option<Duration>,
}

impl Error {
    /// Creates an error of `kind`. `message` describes what was expected and what was found,
    /// without the cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            stage: None,
            key: None,
            offset: None,
            source: None,
            others: Vec::new(),
            changes: Vec::new(),
            fatal: false,
            retry_after: None,
        }))
    }

    /// Sets the stage name, unless it is already set.
    #[must_use]
    pub fn with_stage(mut self, stage: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.0).stage.get_or_insert_with(|| stage.into());
        self
    }

    /// Sets the sample key (path, object key, member), unless it is already set.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.0).key.get_or_insert_with(|| key.into());
        self
    }

    /// Replaces the key.
    #[must_use]
    pub fn renamed(mut self, key: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.0).key = Some(key.into());
        self
    }

    /// Sets the byte offset in the data at which the failure was detected.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        Arc::make_mut(&mut self.0).offset = Some(offset);
        self
    }

    /// Attaches the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::from(source.into()));
        self
    }

    /// Attaches the cause of `other`, for an error that repeats the message of `other`.
    #[must_use]
    pub fn with_cause_of(mut self, other: Error) -> Self {
        let cause = match Arc::try_unwrap(other.0) {
            Ok(inner) => inner.source,
            Err(shared) => shared.source.clone(),
        };
        Arc::make_mut(&mut self.0).source = cause;
        self
    }

    /// Attaches the failure of the item that exceeded the limit of the failure policy.
    pub(crate) fn with_failed_item(self, failure: Error) -> Self {
        self.with_source(FailedItem(failure))
    }

    /// Returns the failure of the item that exceeded the limit, for an error of the kind
    /// [`TooManyFailures`](ErrorKind::TooManyFailures). `None` if the limit was exceeded at the end.
    pub fn failed_item(&self) -> Option<&Error> {
        Some(&self.source()?.downcast_ref::<FailedItem>()?.0)
    }

    /// Attaches failures that occurred concurrently in other stages.
    #[must_use]
    pub fn with_others(mut self, others: impl IntoIterator<Item = Error>) -> Self {
        Arc::make_mut(&mut self.0).others.extend(others);
        self
    }

    /// Marks the error as fatal: the error ends the pipeline even if the failure policy is to skip.
    ///
    /// Sources that cannot continue after a failure return fatal errors.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        Arc::make_mut(&mut self.0).fatal = true;
        self
    }

    /// Returns whether the error ends the pipeline regardless of the failure policy.
    pub fn is_fatal(&self) -> bool {
        self.0.fatal
    }

    /// Returns the failures of other stages that ended the pipeline together with this one.
    pub fn others(&self) -> &[Error] {
        &self.0.others
    }

    /// Attaches the changes because of which a checkpoint state or an unfinished data set is
    /// rejected.
    #[must_use]
    pub fn with_changes(mut self, changes: Vec<Change>) -> Self {
        Arc::make_mut(&mut self.0).changes = changes;
        self
    }

    /// Returns the changes because of which a checkpoint state or an unfinished data set is
    /// rejected.
    ///
    /// If [`build`](crate::PipelineBuilder::build) rejects a state because the pipeline differs,
    /// the list contains each changed part that the state does not
    /// [allow](crate::State::allow_change). Other code can attach a list with
    /// [`with_changes`](Error::with_changes). For all other errors, the list is empty.
    ///
    /// ```
    /// use spdl_core::{DatasetSource, PipelineBuilder};
    /// let lists = |size| {
    ///     let numbers = DatasetSource::new((0..10).collect::<Vec<i32>>());
    ///     PipelineBuilder::new(numbers).batch("batch", size, false)
    /// };
    /// let state = lists(2).build()?.state()?;
    /// let error = lists(3).resume(state).build().unwrap_err();
    /// let [change] = error.changes() else { panic!("{error}") };
    /// assert_eq!(change.part, "stage batch: size");
    /// assert_eq!((change.was.as_deref(), change.is.as_deref()), (Some("2"), Some("3")));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn changes(&self) -> &[Change] {
        &self.0.changes
    }

    /// Sets the delay that the server requested before a retry (HTTP's `Retry-After`).
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        Arc::make_mut(&mut self.0).retry_after = Some(delay);
        self
    }

    /// Returns the delay that the server requested before a retry, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Appends text to the message.
    pub(crate) fn with_more(mut self, words: &str) -> Self {
        Arc::make_mut(&mut self.0).message.push_str(words);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without stage, key and cause.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the name of the failed stage, if known.
    pub fn stage(&self) -> Option<&str> {
        self.0.stage.as_deref()
    }

    /// Returns the key of the failed sample, if known.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Returns the byte offset in the data at which the failure was detected, if known.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Returns message, offset and causes, for tables that show stage and key in other columns.
    pub fn reason(&self) -> String {
        let mut text = self.0.message.clone();
        if let Some(offset) = self.0.offset {
            text.push_str(&format!(" (at byte {offset})"));
        }
        self.append_causes(&mut text);
        text
    }

    /// Returns the error, its causes and concurrent failures in one line.
    pub fn report(&self) -> String {
        let mut text = self.to_string();
        self.append_causes(&mut text);
        for other in &self.0.others {
            text.push_str("; also: ");
            text.push_str(&other.report());
        }
        text
    }

    fn append_causes(&self, text: &mut String) {
        let mut cause = self.source();
        while let Some(error) = cause {
            let message = error.to_string();
            // A cause may carry only data for programs and have an empty message.
            if !message.is_empty() {
                text.push_str(": ");
                text.push_str(&message);
            }
            cause = error.source();
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.0.stage, &self.0.key].into_iter().flatten() {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.0.message)?;
        match self.0.offset {
            Some(offset) => write!(f, " (at byte {offset})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rust prints this form if `main` returns the error.
        write!(f, "{} ({})", self.report(), self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The failure that exceeded the limit of a failure policy. The message of the error contains its text.
#[derive(Debug)]
struct FailedItem(Error);

impl fmt::Display for FailedItem {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl StdError for FailedItem {}

impl From<std::io::Error> for Error {
    /// Keeps the message of the operating system and maps its kind.
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        let kind = match error.kind() {
            Os::NotFound => ErrorKind::NotFound,
            Os::PermissionDenied => ErrorKind::PermissionDenied,
            Os::TimedOut => ErrorKind::Timeout,
            // A retry may succeed on a new connection.
            Os::ConnectionReset
            | Os::ConnectionAborted
            | Os::ConnectionRefused
            | Os::BrokenPipe
            | Os::NotConnected
            | Os::Interrupted => ErrorKind::Unavailable,
            Os::UnexpectedEof => ErrorKind::Truncated,
            Os::InvalidInput => ErrorKind::InvalidArgument,
            Os::InvalidData => ErrorKind::Corrupt,
            Os::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error::new(kind, error.to_string())
    }
}

/// A part of a pipeline or data set that differs from its saved version: an entry of
/// [`Error::changes`](crate::Error::changes).
///
/// `Display` prints `PART was VALUE, is VALUE`, with `absent` for a missing value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the part, as [`State::allow_change`](crate::State::allow_change) accepts it: `seed`,
    /// or a name in [`State::fingerprint`](crate::State::fingerprint).
    pub part: String,
    /// The saved value; `None` if the part did not exist.
    pub was: Option<String>,
    /// The current value; `None` if the part no longer exists.
    pub is: Option<String>,
}

impl Change {
    /// Yields all differences between two fingerprints, in ascending order of the parts' names.
    pub(crate) fn between<'a>(
        was: &'a BTreeMap<String, String>,
        is: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = Change> + 'a {
        let parts: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        parts.into_iter().filter(|part| was.get(*part) != is.get(*part)).map(|part| Change {
            part: part.clone(),
            was: was.get(part).cloned(),
            is: is.get(part).cloned(),
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { part, was, is } = self;
        let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("absent"));
        write!(f, "{part} was {was}, is {is}")
    }
}

/// Runs user code and converts a panic to an error. The returned flag is true after a panic.
pub(crate) fn guarded<R>(work: impl FnOnce() -> Result<R>) -> (Result<R>, bool) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => (result, false),
        Err(payload) => {
            let payload: Box<dyn Any + Send> = payload;
            (Err(panicked(payload)), true)
        }
    }
}

/// Returns the error for operations that are in flight when the pipeline stops.
pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the pipeline has ended")
}

/// Converts a panic's payload to an error.
pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let words = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    let words = words.unwrap_or_else(|| "the panic payload is not a string".into());
    Error::new(ErrorKind::Panicked, format!("panicked: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_stage_and_key_stay() {
        let error = Error::new(ErrorKind::Corrupt, "bad").with_stage("decode").with_key("a");
        let error = error.with_stage("batch").with_key("b");
        assert_eq!(error.stage(), Some("decode"));
        assert_eq!(error.key(), Some("a"));
    }

    #[test]
    fn the_cause_is_in_the_report_and_not_in_the_message() {
        let cause = std::io::Error::other("disk on fire");
        let error = Error::new(ErrorKind::Io, "cannot read").with_key("x").with_source(cause);
        assert_eq!(error.to_string(), "x: cannot read");
        assert_eq!(error.report(), "x: cannot read: disk on fire");
        assert_eq!(error.reason(), "cannot read: disk on fire");
    }

    #[test]
    fn an_error_keeps_its_retry_after() {
        let error = Error::new(ErrorKind::Unavailable, "slow down");
        assert_eq!(error.retry_after(), None);
        let error = error.with_retry_after(Duration::from_secs(7)).with_key("x");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn an_io_error_keeps_its_kind() {
        let error = Error::from(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn kinds_have_the_same_name_everywhere() {
        use ErrorKind as K;
        for kind in [
            K::NotFound,
            K::PermissionDenied,
            K::Io,
            K::Unavailable,
            K::Timeout,
            K::Corrupt,
            K::Truncated,
            K::Changed,
            K::Unsupported,
            K::LimitExceeded,
            K::TooManyFailures,
            K::InvalidArgument,
            K::Panicked,
            K::Stopped,
            K::User,
        ] {
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.as_str());
            assert_eq!(serde_json::from_value::<ErrorKind>(json).unwrap(), kind);
        }
    }
}
