//! libnvcuvid as far as this crate calls it. All its calls need a current context, and return codes of
//! the driver.

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

/// Objects of the library, known only by their address.
pub(crate) type NvcuvidHandle = NonNull<c_void>;

/// What the library says it has made, but has not.
const UNKNOWN: u32 = 999;

/// Declares the functions that are looked up when the library is opened, all or none.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "these are the names of the functions")]
        #[derive(Clone, Copy)]
        struct NvcuvidFunctions {
            $($name: unsafe extern "system" fn($($argument),*) -> u32,)*
        }

        impl NvcuvidFunctions {
            /// The first that is missing is named.
            fn of(library: &SharedLibrary) -> Result<NvcuvidFunctions, &'static str> {
                Ok(NvcuvidFunctions {
                    // SAFETY: the types are those that the library's headers declare.
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

/// The opened library. It stays open for ever.
#[derive(Clone)]
pub(crate) struct NvcuvidLibrary {
    functions: Arc<NvcuvidFunctions>,
    found: LibraryLocation,
}

/// Calls a function of the library. Its name is that of the error.
macro_rules! call {
    ($library:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to variables of the right type that live during the call, or what the
        // caller of the method answers for; handles are alive, as nobody has given them back.
        let code = unsafe { ($library.functions.$name)($($argument),*) };
        checked(stringify!($name), code)
    }};
}

fn checked(call: &'static str, code: u32) -> DriverResult<()> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// What a call that makes an object has made.
fn made(
    call: &'static str,
    made: DriverResult<()>,
    object: *mut c_void,
) -> DriverResult<NvcuvidHandle> {
    made?;
    NonNull::new(object).ok_or(DriverError { call, code: UNKNOWN })
}

impl NvcuvidLibrary {
    /// Opens it where `search` finds it. Needs no device.
    pub(crate) fn open(search: &Search) -> Result<NvcuvidLibrary, LibraryNotFound> {
        let (library, found) = search.open(Library::Nvcuvid)?;
        let functions = NvcuvidFunctions::of(&library).map_err(|missing| LibraryNotFound {
            library: Library::Nvcuvid,
            reason: format!("{found} has no {missing}: it is too old"),
        })?;
        Ok(NvcuvidLibrary { functions: Arc::new(functions), found })
    }

    /// What the device decodes, of what `caps` asks about.
    pub(crate) fn decoder_caps(&self, caps: &mut DecodeCaps) -> DriverResult<()> {
        call!(self.cuvidGetDecoderCaps(caps))
    }

    /// # Safety
    /// The lock in `info` is alive for as long as the decoder is.
    pub(crate) unsafe fn create_decoder(
        &self,
        info: &mut DecodeCreateInfo,
    ) -> DriverResult<NvcuvidHandle> {
        let mut decoder = ptr::null_mut();
        let created = call!(self.cuvidCreateDecoder(&mut decoder, info));
        made("cuvidCreateDecoder", created, decoder)
    }

    /// # Safety
    /// The decoder is alive, and not used again; nothing under way uses its surfaces.
    pub(crate) unsafe fn destroy_decoder(&self, decoder: NvcuvidHandle) -> DriverResult<()> {
        call!(self.cuvidDestroyDecoder(decoder.as_ptr()))
    }

    /// # Safety
    /// The decoder is alive, and none of its surfaces is mapped.
    pub(crate) unsafe fn reconfigure_decoder(
        &self,
        decoder: NvcuvidHandle,
        info: &mut ReconfigureDecoderInfo,
    ) -> DriverResult<()> {
        call!(self.cuvidReconfigureDecoder(decoder.as_ptr(), info))
    }

    /// # Safety
    /// The decoder is alive, and the picture is what a parser of the library is calling about.
    pub(crate) unsafe fn decode_picture(
        &self,
        decoder: NvcuvidHandle,
        picture: *mut PicParams,
    ) -> DriverResult<()> {
        call!(self.cuvidDecodePicture(decoder.as_ptr(), picture))
    }

    /// What became of a picture.
    ///
    /// # Safety
    /// The decoder is alive.
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

    /// Waits for the picture to be decoded, and puts it where kernels can read it: the address and the
    /// pitch of its first plane.
    ///
    /// # Safety
    /// The decoder and the stream in `processing` are alive.
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
    /// The decoder is alive, and this is mapped.
    pub(crate) unsafe fn unmap_frame(
        &self,
        decoder: NvcuvidHandle,
        address: u64,
    ) -> DriverResult<()> {
        call!(self.cuvidUnmapVideoFrame64(decoder.as_ptr(), address))
    }

    /// # Safety
    /// The callbacks may be called with the user data until the parser is destroyed.
    pub(crate) unsafe fn create_parser(
        &self,
        params: &mut ParserParams,
    ) -> DriverResult<NvcuvidHandle> {
        let mut parser = ptr::null_mut();
        let created = call!(self.cuvidCreateVideoParser(&mut parser, params));
        made("cuvidCreateVideoParser", created, parser)
    }

    /// Reads a packet, and calls back.
    ///
    /// # Safety
    /// The parser is alive, and nobody else uses it; the payload lives during the call.
    pub(crate) unsafe fn parse(
        &self,
        parser: NvcuvidHandle,
        packet: &mut SourceDataPacket,
    ) -> DriverResult<()> {
        call!(self.cuvidParseVideoData(parser.as_ptr(), packet))
    }

    /// # Safety
    /// The parser is alive, and not used again.
    pub(crate) unsafe fn destroy_parser(&self, parser: NvcuvidHandle) -> DriverResult<()> {
        call!(self.cuvidDestroyVideoParser(parser.as_ptr()))
    }
}

impl fmt::Debug for NvcuvidLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvcuvid at {}", self.found)
    }
}

/// What the library's decoders of a context share, so that several threads may use it at a time.
pub(crate) struct ContextLock {
    handle: NvcuvidHandle,
    library: NvcuvidLibrary,
    context: Arc<Context>,
}

// SAFETY: it is a lock, made to be used by several threads.
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
            made("cuvidCtxLockCreate", created, lock)
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
