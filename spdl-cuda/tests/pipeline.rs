//! A complete pipeline with threads that uploads to a device.

// promise of this file: G1
#![cfg(feature = "testing")]

mod common;

use std::sync::Arc;

use spdl_core::memory::Space;
use spdl_core::{
    BatchLayout, DType, DatasetSource, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
};
use spdl_cuda::testing::{FakeDriver, LiveResources, Schedule};
use spdl_cuda::{CudaDevice, CudaMemory};

struct Numbers;

impl Fill<u64> for Numbers {
    fn fill(&mut self, item: u64, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
        slot.set(0, item as i64)?;
        slot.set(1, item as f32)
    }
}

#[test]
fn g1_batches_of_a_pipeline_arrive_intact_from_reused_pinned_memory() {
    for seed in 0..20 {
        let driver = FakeDriver::new(1, Schedule::Seeded(seed));
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let fields = [Field::new("wide", DType::I64, &[]), Field::new("narrow", DType::F32, &[])];
        let pipeline = PipelineBuilder::new(DatasetSource::new((0..403).collect::<Vec<u64>>()))
            .fill("fill", BatchLayout::new(10, fields), || Ok(Numbers))
            .buffers(device.buffers())
            .upload("upload", Arc::new(device.clone()))
            .deterministic()
            .build()
            .unwrap();
        let streams = [driver.consumer_stream(), driver.consumer_stream()];
        let mut seen = Vec::new();
        for (number, batch) in pipeline.enumerate() {
            let batch = batch.unwrap();
            let stream = &streams[number % 2];
            for (name, array) in batch.arrays() {
                assert_eq!(array.memory().space(), Space::Cuda { ordinal: 0 });
                let memory = CudaMemory::of(array).unwrap();
                memory.wait_on(stream).unwrap();
                let len = array.shape().iter().product::<usize>() * array.dtype().size();
                let kernel = driver.read_by_kernel(stream, array.memory().address(), len);
                let indices = batch.ids().iter().map(|id| id.index);
                let bytes: Vec<u8> = match name {
                    "wide" => indices.flat_map(|index| (index as i64).to_ne_bytes()).collect(),
                    _ => indices.flat_map(|index| (index as f32).to_ne_bytes()).collect(),
                };
                seen.push((kernel, bytes));
            }
        }
        driver.run_all();
        assert_eq!(seen.len(), 2 * 41);
        for (kernel, bytes) in seen {
            assert_eq!(kernel.bytes(), Some(bytes), "seed {seed}");
        }
        assert_eq!(driver.calls_of("cuEventSynchronize"), 0);
        drop(device);
        assert_eq!(driver.violations(), [], "seed {seed}");
        assert_eq!(driver.live_resources(), LiveResources::default(), "seed {seed}");
    }
}
