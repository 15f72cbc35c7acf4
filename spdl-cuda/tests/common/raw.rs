//! Direct driver calls, independent of the crate: the reference of its copies, and the consumers of its
//! batches. For one thread.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::rc::Rc;
use std::{ptr, slice};

use libloading::Library;

/// The result of a driver call. The error has the name of the function and the code.
pub(crate) type Raw<T> = Result<T, String>;

type Code = u32;
type Pointer = *mut c_void;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
const PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`: writes of the host bypass its caches.
const WRITE_COMBINED: c_uint = 4;
/// `CU_STREAM_NON_BLOCKING`: not synchronised with the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`.
const BLOCKING_SYNC_NO_TIMING: c_uint = 1 | 2;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "these are the names of the functions")]
        struct Functions {
            $($name: unsafe extern "system" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            fn resolve(library: &Library) -> Raw<Functions> {
                Ok(Functions {
                    // SAFETY: the types are those of the driver API documentation.
                    $($name: *unsafe { library.get(stringify!($name)) }
                        .map_err(|_| format!("the driver lacks {}", stringify!($name)))?,)*
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Pointer, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxPushCurrent_v2(Pointer);
    cuCtxPopCurrent_v2(*mut Pointer);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuStreamCreateWithPriority(*mut Pointer, c_uint, c_int);
    cuStreamDestroy_v2(Pointer);
    cuStreamSynchronize(Pointer);
    cuStreamBeginCapture_v2(Pointer, c_uint);
    cuStreamEndCapture(Pointer, *mut Pointer);
    cuGraphDestroy(Pointer);
    cuEventCreate(*mut Pointer, c_uint);
    cuEventDestroy_v2(Pointer);
    cuEventRecord(Pointer, Pointer);
    cuEventSynchronize(Pointer);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostAlloc(*mut Pointer, usize, c_uint);
    cuMemFreeHost(Pointer);
    cuMemHostRegister_v2(Pointer, usize, c_uint);
    cuMemHostUnregister(Pointer);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Pointer);
    cuMemcpyDtoHAsync_v2(Pointer, u64, usize, Pointer);
    cuModuleLoadData(*mut Pointer, *const c_void);
    cuModuleUnload(Pointer);
    cuModuleGetFunction(*mut Pointer, Pointer, *const c_char);
    cuLaunchKernel(
        Pointer, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Pointer, *mut Pointer,
        *mut Pointer
    );
}

macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to variables of the right type that live during the call. Handles and
        // memory are alive, because the caller holds their owners, which hold the driver.
        let code = unsafe { ($driver.functions.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err(format!("{} failed with {code}", stringify!($name))) }
    }};
}

/// The driver, with the primary context of device 0 current on this thread.
pub(crate) struct Driver {
    functions: Functions,
    _library: Library,
    _one_thread: PhantomData<*const ()>,
}

impl Driver {
    pub(crate) fn open() -> Raw<Rc<Driver>> {
        let named = std::env::var_os("SPDL_CUDA_DRIVER").filter(|name| !name.is_empty());
        let name = named.unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the library is the driver, or the replacement that the user has set.
        let library = unsafe { Library::new(name) }.map_err(|error| error.to_string())?;
        let functions = Functions::resolve(&library)?;
        let driver = Driver { functions, _library: library, _one_thread: PhantomData };
        call!(driver, cuInit(0))?;
        let (mut device, mut context) = (0, ptr::null_mut());
        call!(driver, cuDeviceGet(&mut device, 0))?;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device))?;
        call!(driver, cuCtxPushCurrent_v2(context))?;
        Ok(Rc::new(driver))
    }

    /// The newest CUDA version that the driver supports: 13000 is 13.0.
    pub(crate) fn version(&self) -> Raw<i32> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&mut version))?;
        Ok(version)
    }

    /// The PCI address of the device in the notation of Linux, for example `0000:3b:00.0`.
    pub(crate) fn pci_address(&self) -> Raw<String> {
        let mut text = [0_u8; 32];
        call!(self, cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as c_int, 0))?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).to_lowercase())
    }

    /// The free device memory in bytes.
    pub(crate) fn free_memory(&self) -> Raw<usize> {
        let (mut free, mut all) = (0, 0);
        call!(self, cuMemGetInfo_v2(&mut free, &mut all))?;
        Ok(free)
    }

    /// Waits until all work of the context is complete.
    pub(crate) fn synchronize(&self) -> Raw<()> {
        call!(self, cuCtxSynchronize())
    }

    pub(crate) fn stream(self: &Rc<Self>) -> Raw<Stream> {
        let (mut least, mut greatest, mut handle) = (0, 0, ptr::null_mut());
        call!(self, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        call!(self, cuStreamCreateWithPriority(&mut handle, NON_BLOCKING, greatest))?;
        Ok(Stream { handle, driver: Rc::clone(self) })
    }

    pub(crate) fn event(self: &Rc<Self>) -> Raw<Event> {
        let mut handle = ptr::null_mut();
        call!(self, cuEventCreate(&mut handle, BLOCKING_SYNC_NO_TIMING))?;
        Ok(Event { handle, driver: Rc::clone(self) })
    }

    pub(crate) fn memory(self: &Rc<Self>, bytes: usize) -> Raw<Memory> {
        let mut address = 0;
        call!(self, cuMemAlloc_v2(&mut address, bytes))?;
        Ok(Memory { address, bytes, driver: Rc::clone(self) })
    }

    /// Allocates zeroed host memory.
    pub(crate) fn host(self: &Rc<Self>, bytes: usize, kind: HostKind) -> Raw<Host> {
        let mut place = ptr::null_mut();
        let mut pageable = Vec::new();
        match kind {
            HostKind::Allocated => call!(self, cuMemHostAlloc(&mut place, bytes, PORTABLE))?,
            HostKind::WriteCombined => {
                call!(self, cuMemHostAlloc(&mut place, bytes, PORTABLE | WRITE_COMBINED))?;
            }
            HostKind::Registered | HostKind::Pageable => {
                let pages = bytes.next_multiple_of(PAGE);
                pageable = vec![0_u8; pages + PAGE];
                let at = pageable.as_ptr().align_offset(PAGE);
                place = pageable[at..].as_mut_ptr().cast();
                if kind == HostKind::Registered {
                    call!(self, cuMemHostRegister_v2(place, pages, PORTABLE))?;
                }
            }
        }
        let mut host = Host { place, bytes, kind, _pageable: pageable, driver: Rc::clone(self) };
        host.bytes_mut().fill(0);
        Ok(host)
    }

    /// Loads machine code or PTX.
    pub(crate) fn module(self: &Rc<Self>, image: &[u8]) -> Raw<Module> {
        let mut handle = ptr::null_mut();
        call!(self, cuModuleLoadData(&mut handle, image.as_ptr().cast()))?;
        Ok(Module { handle, driver: Rc::clone(self) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        let _ = call!(self, cuCtxPopCurrent_v2(&mut context));
        let _ = call!(self, cuDevicePrimaryCtxRelease_v2(0));
    }
}

/// Alignment of registered memory.
const PAGE: usize = 4096;

/// How host memory is allocated and pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostKind {
    /// Pinned memory of `cuMemHostAlloc`.
    Allocated,
    /// Memory of the system allocator, pinned by `cuMemHostRegister`.
    Registered,
    /// Pinned, write-combined memory of `cuMemHostAlloc`.
    WriteCombined,
    /// Memory of the system allocator, not pinned.
    Pageable,
}

pub(crate) struct Stream {
    handle: Pointer,
    driver: Rc<Driver>,
}

impl Stream {
    /// The `CUstream`.
    pub(crate) fn handle(&self) -> usize {
        self.handle.addr()
    }

    pub(crate) fn synchronize(&self) -> Raw<()> {
        call!(self.driver, cuStreamSynchronize(self.handle))
    }

    /// Queues a copy of the first `bytes`. The caller keeps both until the copy is complete.
    pub(crate) fn to_device(&self, to: &Memory, from: &Host, bytes: usize) -> Raw<()> {
        assert!(bytes <= to.bytes && bytes <= from.bytes, "{bytes} bytes do not fit");
        call!(
            self.driver,
            cuMemcpyHtoDAsync_v2(to.address, from.place.cast_const(), bytes, self.handle)
        )
    }

    /// As `to_device`, in the other direction.
    pub(crate) fn to_host(&self, to: &Host, from: &Memory, bytes: usize) -> Raw<()> {
        assert!(bytes <= to.bytes && bytes <= from.bytes, "{bytes} bytes do not fit");
        call!(self.driver, cuMemcpyDtoHAsync_v2(to.place, from.address, bytes, self.handle))
    }

    pub(crate) fn record(&self, event: &Event) -> Raw<()> {
        call!(self.driver, cuEventRecord(event.handle, self.handle))
    }

    /// Launches a kernel. Each parameter has the size that the kernel declares, 4 or 8 bytes.
    pub(crate) fn launch(
        &self,
        function: &Function<'_>,
        blocks: [u32; 3],
        threads: u32,
        parameters: &[&[u8]],
    ) -> Raw<()> {
        let mut places: Vec<Pointer> =
            parameters.iter().map(|bytes| bytes.as_ptr().cast_mut().cast()).collect();
        let [x, y, z] = blocks;
        call!(
            self.driver,
            cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                threads,
                1,
                1,
                0,
                self.handle,
                places.as_mut_ptr(),
                ptr::null_mut(),
            )
        )
    }

    /// Begins a graph capture in the global mode, which unsafe calls of any thread invalidate.
    pub(crate) fn begin_capture(&self) -> Raw<()> {
        call!(self.driver, cuStreamBeginCapture_v2(self.handle, 0))
    }

    /// Ends the capture. Fails if the capture was invalidated.
    pub(crate) fn end_capture(&self) -> Raw<()> {
        let mut graph = ptr::null_mut();
        call!(self.driver, cuStreamEndCapture(self.handle, &mut graph))?;
        call!(self.driver, cuGraphDestroy(graph))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = call!(self.driver, cuStreamDestroy_v2(self.handle));
    }
}

