//! The table that a launch reads: an entry for each image, as `kernels/table.h` declares it.

use spdl_core::{DType, Result};

use super::invalid;
use super::plan::{AxisSpan, Filter, ResizePlan};
use super::sample::{ChannelOrder, Layout, SampleFormat};
use crate::pixels::ColorMatrix;
use crate::pixels::SourceImage;

/// How many bytes an entry takes.
pub(super) const ENTRY_BYTES: usize = 392;
/// The columns and rows of a block's tile, and its threads, as `kernels/image.cu` has them.
const TILE: [u32; 2] = [32, 16];
const THREADS: u32 = 256;
/// The most images of a launch: what a grid can have on its third axis.
const MAX_IMAGES: usize = 65_535;

/// The kernels, by what they read.
pub(super) const KERNELS: [&str; 4] =
    ["image_u8_whole", "image_u8_subsampled", "image_u16_whole", "image_u16_subsampled"];

/// Images that become samples of one batch.
#[derive(Clone, Debug)]
pub struct BatchTable {
    format: SampleFormat,
    /// The entries for each kernel, and the size of the largest target.
    groups: [(Vec<u8>, [u32; 2]); 4],
}

impl BatchTable {
    /// A table for samples of this format.
    ///
    /// # Errors
    /// `InvalidArgument` where a side of a sample is not in 1 to 16,384, a mean is not finite, a
    /// standard deviation not a positive number, or values are of another type than the four.
    pub fn new(format: &SampleFormat) -> Result<Self> {
        format.validate()?;
        Ok(BatchTable { format: format.clone(), groups: Default::default() })
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|(entries, _)| entries.len() / ENTRY_BYTES).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an image whose sample begins at the address `output`, and has
    /// [`SampleFormat::bytes`] bytes.
    ///
    /// # Errors
    /// `InvalidArgument` where the plan's part of the image is not finite, empty, or has bounds that
    /// are not inside the image; where the target is not of the sample's size; or where `output` is 0,
    /// no multiple of a value's size, or has no room behind it.
    pub fn push(&mut self, image: &SourceImage, plan: &ResizePlan, output: u64) -> Result<()> {
        let SampleFormat { width, height, dtype, .. } = self.format;
        let target =
            if plan.transposed { (plan.height, plan.width) } else { (plan.width, plan.height) };
        if target != (width, height) {
            return Err(invalid(format!(
                "the image becomes {} x {} pixels, but a sample has {width} x {height}",
                target.0, target.1
            )));
        }
        let fits = output.checked_add(self.format.bytes()).is_some();
        if output == 0 || !output.is_multiple_of(dtype.size() as u64) || !fits {
            return Err(invalid(format!(
                "expected the address of {} values, found {output:#x}",
                dtype.name()
            )));
        }
        let spans = plan.spans(image)?;
        let format = image.format;
        let kernel =
            2 * usize::from(format.sample_bytes() > 1) + usize::from(format.is_subsampled());
        let (entries, largest) = &mut self.groups[kernel];
        let before = entries.len();
        TableEntry(entries).write(image, plan, &self.format, spans, output);
        debug_assert_eq!(entries.len(), before + ENTRY_BYTES);
        *largest = [largest[0].max(plan.width), largest[1].max(plan.height)];
        Ok(())
    }

    /// The table's bytes, to be copied to the device at an address that is a multiple of 8, and what
    /// is to be launched once they are there: one launch for images whose samples are of one size and
    /// that have, or have not, fewer samples of chroma.
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

/// One launch of a kernel. It needs no dynamic shared memory, and has one argument: the address of its
/// part of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    function: &'static str,
    offset: u64,
    /// How many blocks there are on each axis.
    pub grid: [u32; 3],
    /// How many threads a block has on each axis.
    pub block: [u32; 3],
}

impl Launch {
    /// The part of the table that it reads: where it begins, and how many bytes it takes.
    pub(super) fn part(&self) -> (u64, u64) {
        (self.offset, u64::from(self.grid[2]) * ENTRY_BYTES as u64)
    }

    /// The kernel's name in the module.
    pub fn function(&self) -> &'static str {
        self.function
    }

    /// Its only argument, a pointer, where the table was copied to `table`.
    pub fn argument(&self, table: u64) -> u64 {
        table.wrapping_add(self.offset)
    }
}

