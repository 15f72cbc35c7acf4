//! The driver of the machine, opened while the program runs.
//!
//! The table below is resolved as a whole before the first call: a driver that lacks a function is
//! refused with its name, and none is called that is not there. Return codes are plain numbers, as
//! newer drivers have codes that this program does not know.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use spdl_core::{Error, ErrorKind};

use super::error::{DriverError, INVALID_VALUE, NOT_READY, NOT_SUPPORTED};
use super::interface::{
    ContextHandle, DeviceAddress, DeviceAttribute, DeviceId, Driver, DriverResult, EventHandle,
    FunctionHandle, LaunchShape, MemoryHandle, ModuleHandle, RegistrationHandle, RowsCopy,
    StreamHandle, Touched,
};
use crate::libraries::{Found, Library, NotFound, Search, SharedLibrary};

/// The oldest CUDA version that the driver has to know: 12.0, of the drivers 525.
pub(crate) const OLDEST: i32 = 12_000;

/// Streams wait for no default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// The host sleeps while it waits.
const EVENT_BLOCKING_SYNC: c_uint = 1;
/// The same, and no time is measured.
const EVENT_BLOCKING_SYNC_NO_TIMING: c_uint = EVENT_BLOCKING_SYNC | 2;
/// Host memory is locked for all contexts.
const REGISTER_PORTABLE: c_uint = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`. The others: it is captured, or was until something broke that off.
const NOT_CAPTURED: c_int = 0;

/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_OF_DEVICE: c_uint = 2;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
struct Copy2D {
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

/// What `CUresult` is: a number.
type Code = u32;
type Pointer = *mut c_void;

/// Declares the table, and how it is resolved.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "these are the names of the functions")]
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "system" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            /// All functions of the driver; else the name of the first that it lacks.
            fn resolve(library: &SharedLibrary) -> Result<Functions, &'static str> {
                Ok(Functions {
                    // SAFETY: the types are those that the driver's documentation declares.
                    $($name: unsafe { library.function(stringify!($name)) }
                        .ok_or(stringify!($name))?,)*
                })
            }
        }

        /// Each function with the sizes of its arguments, as declared here and by `cudarc`.
        #[cfg(all(test, feature = "cudarc"))]
        fn declarations() -> Vec<(&'static str, Vec<usize>, Vec<usize>)> {
            use super::signatures::{Arguments, any};
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
    cuMemcpy2DAsync_v2(*const Copy2D, Pointer);
    cuModuleLoadData(*mut Pointer, *const c_void);
    cuModuleUnload(Pointer);
    cuModuleGetFunction(*mut Pointer, Pointer, *const c_char);
    cuLaunchKernel(
        Pointer, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Pointer, *mut Pointer,
        *mut Pointer
    );
}

/// Calls a function of the table. Its name is that of the error.
macro_rules! call {
    ($driver:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to variables of the right type that live during the call, or what the
        // caller of the method answers for; handles are alive, as nobody has given them back.
        let code = unsafe { ($driver.functions.$name)($($argument),*) };
        check(stringify!($name), code)
    }};
}

/// Why there is no driver to be used.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoDriver {
    /// There is none.
    NotFound(NotFound),
    /// There is one that knows too old a CUDA version, or lacks a function.
    TooOld {
        /// The version that it has to know: 12000 is 12.0.
        need: i32,
        /// The one that it knows, where it says.
        have: Option<i32>,
        /// The function that it lacks, where that was noticed first.
        lacks: Option<&'static str>,
    },
    /// It does not start.
    Refuses(DriverError),
}

impl NoDriver {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            NoDriver::NotFound(_) => Library::Driver.remedy(),
            NoDriver::TooOld { .. } => "install an NVIDIA driver of version 525 or newer",
            NoDriver::Refuses(error) => error.remedy(),
        }
    }

    pub(crate) fn into_error(self, doing: &str) -> Error {
        if let NoDriver::Refuses(error) = self {
            return error.into_error(doing);
        }
        let message = format!("cannot {doing}; {}", self.remedy());
        Error::new(ErrorKind::Unsupported, message).with_source(self)
    }
}

impl fmt::Display for NoDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoDriver::NotFound(error) => error.fmt(f),
            NoDriver::TooOld { need, have, lacks } => {
                write!(f, "the driver is too old: CUDA {} is needed", Version(*need))?;
                if let Some(have) = have {
                    write!(f, ", it knows {}", Version(*have))?;
                }
                match lacks {
                    Some(function) => write!(f, "; it lacks {function}"),
                    None => Ok(()),
                }
            }
            NoDriver::Refuses(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoDriver {}

/// A CUDA version as people write it.
pub(crate) struct Version(pub(crate) i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The milliseconds from one event to another.
type EventElapsedTime = unsafe extern "system" fn(*mut f32, Pointer, Pointer) -> Code;

/// The driver of the machine.
pub(crate) struct LoadedDriver {
    functions: Functions,
    elapsed: Option<EventElapsedTime>,
    version: i32,
    found: Found,
    /// Where the functions are.
    _library: SharedLibrary,
}

impl LoadedDriver {
    /// Finds the driver, and starts it.
    pub(crate) fn load(search: &Search) -> Result<LoadedDriver, NoDriver> {
        let (library, found) = search.open(Library::Driver).map_err(NoDriver::NotFound)?;
        let have = driver_version(&library);
        let too_old = |lacks| NoDriver::TooOld { need: OLDEST, have, lacks };
        let functions = Functions::resolve(&library).map_err(|name| too_old(Some(name)))?;
        let version = have.ok_or_else(|| too_old(Some("cuDriverGetVersion")))?;
        if version < OLDEST {
            return Err(too_old(None));
        }
        // Which of the two there is depends on the driver; without it no time is measured.
        let elapsed =
            ["cuEventElapsedTime_v2", "cuEventElapsedTime"].into_iter().find_map(|name| {
                // SAFETY: this is the type of both.
                unsafe { library.function::<EventElapsedTime>(name) }
            });
        let driver = LoadedDriver { functions, elapsed, version, found, _library: library };
        call!(driver.cuInit(0)).map_err(NoDriver::Refuses)?;
        Ok(driver)
    }

    /// Where it was found.
    pub(crate) fn found(&self) -> &Found {
        &self.found
    }
}

/// The CUDA version that the driver knows. This works before it is started, and for all drivers.
fn driver_version(library: &SharedLibrary) -> Option<i32> {
    type DriverGetVersion = unsafe extern "system" fn(*mut c_int) -> Code;
    // SAFETY: this is its type.
    let function = unsafe { library.function::<DriverGetVersion>("cuDriverGetVersion") }?;
    let mut version = 0;
    // SAFETY: the pointer is to a variable that lives during the call.
    let code = unsafe { function(&mut version) };
    (code == 0).then_some(version)
}

fn check(call: &'static str, code: Code) -> DriverResult<()> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// A handle as the driver wants it: a pointer that only it looks behind.
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

    fn create_timer(&self) -> DriverResult<EventHandle> {
        let mut event = ptr::null_mut();
        call!(self.cuEventCreate(&mut event, EVENT_BLOCKING_SYNC))?;
        Ok(EventHandle(event.addr()))
    }

    fn elapsed(&self, from: &EventHandle, to: &EventHandle) -> DriverResult<f32> {
        let call = "cuEventElapsedTime";
        let elapsed = self.elapsed.ok_or(DriverError { call, code: NOT_SUPPORTED })?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive, and the pointer is to a variable that lives during the call.
        let code = unsafe { elapsed(&mut milliseconds, pointer(from.0), pointer(to.0)) };
        check(call, code)?;
        Ok(milliseconds)
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

    unsafe fn copy_rows(&self, copy: &RowsCopy, stream: &StreamHandle) -> DriverResult<()> {
        let copy = Copy2D {
            from_x: 0,
            from_y: 0,
            from_kind: MEMORY_OF_DEVICE,
            from_host: ptr::null(),
            from_device: copy.from.0,
            from_array: ptr::null_mut(),
            from_pitch: copy.from_pitch,
            to_x: 0,
            to_y: 0,
            to_kind: MEMORY_OF_DEVICE,
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
        shape: LaunchShape,
        parameters: &[&[u8]],
        _: &[Touched],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let LaunchShape { grid, block, shared_bytes } = shape;
        // The driver reads the parameters, and copies them before the call returns.
        let mut places: Vec<Pointer> =
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
            places.as_mut_ptr(),
            ptr::null_mut(),
        ))
    }
}

impl fmt::Debug for LoadedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedDriver(CUDA {}, {})", Version(self.version), self.found)
    }
}

#[cfg(all(test, feature = "cudarc"))]
mod tests {
    #[test]
    fn functions_take_what_cudarc_declares() {
        let declarations = super::declarations();
        assert!(declarations.len() > 30);
        for (name, here, there) in declarations {
            assert_eq!(here, there, "{name}");
        }
    }

    #[test]
    fn a_copy_of_rows_is_described_as_cudarc_declares_it() {
        use std::mem::offset_of;

        use cudarc::driver::sys::CUDA_MEMCPY2D_st as There;

        use super::Copy2D;
        assert_eq!(size_of::<Copy2D>(), size_of::<There>());
        let pairs = [
            (offset_of!(Copy2D, from_kind), offset_of!(There, srcMemoryType)),
            (offset_of!(Copy2D, from_device), offset_of!(There, srcDevice)),
            (offset_of!(Copy2D, from_pitch), offset_of!(There, srcPitch)),
            (offset_of!(Copy2D, to_kind), offset_of!(There, dstMemoryType)),
            (offset_of!(Copy2D, to_device), offset_of!(There, dstDevice)),
            (offset_of!(Copy2D, to_pitch), offset_of!(There, dstPitch)),
            (offset_of!(Copy2D, row_bytes), offset_of!(There, WidthInBytes)),
            (offset_of!(Copy2D, rows), offset_of!(There, Height)),
        ];
        for (here, there) in pairs {
            assert_eq!(here, there);
        }
    }
}
