//! The table that a kernel launch reads: one entry per image, as declared in `kernels/table.h`.

use spdl_core::{DType, Error, ErrorKind, Result};
use spdl_media::transform::TensorSpec;
use spdl_media::{Layout, ResizeFilter, SampleColor, Size};

use super::invalid;
use super::plan::{AxisSpan, ResizePlan};
use crate::pixels::ColorMatrix;
use crate::pixels::SourceImage;

/// Size of an entry in bytes.
pub(super) const ENTRY_BYTES: usize = 392;
/// Columns and rows of the tile that a thread block computes, and the number of threads of the
/// block. `kernels/image.cu` defines the same values.
const TILE: [u32; 2] = [32, 16];
const THREADS: u32 = 256;
/// Maximum number of images of a launch: the limit of the grid dimension z.
const MAX_IMAGES: usize = 65_535;

/// The kernels, one for each combination of bytes per sample and chroma subsampling.
pub(super) const KERNELS: [&str; 4] =
    ["image_u8_whole", "image_u8_subsampled", "image_u16_whole", "image_u16_subsampled"];

/// The images of a batch, with their plans and output addresses.
#[derive(Clone, Debug)]
pub struct BatchTable {
    format: TensorSpec,
    /// The entries for each kernel, and the size of the largest target.
    groups: [(Vec<u8>, [u32; 2]); 4],
}

impl BatchTable {
    /// Creates an empty table for samples of this format.
    ///
    /// # Errors
    /// The errors of [`TensorSpec::validate`].
    pub fn new(format: &TensorSpec) -> Result<Self> {
        format.validate()?;
        Ok(BatchTable { format: *format, groups: Default::default() })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|(entries, _)| entries.len() / ENTRY_BYTES).sum()
    }

    /// Whether the table has no images.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an image. Its sample of [`TensorSpec::bytes`] bytes begins at the address `output`.
    ///
    /// # Errors
    /// `InvalidArgument` if the crop box is not finite or is empty, its bounds are not inside the
    /// image, the target does not have the size of the sample, or `output` is 0, not aligned to the
    /// data type, or too close to the end of the address space. `Unsupported` for filters other
    /// than bilinear and bicubic.
    pub fn push(&mut self, image: &SourceImage, plan: &ResizePlan, output: u64) -> Result<()> {
        let dtype = self.format.format.dtype;
        let target = if plan.transpose { plan.size.transposed() } else { plan.size };
        if target != self.format.size {
            return Err(invalid(format!(
                "target size of {target} pixels differs from the sample size of {} pixels",
                self.format.size
            )));
        }
        let fits = output.checked_add(self.format.bytes()).is_some();
        if output == 0 || !output.is_multiple_of(dtype.size() as u64) || !fits {
            return Err(invalid(format!(
                "invalid output address {output:#x} for type {}: zero, unaligned or too large",
                dtype.name()
            )));
        }
        let filter = filter_code(plan.filter)?;
        let spans = plan.spans(image)?;
        let format = image.format;
        let kernel =
            2 * usize::from(format.sample_bytes() > 1) + usize::from(format.is_subsampled());
        let (entries, largest) = &mut self.groups[kernel];
        let before = entries.len();
        TableEntry(entries).write(image, plan, filter, &self.format, spans, output);
        debug_assert_eq!(entries.len(), before + ENTRY_BYTES);
        let Size { width, height } = plan.size;
        *largest = [largest[0].max(width), largest[1].max(height)];
        Ok(())
    }

    /// Returns the bytes of the table, and the launches that read it. Before the launches, copy the
    /// bytes to device memory that is aligned to 8 bytes.
    ///
    /// Images with the same number of bytes per sample and the same subsampling share launches: one
    /// launch for up to 65,535 images.
    pub fn finish(self) -> (Vec<u8>, Vec<Launch>) {
        let (mut bytes, mut launches) = (Vec::new(), Vec::new());
        for (function, (entries, largest)) in KERNELS.into_iter().zip(self.groups) {
            for part in entries.chunks(MAX_IMAGES * ENTRY_BYTES) {
                let images = (part.len() / ENTRY_BYTES) as u32;
                let [columns, rows] = [0, 1].map(|axis| largest[axis].div_ceil(TILE[axis]));
                launches.push(Launch {
                    function,
                    offset: bytes.len() as u64,
                    grid: [columns, rows, images],
                    block: [THREADS, 1, 1],
                });
                bytes.extend_from_slice(part);
            }
        }
        (bytes, launches)
    }
}

/// A kernel launch, without dynamic shared memory. The only kernel argument is the address of the
/// part of the table that the launch reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    function: &'static str,
    offset: u64,
    /// The grid dimensions in blocks.
    pub grid: [u32; 3],
    /// The block dimensions in threads.
    pub block: [u32; 3],
}

impl Launch {
    /// Offset and size in bytes of the part of the table that this launch reads.
    pub(super) fn part(&self) -> (u64, u64) {
        (self.offset, u64::from(self.grid[2]) * ENTRY_BYTES as u64)
    }

    /// The name of the kernel in the module.
    pub fn function(&self) -> &'static str {
        self.function
    }

    /// The kernel argument (a pointer), if the table is at the address `table`.
    pub fn argument(&self, table: u64) -> u64 {
        table.wrapping_add(self.offset)
    }
}

