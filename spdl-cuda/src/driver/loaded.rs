//! `libcuda`, opened at run time.
//!
//! All functions are resolved before `cuInit` is called.
//! If a required function is missing, loading fails with the name of the function. Return codes are
//! plain numbers, because newer drivers add codes.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use spdl_core::{Error, ErrorKind};

use super::error::{DriverError, INVALID_VALUE, NOT_READY};
use super::interface::{
    ContextHandle, DeviceAddress, DeviceAttribute, DeviceId, Driver, DriverResult, EventHandle,
    FunctionHandle, LaunchDimensions, Memcpy2D, MemoryAccess, MemoryHandle, ModuleHandle,
    RegistrationHandle, StreamHandle,
};
use crate::libraries::{Library, LibraryLocation, LibraryNotFound, Search, SharedLibrary};

/// The oldest supported CUDA version: 12.0, of driver 525.
pub(crate) const OLDEST: i32 = 12_000;

/// `CU_STREAM_NON_BLOCKING`: no implicit order with the legacy default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`, with which a waiting host thread sleeps, and
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_BLOCKING_SYNC_NO_TIMING: c_uint = 1 | 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`: the memory is pinned for all contexts.
const REGISTER_PORTABLE: c_uint = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`. The other values mean an active or an invalidated capture.
const NOT_CAPTURED: c_int = 0;

/// `CU_MEMORYTYPE_DEVICE`.
const MEMORYTYPE_DEVICE: c_uint = 2;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
struct CudaMemcpy2D {
    from_x: usize,
    from_y: usize,
    from_kind: c_uint,
    from_host: *const c_void,
    from_device: u64,
    from_array: Pointer,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: c_uint,
    to_host: Pointer,
    to_device: u64,
    to_array: Pointer,
    to_pitch: usize,
    row_bytes: usize,
    rows: usize,
}

/// The result code of a driver call (`CUresult`).
type Code = u32;
type Pointer = *mut c_void;

/// Declares the table of driver functions, and resolves them by name.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the names of the functions")]
        #[derive(Clone, Copy)]
        struct DriverFunctions {
            $($name: unsafe extern "system" fn($($argument),*) -> Code,)*
        }

        impl DriverFunctions {
            /// Resolves all functions, or returns the name of the first missing one.
            fn resolve(library: &SharedLibrary) -> Result<DriverFunctions, &'static str> {
                Ok(DriverFunctions {
                    // SAFETY: the types are those of the documentation of the driver API.
                    $($name: unsafe { library.function(stringify!($name)) }
                        .ok_or(stringify!($name))?,)*
                })
            }
        }

        /// Each function with the argument sizes declared here and by `cudarc`.
        #[cfg(all(test, feature = "cudarc"))]
        fn declarations() -> Vec<(&'static str, Vec<usize>, Vec<usize>)> {
            use super::signatures::{Signature, any};
            vec![$((
                stringify!($name),
                vec![$(size_of::<$argument>()),*],
                (cudarc::driver::sys::$name as unsafe fn($(any!($argument)),*) -> _).sizes(),
            )),*]
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDevicePrimaryCtxRetain(*mut Pointer, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxPushCurrent_v2(Pointer);
    cuCtxPopCurrent_v2(*mut Pointer);
    cuThreadExchangeStreamCaptureMode(*mut c_int);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuStreamCreateWithPriority(*mut Pointer, c_uint, c_int);
    cuStreamDestroy_v2(Pointer);
    cuStreamSynchronize(Pointer);
    cuStreamWaitEvent(Pointer, Pointer, c_uint);
    cuStreamIsCapturing(Pointer, *mut c_int);
    cuEventCreate(*mut Pointer, c_uint);
    cuEventDestroy_v2(Pointer);
    cuEventRecord(Pointer, Pointer);
    cuEventQuery(Pointer);
    cuEventSynchronize(Pointer);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostRegister_v2(Pointer, usize, c_uint);
    cuMemHostUnregister(Pointer);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Pointer);
    cuMemcpyDtoHAsync_v2(Pointer, u64, usize, Pointer);
    cuMemcpy2DAsync_v2(*const CudaMemcpy2D, Pointer);
    cuModuleLoadData(*mut Pointer, *const c_void);
    cuModuleUnload(Pointer);
    cuModuleGetFunction(*mut Pointer, Pointer, *const c_char);
    cuLaunchKernel(
        Pointer, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Pointer, *mut Pointer,
        *mut Pointer
    );
}

