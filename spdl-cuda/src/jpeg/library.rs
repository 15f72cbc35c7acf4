//! `libnvjpeg`, opened at run time: the functions that this crate calls, as declared in `nvjpeg.h`
//! 13.3, and owned objects of the library.

use std::ffi::{c_int, c_uchar, c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::error::{BAD_JPEG, NvJpegError, NvJpegResult};
use crate::driver::StreamHandle;
use crate::libraries::{Library, LibraryLocation, LibraryNotFound, Search, SharedLibrary};
use crate::runtime::Context;

/// A pointer to an opaque object of the library.
pub(crate) type NvJpegHandle = NonNull<c_void>;

/// `nvjpegImage_t`: the output planes of an image.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct OutputPlanes {
    pub(crate) channel: [*mut c_uchar; 4],
    pub(crate) pitch: [usize; 4],
}

impl OutputPlanes {
    /// One plane of interleaved RGB at a device address.
    pub(crate) fn interleaved(address: u64, pitch: usize) -> OutputPlanes {
        let mut channel = [ptr::null_mut(); 4];
        channel[0] = ptr::without_provenance_mut(address as usize);
        OutputPlanes { channel, pitch: [pitch, 0, 0, 0] }
    }
}

/// `nvjpegBackend_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum NvJpegBackend {
    Hybrid = 1,
    Hardware = 3,
}

/// `NVJPEG_OUTPUT_RGBI`.
const INTERLEAVED_RGB: c_int = 5;

/// Declares the functions. All functions are resolved when the library is opened.
macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct NvJpegFunctions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        /// The symbol of each function.
        mod name {
            $(#[allow(non_upper_case_globals, dead_code, reason = "named like the field")]
            pub(super) const $field: &str = $name;)*
        }

        impl NvJpegFunctions {
            /// Resolves all functions, or returns the name of the first missing one.
            fn resolve(library: &SharedLibrary) -> Result<NvJpegFunctions, &'static str> {
                Ok(NvJpegFunctions {
                    $(
                        // SAFETY: the type is that of `nvjpeg.h`.
                        $field: unsafe { library.function($name) }.ok_or($name)?,
                    )*
                })
            }
        }
    };
}

functions! {
    get_property = "nvjpegGetProperty": fn(c_int, *mut c_int);
    create = "nvjpegCreateEx": fn(c_int, *mut c_void, *mut c_void, c_uint, *mut *mut c_void);
    destroy = "nvjpegDestroy": fn(*mut c_void);
    hardware_info = "nvjpegGetHardwareDecoderInfo": fn(*mut c_void, *mut c_uint, *mut c_uint);
    state_create = "nvjpegJpegStateCreate": fn(*mut c_void, *mut *mut c_void);
    state_destroy = "nvjpegJpegStateDestroy": fn(*mut c_void);
    batched_initialize = "nvjpegDecodeBatchedInitialize":
        fn(*mut c_void, *mut c_void, c_int, c_int, c_int);
    batched_supported = "nvjpegDecodeBatchedSupported":
        fn(*mut c_void, *mut c_void, *mut c_int);
    batched_decode = "nvjpegDecodeBatched":
        fn(*mut c_void, *mut c_void, *const *const c_uchar, *const usize, *mut OutputPlanes, *mut c_void);
    stream_create = "nvjpegJpegStreamCreate": fn(*mut c_void, *mut *mut c_void);
    stream_destroy = "nvjpegJpegStreamDestroy": fn(*mut c_void);
    stream_parse = "nvjpegJpegStreamParse":
        fn(*mut c_void, *const c_uchar, usize, c_int, c_int, *mut c_void);
    stream_parse_header = "nvjpegJpegStreamParseHeader":
        fn(*mut c_void, *const c_uchar, usize, *mut c_void);
    stream_size = "nvjpegJpegStreamGetFrameDimensions":
        fn(*mut c_void, *mut c_uint, *mut c_uint);
    parameters_create = "nvjpegDecodeParamsCreate": fn(*mut c_void, *mut *mut c_void);
    parameters_destroy = "nvjpegDecodeParamsDestroy": fn(*mut c_void);
    parameters_output = "nvjpegDecodeParamsSetOutputFormat": fn(*mut c_void, c_int);
    decoder_create = "nvjpegDecoderCreate": fn(*mut c_void, c_int, *mut *mut c_void);
    decoder_destroy = "nvjpegDecoderDestroy": fn(*mut c_void);
    decoder_state_create = "nvjpegDecoderStateCreate":
        fn(*mut c_void, *mut c_void, *mut *mut c_void);
    pinned_create = "nvjpegBufferPinnedCreate": fn(*mut c_void, *mut c_void, *mut *mut c_void);
    pinned_destroy = "nvjpegBufferPinnedDestroy": fn(*mut c_void);
    device_create = "nvjpegBufferDeviceCreate": fn(*mut c_void, *mut c_void, *mut *mut c_void);
    device_destroy = "nvjpegBufferDeviceDestroy": fn(*mut c_void);
    attach_pinned = "nvjpegStateAttachPinnedBuffer": fn(*mut c_void, *mut c_void);
    attach_device = "nvjpegStateAttachDeviceBuffer": fn(*mut c_void, *mut c_void);
    decode_host = "nvjpegDecodeJpegHost":
        fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void);
    decode_transfer = "nvjpegDecodeJpegTransferToDevice":
        fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void);
    decode_device = "nvjpegDecodeJpegDevice":
        fn(*mut c_void, *mut c_void, *mut c_void, *mut OutputPlanes, *mut c_void);
}

