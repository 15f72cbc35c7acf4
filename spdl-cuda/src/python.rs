//! What Python's protocols need: tensors of DLPack, and streams that are told as numbers.
//!
//! Nothing here knows Python's own library: two of its functions are looked for in the process when
//! the destructor of capsules is first asked for.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::process;
use std::sync::{Arc, OnceLock};

use spdl_core::{Error, ErrorKind, Result, Space, Upload};

use crate::dynamic::SharedLibrary;
use crate::memory::CudaMemory;
use crate::stream::ConsumerStream;

/// What capsules of DLPack are called until somebody takes the tensor out of them.
const CAPSULE: &CStr = c"dltensor";
/// The same, for tensors that say of which version they are.
const VERSIONED_CAPSULE: &CStr = c"dltensor_versioned";

/// The version that is written into tensors.
const VERSION: (u32, u32) = (1, 0);

/// The type of an element, as DLPack writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlpackType {
    /// 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// The size of an element in bits.
    pub bits: u8,
    /// 1, but for vectors.
    pub lanes: u16,
}

/// A dense array in memory that was sent to a device, to be handed to another library.
///
/// It keeps the memory. Whoever takes it by its address calls its `deleter`, from any thread; nothing
/// of Python's is needed for that.
#[derive(Debug)]
pub struct DlpackTensor {
    upload: Arc<Upload>,
    offset: usize,
    shape: Vec<i64>,
    dtype: DlpackType,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    dtype: DlpackType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Managed),
    kept: Kept,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: (u32, u32),
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut ManagedVersioned),
    flags: u64,
    tensor: Tensor,
    kept: Kept,
}

/// What a tensor points to.
struct Kept {
    upload: Arc<Upload>,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    /// The process that made it.
    process: u32,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if process::id() != self.process {
            // In a fork the driver does nothing, and what threads had locked stays locked.
            std::mem::forget(Arc::clone(&self.upload));
        }
    }
}

impl DlpackTensor {
    /// The array of this shape that begins `offset` bytes into the memory.
    ///
    /// # Errors
    /// `InvalidArgument` where it does not lie within.
    pub fn new(
        upload: Arc<Upload>,
        offset: usize,
        shape: &[usize],
        dtype: DlpackType,
    ) -> Result<Self> {
        let size = usize::from(dtype.bits / 8) * usize::from(dtype.lanes);
        let bytes = shape.iter().try_fold(size, |bytes, &extent| bytes.checked_mul(extent));
        let end = bytes.and_then(|bytes| bytes.checked_add(offset));
        let len = upload.memory.len();
        if end.is_none_or(|end| end > len) || !dtype.bits.is_multiple_of(8) {
            let message =
                format!("{shape:?} elements from byte {offset} on are more than {len} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // They fit: none is larger than the memory, or the array is empty.
        let shape = shape.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX)).collect();
        Ok(DlpackTensor { upload, offset, shape, dtype })
    }

    /// Makes a `DLManagedTensor` of it, by its address: for a capsule named [`capsule_name`].
    pub fn into_raw(self) -> usize {
        let (tensor, kept) = self.parts();
        let context = std::ptr::null_mut();
        let managed = Box::new(Managed { tensor, context, deleter: delete, kept });
        Box::into_raw(managed).expose_provenance()
    }

    /// The same as a `DLManagedTensorVersioned`.
    pub fn into_raw_versioned(self) -> usize {
        const NEITHER_READ_ONLY_NOR_COPIED: u64 = 0;
        let (tensor, kept) = self.parts();
        let managed = Box::new(ManagedVersioned {
            version: VERSION,
            context: std::ptr::null_mut(),
            deleter: delete_versioned,
            flags: NEITHER_READ_ONLY_NOR_COPIED,
            tensor,
            kept,
        });
        Box::into_raw(managed).expose_provenance()
    }

    fn parts(self) -> (Tensor, Kept) {
        let DlpackTensor { upload, offset, mut shape, dtype } = self;
        let (device_type, device_id) = dlpack_device(upload.memory.space());
        let mut strides = vec![1_i64; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at].saturating_mul(shape[at]);
        }
        let data = match shape.contains(&0) {
            true => std::ptr::null_mut(),
            false => std::ptr::with_exposed_provenance_mut(upload.memory.address() + offset),
        };
        let tensor = Tensor {
            data,
            device_type,
            device_id,
            // Nobody has more dimensions than that; NumPy knows 64.
            dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
            dtype,
            // Vectors stay where they are when they are moved.
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        (tensor, Kept { upload, _shape: shape, _strides: strides, process: process::id() })
    }
}