fn stored_bits(image: &SourceImage) -> u32 {
    8 * image.format.sample_bytes() as u32
}

/// How many bits of a sample are not used: the bits that are used are at the top.
fn free_bits(image: &SourceImage) -> u32 {
    image.color.map_or(0, |color| stored_bits(image) - color.bits())
}

/// Writes the fields of an entry one after the other.
struct TableEntry<'a>(&'a mut Vec<u8>);

impl TableEntry<'_> {
    fn write(
        &mut self,
        image: &SourceImage,
        plan: &ResizePlan,
        format: &SampleFormat,
        spans: [AxisSpan; 2],
        output: u64,
    ) {
        for component in 0..3 {
            let (plane, sample, step) = image.format.place(component);
            let plane = image.planes[plane];
            self.u64(plane.address + sample * image.format.sample_bytes());
            self.u64(plane.pitch);
            self.u64(step);
        }
        let (across_shift, down_shift) = image.siting.shifts();
        for is_chroma in [false, true] {
            let is_halved = is_chroma && image.format.is_subsampled();
            for (span, target, shift) in
                [(spans[0], plan.width, across_shift), (spans[1], plan.height, down_shift)]
            {
                let (pixels, shift) = if is_halved { (2, shift) } else { (1, 0.0) };
                self.f64(span.start / f64::from(pixels) + shift);
                self.f64(span.extent / f64::from(pixels) / f64::from(target));
                // A sample counts where any of its pixels does.
                self.u32(span.first / pixels);
                self.u32(span.end.div_ceil(pixels));
            }
        }
        self.color(image, format.order);
        let normalization: [(f32, f32); 3] =
            std::array::from_fn(|channel| format.scale_and_offset(channel));
        normalization.iter().for_each(|(scale, _)| self.f32(*scale));
        normalization.iter().for_each(|(_, offset)| self.f32(*offset));
        self.output(plan, format, output);
        self.u32(plan.width);
        self.u32(plan.height);
        self.u32(match plan.filter {
            Filter::Bilinear => 0,
            Filter::Bicubic => 1,
        });
        let is_rgb = image.color.is_none() && format.order != ChannelOrder::Grey;
        self.u32(is_rgb.into());
        self.u32(match format.dtype {
            DType::F16 => 1,
            DType::BF16 => 2,
            DType::F32 => 3,
            _ => 0,
        });
        self.f32(((1u32 << stored_bits(image)) - (1 << free_bits(image))) as f32);
    }

    /// The matrix for samples as they are stored.
    fn color(&mut self, image: &SourceImage, order: ChannelOrder) {
        let color = image.color.unwrap_or_else(ColorMatrix::rgb);
        let color = if order == ChannelOrder::Grey { color.grey() } else { color };
        let stored = color.enlarged(f64::from(1u32 << free_bits(image)));
        let (matrix, zero) = (stored.matrix().into_iter().flatten(), stored.zero());
        matrix.clone().for_each(|factor| self.f64(factor));
        zero.iter().for_each(|zero| self.f64(*zero));
        matrix.for_each(|factor| self.f32(factor as f32));
        zero.iter().for_each(|zero| self.f32(*zero as f32));
    }

    /// Where the values go: mirroring begins at the other end and goes back. The kernel has three
    /// channels in any case; where there is one, all are the same value in the same place.
    fn output(&mut self, plan: &ResizePlan, format: &SampleFormat, output: u64) {
        let (width, height) = (i64::from(format.width), i64::from(format.height));
        let [across, down, channel] = match format.layout {
            _ if format.order == ChannelOrder::Grey => [1, width, 0],
            Layout::Nhwc => [3, 3 * width, 1],
            Layout::Nchw => [1, width, width * height],
        };
        let is_reversed = format.order == ChannelOrder::Bgr;
        let turned = [
            (across, width, plan.mirrored),
            (down, height, plan.upended),
            (channel, 3, is_reversed),
        ];
        let first = turned
            .iter()
            .filter(|(_, _, is_reversed)| *is_reversed)
            .map(|(step, count, _)| step * (count - 1))
            .sum::<i64>();
        let [across, down, channel] =
            turned.map(|(step, _, is_reversed)| if is_reversed { -step } else { step });
        self.u64(output + first.unsigned_abs() * format.dtype.size() as u64);
        let (across, down) = if plan.transposed { (down, across) } else { (across, down) };
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