/// The loaded library, which is never unloaded.
#[derive(Clone)]
pub(crate) struct NvJpegLibrary {
    functions: Arc<NvJpegFunctions>,
    version: [i32; 3],
    location: LibraryLocation,
}

/// Converts a status to a result.
fn check(call: &'static str, status: c_int) -> NvJpegResult<()> {
    if status == 0 { Ok(()) } else { Err(NvJpegError { call, status }) }
}

/// Checks a call that creates an object.
fn check_created(
    call: &'static str,
    status: c_int,
    object: *mut c_void,
) -> NvJpegResult<NvJpegHandle> {
    check(call, status)?;
    // If the call succeeds but returns no object, this is an internal error of the library.
    NonNull::new(object).ok_or(NvJpegError { call, status: 8 })
}

impl NvJpegLibrary {
    /// Opens the library. Needs no device.
    pub(crate) fn open(search: &Search) -> Result<NvJpegLibrary, LibraryNotFound> {
        let (library, location) = search.open(Library::NvJpeg)?;
        let refused = |reason| LibraryNotFound { library: Library::NvJpeg, reason };
        let functions = NvJpegFunctions::resolve(&library).map_err(|missing| {
            refused(format!("{location} is too old: missing function {missing}"))
        })?;
        let mut version = [0; 3];
        for (property, number) in (0..).zip(&mut version) {
            // SAFETY: the pointer is to a variable that lives during the call.
            let status = unsafe { (functions.get_property)(property, number) };
            check(name::get_property, status).map_err(|error| refused(error.to_string()))?;
        }
        Ok(NvJpegLibrary { functions: Arc::new(functions), version, location })
    }

    /// The version, for example `[13, 3, 2]`.
    pub(crate) fn version(&self) -> [i32; 3] {
        self.version
    }
}

/// An object of the library, destroyed on drop in the context of its device.
pub(crate) struct NvJpegObject {
    handle: NvJpegHandle,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    context: Arc<Context>,
}

// SAFETY: objects of the library are not bound to a thread. Calls on one object do not run
// concurrently: they need exclusive access, or are documented as thread-safe (those with the
// library handle).
unsafe impl Send for NvJpegObject {}
// SAFETY: as above.
unsafe impl Sync for NvJpegObject {}

