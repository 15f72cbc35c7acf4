//! [`DeviceBatch`]: a batch in device memory.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::DType;
use crate::memory::device::{Device, DeviceMemory, Fence, Upload};
use crate::memory::footprint::Footprint;
use crate::source::sample::SampleId;
use crate::stage::batch::Batch;
use crate::stage::layout::Field;

/// A dense array in device memory, in C order (row-major).
#[derive(Debug)]
pub struct DeviceArray {
    dtype: DType,
    shape: Vec<usize>,
    upload: Upload,
}

impl DeviceArray {
    /// Creates an array in the device memory of `upload`, whose fence completes when the elements
    /// are valid.
    ///
    /// # Errors
    /// `InvalidArgument` if the memory is smaller than the array.
    pub fn new(dtype: DType, shape: Vec<usize>, upload: Upload) -> Result<Self> {
        let available = upload.memory.len();
        let needed = shape.iter().try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n));
        if needed.is_none_or(|needed| needed > available) {
            let message = format!(
                "an array of {dtype} with the shape {shape:?} exceeds its memory of {available} \
                 bytes"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(DeviceArray { dtype, shape, upload })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extent of each dimension, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The memory of the elements. They are valid when the fence [`ready`](Self::ready) completes.
    pub fn memory(&self) -> &dyn DeviceMemory {
        &*self.upload.memory
    }

    /// The fence that completes when the elements are in the memory.
    pub fn ready(&self) -> &dyn Fence {
        &*self.upload.ready
    }

    /// The memory and the fence of the array.
    pub fn into_upload(self) -> Upload {
        self.upload
    }
}

/// Samples as arrays in device memory, one per field, with the id of each sample.
///
/// The copies to the device may be incomplete when a pipeline delivers the batch. The consumer must
/// make its stream wait for each array's fence [`ready`](DeviceArray::ready), or call
/// [`wait`](Self::wait).
pub struct DeviceBatch {
    fields: Vec<Field>,
    arrays: Vec<DeviceArray>,
    ids: Vec<SampleId>,
}

impl DeviceBatch {
    /// Creates a batch of these samples, with an array of shape `[ids.len(), …]` for each name.
    ///
    /// Use `new` in stages that produce their arrays on the device.
    ///
    /// ```
    /// use spdl_core::{DType, Device, SampleId};
    /// use spdl_core::memory::{BufferPool, HostDevice};
    /// use spdl_core::stage::{DeviceArray, DeviceBatch};
    /// let upload = HostDevice::default().upload(BufferPool::new().take(8)?)?;
    /// let labels = DeviceArray::new(DType::I64, vec![1], upload)?;
    /// let batch = DeviceBatch::new(vec![SampleId { epoch: 0, index: 0 }], [("labels", labels)])?;
    /// assert_eq!(batch.len(), 1);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the first dimension of an array is not `ids.len()`, or a name repeats.
    pub fn new<'a>(
        ids: Vec<SampleId>,
        arrays: impl IntoIterator<Item = (&'a str, DeviceArray)>,
    ) -> Result<Self> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let mut batch = DeviceBatch { fields: Vec::new(), arrays: Vec::new(), ids };
        for (name, array) in arrays {
            if batch.array(name).is_some() {
                return invalid(format!("duplicate array name in a batch: {name:?}"));
            }
            match array.shape() {
                [rows, shape @ ..] if *rows == batch.len() => {
                    batch.fields.push(Field::new(name, array.dtype, shape));
                }
                shape => {
                    let rows = batch.len();
                    return invalid(format!(
                        "array {name:?} has the shape {shape:?}; expected [{rows}, ...]"
                    ));
                }
            }
            batch.arrays.push(array);
        }
        Ok(batch)
    }

    /// Starts a host-to-device copy of every array, without waiting for it.
    ///
    /// ```
    /// use spdl_core::{Array, Batch, DType, SampleId};
    /// use spdl_core::memory::{BufferPool, HostDevice};
    /// use spdl_core::stage::DeviceBatch;
    /// let labels = Array::new(DType::I64, vec![1], BufferPool::new().take(8)?)?;
    /// let batch = Batch::new(vec![SampleId { epoch: 0, index: 0 }], [("labels", labels)])?;
    /// let batch = DeviceBatch::upload(batch, &HostDevice::default())?;
    /// batch.wait()?;
    /// assert_eq!(batch.array("labels").map(|array| array.shape()), Some(&[1][..]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any error of [`Device::upload`]; `Unsupported` if the batch has a [list](Batch::list).
    pub fn upload(batch: Batch, device: &dyn Device) -> Result<Self> {
        let Batch { fields, arrays, lists, ids, starts: _ } = batch;
        if let Some((field, _)) = lists.first() {
            let message = format!(
                "cannot upload field {:?}, which has one array per sample; choose the collation \
                 `Ragged` or `Padded`",
                field.name
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let arrays = arrays.into_iter().map(|array| {
            let (dtype, shape, buffer) = array.into_parts();
            Ok(DeviceArray { dtype, shape, upload: device.upload(buffer)? })
        });
        Ok(DeviceBatch { arrays: arrays.collect::<Result<_>>()?, fields, ids })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The epoch of the first sample; 0 for an empty batch. A batch that was uploaded from a
    /// [`fill`](crate::PipelineBuilder::fill) stage never mixes epochs.
    pub fn epoch(&self) -> u64 {
        self.ids.first().map_or(0, |id| id.epoch)
    }

    /// Ids of the samples, in their order in the batch.
    pub fn ids(&self) -> &[SampleId] {
        &self.ids
    }

    /// The array of the field `name`, of shape `[len, …]`; `None` if the batch has no such field.
    pub fn array(&self, name: &str) -> Option<&DeviceArray> {
        let at = self.fields.iter().position(|field| &*field.name == name)?;
        self.arrays.get(at)
    }

    /// All arrays with their names, in the order of the uploaded batch, or in the order given to
    /// [`new`](Self::new).
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &DeviceArray)> {
        self.fields.iter().map(|field| &*field.name).zip(&self.arrays)
    }

    /// Returns the arrays with their names, in the same order as [`arrays`](Self::arrays).
    pub fn into_arrays(self) -> impl Iterator<Item = (Arc<str>, DeviceArray)> {
        self.fields.into_iter().map(|field| field.name).zip(self.arrays)
    }

    /// Whether all copies are complete. Does not wait.
    ///
    /// # Errors
    /// The error of a failed copy.
    pub fn is_ready(&self) -> Result<bool> {
        for array in &self.arrays {
            if !array.ready().is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all copies are complete.
    ///
    /// # Errors
    /// The error of a failed copy.
    pub fn wait(&self) -> Result<()> {
        self.arrays.iter().try_for_each(|array| array.ready().wait())
    }
}

/// Counts the struct and the arrays in host memory.
impl Footprint for DeviceBatch {
    fn footprint(&self) -> usize {
        let on_host =
            |array: &&DeviceArray| array.memory().space() == crate::memory::device::Space::Host;
        let arrays = self.arrays.iter().filter(on_host).map(|array| array.memory().len());
        size_of::<Self>() + arrays.sum::<usize>()
    }
}

impl fmt::Debug for DeviceBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.arrays()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::buffer::{BufferPool, HostBuffer};
    use crate::memory::device::{HostDevice, Space};
    use crate::pipeline::builder::PipelineBuilder;
    use crate::source::dataset::DatasetSource;
    use crate::stage::layout::BatchLayout;
    use crate::stage::slot::{Fill, FillContext, SlotMut};

    struct UploadedNumber;
    impl Fill<i64> for UploadedNumber {
        fn fill(
            &mut self,
            item: i64,
            mut slot: SlotMut<'_>,
            _: &mut FillContext<'_>,
        ) -> Result<()> {
            slot.set(0, item)
        }
    }

    fn numbers() -> PipelineBuilder<Batch> {
        let source = DatasetSource::new((0..10).collect::<Vec<i64>>());
        let layout = BatchLayout::new(4, [Field::new("number", DType::I64, &[])]);
        PipelineBuilder::new(source).fill("fill", layout, || Ok(UploadedNumber)).deterministic()
    }

    #[test]
    fn uploaded_batches_keep_their_order_and_ids() {
        let pool = BufferPool::new();
        let device = HostDevice::new(pool.clone());
        let pipeline = numbers().buffers(pool.clone()).upload("upload", Arc::new(device));
        let mut indices = Vec::new();
        for batch in pipeline.build().unwrap() {
            let batch = batch.unwrap();
            assert!(batch.is_ready().unwrap());
            let numbers = batch.array("number").unwrap();
            assert_eq!((numbers.dtype(), numbers.shape()), (DType::I64, &[batch.len()][..]));
            assert_eq!(numbers.memory().space(), Space::Host);
            assert_eq!(batch.footprint(), size_of::<DeviceBatch>() + 4 * 8);
            indices.extend(batch.ids().iter().map(|id| id.index));
            assert!(batch.array("unknown").is_none());
        }
        assert_eq!(indices, (0..10).collect::<Vec<_>>());
        let statistics = pool.statistics();
        assert_eq!(statistics.live_bytes, 0);
        assert!(statistics.allocations > 0, "the batches use buffers of the given pool");
    }

    #[test]
    fn a_state_of_a_host_pipeline_resumes_a_device_pipeline() {
        let indices = |batch: Batch| batch.ids().iter().map(|id| id.index).collect::<Vec<_>>();
        let mut first = numbers().epochs(0..1).build().unwrap();
        assert_eq!(indices(first.next().unwrap().unwrap()), [0, 1, 2, 3]);
        let upload = numbers().epochs(0..1).upload("upload", Arc::new(HostDevice::default()));
        let rest = upload.resume(first.state().unwrap()).build().unwrap();
        let lens: Vec<_> = rest.map(|batch| batch.unwrap().len()).collect();
        assert_eq!(lens, [4, 2]);
    }

    #[test]
    fn device_arrays_match_the_number_of_samples_and_fit_their_memory() {
        let array = |shape: &[usize], bytes| {
            let upload = HostDevice::default().upload(BufferPool::new().take(bytes)?)?;
            DeviceArray::new(DType::I64, shape.to_vec(), upload)
        };
        let ids = || vec![SampleId::default(); 2];
        let kind = |result: Result<DeviceBatch>| result.unwrap_err().kind();
        assert_eq!(array(&[2], 15).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(array(&[usize::MAX, 2], 16).unwrap_err().kind(), ErrorKind::InvalidArgument);
        for shape in [&[3][..], &[]] {
            let short = DeviceBatch::new(ids(), [("labels", array(shape, 24).unwrap())]);
            assert_eq!(kind(short), ErrorKind::InvalidArgument);
        }
        let labels = || ("labels", array(&[2], 16).unwrap());
        assert_eq!(kind(DeviceBatch::new(ids(), [labels(), labels()])), ErrorKind::InvalidArgument);
        let batch = DeviceBatch::new(ids(), [labels()]).unwrap();
        assert_eq!(batch.array("labels").unwrap().shape(), [2]);
    }

    /// A device whose second upload fails.
    #[derive(Debug, Default)]
    struct FailingDevice(HostDevice, std::sync::atomic::AtomicUsize);

    impl Device for FailingDevice {
        fn space(&self) -> Space {
            Space::Host
        }
        fn host_buffer(&self, bytes: usize) -> Result<HostBuffer> {
            self.0.host_buffer(bytes)
        }
        fn upload(&self, host: HostBuffer) -> Result<Upload> {
            if self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
                return Err(Error::new(ErrorKind::LimitExceeded, "out of device memory"));
            }
            self.0.upload(host)
        }
    }

    #[test]
    fn a_failed_upload_ends_the_pipeline_and_names_the_stage() {
        let device = Arc::new(FailingDevice::default());
        let pipeline = numbers().upload("upload", device).build().unwrap();
        let results: Vec<_> = pipeline.collect();
        assert_eq!(results.len(), 2);
        let error = results[1].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::LimitExceeded, Some("upload")));
    }
}
