//! g6: the kernels that turn images into samples, launched directly.

use std::rc::Rc;
use std::time::Instant;

use spdl_core::DType;
use spdl_cuda::CudaDevice;
use spdl_cuda::kernels::{BatchTable, Launch, ResizePlan, module_for};
use spdl_cuda::pixels::{
    ColorMatrix, ColorRange, ColorStandard, DevicePlane, PixelFormat, SourceImage,
};

use crate::Outcome;
use crate::copies::{median, message};
use crate::lines::Measurement;
use crate::raw::{Driver, Host, HostKind, Memory, Module, Raw, Stream};
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, Rect, Size};

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    let driver = Driver::open()?;
    let description =
        CudaDevice::open(0).and_then(|device| device.description()).map_err(message)?;
    let (major, minor) = description.compute_capability;
    let code = module_for(major as u32, minor as u32).map_err(message)?;
    measurement.note(&format!("kernels for {}", code.architecture()));
    let bench = Bench { module: driver.module(&code.image())?, stream: driver.stream()?, driver };
    exactness(measurement, &bench)?;
    speed(measurement, &bench)
}

struct Bench {
    module: Module,
    stream: Stream,
    driver: Rc<Driver>,
}

/// Launches with their table in device memory.
struct PreparedLaunches {
    table: Memory,
    launches: Vec<Launch>,
}

impl Bench {
    fn prepare(&self, table: BatchTable) -> Raw<PreparedLaunches> {
        let (bytes, launches) = table.finish();
        let table = self.upload(&bytes)?;
        Ok(PreparedLaunches { table, launches })
    }

    /// Copies bytes into new device memory.
    fn upload(&self, bytes: &[u8]) -> Raw<Memory> {
        let mut host = self.driver.host(bytes.len(), HostKind::Allocated)?;
        host.bytes_mut().copy_from_slice(bytes);
        let memory = self.driver.memory(bytes.len())?;
        self.stream.to_device(&memory, &host, bytes.len())?;
        self.stream.synchronize()?;
        Ok(memory)
    }

    fn download(&self, memory: &Memory, bytes: usize) -> Raw<Host> {
        let host = self.driver.host(bytes, HostKind::Allocated)?;
        self.stream.to_host(&host, memory, bytes)?;
        self.stream.synchronize()?;
        Ok(host)
    }

    fn launch(&self, prepared: &PreparedLaunches) -> Raw<()> {
        prepared.launches.iter().try_for_each(|launch| {
            let function = self.module.function(launch.function())?;
            let argument = launch.argument(prepared.table.address).to_ne_bytes();
            self.stream.launch(&function, launch.grid, launch.block[0], &[&argument])
        })
    }
}

/// G7: without resizing, every pixel is the exact colour conversion, rounded to nearest.
fn exactness(measurement: &Measurement, bench: &Bench) -> Outcome {
    // Odd sides.
    let (width, height) = (641_u32, 359_u32);
    let plane = (width * height) as usize;
    let components: Vec<u8> = noise(3 * plane);
    let source = bench.upload(&components)?;
    let output = bench.driver.memory(3 * plane)?;
    let planes = [0, 1, 2].map(|at| DevicePlane {
        address: source.address + (at * plane) as u64,
        pitch: u64::from(width),
    });
    let format = TensorSpec::new(Size::new(width, height));
    let standards = [
        ("BT.601", ColorStandard::BT601),
        ("BT.709", ColorStandard::BT709),
        ("BT.2020", ColorStandard::BT2020),
    ];
    for (name, standard) in standards {
        for range in [ColorRange::Limited, ColorRange::Full] {
            let color = ColorMatrix::new(standard, range, 8).map_err(message)?;
            let image = SourceImage::yuv(PixelFormat::Yuv444, width, height, &planes, color)
                .map_err(message)?;
            let mut table = BatchTable::new(&format).map_err(message)?;
            table
                .push(&image, &whole(width, height, width, height), output.address)
                .map_err(message)?;
            bench.launch(&bench.prepare(table)?)?;
            let found = bench.download(&output, 3 * plane)?;
            let (mut largest, mut sum) = (0_i32, 0_i64);
            for (pixel, rgb) in found.bytes().chunks_exact(3).enumerate() {
                let codes = [0, 1, 2].map(|at| f64::from(components[at * plane + pixel]));
                for (row, value) in color.matrix().iter().zip(rgb) {
                    let zero = color.zero();
                    let exact: f64 = (0..3).map(|at| row[at] * (codes[at] - zero[at])).sum();
                    let difference = i32::from(*value) - exact.round().clamp(0.0, 255.0) as i32;
                    largest = largest.max(difference.abs());
                    sum += i64::from(difference);
                }
            }
            let bias = sum as f64 / (3 * plane) as f64;
            measurement.promise(
                &format!("G7: {name}, {range:?} range, {width} x {height}"),
                largest == 0,
                &format!("at most {largest} levels from float64, bias {bias:.4}"),
                "0",
            );
        }
    }
    Ok(())
}

/// Measures the conversion of images of the typical size in ImageNet to samples of 224 x 224.
fn speed(measurement: &Measurement, bench: &Bench) -> Outcome {
    let count = if measurement.size.is_tiny() { 2 } else { 256 };
    let (width, height) = (500_u32, 375_u32);
    let bytes = (3 * width * height) as usize;
    let sources = bench.upload(&noise(count * bytes))?;
    for (name, dtype, layout) in [
        ("u8 NHWC", DType::U8, Layout::Nhwc),
        ("f16 NCHW", DType::F16, Layout::Nchw),
        ("bf16 NCHW", DType::BF16, Layout::Nchw),
        ("f32 NCHW", DType::F32, Layout::Nchw),
    ] {
        let format =
            *ImageTransform::with_size(Size::new(224, 224)).dtype(dtype).layout(layout).tensor();
        let sample = format.bytes();
        let output = bench.driver.memory(count * sample as usize)?;
        let mut table = BatchTable::new(&format).map_err(message)?;
        for at in 0..count as u64 {
            let address = sources.address + at * bytes as u64;
            let plane = DevicePlane { address, pitch: u64::from(3 * width) };
            let image = SourceImage::rgb8(width, height, plane).map_err(message)?;
            let plan = whole(width, height, 224, 224);
            table.push(&image, &plan, output.address + at * sample).map_err(message)?;
        }
        let prepared = bench.prepare(table)?;
        let repeats = if measurement.size.is_tiny() { 1 } else { 50 };
        let mut times = Vec::new();
        for _ in 0..=repeats {
            bench.driver.synchronize()?;
            let start = Instant::now();
            // Several launches, so that the launch overhead is negligible.
            (0..10).try_for_each(|_| bench.launch(&prepared))?;
            bench.stream.synchronize()?;
            times.push(start.elapsed().as_secs_f64() / 10.0);
        }
        let seconds = median(times[1..].to_vec());
        let moved = (count * (bytes + sample as usize)) as f64;
        let case = format!("{count} x RGB {width} x {height} to 224 x 224 {name}");
        measurement.figure(&case, "rate", count as f64 / seconds, "images/s");
        measurement.figure(&case, "read and write throughput", moved / seconds / 1e9, "GB/s");
    }
    Ok(())
}

fn whole(width: u32, height: u32, to_width: u32, to_height: u32) -> ResizePlan {
    let source = Rect::full(Size::new(width, height)).into();
    ResizePlan::new(source, Size::new(to_width, to_height))
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