/// Calls a function of the table. An error carries the name of the function.
macro_rules! call {
    ($driver:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to variables of the right type that live during the call, or the
        // caller of the method upholds its contract; handles are valid, since destroying them
        // consumes them.
        let code = unsafe { ($driver.functions.$name)($($argument),*) };
        check(stringify!($name), code)
    }};
}

/// The reason why the driver cannot be used.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverLoadError {
    /// `libcuda` cannot be loaded.
    NotFound(LibraryNotFound),
    /// The driver supports only an older CUDA version, or lacks a function.
    TooOld {
        /// The required CUDA version: 12000 is 12.0.
        required: i32,
        /// The CUDA version of the driver, if known.
        found: Option<i32>,
        /// The missing function, if any.
        missing_function: Option<&'static str>,
    },
    /// `cuInit` failed.
    InitFailed(DriverError),
}

impl DriverLoadError {
    /// What the user can do to make the driver usable; empty if no remedy is known.
    pub fn remedy(&self) -> &'static str {
        match self {
            DriverLoadError::NotFound(_) => Library::Driver.remedy(),
            DriverLoadError::TooOld { .. } => "install an NVIDIA driver of version 525 or newer",
            DriverLoadError::InitFailed(error) => error.remedy(),
        }
    }

    pub(crate) fn into_error(self, doing: &str) -> Error {
        if let DriverLoadError::InitFailed(error) = self {
            return error.into_error(doing);
        }
        let message = format!("cannot {doing}; {}", self.remedy());
        Error::new(ErrorKind::Unsupported, message).with_source(self)
    }
}

impl fmt::Display for DriverLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverLoadError::NotFound(error) => error.fmt(f),
            DriverLoadError::TooOld { required, found, missing_function } => {
                write!(f, "the driver is too old: CUDA {} is required", Version(*required))?;
                if let Some(found) = found {
                    write!(f, ", found {}", Version(*found))?;
                }
                match missing_function {
                    Some(function) => write!(f, "; missing function {function}"),
                    None => Ok(()),
                }
            }
            DriverLoadError::InitFailed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DriverLoadError {}