/// The code of a filter in the table.
pub(crate) fn filter_code(filter: ResizeFilter) -> Result<u32> {
    match filter {
        ResizeFilter::Bilinear => Ok(0),
        ResizeFilter::Bicubic => Ok(1),
        other => {
            let message =
                format!("unsupported resize filter {other} on GPUs: expected bilinear or bicubic");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

fn stored_bits(image: &SourceImage) -> u32 {
    8 * image.format.sample_bytes() as u32
}

/// Number of unused low bits in a stored sample.
fn free_bits(image: &SourceImage) -> u32 {
    image.color.map_or(0, |color| stored_bits(image) - color.bits())
}

/// Writes the fields of an entry in order.
struct TableEntry<'a>(&'a mut Vec<u8>);

impl TableEntry<'_> {
    fn write(
        &mut self,
        image: &SourceImage,
        plan: &ResizePlan,
        filter: u32,
        format: &TensorSpec,
        spans: [AxisSpan; 2],
        output: u64,
    ) {
        for component in 0..3 {
            let (plane, sample, step) = image.format.component_layout(component);
            let plane = image.planes[plane];
            self.u64(plane.address + sample * image.format.sample_bytes());
            self.u64(plane.pitch);
            self.u64(step);
        }
        let (across_shift, down_shift) = image.siting.shifts();
        for is_chroma in [false, true] {
            let is_halved = is_chroma && image.format.is_subsampled();
            for (span, target, shift) in [
                (spans[0], plan.size.width, across_shift),
                (spans[1], plan.size.height, down_shift),
            ] {
                let (pixels, shift) = if is_halved { (2, shift) } else { (1, 0.0) };
                self.f64(span.start / f64::from(pixels) + shift);
                self.f64(span.extent / f64::from(pixels) / f64::from(target));
                // A chroma sample is inside the bounds if any of its pixels is.
                self.u32(span.first / pixels);
                self.u32(span.end.div_ceil(pixels));
            }
        }
        self.color(image, format.color);
        // Scales and offsets are in the order red, green, blue, independent of the channel order of
        // the output.
        let normalization: [(f32, f32); 3] = std::array::from_fn(|channel| {
            let channel = if format.color == SampleColor::Grey { 0 } else { channel };
            format.normalization.scale_and_offset(channel)
        });
        normalization.iter().for_each(|(scale, _)| self.f32(*scale));
        normalization.iter().for_each(|(_, offset)| self.f32(*offset));
        self.output(plan, format, output);
        self.u32(plan.size.width);
        self.u32(plan.size.height);
        self.u32(filter);
        let is_rgb = image.color.is_none() && format.color != SampleColor::Grey;
        self.u32(is_rgb.into());
        self.u32(match format.format.dtype {
            DType::F16 => 1,
            DType::BF16 => 2,
            DType::F32 => 3,
            _ => 0,
        });
        self.f32(((1u32 << stored_bits(image)) - (1 << free_bits(image))) as f32);
    }

    /// The colour matrix for stored samples.
    fn color(&mut self, image: &SourceImage, output: SampleColor) {
        let color = image.color.unwrap_or_else(ColorMatrix::rgb);
        let color = if output == SampleColor::Grey { color.grey() } else { color };
        let stored = color.scaled(f64::from(1u32 << free_bits(image)));
        let (matrix, zero) = (stored.matrix().into_iter().flatten(), stored.zero());
        matrix.clone().for_each(|factor| self.f64(factor));
        zero.iter().for_each(|zero| self.f64(*zero));
        matrix.for_each(|factor| self.f32(factor as f32));
        zero.iter().for_each(|zero| self.f32(*zero as f32));
    }

    /// The output address and strides. A flipped axis starts at its other end, with a negative
    /// stride. The kernel always writes three channels; for grey, it writes the same value three
    /// times to the same address.
    fn output(&mut self, plan: &ResizePlan, format: &TensorSpec, output: u64) {
        let (width, height) = (i64::from(format.size.width), i64::from(format.size.height));
        let [across, down, channel] = match format.format.layout {
            _ if format.color == SampleColor::Grey => [1, width, 0],
            Layout::Nhwc => [3, 3 * width, 1],
            Layout::Nchw => [1, width, width * height],
        };
        let is_reversed = format.color == SampleColor::Bgr;
        let axes = [
            (across, width, plan.horizontal_flip),
            (down, height, plan.vertical_flip),
            (channel, 3, is_reversed),
        ];
        let first = axes
            .iter()
            .filter(|(_, _, is_reversed)| *is_reversed)
            .map(|(step, count, _)| step * (count - 1))
            .sum::<i64>();
        let [across, down, channel] =
            axes.map(|(step, _, is_reversed)| if is_reversed { -step } else { step });
        self.u64(output + first.unsigned_abs() * format.format.dtype.size() as u64);
        let (across, down) = if plan.transpose { (down, across) } else { (across, down) };
        for step in [across, down, channel] {
            self.0.extend_from_slice(&step.to_ne_bytes());
        }
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn f64(&mut self, value: f64) {
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn f32(&mut self, value: f32) {
        self.0.extend_from_slice(&value.to_ne_bytes());
    }
}
