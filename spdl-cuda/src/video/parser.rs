//! The parser of nvcuvid and its callbacks.
//!
//! No panic of a callback unwinds into the library. An error or a panic is stored until the parser
//! call returns.

use std::any::Any;
use std::ffi::{c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::{
    CuVideoFormat, PACKET_DISCONTINUITY, PACKET_END_OF_STREAM, PACKET_TIMESTAMP, ParserDispInfo,
    ParserParams, PicParams, SourceDataPacket,
};
use super::library::{NvcuvidHandle, NvcuvidLibrary};
use super::session::Session;
use crate::runtime::Context;

/// Maximum number of pictures between decoding and output.
const DISPLAY_DELAY: u32 = 4;
/// Error threshold in percent: all pictures are decoded, and errors are reported per frame.
const DECODE_ALL: u32 = 100;
/// The return value of a failed callback.
const FAILED: c_int = 0;

/// The user data of the callbacks.
struct Callbacks {
    session: Mutex<Session>,
    /// The first failure of a callback.
    failure: Mutex<Option<Error>>,
}

/// A parser with the state of its video. Fields are dropped in declaration order.
pub(crate) struct Parser {
    handle: ParserHandle,
    /// The user data of the callbacks. The parser holds a pointer to it.
    callbacks: Arc<Callbacks>,
    context: Arc<Context>,
    library: NvcuvidLibrary,
}

/// The parser. On drop, the parser is destroyed before its callbacks.
struct ParserHandle {
    handle: NvcuvidHandle,
    context: Arc<Context>,
    library: NvcuvidLibrary,
}

// SAFETY: a parser is not bound to a thread, and exclusive access prevents concurrent calls.
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
            // The sequence callback returns the actual number of surfaces.
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
        let handle = context.run("create a video parser", |_| {
            // SAFETY: the user data outlive the parser, and are `Sync`.
            unsafe { library.create_parser(&mut params) }
        })?;
        let (library, context) = (library.clone(), Arc::clone(context));
        let handle =
            ParserHandle { handle, library: library.clone(), context: Arc::clone(&context) };
        Ok(Parser { handle, callbacks, context, library })
    }

    /// The state of the video.
    pub(crate) fn session(&mut self) -> MutexGuard<'_, Session> {
        self.callbacks.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parses a packet.
    pub(crate) fn push(
        &mut self,
        packet: &[u8],
        timestamp: Option<i64>,
        is_continuous: bool,
    ) -> Result<()> {
        let timed = if timestamp.is_some() { PACKET_TIMESTAMP } else { 0 };
        let flags = timed | if is_continuous { 0 } else { PACKET_DISCONTINUITY };
        self.parse(packet, flags, timestamp.unwrap_or(0))
    }

    /// Signals the end of the stream: the parser then outputs all remaining pictures.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.parse(&[], PACKET_END_OF_STREAM, 0)
    }

    fn parse(&mut self, payload: &[u8], flags: c_ulong, timestamp: i64) -> Result<()> {
        let payload_size = c_ulong::try_from(payload.len()).map_err(|_| {
            let message = format!("packet of {} bytes is too large", payload.len());
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        let mut packet = SourceDataPacket {
            flags,
            payload_size,
            payload: if payload.is_empty() { ptr::null() } else { payload.as_ptr() },
            timestamp,
        };
        let parsed = self.context.attempt(|_| {
            // SAFETY: the parser exists and is used exclusively, and the payload exists during the
            // call.
            unsafe { self.library.parse(self.handle.handle, &mut packet) }
        });
        // The failure of a callback is the cause of the error of the library.
        let failure = self.callbacks.failure().take();
        match failure {
            Some(failure) => Err(failure),
            None => parsed.map_err(|error| self.context.error(error, "parse a video")),
        }
    }
}

impl Drop for ParserHandle {
    fn drop(&mut self) {
        // SAFETY: the parser exists and is not used again.
        self.context.release(|_| unsafe { self.library.destroy_parser(self.handle) });
    }
}

impl Callbacks {
    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a callback, and stores its error or panic.
///
/// # Safety
/// `user_data` is null, or the address of the [`Callbacks`] of the parser.
unsafe fn guarded(
    user_data: *mut c_void,
    work: impl FnOnce(&mut Session) -> Result<c_int>,
) -> c_int {
    // SAFETY: the caller guarantees the address, and the callbacks outlive the parser.
    let Some(callbacks) = (unsafe { user_data.cast::<Callbacks>().as_ref() }) else {
        return FAILED;
    };
    // After a failure, the decoder may belong to another sequence, so all later callbacks fail.
    if callbacks.failure().is_some() {
        return FAILED;
    }
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut session = match callbacks.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(session)) => session.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let message = "the video parser made a callback inside another";
                return Err(Error::new(ErrorKind::Internal, message));
            }
        };
        work(&mut session)
    }));
    let failure = match done {
        Ok(Ok(result)) => return result,
        Ok(Err(error)) => error,
        Err(panic) => panicked(panic),
    };
    callbacks.failure().get_or_insert(failure);
    FAILED
}