pub(crate) struct Event {
    handle: Pointer,
    driver: Rc<Driver>,
}

impl Event {
    pub(crate) fn wait(&self) -> Raw<()> {
        call!(self.driver, cuEventSynchronize(self.handle))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = call!(self.driver, cuEventDestroy_v2(self.handle));
    }
}

/// Device memory.
pub(crate) struct Memory {
    pub(crate) address: u64,
    bytes: usize,
    driver: Rc<Driver>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = call!(self.driver, cuMemFree_v2(self.address));
    }
}

/// Host memory.
pub(crate) struct Host {
    place: Pointer,
    bytes: usize,
    kind: HostKind,
    _pageable: Vec<u8>,
    driver: Rc<Driver>,
}

impl Host {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this length and is initialised. The caller waits for copies into it.
        unsafe { slice::from_raw_parts(self.place.cast(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory has this length and is initialised. The caller waits for copies from it.
        unsafe { slice::from_raw_parts_mut(self.place.cast(), self.bytes) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = match self.kind {
            HostKind::Allocated | HostKind::WriteCombined => {
                call!(self.driver, cuMemFreeHost(self.place))
            }
            HostKind::Registered => call!(self.driver, cuMemHostUnregister(self.place)),
            HostKind::Pageable => Ok(()),
        };
    }
}

/// A module loaded in the context.
pub(crate) struct Module {
    handle: Pointer,
    driver: Rc<Driver>,
}

impl Module {
    pub(crate) fn function(&self, name: &str) -> Raw<Function<'_>> {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        let mut handle = ptr::null_mut();
        call!(self.driver, cuModuleGetFunction(&mut handle, self.handle, name.as_ptr()))?;
        Ok(Function { handle, _module: PhantomData })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = call!(self.driver, cuModuleUnload(self.handle));
    }
}

/// A kernel of a module.
pub(crate) struct Function<'a> {
    handle: Pointer,
    _module: PhantomData<&'a Module>,
}