impl NvJpegObject {
    fn raw(&self) -> *mut c_void {
        self.handle.as_ptr()
    }
}

impl Drop for NvJpegObject {
    fn drop(&mut self) {
        self.context.release(|_| {
            // SAFETY: the object exists and is not used again. A destructor cannot return a
            // failure.
            let _ = unsafe { (self.destroy)(self.raw()) };
            Ok(())
        });
    }
}

impl fmt::Debug for NvJpegObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvJpegObject({:p})", self.raw())
    }
}

/// The `cudaStream_t` of a stream.
fn cuda_stream(stream: &StreamHandle) -> *mut c_void {
    ptr::without_provenance_mut(stream.0)
}

/// Calls a function of the library with a current context. An error carries the name of the
/// function.
macro_rules! call {
    ($library:expr, $field:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: objects exist and have the type that the function expects. Pointers are to
        // variables that live during the call, or the caller of the method upholds its contract.
        let status = unsafe { ($library.functions.$field)($($argument),*) };
        check(name::$field, status)
    }};
}

/// A library handle for one backend. All methods need the context of the device to be current.
#[derive(Debug)]
pub(crate) struct Codec {
    library: NvJpegLibrary,
    handle: NvJpegObject,
    context: Arc<Context>,
}

/// `nvjpegJpegStream_t`: a parsed image.
#[derive(Debug)]
pub(crate) struct ParsedJpeg(NvJpegObject);

/// `nvjpegJpegState_t` of the hardware backend, for one batch at a time.
#[derive(Debug)]
pub(crate) struct BatchState(NvJpegObject);

/// `nvjpegJpegState_t` of the hybrid backend with its buffers, for one image at a time. Fields are
/// dropped in declaration order.
#[derive(Debug)]
pub(crate) struct ImageState {
    state: NvJpegObject,
    _buffers: [NvJpegObject; 2],
    parsed: ParsedJpeg,
}

/// `nvjpegJpegDecoder_t` and `nvjpegDecodeParams_t`, for single images.
#[derive(Debug)]
pub(crate) struct ImageDecoder {
    decoder: NvJpegObject,
    parameters: NvJpegObject,
}

impl Codec {
    /// For the hardware backend, fails with status 7 or 9 if the device has no JPEG engines.
    pub(crate) fn new(
        library: &NvJpegLibrary,
        context: &Arc<Context>,
        backend: NvJpegBackend,
    ) -> NvJpegResult<Codec> {
        let mut handle = ptr::null_mut();
        let (no_allocator, no_flags) = (ptr::null_mut(), 0);
        // SAFETY: the pointer is to a variable that lives during the call. Without allocators, the
        // library uses its own.
        let status = unsafe {
            (library.functions.create)(
                backend as c_int,
                no_allocator,
                no_allocator,
                no_flags,
                &mut handle,
            )
        };
        let handle = check_created(name::create, status, handle)?;
        let destroy = library.functions.destroy;
        let handle = NvJpegObject { handle, destroy, context: Arc::clone(context) };
        Ok(Codec { library: library.clone(), handle, context: Arc::clone(context) })
    }

    fn object(
        &self,
        call: &'static str,
        destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
        make: impl FnOnce(&mut *mut c_void) -> c_int,
    ) -> NvJpegResult<NvJpegObject> {
        let mut object = ptr::null_mut();
        let status = make(&mut object);
        let handle = check_created(call, status, object)?;
        Ok(NvJpegObject { handle, destroy, context: Arc::clone(&self.context) })
    }

    /// The number of JPEG engines, and of cores per engine.
    pub(crate) fn engines(&self) -> NvJpegResult<(u32, u32)> {
        let (mut engines, mut cores) = (0, 0);
        call!(self.library, hardware_info(self.handle.raw(), &mut engines, &mut cores))?;
        Ok((engines, cores))
    }