/// Formats a CUDA version as `12.4`.
pub(crate) struct Version(pub(crate) i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The installed driver.
pub(crate) struct LoadedDriver {
    functions: DriverFunctions,
    version: i32,
    location: LibraryLocation,
    /// Keeps the code of the functions loaded.
    _library: SharedLibrary,
}

impl LoadedDriver {
    /// Locates and initialises the driver.
    pub(crate) fn load(search: &Search) -> Result<LoadedDriver, DriverLoadError> {
        let (library, location) =
            search.open(Library::Driver).map_err(DriverLoadError::NotFound)?;
        let found = driver_version(&library);
        let too_old = |missing_function| DriverLoadError::TooOld {
            required: OLDEST,
            found,
            missing_function,
        };
        let functions = DriverFunctions::resolve(&library).map_err(|name| too_old(Some(name)))?;
        let version = found.ok_or_else(|| too_old(Some("cuDriverGetVersion")))?;
        if version < OLDEST {
            return Err(too_old(None));
        }
        let driver = LoadedDriver { functions, version, location, _library: library };
        call!(driver.cuInit(0)).map_err(DriverLoadError::InitFailed)?;
        Ok(driver)
    }

    pub(crate) fn location(&self) -> &LibraryLocation {
        &self.location
    }
}

/// The CUDA version of the driver. Works before `cuInit`, with every driver.
fn driver_version(library: &SharedLibrary) -> Option<i32> {
    type DriverGetVersion = unsafe extern "system" fn(*mut c_int) -> Code;
    // SAFETY: the type is that of the documentation.
    let function = unsafe { library.function::<DriverGetVersion>("cuDriverGetVersion") }?;
    let mut version = 0;
    // SAFETY: the pointer is to a variable that lives during the call.
    let code = unsafe { function(&mut version) };
    (code == 0).then_some(version)
}

fn check(call: &'static str, code: Code) -> DriverResult<()> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// The opaque pointer of a handle.
fn pointer(handle: usize) -> Pointer {
    ptr::without_provenance_mut(handle)
}

impl Driver for LoadedDriver {
    fn version(&self) -> DriverResult<i32> {
        Ok(self.version)
    }

    fn device_count(&self) -> DriverResult<u32> {
        let mut count = 0;
        call!(self.cuDeviceGetCount(&mut count))?;
        Ok(count.max(0) as u32)
    }

    fn device(&self, ordinal: u32) -> DriverResult<DeviceId> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        call!(self.cuDeviceGet(&mut device, ordinal))?;
        Ok(DeviceId(device))
    }

    fn device_name(&self, device: DeviceId) -> DriverResult<String> {
        let mut name = [0_u8; 256];
        call!(self.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device.0))?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    fn device_attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> DriverResult<i32> {
        let mut value = 0;
        call!(self.cuDeviceGetAttribute(&mut value, attribute as c_int, device.0))?;
        Ok(value)
    }

    fn device_memory(&self, device: DeviceId) -> DriverResult<usize> {
        let mut bytes = 0;
        call!(self.cuDeviceTotalMem_v2(&mut bytes, device.0))?;
        Ok(bytes)
    }

    fn retain_primary_context(&self, device: DeviceId) -> DriverResult<ContextHandle> {
        let mut context = ptr::null_mut();
        call!(self.cuDevicePrimaryCtxRetain(&mut context, device.0))?;
        Ok(ContextHandle { raw: context.addr(), device })
    }

    fn release_primary_context(&self, context: ContextHandle) -> DriverResult<()> {
        call!(self.cuDevicePrimaryCtxRelease_v2(context.device.0))
    }

    fn push_context(&self, context: &ContextHandle) -> DriverResult<()> {
        call!(self.cuCtxPushCurrent_v2(pointer(context.raw)))
    }

    fn pop_context(&self) -> DriverResult<()> {
        let mut context = ptr::null_mut();
        call!(self.cuCtxPopCurrent_v2(&mut context))
    }

    fn exchange_capture_mode(&self, mut mode: i32) -> DriverResult<i32> {
        call!(self.cuThreadExchangeStreamCaptureMode(&mut mode))?;
        Ok(mode)
    }

    fn is_capturing(&self, stream: &StreamHandle) -> DriverResult<bool> {
        let mut status = NOT_CAPTURED;
        call!(self.cuStreamIsCapturing(pointer(stream.0), &mut status))?;
        Ok(status != NOT_CAPTURED)
    }

    fn synchronize_context(&self) -> DriverResult<()> {
        call!(self.cuCtxSynchronize())
    }

    fn stream_priorities(&self) -> DriverResult<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        call!(self.cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        Ok((least, greatest))
    }

    fn create_stream(&self, priority: i32) -> DriverResult<StreamHandle> {
        let mut stream = ptr::null_mut();
        call!(self.cuStreamCreateWithPriority(&mut stream, STREAM_NON_BLOCKING, priority))?;
        Ok(StreamHandle(stream.addr()))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> DriverResult<()> {
        call!(self.cuStreamDestroy_v2(pointer(stream.0)))
    }

    fn synchronize_stream(&self, stream: &StreamHandle) -> DriverResult<()> {
        call!(self.cuStreamSynchronize(pointer(stream.0)))
    }

    fn create_event(&self) -> DriverResult<EventHandle> {
        let mut event = ptr::null_mut();
        call!(self.cuEventCreate(&mut event, EVENT_BLOCKING_SYNC_NO_TIMING))?;
        Ok(EventHandle(event.addr()))
    }

    fn destroy_event(&self, event: EventHandle) -> DriverResult<()> {
        call!(self.cuEventDestroy_v2(pointer(event.0)))
    }

    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> DriverResult<()> {
        call!(self.cuEventRecord(pointer(event.0), pointer(stream.0)))
    }

    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> DriverResult<()> {
        call!(self.cuStreamWaitEvent(pointer(stream.0), pointer(event.0), 0))
    }

    fn query_event(&self, event: &EventHandle) -> DriverResult<bool> {
        match call!(self.cuEventQuery(pointer(event.0))) {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn synchronize_event(&self, event: &EventHandle) -> DriverResult<()> {
        call!(self.cuEventSynchronize(pointer(event.0)))
    }

    fn allocate(&self, bytes: usize) -> DriverResult<MemoryHandle> {
        let mut address = 0;
        call!(self.cuMemAlloc_v2(&mut address, bytes))?;
        Ok(MemoryHandle { address: DeviceAddress(address), bytes })
    }

    unsafe fn free(&self, memory: MemoryHandle) -> DriverResult<()> {
        call!(self.cuMemFree_v2(memory.address.0))
    }

    unsafe fn register_host(
        &self,
        address: *mut u8,
        bytes: usize,
    ) -> DriverResult<RegistrationHandle> {
        call!(self.cuMemHostRegister_v2(address.cast(), bytes, REGISTER_PORTABLE))?;
        Ok(RegistrationHandle(address.addr()))
    }

    unsafe fn unregister_host(&self, memory: RegistrationHandle) -> DriverResult<()> {
        call!(self.cuMemHostUnregister(pointer(memory.0)))
    }

    unsafe fn copy_to_device(
        &self,
        to: DeviceAddress,
        from: *const u8,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        call!(self.cuMemcpyHtoDAsync_v2(to.0, from.cast(), bytes, pointer(stream.0)))
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DeviceAddress,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        call!(self.cuMemcpyDtoHAsync_v2(to.cast(), from.0, bytes, pointer(stream.0)))
    }

    unsafe fn copy_rows(&self, copy: &Memcpy2D, stream: &StreamHandle) -> DriverResult<()> {
        let copy = CudaMemcpy2D {
            from_x: 0,
            from_y: 0,
            from_kind: MEMORYTYPE_DEVICE,
            from_host: ptr::null(),
            from_device: copy.from.0,
            from_array: ptr::null_mut(),
            from_pitch: copy.from_pitch,
            to_x: 0,
            to_y: 0,
            to_kind: MEMORYTYPE_DEVICE,
            to_host: ptr::null_mut(),
            to_device: copy.to.0,
            to_array: ptr::null_mut(),
            to_pitch: copy.to_pitch,
            row_bytes: copy.row_bytes,
            rows: copy.rows,
        };
        call!(self.cuMemcpy2DAsync_v2(&copy, pointer(stream.0)))
    }

    unsafe fn load_module(&self, image: &[u8]) -> DriverResult<ModuleHandle> {
        let mut module = ptr::null_mut();
        call!(self.cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(ModuleHandle(module.addr()))
    }

    unsafe fn unload_module(&self, module: ModuleHandle) -> DriverResult<()> {
        call!(self.cuModuleUnload(pointer(module.0)))
    }

    fn function(&self, module: &ModuleHandle, name: &str) -> DriverResult<FunctionHandle> {
        let wrong = DriverError { call: "cuModuleGetFunction", code: INVALID_VALUE };
        let name = CString::new(name).map_err(|_| wrong)?;
        let mut function = ptr::null_mut();
        call!(self.cuModuleGetFunction(&mut function, pointer(module.0), name.as_ptr()))?;
        Ok(FunctionHandle(function.addr()))
    }

    unsafe fn launch(
        &self,
        function: &FunctionHandle,
        dimensions: LaunchDimensions,
        parameters: &[&[u8]],
        _: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let LaunchDimensions { grid, block, shared_bytes } = dimensions;
        // The driver copies the parameters before the call returns.
        let mut pointers: Vec<Pointer> =
            parameters.iter().map(|bytes| bytes.as_ptr().cast_mut().cast()).collect();
        call!(self.cuLaunchKernel(
            pointer(function.0),
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared_bytes,
            pointer(stream.0),
            pointers.as_mut_ptr(),
            ptr::null_mut(),
        ))
    }
}

impl fmt::Debug for LoadedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedDriver(CUDA {}, {})", Version(self.version), self.location)
    }
}

#[cfg(all(test, feature = "cudarc"))]
mod tests {
    #[test]
    fn argument_sizes_match_cudarc() {
        let declarations = super::declarations();
        assert!(declarations.len() > 30);
        for (name, here, there) in declarations {
            assert_eq!(here, there, "{name}");
        }
    }

    #[test]
    fn the_layout_of_cuda_memcpy2d_matches_cudarc() {
        use std::mem::offset_of;

        use cudarc::driver::sys::CUDA_MEMCPY2D_st as There;

        use super::CudaMemcpy2D;
        assert_eq!(size_of::<CudaMemcpy2D>(), size_of::<There>());
        let pairs = [
            (offset_of!(CudaMemcpy2D, from_kind), offset_of!(There, srcMemoryType)),
            (offset_of!(CudaMemcpy2D, from_device), offset_of!(There, srcDevice)),
            (offset_of!(CudaMemcpy2D, from_pitch), offset_of!(There, srcPitch)),
            (offset_of!(CudaMemcpy2D, to_kind), offset_of!(There, dstMemoryType)),
            (offset_of!(CudaMemcpy2D, to_device), offset_of!(There, dstDevice)),
            (offset_of!(CudaMemcpy2D, to_pitch), offset_of!(There, dstPitch)),
            (offset_of!(CudaMemcpy2D, row_bytes), offset_of!(There, WidthInBytes)),
            (offset_of!(CudaMemcpy2D, rows), offset_of!(There, Height)),
        ];
        for (here, there) in pairs {
            assert_eq!(here, there);
        }
    }
}
