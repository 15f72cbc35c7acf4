//! DLPack tensors, and the Python capsules that carry them.

use std::ffi::{CStr, c_void};
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use spdl_core::memory::{Space, Upload};
use spdl_core::{Error, ErrorKind, Result};

/// The name of a DLPack capsule until a consumer takes the tensor.
const CAPSULE: &CStr = c"dltensor";
/// The name of a capsule with a versioned tensor, until a consumer takes the tensor.
const VERSIONED_CAPSULE: &CStr = c"dltensor_versioned";

/// The DLPack version of the tensors.
const VERSION: (u32, u32) = (1, 0);

/// `DLDataType`: the type of an element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlpackType {
    /// `DLDataTypeCode`: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// Bits per element.
    pub bits: u8,
    /// Lanes of a vector type; 1 for scalars.
    pub lanes: u16,
}

/// A dense array in uploaded memory, for another library.
///
/// The tensor keeps the memory alive. Its consumer may call the `deleter` from any thread, even if
/// the thread is not attached to the Python interpreter.
#[derive(Debug)]
pub struct DlpackTensor {
    upload: Arc<Upload>,
    offset: usize,
    shape: Vec<i64>,
    dtype: DlpackType,
}

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
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
struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut DlManagedTensor),
    owner: TensorOwner,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct DlManagedTensorVersioned {
    version: (u32, u32),
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut DlManagedTensorVersioned),
    flags: u64,
    tensor: DlTensor,
    owner: TensorOwner,
}

/// Calls a function while the thread is detached from the Python interpreter. Attaches again
/// afterwards, unless the interpreter is shutting down.
pub type DetachFn = fn(Python<'_>, Box<dyn FnOnce() + Send>);

/// The memory and metadata of a tensor.
struct TensorOwner {
    /// `None` only after the release.
    upload: Option<Arc<Upload>>,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    /// The process that created the tensor.
    process: u32,
    /// A function that drops the memory of a capsule that no consumer has used.
    detach: DetachFn,
}

impl TensorOwner {
    /// Releases the memory. Returns the upload if this tensor was its last owner.
    fn release(&mut self) -> Option<Upload> {
        let upload = self.upload.take()?;
        if process::id() != self.process {
            // In a forked process, the driver is unusable, and locks that other threads held are
            // never released.
            std::mem::forget(upload);
            return None;
        }
        Arc::into_inner(upload)
    }
}

impl Drop for TensorOwner {
    fn drop(&mut self) {
        drop(self.release());
    }
}

impl DlpackTensor {
    /// A tensor of this shape that starts at byte `offset` of the memory.
    ///
    /// # Errors
    /// `InvalidArgument` if the tensor exceeds the memory, or the bits of an element are not a
    /// multiple of 8.
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
            let message = format!(
                "invalid tensor of shape {shape:?} at offset {offset}: it exceeds the {len} bytes of \
                 the memory"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // No overflow: either no extent exceeds the size of the memory, or the array is empty.
        let shape = shape.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX)).collect();
        Ok(DlpackTensor { upload, offset, shape, dtype })
    }

    /// Moves the tensor into a capsule, with a version if `versioned`.
    ///
    /// No Python code runs between the creation of the tensor and of the capsule, so no exception
    /// can leak the tensor. If no consumer takes the tensor, the capsule drops it through `detach`,
    /// so that other Python threads can run at the same time.
    ///
    /// # Errors
    /// `MemoryError` if Python cannot allocate the capsule.
    pub fn into_capsule<'py>(
        self,
        py: Python<'py>,
        versioned: bool,
        detach: DetachFn,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (tensor, name) = match versioned {
            true => (self.into_versioned(detach).cast(), VERSIONED_CAPSULE),
            false => (self.into_unversioned(detach).cast::<c_void>(), CAPSULE),
        };
        // SAFETY: `destroy` accepts the content of capsules of these names, from any thread.
        let made =
            unsafe { PyCapsule::new_with_pointer_and_destructor(py, tensor, name, Some(destroy)) };
        made.inspect_err(|_| {
            // SAFETY: the tensor was created above, and no capsule owns it.
            drop(unsafe { into_owner(tensor.as_ptr(), versioned) });
        })
    }

    fn into_unversioned(self, detach: DetachFn) -> NonNull<DlManagedTensor> {
        let (tensor, owner) = self.parts(detach);
        let context = std::ptr::null_mut();
        let managed = Box::new(DlManagedTensor { tensor, context, deleter: delete, owner });
        NonNull::from(Box::leak(managed))
    }

    fn into_versioned(self, detach: DetachFn) -> NonNull<DlManagedTensorVersioned> {
        /// Flags of the tensor: neither read-only nor copied.
        const NO_FLAGS: u64 = 0;
        let (tensor, owner) = self.parts(detach);
        let managed = Box::new(DlManagedTensorVersioned {
            version: VERSION,
            context: std::ptr::null_mut(),
            deleter: delete_versioned,
            flags: NO_FLAGS,
            tensor,
            owner,
        });
        NonNull::from(Box::leak(managed))
    }

    fn parts(self, detach: DetachFn) -> (DlTensor, TensorOwner) {
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
        let tensor = DlTensor {
            data,
            device_type,
            device_id,
            dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
            dtype,
            // Moving a vector does not move its elements.
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let owner = TensorOwner {
            upload: Some(upload),
            _shape: shape,
            _strides: strides,
            process: process::id(),
            detach,
        };
        (tensor, owner)
    }
}