    pub(crate) fn parsed_jpeg(&self) -> NvJpegResult<ParsedJpeg> {
        let functions = &*self.library.functions;
        let parsed = self.object(name::stream_create, functions.stream_destroy, |object| {
            // SAFETY: the handle exists, and the pointer is to a variable.
            unsafe { (functions.stream_create)(self.handle.raw(), object) }
        })?;
        Ok(ParsedJpeg(parsed))
    }

    /// Parses the header of an image. An image of 100 KB takes about 1 µs, but 37 µs if its scans are
    /// also [parsed](Codec::parse).
    ///
    /// # Safety
    /// `encoded` exists until `parsed` is no longer used.
    pub(crate) unsafe fn parse_header(
        &self,
        encoded: &[u8],
        parsed: &mut ParsedJpeg,
    ) -> NvJpegResult<()> {
        call!(
            self.library,
            stream_parse_header(self.handle.raw(), encoded.as_ptr(), encoded.len(), parsed.0.raw(),)
        )
    }

    /// Parses the header and the scans of an image.
    ///
    /// # Safety
    /// `encoded` exists until `parsed` is no longer used.
    unsafe fn parse(&self, encoded: &[u8], parsed: &mut ParsedJpeg) -> NvJpegResult<()> {
        let (no_metadata, no_copy) = (0, 0);
        call!(
            self.library,
            stream_parse(
                self.handle.raw(),
                encoded.as_ptr(),
                encoded.len(),
                no_metadata,
                no_copy,
                parsed.0.raw(),
            )
        )
    }

    /// Whether the library parsed this width and height, which determine how many bytes it writes.
    pub(crate) fn is_of_size(&self, parsed: &ParsedJpeg, size: [u32; 2]) -> NvJpegResult<bool> {
        let [mut width, mut height] = [0; 2];
        call!(self.library, stream_size(parsed.0.raw(), &mut width, &mut height))?;
        Ok([width, height] == size)
    }

    /// Whether the hardware backend supports the image.
    pub(crate) fn hardware_supports(&self, parsed: &ParsedJpeg) -> NvJpegResult<bool> {
        // 0 means supported.
        let mut answer = 1;
        call!(self.library, batched_supported(self.handle.raw(), parsed.0.raw(), &mut answer))?;
        Ok(answer == 0)
    }

    pub(crate) fn batch_state(&self) -> NvJpegResult<BatchState> {
        let functions = &*self.library.functions;
        let state = self.object(name::state_create, functions.state_destroy, |object| {
            // SAFETY: the handle exists, and the pointer is to a variable.
            unsafe { (functions.state_create)(self.handle.raw(), object) }
        })?;
        Ok(BatchState(state))
    }

    /// Initialises a state for batches of `count` images. After a failed batch, the state must be
    /// initialised again.
    ///
    /// # Safety
    /// All earlier work with `state` has completed.
    pub(crate) unsafe fn prepare(&self, state: &mut BatchState, count: usize) -> NvJpegResult<()> {
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        let one_thread = 1;
        call!(
            self.library,
            batched_initialize(
                self.handle.raw(),
                state.0.raw(),
                count,
                one_thread,
                INTERLEAVED_RGB,
            )
        )
    }

    /// Queues the decoding of a batch of as many images as the state is [prepared](Codec::prepare)
    /// for.
    ///
    /// # Safety
    /// Until that work completes, the encoded images and the planes exist, and `state` is not used
    /// for other images. The planes have the size that the library [parsed](Codec::is_of_size). All
    /// earlier work with `state` has completed.
    pub(crate) unsafe fn decode_batch(
        &self,
        state: &mut BatchState,
        encoded: &[&[u8]],
        planes: &mut [OutputPlanes],
        stream: &StreamHandle,
    ) -> NvJpegResult<()> {
        let addresses: Vec<*const c_uchar> = encoded.iter().map(|it| it.as_ptr()).collect();
        let lengths: Vec<usize> = encoded.iter().map(|it| it.len()).collect();
        call!(
            self.library,
            batched_decode(
                self.handle.raw(),
                state.0.raw(),
                addresses.as_ptr(),
                lengths.as_ptr(),
                planes.as_mut_ptr(),
                cuda_stream(stream),
            )
        )
    }

