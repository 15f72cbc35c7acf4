//! `libnvcuvid`, opened at run time. All calls need a current context, and return `CUresult` codes.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::bindings::{
    DecodeCaps, DecodeCreateInfo, GetDecodeStatus, ParserParams, PicParams, ProcParams,
    ReconfigureDecoderInfo, SourceDataPacket,
};
use crate::driver::{DriverError, DriverResult};
use crate::libraries::{Library, LibraryLocation, LibraryNotFound, Search, SharedLibrary};
use crate::runtime::Context;

/// A pointer to an opaque object of the library.
pub(crate) type NvcuvidHandle = NonNull<c_void>;

/// `CUDA_ERROR_UNKNOWN`: returned if a call succeeds but creates no object.
const UNKNOWN: u32 = 999;

/// Declares the functions. All functions are resolved when the library is opened.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the names of the functions")]
        #[derive(Clone, Copy)]
        struct NvcuvidFunctions {
            $($name: unsafe extern "system" fn($($argument),*) -> u32,)*
        }

        impl NvcuvidFunctions {
            /// Resolves all functions, or returns the name of the first missing one.
            fn resolve(library: &SharedLibrary) -> Result<NvcuvidFunctions, &'static str> {
                Ok(NvcuvidFunctions {
                    // SAFETY: the types are those of the headers of the library.
                    $($name: unsafe { library.function(stringify!($name)) }
                        .ok_or(stringify!($name))?,)*
                })
            }
        }
    };
}

functions! {
    cuvidGetDecoderCaps(*mut DecodeCaps);
    cuvidCreateDecoder(*mut *mut c_void, *mut DecodeCreateInfo);
    cuvidDestroyDecoder(*mut c_void);
    cuvidReconfigureDecoder(*mut c_void, *mut ReconfigureDecoderInfo);
    cuvidDecodePicture(*mut c_void, *mut PicParams);
    cuvidGetDecodeStatus(*mut c_void, c_int, *mut GetDecodeStatus);
    cuvidMapVideoFrame64(*mut c_void, c_int, *mut c_ulonglong, *mut c_uint, *mut ProcParams);
    cuvidUnmapVideoFrame64(*mut c_void, c_ulonglong);
    cuvidCtxLockCreate(*mut *mut c_void, *mut c_void);
    cuvidCtxLockDestroy(*mut c_void);
    cuvidCreateVideoParser(*mut *mut c_void, *mut ParserParams);
    cuvidParseVideoData(*mut c_void, *mut SourceDataPacket);
    cuvidDestroyVideoParser(*mut c_void);
}

/// The loaded library, which is never unloaded.
#[derive(Clone)]
pub(crate) struct NvcuvidLibrary {
    functions: Arc<NvcuvidFunctions>,
    location: LibraryLocation,
}

/// Calls a function of the library. An error carries the name of the function.
macro_rules! call {
    ($library:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to variables of the right type that live during the call, or the
        // caller of the method upholds its contract.
        let code = unsafe { ($library.functions.$name)($($argument),*) };
        check(stringify!($name), code)
    }};
}

