//! What went wrong, where, and what the caller may do about it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The result of every fallible call in the workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure this is: the thing to match on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum ErrorKind {
    /// The file, object or member does not exist.
    NotFound,
    /// It exists, but may not be read.
    PermissionDenied,
    /// The operating system or a device failed for another reason.
    Io,
    /// A service refused for now (overload, throttling). Transient.
    Unavailable,
    /// Something took longer than it was allowed to. Transient.
    Timeout,
    /// The data contradict their own format.
    Corrupt,
    /// The data end before they should.
    Truncated,
    /// It is no longer what it was when it was looked at before: another version.
    Changed,
    /// Valid, but not something this build or this codec can do.
    Unsupported,
    /// A limit of pixels, bytes, frames, ratio or depth would be exceeded.
    LimitExceeded,
    /// The caller asked for something that makes no sense.
    InvalidArgument,
    /// A stage panicked; the message is the panic's own.
    Panicked,
    /// The pipeline was stopped while this was under way.
    Stopped,
    /// An error of the user's own stage or source.
    User,
    /// A fault of this program: something that cannot be was found to be so. Please report it.
    Internal,
}

impl ErrorKind {
    /// The kind as one lower-case word with hyphens, as it appears in statistics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not-found",
            ErrorKind::PermissionDenied => "permission-denied",
            ErrorKind::Io => "io",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Truncated => "truncated",
            ErrorKind::Changed => "changed",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::LimitExceeded => "limit-exceeded",
            ErrorKind::InvalidArgument => "invalid-argument",
            ErrorKind::Panicked => "panicked",
            ErrorKind::Stopped => "stopped",
            ErrorKind::User => "user",
            ErrorKind::Internal => "internal",
        }
    }

    /// Whether the same call may succeed later, so that retrying makes sense: `Unavailable` and
    /// `Timeout`.
    pub fn is_transient(self) -> bool {
        matches!(self, ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure: its kind, what happened, and as much of *where* as is known.
///
/// Displayed, it reads `stage: key: message (at byte N)`, each part only where it is known. The
/// cause is left to [`source`](StdError::source), so that chain printers do not print it twice;
/// [`Error::report`] joins the chain for people.
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
    /// An error of `kind`. `message` says what was expected and what was found, without the cause.
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

    /// Names the stage. A stage name that is already there stays: the innermost knows best.
    #[must_use]
    pub fn with_stage(mut self, stage: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.0).stage.get_or_insert_with(|| stage.into());
        self
    }

    /// Names the sample (path, object key, member). A key that is already there stays.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.0).key.get_or_insert_with(|| key.into());
        self
    }

    /// Calls what it is about by another name, which says more.
    #[must_use]
    pub fn renamed(mut self, key: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.0).key = Some(key.into());
        self
    }

    /// Says at which byte of the data the failure was noticed.
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

    /// Attaches what caused `other`, for an error that says what `other` says.
    #[must_use]
    pub fn with_cause_of(mut self, other: Error) -> Self {
        let cause = match Arc::try_unwrap(other.0) {
            Ok(inner) => inner.source,
            Err(shared) => shared.source.clone(),
        };
        Arc::make_mut(&mut self.0).source = cause;
        self
    }

    /// Adds failures that happened at the same time elsewhere.
    #[must_use]
    pub fn with_others(mut self, others: impl IntoIterator<Item = Error>) -> Self {
        Arc::make_mut(&mut self.0).others.extend(others);
        self
    }

    /// Marks a failure after which there is no going on: it ends the pipeline even where the policy
    /// is to skip. For sources that cannot yield anything behind it.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        Arc::make_mut(&mut self.0).fatal = true;
        self
    }

    /// Whether it ends the pipeline whatever the policy.
    pub fn is_fatal(&self) -> bool {
        self.0.fatal
    }

    /// What failed at the same time elsewhere: the failures of other stages that ended the pipeline
    /// together with this one.
    pub fn others(&self) -> &[Error] {
        &self.0.others
    }

    /// Says what has changed since that was made that is refused: a state, or a data set that was begun.
    #[must_use]
    pub fn with_changes(mut self, changes: Vec<Change>) -> Self {
        Arc::make_mut(&mut self.0).changes = changes;
        self
    }

    /// Where [`build`](crate::PipelineBuilder::build) refuses to go on from a state since the pipeline
    /// is another one: every part that has changed and that the state does not
    /// [allow](crate::State::allow_change) to. The same where something else is refused that was made
    /// under other conditions, and its author says [in what they differ](Error::with_changes). Empty for
    /// all other errors.
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

    /// Says how long whoever refused wants to be left alone (HTTP's `Retry-After`).
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        Arc::make_mut(&mut self.0).retry_after = Some(delay);
        self
    }

    /// How long whoever refused wants to be left alone, where it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Adds words to the message; all else stays.
    pub(crate) fn with_more(mut self, words: &str) -> Self {
        Arc::make_mut(&mut self.0).message.push_str(words);
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, without stage, key and cause.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The stage in which it happened, where known.
    pub fn stage(&self) -> Option<&str> {
        self.0.stage.as_deref()
    }

    /// The sample for which it happened, where known.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// The byte of the data at which it was noticed, where known.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// This error without its stage and key, followed by its causes: the *why* for a table that
    /// already has a column for the *where*.
    pub fn reason(&self) -> String {
        let mut text = self.0.message.clone();
        if let Some(offset) = self.0.offset {
            text.push_str(&format!(" (at byte {offset})"));
        }
        self.append_causes(&mut text);
        text
    }

    /// This error and its causes in one line.
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
            let told = error.to_string();
            // A cause may be for programs alone.
            if !told.is_empty() {
                text.push_str(": ");
                text.push_str(&told);
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
        // What a program prints that returns this error from `main`.
        write!(f, "{} ({})", self.report(), self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<std::io::Error> for Error {
    /// Keeps the operating system's words and picks the kind that fits.
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        let kind = match error.kind() {
            Os::NotFound => ErrorKind::NotFound,
            Os::PermissionDenied => ErrorKind::PermissionDenied,
            Os::TimedOut => ErrorKind::Timeout,
            // A connection that broke may hold the next time.
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

/// A part of a pipeline that is not what it was when a state was taken, or of whatever else was made
/// under other conditions: one of [`Error::changes`](crate::Error::changes).
///
/// Displayed, it reads `PART was VALUE, is VALUE`, with `absent` for what is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which part: of a pipeline `seed`, or a name of [`State::fingerprint`](crate::State::fingerprint),
    /// which is what [`State::allow_change`](crate::State::allow_change) takes.
    pub part: String,
    /// What it was; `None` where there was no such part.
    pub was: Option<String>,
    /// What it is; `None` where there is no such part any more.
    pub is: Option<String>,
}

impl Change {
    /// All between two fingerprints, by the names of parts in ascending order.
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

/// Runs user code; a panic becomes an error.
pub(crate) fn guarded<R>(work: impl FnOnce() -> Result<R>) -> (Result<R>, bool) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => (result, false),
        Err(payload) => {
            let payload: Box<dyn Any + Send> = payload;
            (Err(panicked(payload)), true)
        }
    }
}

/// The error of work that nobody wants any more.
pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the pipeline has ended")
}

/// A panic's payload as an error.
pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let words = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    let words = words.unwrap_or_else(|| "a value that is no text".into());
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
    fn an_error_carries_the_wait_that_was_asked_for() {
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