    pub(crate) fn image_decoder(&self) -> NvJpegResult<ImageDecoder> {
        let functions = &*self.library.functions;
        let decoder = self.object(name::decoder_create, functions.decoder_destroy, |object| {
            // SAFETY: the handle exists, and the pointer is to a variable.
            unsafe {
                (functions.decoder_create)(
                    self.handle.raw(),
                    NvJpegBackend::Hybrid as c_int,
                    object,
                )
            }
        })?;
        let parameters =
            self.object(name::parameters_create, functions.parameters_destroy, |object| {
                // SAFETY: as above.
                unsafe { (functions.parameters_create)(self.handle.raw(), object) }
            })?;
        call!(self.library, parameters_output(parameters.raw(), INTERLEAVED_RGB))?;
        Ok(ImageDecoder { decoder, parameters })
    }

    pub(crate) fn image_state(&self, decoder: &ImageDecoder) -> NvJpegResult<ImageState> {
        let functions = &*self.library.functions;
        let handle = self.handle.raw();
        let state = self.object(name::decoder_state_create, functions.state_destroy, |object| {
            // SAFETY: both exist, and the pointer is to a variable.
            unsafe { (functions.decoder_state_create)(handle, decoder.decoder.raw(), object) }
        })?;
        let pinned = self.object(name::pinned_create, functions.pinned_destroy, |object| {
            // SAFETY: the handle exists; without an allocator, the library uses its own.
            unsafe { (functions.pinned_create)(handle, ptr::null_mut(), object) }
        })?;
        let device = self.object(name::device_create, functions.device_destroy, |object| {
            // SAFETY: as above.
            unsafe { (functions.device_create)(handle, ptr::null_mut(), object) }
        })?;
        call!(self.library, attach_pinned(state.raw(), pinned.raw()))?;
        call!(self.library, attach_device(state.raw(), device.raw()))?;
        Ok(ImageState { state, _buffers: [pinned, device], parsed: self.parsed_jpeg()? })
    }

    /// Decodes an image. The CPU part is complete on return; the other steps are queued.
    ///
    /// Fails with `NVJPEG_STATUS_BAD_JPEG` if the library parses another width or height than
    /// `size`.
    ///
    /// # Safety
    /// Until that work completes, the encoded image and a plane of `size` exist, and `state` is not
    /// used for other images.
    pub(crate) unsafe fn decode_image(
        &self,
        decoder: &ImageDecoder,
        state: &mut ImageState,
        encoded: &[u8],
        size: [u32; 2],
        mut plane: OutputPlanes,
        stream: &StreamHandle,
    ) -> NvJpegResult<()> {
        let (handle, engine) = (self.handle.raw(), decoder.decoder.raw());
        // SAFETY: the caller keeps the image.
        unsafe { self.parse(encoded, &mut state.parsed)? };
        if !self.is_of_size(&state.parsed, size)? {
            return Err(NvJpegError { call: name::stream_size, status: BAD_JPEG });
        }
        let (parsed, memory) = (state.parsed.0.raw(), state.state.raw());
        let parameters = decoder.parameters.raw();
        call!(self.library, decode_host(handle, engine, memory, parameters, parsed))?;
        let stream = cuda_stream(stream);
        call!(self.library, decode_transfer(handle, engine, memory, parsed, stream))?;
        call!(self.library, decode_device(handle, engine, memory, &mut plane, stream))
    }
}

impl fmt::Debug for NvJpegLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        write!(f, "nvJPEG {major}.{minor}.{patch} at {}", self.location)
    }
}
