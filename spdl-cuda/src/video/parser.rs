//! The library's parser, and the functions that it calls. None of them unwinds into it: an error, also a
//! panic, stays in a slot until the call of the parser has returned.

use std::any::Any;
use std::ffi::{c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::{
    PACKET_DISCONTINUITY, PACKET_END_OF_STREAM, PACKET_TIMESTAMP, ParserDispInfo, ParserParams,
    PicParams, SourceDataPacket, VideoFormat,
};
use super::library::{NvcuvidHandle, NvcuvidLibrary};
use super::session::Session;
use crate::runtime::Context;

/// How many pictures may be decoded before the first of them has to be shown.
const DISPLAY_DELAY: u32 = 4;
/// Pictures are decoded whatever is wrong with them, and then it is told.
const DECODE_ALL: u32 = 100;
/// What a callback returns where it has failed.
const FAILED: c_int = 0;

/// What the parser's calls reach, by its address.
struct Callbacks {
    session: Mutex<Session>,
    /// The first failure of a callback.
    failure: Mutex<Option<Error>>,
}

/// A parser with the video that it reads. Fields are dropped in their order.
pub(crate) struct Parser {
    handle: ParserHandle,
    /// Also the parser's, by its address.
    callbacks: Arc<Callbacks>,
    context: Arc<Context>,
    library: NvcuvidLibrary,
}

/// Destroyed when it is dropped, before what it calls.
struct ParserHandle {
    handle: NvcuvidHandle,
    context: Arc<Context>,
    library: NvcuvidLibrary,
}

// SAFETY: a parser belongs to no thread; one at a time calls it, since it is used exclusively.
unsafe impl Send for ParserHandle {}

impl Parser {
    pub(crate) fn new(
        library: &NvcuvidLibrary,
        context: &Arc<Context>,
        codec: c_int,
        session: Session,
    ) -> Result<Parser> {
        let callbacks =
            Arc::new(Callbacks { session: Mutex::new(session), failure: Mutex::default() });
        let mut params = ParserParams {
            codec,
            // The first headers say how many.
            max_decode_surfaces: 1,
            clock_rate: 0,
            error_threshold: DECODE_ALL,
            max_display_delay: DISPLAY_DELAY,
            flags: 0,
            reserved_1: [0; 4],
            user_data: Arc::as_ptr(&callbacks).cast_mut().cast(),
            on_sequence: Some(on_sequence),
            on_decode: Some(on_decode),
            on_display: Some(on_display),
            on_operating_point: None,
            reserved_2: [ptr::null_mut(); 6],
            extended_format: ptr::null_mut(),
        };
        let handle = context.run("start to parse a video", |_| {
            // SAFETY: the callbacks' data live longer than the parser, and may be shared by threads.
            unsafe { library.create_parser(&mut params) }
        })?;
        let (library, context) = (library.clone(), Arc::clone(context));
        let handle =
            ParserHandle { handle, library: library.clone(), context: Arc::clone(&context) };
        Ok(Parser { handle, callbacks, context, library })
    }

    /// What it reads into.
    pub(crate) fn session(&mut self) -> MutexGuard<'_, Session> {
        self.callbacks.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a packet.
    pub(crate) fn push(
        &mut self,
        packet: &[u8],
        timestamp: Option<i64>,
        follows_on: bool,
    ) -> Result<()> {
        let timed = if timestamp.is_some() { PACKET_TIMESTAMP } else { 0 };
        let flags = timed | if follows_on { 0 } else { PACKET_DISCONTINUITY };
        self.parse(packet, flags, timestamp.unwrap_or(0))
    }

    /// Says that nothing comes any more: all pictures are shown.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.parse(&[], PACKET_END_OF_STREAM, 0)
    }

    fn parse(&mut self, payload: &[u8], flags: c_ulong, timestamp: i64) -> Result<()> {
        let payload_size = c_ulong::try_from(payload.len()).map_err(|_| {
            let message = format!("a packet of {} bytes is too large", payload.len());
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        let mut packet = SourceDataPacket {
            flags,
            payload_size,
            payload: if payload.is_empty() { ptr::null() } else { payload.as_ptr() },
            timestamp,
        };
        let parsed = self.context.attempt(|_| {
            // SAFETY: the parser is alive and used exclusively, and the payload lives during the call.
            unsafe { self.library.parse(self.handle.handle, &mut packet) }
        });
        // What a callback says is the reason for what the library says.
        let failure = self.callbacks.failure().take();
        match failure {
            Some(failure) => Err(failure),
            None => parsed.map_err(|error| self.context.error(error, "parse a video")),
        }
    }
}

impl Drop for ParserHandle {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody uses it again.
        self.context.release(|_| unsafe { self.library.destroy_parser(self.handle) });
    }
}

impl Callbacks {
    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does the work of a callback, and keeps what goes wrong with it.
///
/// # Safety
/// `user_data` is null, or the address of the parser's [`Callbacks`].
unsafe fn guarded(
    user_data: *mut c_void,
    work: impl FnOnce(&mut Session) -> Result<c_int>,
) -> c_int {
    // SAFETY: the caller says so; they live until the parser is destroyed.
    let Some(callbacks) = (unsafe { user_data.cast::<Callbacks>().as_ref() }) else {
        return FAILED;
    };
    // Nothing is done behind a failure: the decoder may be that of other headers.
    if callbacks.failure().is_some() {
        return FAILED;
    }
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut session = match callbacks.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(session)) => session.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let message = "the video parser calls while a call of its is answered";
                return Err(Error::new(ErrorKind::Internal, message));
            }
        };
        work(&mut session)
    }));
    let failure = match done {
        Ok(Ok(answer)) => return answer,
        Ok(Err(error)) => error,
        Err(panic) => panicked(panic),
    };
    callbacks.failure().get_or_insert(failure);
    FAILED
}