unsafe extern "C" fn delete(tensor: *mut DlManagedTensor) {
    // SAFETY: `into_unversioned` created the tensor, and the consumer calls the deleter once.
    drop(unsafe { into_owner(tensor.cast(), false) });
}

unsafe extern "C" fn delete_versioned(tensor: *mut DlManagedTensorVersioned) {
    // SAFETY: `into_versioned` created the tensor, and the consumer calls the deleter once.
    drop(unsafe { into_owner(tensor.cast(), true) });
}

/// Frees a tensor, and returns its resources.
///
/// # Safety
/// `into_versioned` (if `versioned`) or `into_unversioned` created the tensor, and it is not used
/// again.
unsafe fn into_owner(tensor: *mut c_void, versioned: bool) -> TensorOwner {
    if versioned {
        // SAFETY: the caller guarantees it.
        let managed = unsafe { Box::from_raw(tensor.cast::<DlManagedTensorVersioned>()) };
        return managed.owner;
    }
    // SAFETY: as above.
    let managed = unsafe { Box::from_raw(tensor.cast::<DlManagedTensor>()) };
    managed.owner
}

/// The destructor of capsules. Runs no Python code, and does not touch a pending exception.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this destructor for a capsule of this module.
    let Some(mut owner) = (unsafe { unconsumed(capsule) }) else { return };
    // If the memory has other owners, nothing has to be dropped, and the thread need not detach.
    let Some(last) = owner.release() else { return };
    // SAFETY: Python calls destructors on attached threads.
    let py = unsafe { Python::assume_attached() };
    (owner.detach)(py, Box::new(move || drop(last)));
}

/// The resources of a capsule whose tensor no consumer has taken.
///
/// # Safety
/// The caller is the destructor of a capsule of this module.
unsafe fn unconsumed(capsule: *mut ffi::PyObject) -> Option<TensorOwner> {
    for (name, versioned) in [(CAPSULE, false), (VERSIONED_CAPSULE, true)] {
        // SAFETY: the capsule exists, and the thread is attached.
        if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
            continue;
        }
        // SAFETY: as above.
        let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) };
        // SAFETY: capsules of this name and destructor hold such a tensor. A consumer renames the
        // capsule when it takes the tensor.
        return Some(unsafe { into_owner(tensor, versioned) });
    }
    None
}

/// The `DLDevice` of a memory space: device type and ordinal.
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

    fn immediately(_: Python<'_>, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn upload(pool: &BufferPool, bytes: usize) -> Arc<Upload> {
        let device = HostDevice::new(pool.clone());
        Arc::new(device.upload(device.host_buffer(bytes).unwrap()).unwrap())
    }

    #[test]
    fn a_tensor_keeps_its_memory_until_its_deleter_is_called() {
        let pool = BufferPool::new();
        let upload = upload(&pool, 1024);
        let address = upload.memory.address();
        let tensor = DlpackTensor::new(Arc::clone(&upload), 256, &[2, 3, 4], F32).unwrap();
        drop(upload);
        let raw = tensor.into_unversioned(immediately).as_ptr().expose_provenance();
        std::thread::spawn(move || {
            let raw = std::ptr::with_exposed_provenance_mut::<DlManagedTensor>(raw);
            // SAFETY: `into_unversioned` created it.
            let managed = unsafe { &*raw };
            let DlTensor { data, dimensions, shape, strides, .. } = managed.tensor;
            assert_eq!((data.addr(), dimensions), (address + 256, 3));
            // SAFETY: both have one element per dimension.
            let shape = unsafe { std::slice::from_raw_parts(shape, 3) };
            // SAFETY: as above.
            let strides = unsafe { std::slice::from_raw_parts(strides, 3) };
            assert_eq!((shape, strides), (&[2, 3, 4][..], &[12, 4, 1][..]));
            assert_eq!((managed.tensor.device_type, managed.tensor.dtype), (1, F32));
            // SAFETY: the tensor is not used again.
            unsafe { (managed.deleter)(raw) };
        })
        .join()
        .unwrap();
        assert_eq!(pool.statistics().live_bytes, 0);
    }

    #[test]
    fn a_versioned_tensor_has_the_layout_of_c() {
        let pool = BufferPool::new();
        let tensor = DlpackTensor::new(upload(&pool, 4), 0, &[], F32).unwrap();
        let raw = tensor.into_versioned(immediately).as_ptr();
        // SAFETY: `into_versioned` created it.
        let managed = unsafe { &*raw };
        assert_eq!((managed.version, managed.flags, managed.tensor.dimensions), (VERSION, 0, 0));
        assert_eq!(std::mem::offset_of!(DlManagedTensorVersioned, tensor), 32);
        assert_eq!(std::mem::offset_of!(DlManagedTensor, deleter), 56);
        assert_eq!(std::mem::offset_of!(DlTensor, byte_offset), 40);
        // SAFETY: the tensor is not used again.
        unsafe { (managed.deleter)(raw) };
        assert_eq!(pool.statistics().live_bytes, 0);
    }

    #[test]
    fn a_tensor_outside_of_its_memory_is_refused_and_an_empty_one_has_no_address() {
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
        let (tensor, _owner) = new(0, &[0, 5]).unwrap().parts(immediately);
        assert!(tensor.data.is_null());
    }
}
