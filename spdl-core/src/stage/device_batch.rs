//! Batches on a device: the arrays of a batch, on their way there.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::DType;
use crate::memory::device::{Device, DeviceMemory, Fence, Upload};
use crate::memory::footprint::Footprint;
use crate::source::sample::SampleId;
use crate::stage::batch::{Batch, Field};

/// A dense array in the memory of a device, rows first (C order).
#[derive(Debug)]
pub struct DeviceArray {
    dtype: DType,
    shape: Vec<usize>,
    upload: Upload,
}

impl DeviceArray {
    /// An array that a device has made, or is making: `upload` tells where, and when it is there.
    ///
    /// # Errors
    /// `InvalidArgument` where the memory is shorter than the shape needs.
    pub fn new(dtype: DType, shape: Vec<usize>, upload: Upload) -> Result<Self> {
        let held = upload.memory.len();
        let needed = shape.iter().try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n));
        if needed.is_none_or(|needed| needed > held) {
            let message = format!("an array of {dtype} {shape:?} does not fit {held} bytes");
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

    /// Where its elements are, once it is [ready](Self::ready).
    pub fn memory(&self) -> &dyn DeviceMemory {
        &*self.upload.memory
    }

    /// Done once the elements are there.
    pub fn ready(&self) -> &dyn Fence {
        &*self.upload.ready
    }

    /// Its memory, and the fence behind which the elements are there.
    pub fn into_upload(self) -> Upload {
        self.upload
    }
}

/// Samples side by side in the memory of a device, or on their way there.
///
/// Nothing has waited for the copies when a pipeline delivers one: a consumer lets its own stream
/// wait for each array's [`ready`](DeviceArray::ready), or waits itself ([`wait`](Self::wait)).
pub struct DeviceBatch {
    fields: Vec<Field>,
    arrays: Vec<DeviceArray>,
    ids: Vec<SampleId>,
}

impl DeviceBatch {
    /// A batch of these samples, with an array `[ids.len(), …]` for each name, for stages whose
    /// arrays begin on the device.
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
    /// `InvalidArgument` where an array has not a row for each sample, or two have one name.
    pub fn new<'a>(
        ids: Vec<SampleId>,
        arrays: impl IntoIterator<Item = (&'a str, DeviceArray)>,
    ) -> Result<Self> {
        let fault = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let mut batch = DeviceBatch { fields: Vec::new(), arrays: Vec::new(), ids };
        for (name, array) in arrays {
            if batch.array(name).is_some() {
                return fault(format!("two arrays of a batch are called {name:?}"));
            }
            match array.shape() {
                [rows, shape @ ..] if *rows == batch.len() => {
                    batch.fields.push(Field::new(name, array.dtype, shape));
                }
                shape => {
                    let rows = batch.len();
                    return fault(format!(
                        "expected {rows} rows of {name:?}, found the shape {shape:?}"
                    ));
                }
            }
            batch.arrays.push(array);
        }
        Ok(batch)
    }

    /// Starts the copy of every array, and returns at once.
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
    /// What [`Device::upload`] fails with.
    pub fn upload(batch: Batch, device: &dyn Device) -> Result<Self> {
        let Batch { fields, arrays, ids } = batch;
        let arrays = arrays.into_iter().map(|array| {
            let (dtype, shape, buffer) = array.into_parts();
            Ok(DeviceArray { dtype, shape, upload: device.upload(buffer)? })
        });
        Ok(DeviceBatch { arrays: arrays.collect::<Result<_>>()?, fields, ids })
    }

    /// How many samples it holds.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it holds none. A pipeline never delivers such a batch.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The epoch its samples belong to.
    pub fn epoch(&self) -> u64 {
        self.ids.first().map_or(0, |id| id.epoch)
    }

    /// Who the samples are, in their order in the batch.
    pub fn ids(&self) -> &[SampleId] {
        &self.ids
    }

    /// The array of the field with this name, `[len, …]`.
    pub fn array(&self, name: &str) -> Option<&DeviceArray> {
        let at = self.fields.iter().position(|field| &*field.name == name)?;
        self.arrays.get(at)
    }

    /// All arrays with their names, in the layout's order.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &DeviceArray)> {
        self.fields.iter().map(|field| &*field.name).zip(&self.arrays)
    }

    /// Takes the arrays out, with their names, in the layout's order.
    pub fn into_arrays(self) -> impl Iterator<Item = (Arc<str>, DeviceArray)> {
        self.fields.into_iter().map(|field| field.name).zip(self.arrays)
    }

    /// Whether all copies are done, without waiting.
    ///
    /// # Errors
    /// The failure of a copy.
    pub fn is_ready(&self) -> Result<bool> {
        for array in &self.arrays {
            if !array.ready().is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all copies are done.
    ///
    /// # Errors
    /// The failure of a copy.
    pub fn wait(&self) -> Result<()> {
        self.arrays.iter().try_for_each(|array| array.ready().wait())
    }
}

/// What lies on the device does not count, but where the device is the host itself.
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
    use crate::stage::batch::{BatchLayout, Fill, FillContext, SlotMut};

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
    fn batches_arrive_on_the_device_in_their_order_with_what_they_hold() {
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
            assert!(batch.array("nobody").is_none());
        }
        assert_eq!(indices, (0..10).collect::<Vec<_>>());
        let statistics = pool.statistics();
        assert_eq!(statistics.live_bytes, 0);
        assert!(
            statistics.allocations > 0,
            "the batches lay in buffers of the pool that was given"
        );
    }

    #[test]
    fn a_run_on_a_device_goes_on_from_the_state_of_one_on_the_host() {
        let indices = |batch: Batch| batch.ids().iter().map(|id| id.index).collect::<Vec<_>>();
        let mut first = numbers().epochs(0..1).build().unwrap();
        assert_eq!(indices(first.next().unwrap().unwrap()), [0, 1, 2, 3]);
        let upload = numbers().epochs(0..1).upload("upload", Arc::new(HostDevice::default()));
        let rest = upload.resume(first.state().unwrap()).build().unwrap();
        let lens: Vec<_> = rest.map(|batch| batch.unwrap().len()).collect();
        assert_eq!(lens, [4, 2]);
    }

    #[test]
    fn every_array_of_a_batch_on_a_device_has_a_row_for_each_sample_and_room_for_it() {
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

    /// A device that refuses its second upload.
    #[derive(Debug, Default)]
    struct Refusing(HostDevice, std::sync::atomic::AtomicUsize);

    impl Device for Refusing {
        fn space(&self) -> Space {
            Space::Host
        }
        fn host_buffer(&self, bytes: usize) -> Result<HostBuffer> {
            self.0.host_buffer(bytes)
        }
        fn upload(&self, host: HostBuffer) -> Result<Upload> {
            if self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
                return Err(Error::new(ErrorKind::LimitExceeded, "no room on the device"));
            }
            self.0.upload(host)
        }
    }

    #[test]
    fn a_copy_that_cannot_be_started_ends_the_pipeline_and_names_the_stage() {
        let pipeline = numbers().upload("upload", Arc::new(Refusing::default())).build().unwrap();
        let results: Vec<_> = pipeline.collect();
        assert_eq!(results.len(), 2);
        let error = results[1].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::LimitExceeded, Some("upload")));
    }
}