/// The error for a panic. What was thrown is never dropped, since that might panic again.
fn panicked(panic: Box<dyn Any + Send>) -> Error {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
    std::mem::forget(panic);
    let words = words.unwrap_or_else(|| "no words".to_owned());
    Error::new(ErrorKind::Panicked, format!("decoding a video panicked: {words}"))
}

/// What the parser gives a callback.
///
/// # Safety
/// It is null, or lives during the callback, in which it is used.
unsafe fn given<'a, T>(told: *mut T) -> Result<&'a T> {
    // SAFETY: the caller says so.
    let told = unsafe { told.as_ref() };
    told.ok_or_else(|| Error::new(ErrorKind::Internal, "the video parser calls about nothing"))
}

unsafe extern "system" fn on_sequence(user_data: *mut c_void, told: *mut VideoFormat) -> c_int {
    // SAFETY: the parser has made it.
    let told = unsafe { given(told) };
    // SAFETY: the parser gives what it was made with.
    unsafe { guarded(user_data, |session| session.sequence(told?)) }
}

unsafe extern "system" fn on_decode(user_data: *mut c_void, picture: *mut PicParams) -> c_int {
    let decode = |session: &mut Session| {
        // SAFETY: the parser is calling about the picture.
        unsafe { session.decode(picture) }
    };
    // SAFETY: the parser gives what it was made with.
    unsafe { guarded(user_data, decode) }
}

unsafe extern "system" fn on_display(user_data: *mut c_void, shown: *mut ParserDispInfo) -> c_int {
    // At the end of a stream some parsers say that nothing is shown any more.
    if shown.is_null() {
        return 1;
    }
    // SAFETY: the parser has made it.
    let shown = unsafe { given(shown) };
    // SAFETY: the parser gives what it was made with.
    unsafe { guarded(user_data, |session| session.display(shown?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_without_data_fails_and_touches_nothing() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { on_sequence(ptr::null_mut(), ptr::null_mut()) }, FAILED);
        // SAFETY: as above.
        assert_eq!(unsafe { on_decode(ptr::null_mut(), ptr::null_mut()) }, FAILED);
        let mut shown = ParserDispInfo::default();
        // SAFETY: as above.
        assert_eq!(unsafe { on_display(ptr::null_mut(), &mut shown) }, FAILED);
    }

    #[test]
    fn whatever_is_thrown_becomes_an_error_with_its_words() {
        let thrown = [
            (Box::new("of a slice") as Box<dyn Any + Send>, "panicked: of a slice"),
            (Box::new("of a string".to_owned()), "panicked: of a string"),
            (Box::new(7), "panicked: no words"),
        ];
        for (thrown, words) in thrown {
            let error = panicked(thrown);
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.message().ends_with(words), "{error}");
        }
    }
}