/// Converts a panic to an error. The payload of the panic is leaked, because dropping it might
/// panic again.
fn panicked(panic: Box<dyn Any + Send>) -> Error {
    let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    std::mem::forget(panic);
    let message = message.unwrap_or_else(|| "no message".to_owned());
    Error::new(ErrorKind::Panicked, format!("the video decoder panicked: {message}"))
}

/// The argument of a callback; an error if it is null.
///
/// # Safety
/// `argument` is null, or valid during the callback.
unsafe fn checked<'a, T>(argument: *mut T) -> Result<&'a T> {
    // SAFETY: the caller guarantees it.
    let argument = unsafe { argument.as_ref() };
    argument
        .ok_or_else(|| Error::new(ErrorKind::Internal, "the video parser passed a null pointer"))
}

unsafe extern "system" fn on_sequence(user_data: *mut c_void, format: *mut CuVideoFormat) -> c_int {
    // SAFETY: the parser provides the format.
    let format = unsafe { checked(format) };
    // SAFETY: the parser passes the user data that it was created with.
    unsafe { guarded(user_data, |session| session.sequence(format?)) }
}

unsafe extern "system" fn on_decode(user_data: *mut c_void, picture: *mut PicParams) -> c_int {
    let decode = |session: &mut Session| {
        // SAFETY: the picture is the argument of this callback.
        unsafe { session.decode(picture) }
    };
    // SAFETY: the parser passes the user data that it was created with.
    unsafe { guarded(user_data, decode) }
}

unsafe extern "system" fn on_display(user_data: *mut c_void, shown: *mut ParserDispInfo) -> c_int {
    // Some parsers pass null at the end of the stream.
    if shown.is_null() {
        return 1;
    }
    // SAFETY: the parser provides the picture.
    let shown = unsafe { checked(shown) };
    // SAFETY: the parser passes the user data that it was created with.
    unsafe { guarded(user_data, |session| session.display(shown?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_without_user_data_fails() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { on_sequence(ptr::null_mut(), ptr::null_mut()) }, FAILED);
        // SAFETY: as above.
        assert_eq!(unsafe { on_decode(ptr::null_mut(), ptr::null_mut()) }, FAILED);
        let mut shown = ParserDispInfo::default();
        // SAFETY: as above.
        assert_eq!(unsafe { on_display(ptr::null_mut(), &mut shown) }, FAILED);
    }

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        let thrown = [
            (Box::new("of a slice") as Box<dyn Any + Send>, "panicked: of a slice"),
            (Box::new("of a string".to_owned()), "panicked: of a string"),
            (Box::new(7), "panicked: no message"),
        ];
        for (thrown, words) in thrown {
            let error = panicked(thrown);
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.message().ends_with(words), "{error}");
        }
    }
}
