//! Tensors of DLPack, and the capsules in which Python hands them over.

use std::ffi::{CStr, c_void};
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use spdl_core::memory::{Space, Upload};
use spdl_core::{Error, ErrorKind, Result};

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

/// Calls a function while Python is free for other threads, and then takes it again, unless it ends.
pub type WithoutPython = fn(Python<'_>, Box<dyn FnOnce() + Send>);

/// What a tensor points to.
struct Kept {
    /// `None` only once it is let go of.
    upload: Option<Arc<Upload>>,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    /// The process that made it.
    process: u32,
    /// By which a capsule drops the memory.
    without_python: WithoutPython,
}

impl Kept {
    /// Lets go of the memory. Who has the last hold on it is to drop it.
    fn let_go(&mut self) -> Option<Upload> {
        let upload = self.upload.take()?;
        if process::id() != self.process {
            // In a fork the driver does nothing, and what threads had locked stays locked.
            std::mem::forget(upload);
            return None;
        }
        Arc::into_inner(upload)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.let_go());
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

    /// A capsule that holds it; with a version, where `versioned` says so.
    ///
    /// No step of Python's lies between the making of the tensor and the capsule's having it, so that
    /// nothing can be raised there. Where nobody takes the tensor out, the capsule drops it by
    /// `without_python`, so that other threads of Python run meanwhile.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn into_capsule<'py>(
        self,
        py: Python<'py>,
        versioned: bool,
        without_python: WithoutPython,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (tensor, name) = match versioned {
            true => (self.into_versioned(without_python).cast(), VERSIONED_CAPSULE),
            false => (self.into_unversioned(without_python).cast::<c_void>(), CAPSULE),
        };
        // SAFETY: `destroy` takes what capsules of these names hold, from any thread.
        let made =
            unsafe { PyCapsule::new_with_pointer_and_destructor(py, tensor, name, Some(destroy)) };
        made.inspect_err(|_| {
            // SAFETY: it was made above under this name, and no capsule has it.
            drop(unsafe { kept_in(tensor.as_ptr(), versioned) });
        })
    }

    fn into_unversioned(self, without_python: WithoutPython) -> NonNull<Managed> {
        let (tensor, kept) = self.parts(without_python);
        let context = std::ptr::null_mut();
        let managed = Box::new(Managed { tensor, context, deleter: delete, kept });
        NonNull::from(Box::leak(managed))
    }

    fn into_versioned(self, without_python: WithoutPython) -> NonNull<ManagedVersioned> {
        const NEITHER_READ_ONLY_NOR_COPIED: u64 = 0;
        let (tensor, kept) = self.parts(without_python);
        let managed = Box::new(ManagedVersioned {
            version: VERSION,
            context: std::ptr::null_mut(),
            deleter: delete_versioned,
            flags: NEITHER_READ_ONLY_NOR_COPIED,
            tensor,
            kept,
        });
        NonNull::from(Box::leak(managed))
    }

    fn parts(self, without_python: WithoutPython) -> (Tensor, Kept) {
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
        let kept = Kept {
            upload: Some(upload),
            _shape: shape,
            _strides: strides,
            process: process::id(),
            without_python,
        };
        (tensor, kept)
    }
}

unsafe extern "C" fn delete(tensor: *mut Managed) {
    // SAFETY: `into_unversioned` made it, and whoever calls this had the only one.
    drop(unsafe { kept_in(tensor.cast(), false) });
}

unsafe extern "C" fn delete_versioned(tensor: *mut ManagedVersioned) {
    // SAFETY: `into_versioned` made it, and whoever calls this had the only one.
    drop(unsafe { kept_in(tensor.cast(), true) });
}

/// Takes a tensor apart.
///
/// # Safety
/// It was made by `into_versioned` or by `into_unversioned`, as `versioned` says, and nobody uses it
/// any more.
unsafe fn kept_in(tensor: *mut c_void, versioned: bool) -> Kept {
    if versioned {
        // SAFETY: the caller says so.
        let managed = unsafe { Box::from_raw(tensor.cast::<ManagedVersioned>()) };
        return managed.kept;
    }
    // SAFETY: as above.
    let managed = unsafe { Box::from_raw(tensor.cast::<Managed>()) };
    managed.kept
}

/// The destructor of capsules. It runs no code of Python's, and does not touch the exception that may
/// be under way.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this for a capsule of ours.
    let Some(mut kept) = (unsafe { untaken(capsule) }) else { return };
    // Where others have the memory, there is nothing to be done, and no need to let anybody run.
    let Some(last) = kept.let_go() else { return };
    // SAFETY: Python calls destructors from threads that run Python.
    let py = unsafe { Python::assume_attached() };
    (kept.without_python)(py, Box::new(move || drop(last)));
}

/// What a capsule of ours holds that nobody has taken out.
///
/// # Safety
/// Python calls the destructor of this capsule.
unsafe fn untaken(capsule: *mut ffi::PyObject) -> Option<Kept> {
    for (name, versioned) in [(CAPSULE, false), (VERSIONED_CAPSULE, true)] {
        // SAFETY: the caller has the capsule, and runs Python.
        if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
            continue;
        }
        // SAFETY: as above.
        let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) };
        // SAFETY: capsules of this name and destructor hold such a tensor; who takes one out renames
        // the capsule.
        return Some(unsafe { kept_in(tensor, versioned) });
    }
    None
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

#[cfg(test)]
mod tests {
    use spdl_core::Device;
    use spdl_core::memory::{BufferPool, HostDevice};

    use super::*;

    const F32: DlpackType = DlpackType { code: 2, bits: 32, lanes: 1 };

    fn at_once(_: Python<'_>, work: Box<dyn FnOnce() + Send>) {
        work();
    }

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
        let raw = tensor.into_unversioned(at_once).as_ptr().expose_provenance();
        std::thread::spawn(move || {
            let raw = std::ptr::with_exposed_provenance_mut::<Managed>(raw);
            // SAFETY: it is what `into_unversioned` made.
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
        let raw = tensor.into_versioned(at_once).as_ptr();
        // SAFETY: it is what `into_versioned` made.
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
        let (tensor, _kept) = new(0, &[0, 5]).unwrap().parts(at_once);
        assert!(tensor.data.is_null());
    }
}