fn check(call: &'static str, code: u32) -> DriverResult<()> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// Checks a call that creates an object.
fn check_created(
    call: &'static str,
    created: DriverResult<()>,
    object: *mut c_void,
) -> DriverResult<NvcuvidHandle> {
    created?;
    NonNull::new(object).ok_or(DriverError { call, code: UNKNOWN })
}

impl NvcuvidLibrary {
    /// Opens the library. Needs no device.
    pub(crate) fn open(search: &Search) -> Result<NvcuvidLibrary, LibraryNotFound> {
        let (library, location) = search.open(Library::Nvcuvid)?;
        let functions = NvcuvidFunctions::resolve(&library).map_err(|missing| LibraryNotFound {
            library: Library::Nvcuvid,
            reason: format!("{location} is too old: missing function {missing}"),
        })?;
        Ok(NvcuvidLibrary { functions: Arc::new(functions), location })
    }

    /// Fills in the capabilities for the codec, chroma format and bit depth of `caps`.
    pub(crate) fn decoder_caps(&self, caps: &mut DecodeCaps) -> DriverResult<()> {
        call!(self.cuvidGetDecoderCaps(caps))
    }

    /// # Safety
    /// The lock in `info` outlives the decoder.
    pub(crate) unsafe fn create_decoder(
        &self,
        info: &mut DecodeCreateInfo,
    ) -> DriverResult<NvcuvidHandle> {
        let mut decoder = ptr::null_mut();
        let created = call!(self.cuvidCreateDecoder(&mut decoder, info));
        check_created("cuvidCreateDecoder", created, decoder)
    }

    /// # Safety
    /// The decoder exists and is not used again. No work in flight uses its surfaces.
    pub(crate) unsafe fn destroy_decoder(&self, decoder: NvcuvidHandle) -> DriverResult<()> {
        call!(self.cuvidDestroyDecoder(decoder.as_ptr()))
    }

    /// # Safety
    /// The decoder exists, and none of its surfaces is mapped.
    pub(crate) unsafe fn reconfigure_decoder(
        &self,
        decoder: NvcuvidHandle,
        info: &mut ReconfigureDecoderInfo,
    ) -> DriverResult<()> {
        call!(self.cuvidReconfigureDecoder(decoder.as_ptr(), info))
    }

    /// # Safety
    /// The decoder exists, and the picture is the argument of a callback of a parser of the
    /// library.
    pub(crate) unsafe fn decode_picture(
        &self,
        decoder: NvcuvidHandle,
        picture: *mut PicParams,
    ) -> DriverResult<()> {
        call!(self.cuvidDecodePicture(decoder.as_ptr(), picture))
    }

    /// The decode status of a picture.
    ///
    /// # Safety
    /// The decoder exists.
    pub(crate) unsafe fn decode_status(
        &self,
        decoder: NvcuvidHandle,
        picture: c_int,
    ) -> DriverResult<c_int> {
        let mut status = GetDecodeStatus {
            status: 0,
            reserved: [0; 31],
            reserved_pointers: [ptr::null_mut(); 8],
        };
        call!(self.cuvidGetDecodeStatus(decoder.as_ptr(), picture, &mut status))?;
        Ok(status.status)
    }

    /// Waits until the picture is decoded, and maps it. Returns address and pitch of its first
    /// plane.
    ///
    /// # Safety
    /// The decoder and the stream in `processing` exist.
    pub(crate) unsafe fn map_frame(
        &self,
        decoder: NvcuvidHandle,
        picture: c_int,
        processing: &mut ProcParams,
    ) -> DriverResult<(u64, u32)> {
        let (mut address, mut pitch) = (0, 0);
        call!(self.cuvidMapVideoFrame64(
            decoder.as_ptr(),
            picture,
            &mut address,
            &mut pitch,
            processing
        ))?;
        Ok((address, pitch))
    }

    /// # Safety
    /// The decoder exists, and the frame is mapped.
    pub(crate) unsafe fn unmap_frame(
        &self,
        decoder: NvcuvidHandle,
        address: u64,
    ) -> DriverResult<()> {
        call!(self.cuvidUnmapVideoFrame64(decoder.as_ptr(), address))
    }

    /// # Safety
    /// Until the parser is destroyed, the callbacks may be called with the user data.
    pub(crate) unsafe fn create_parser(
        &self,
        params: &mut ParserParams,
    ) -> DriverResult<NvcuvidHandle> {
        let mut parser = ptr::null_mut();
        let created = call!(self.cuvidCreateVideoParser(&mut parser, params));
        check_created("cuvidCreateVideoParser", created, parser)
    }

    /// Parses a packet, and calls the callbacks.
    ///
    /// # Safety
    /// The parser exists and is not used concurrently. The payload exists during the call.
    pub(crate) unsafe fn parse(
        &self,
        parser: NvcuvidHandle,
        packet: &mut SourceDataPacket,
    ) -> DriverResult<()> {
        call!(self.cuvidParseVideoData(parser.as_ptr(), packet))
    }

    /// # Safety
    /// The parser exists and is not used again.
    pub(crate) unsafe fn destroy_parser(&self, parser: NvcuvidHandle) -> DriverResult<()> {
        call!(self.cuvidDestroyVideoParser(parser.as_ptr()))
    }
}

impl fmt::Debug for NvcuvidLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvcuvid at {}", self.location)
    }
}

/// `CUvideoctxlock`: serialises the use of a context by decoders of several threads.
pub(crate) struct ContextLock {
    handle: NvcuvidHandle,
    library: NvcuvidLibrary,
    context: Arc<Context>,
}

// SAFETY: the lock exists for concurrent use.
unsafe impl Send for ContextLock {}
// SAFETY: as above.
unsafe impl Sync for ContextLock {}

impl ContextLock {
    pub(crate) fn new(
        library: &NvcuvidLibrary,
        context: &Arc<Context>,
    ) -> DriverResult<ContextLock> {
        let handle = context.attempt(|_| {
            let mut lock = ptr::null_mut();
            let context = ptr::without_provenance_mut(context.raw());
            let created = call!(library.cuvidCtxLockCreate(&mut lock, context));
            check_created("cuvidCtxLockCreate", created, lock)
        })?;
        Ok(ContextLock { handle, library: library.clone(), context: Arc::clone(context) })
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.handle.as_ptr()
    }
}

impl Drop for ContextLock {
    fn drop(&mut self) {
        let library = &self.library;
        self.context.release(|_| call!(library.cuvidCtxLockDestroy(self.handle.as_ptr())));
    }
}