unsafe extern "C" fn delete(tensor: *mut Managed) {
    // SAFETY: `into_raw` made it, and whoever calls this had the only one.
    drop(unsafe { Box::from_raw(tensor) });
}

unsafe extern "C" fn delete_versioned(tensor: *mut ManagedVersioned) {
    // SAFETY: `into_raw_versioned` made it, and whoever calls this had the only one.
    drop(unsafe { Box::from_raw(tensor) });
}

/// A space, as DLPack names it: the kind of device, and its number.
pub fn dlpack_device(space: Space) -> (i32, i32) {
    const CPU: i32 = 1;
    const CUDA: i32 = 2;
    match space {
        Space::Cuda { ordinal } => (CUDA, i32::try_from(ordinal).unwrap_or(i32::MAX)),
        _ => (CPU, 0),
    }
}

/// The address of the name of a capsule, which ends with a zero byte and stays for ever.
pub fn capsule_name(versioned: bool) -> usize {
    let name = if versioned { VERSIONED_CAPSULE } else { CAPSULE };
    name.as_ptr().addr()
}

/// The address of the destructor of such capsules: it deletes the tensor that nobody has taken out.
///
/// It runs no code of Python's, and does not touch the exception that may be under way.
///
/// # Errors
/// `Unsupported` where this process has no Python whose functions can be found.
pub fn capsule_destructor() -> Result<usize> {
    match Capsules::of_this_process() {
        Some(_) => Ok((destroy as unsafe extern "C" fn(*mut c_void) as *const ()).addr()),
        None => {
            let message = "the functions of Python for capsules cannot be found in this process";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// Two functions of Python's stable interface. Neither raises where they are used here.
struct Capsules {
    is_valid: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    pointer: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
}

impl Capsules {
    fn of_this_process() -> Option<&'static Capsules> {
        static FOUND: OnceLock<Option<Capsules>> = OnceLock::new();
        let find = || {
            let program = SharedLibrary::this_process()?;
            // SAFETY: it is its type in Python's stable interface.
            let is_valid = unsafe { program.function("PyCapsule_IsValid") }?;
            // SAFETY: see above.
            let pointer = unsafe { program.function("PyCapsule_GetPointer") }?;
            Some(Capsules { is_valid, pointer })
        };
        FOUND.get_or_init(find).as_ref()
    }

    /// The tensor in a capsule, where that is its name.
    ///
    /// # Safety
    /// Python calls the destructor of this capsule.
    unsafe fn tensor(&self, capsule: *mut c_void, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the caller has the capsule, and Python's lock with it.
        let is_named_so = unsafe { (self.is_valid)(capsule, name.as_ptr()) } != 0;
        // SAFETY: see above.
        is_named_so.then(|| unsafe { (self.pointer)(capsule, name.as_ptr()) })
    }
}

unsafe extern "C" fn destroy(capsule: *mut c_void) {
    let Some(capsules) = Capsules::of_this_process() else { return };
    // SAFETY: Python calls this as the destructor of the capsule.
    if let Some(tensor) = unsafe { capsules.tensor(capsule, CAPSULE) } {
        // SAFETY: capsules of this name and destructor hold what `into_raw` made; nobody took it.
        unsafe { delete(tensor.cast()) };
    }
    // SAFETY: as above.
    if let Some(tensor) = unsafe { capsules.tensor(capsule, VERSIONED_CAPSULE) } {
        // SAFETY: as above, by `into_raw_versioned`.
        unsafe { delete_versioned(tensor.cast()) };
    }
}

/// The CUDA memory of an upload, where it is of that kind.
pub fn cuda_memory(upload: &Upload) -> Option<&CudaMemory> {
    (&*upload.memory as &dyn Any).downcast_ref()
}

/// A stream as the Python array API standard writes it for CUDA; see
/// [`ConsumerStream::from_array_api`].
///
/// A number is all that Python's protocols tell, so this trusts it to be a stream of the device that
/// stays until what it is used with is dropped, as a library would in C. That is why it is only there
/// for bindings, which cannot know better.
///
/// # Errors
/// `InvalidArgument` for 0 and for numbers below −1.
pub fn stream_of_array_api(stream: Option<i64>) -> Result<Option<ConsumerStream>> {
    // SAFETY: whoever calls this from Python says that it is such a stream.
    unsafe { ConsumerStream::from_array_api(stream) }
}

#[cfg(test)]
mod tests {
    use spdl_core::{BufferPool, Device, HostDevice};

    use super::*;

    const F32: DlpackType = DlpackType { code: 2, bits: 32, lanes: 1 };

    fn upload(pool: &BufferPool, bytes: usize) -> Arc<Upload> {
        let device = HostDevice::new(pool.clone());
        Arc::new(device.upload(device.host_buffer(bytes).unwrap()).unwrap())
    }

    #[test]
    fn a_tensor_keeps_its_memory_until_its_deleter_is_called_on_any_thread() {
        let pool = BufferPool::new();
        let upload = upload(&pool, 1024);
        let address = upload.memory.address();
        let tensor = DlpackTensor::new(Arc::clone(&upload), 256, &[2, 3, 4], F32).unwrap();
        drop(upload);
        let raw = tensor.into_raw();
        std::thread::spawn(move || {
            let raw = std::ptr::with_exposed_provenance_mut::<Managed>(raw);
            // SAFETY: it is what `into_raw` made.
            let managed = unsafe { &*raw };
            let Tensor { data, dimensions, shape, strides, .. } = managed.tensor;
            assert_eq!((data.addr(), dimensions), (address + 256, 3));
            // SAFETY: they are as long as there are dimensions.
            let shape = unsafe { std::slice::from_raw_parts(shape, 3) };
            // SAFETY: see above.
            let strides = unsafe { std::slice::from_raw_parts(strides, 3) };
            assert_eq!((shape, strides), (&[2, 3, 4][..], &[12, 4, 1][..]));
            assert_eq!((managed.tensor.device_type, managed.tensor.dtype), (1, F32));
            // SAFETY: nobody uses it any more.
            unsafe { (managed.deleter)(raw) };
        })
        .join()
        .unwrap();
        assert_eq!(pool.statistics().live_bytes, 0);
    }

    #[test]
    fn a_versioned_tensor_says_its_version_and_lies_where_c_expects_it() {
        let pool = BufferPool::new();
        let tensor = DlpackTensor::new(upload(&pool, 4), 0, &[], F32).unwrap();
        let raw =
            std::ptr::with_exposed_provenance_mut::<ManagedVersioned>(tensor.into_raw_versioned());
        // SAFETY: it is what `into_raw_versioned` made.
        let managed = unsafe { &*raw };
        assert_eq!((managed.version, managed.flags, managed.tensor.dimensions), (VERSION, 0, 0));
        assert_eq!(std::mem::offset_of!(ManagedVersioned, tensor), 32);
        assert_eq!(std::mem::offset_of!(Managed, deleter), 56);
        assert_eq!(std::mem::offset_of!(Tensor, byte_offset), 40);
        // SAFETY: nobody uses it any more.
        unsafe { (managed.deleter)(raw) };
        assert_eq!(pool.statistics().live_bytes, 0);
    }

    #[test]
    fn an_array_outside_of_its_memory_is_refused_and_an_empty_one_has_no_address() {
        let upload = upload(&BufferPool::new(), 100);
        let new =
            |offset, shape: &[usize]| DlpackTensor::new(Arc::clone(&upload), offset, shape, F32);
        assert!(new(0, &[25]).is_ok());
        for (offset, shape) in
            [(0, &[26][..]), (4, &[25]), (usize::MAX, &[1]), (0, &[usize::MAX, 2])]
        {
            let error = new(offset, shape).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{offset} {shape:?}");
        }
        let (tensor, _kept) = new(0, &[0, 5]).unwrap().parts();
        assert!(tensor.data.is_null());
    }

    #[test]
    fn a_process_without_python_has_no_destructor_of_capsules() {
        assert_eq!(capsule_destructor().unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
