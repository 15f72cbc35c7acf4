//! Many images become one batch.

// promise of this file: G7

use spdl_core::DType;
use spdl_cuda::kernels::BatchTable;
use spdl_cuda::pixels::{DevicePlane, PixelFormat, SourceImage};

use crate::host::{Memory, UNWRITTEN, run_plan};
use crate::picture::{Colors, Picture};
use crate::reference::Case;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, ResizeFilter, Size};

/// Pictures that differ in everything, and what becomes of each.
fn mixed() -> Vec<(Picture, Case, bool)> {
    [
        (PixelFormat::Rgb8, (500, 375), 8, ResizeFilter::Bilinear, false),
        (PixelFormat::Nv12, (33, 17), 8, ResizeFilter::Bicubic, false),
        (PixelFormat::P016, (64, 120), 10, ResizeFilter::Bilinear, true),
        (PixelFormat::Rgb8, (1, 1), 8, ResizeFilter::Bicubic, true),
        (PixelFormat::Yuv444P16, (90, 71), 12, ResizeFilter::Bilinear, false),
        (PixelFormat::Yuv420, (250, 131), 8, ResizeFilter::Bicubic, true),
        (PixelFormat::Yuv444, (41, 40), 8, ResizeFilter::Bilinear, false),
    ]
    .into_iter()
    .map(|(format, (width, height), bits, filter, transposed)| {
        let picture = Picture::noise(format, width, height, bits, Colors::VIDEO);
        let (width, height) = if transposed { (30, 50) } else { (50, 30) };
        let case = Case::whole(&picture, width, height, filter);
        (picture, case, transposed)
    })
    .collect()
}

#[test]
fn each_image_of_a_batch_is_what_it_is_alone_and_nothing_else_is_written() {
    let format = *ImageTransform::with_size(Size::new(50, 30))
        .layout(Layout::Nchw)
        .dtype(DType::BF16)
        .tensor();
    let bytes = format.bytes();
    let images = mixed();
    let mut memory = Memory::default();
    let mut table = BatchTable::new(&format).unwrap();
    let sources: Vec<_> = images.iter().map(|(picture, ..)| picture.upload(&mut memory)).collect();
    // A slot is left free at each end and in the middle.
    let slots = [1, 2, 3, 5, 6, 7, 8];
    let batch = memory.add_output(10 * bytes);
    for ((source, (_, case, transposed)), slot) in sources.iter().zip(&images).zip(slots) {
        let plan = case.plan().transpose(*transposed);
        table.push(source, &plan, batch + slot * bytes).unwrap();
    }
    assert_eq!(table.len(), images.len());
    let Some(found) = memory.run(table) else { return };
    let slot = |at: u64| &found[(at * bytes) as usize..][..bytes as usize];
    for free in [0, 4, 9] {
        assert!(slot(free).iter().all(|&byte| byte == UNWRITTEN), "{free}");
    }
    for ((picture, case, transposed), at) in images.iter().zip(slots) {
        let plan = case.plan().transpose(*transposed);
        let alone = run_plan(picture, case, &plan, &format).unwrap();
        assert!(slot(at) == alone, "{at}");
    }
}

#[test]
fn a_kernel_that_reads_beyond_its_image_or_writes_beyond_the_batch_is_noticed() {
    let format = TensorSpec::new(Size::new(50, 30));
    let picture = Picture::noise(PixelFormat::Rgb8, 41, 40, 8, Colors::VIDEO);
    let plan = Case::whole(&picture, 50, 30, ResizeFilter::Bilinear).plan();
    for (missing, of) in [(1, "READ"), (0, "WRITE")] {
        let mut memory = Memory::default();
        let address = memory.add(vec![7; 3 * 41 * 40 - missing]);
        let source = SourceImage::rgb8(41, 40, DevicePlane { address, pitch: 3 * 41 }).unwrap();
        let mut table = BatchTable::new(&format).unwrap();
        let output = memory.add_output(format.bytes() - 1 + missing as u64);
        table.push(&source, &plan, output).unwrap();
        let Some(words) = memory.run_to_its_end(table) else { return };
        assert!(words.contains("heap-buffer-overflow") && words.contains(of), "{words}");
    }
}

#[test]
fn images_that_are_read_alike_share_a_launch() {
    let format = TensorSpec::new(Size::new(50, 30));
    let mut memory = Memory::default();
    let mut table = BatchTable::new(&format).unwrap();
    assert!(table.is_empty());
    for (picture, case, transposed) in mixed() {
        let image = picture.upload(&mut memory);
        table.push(&image, &case.plan().transpose(transposed), 64).unwrap();
    }
    let (bytes, launches) = table.finish();
    let launched: Vec<_> = launches.iter().map(|l| (l.function(), l.grid, l.argument(0))).collect();
    let entry = bytes.len() as u64 / 7;
    assert_eq!(
        launched,
        [
            // Targets of 50 x 30 and of 30 x 50 are within the same grid.
            ("image_u8_whole", [2, 4, 3], 0),
            ("image_u8_subsampled", [2, 4, 2], 3 * entry),
            ("image_u16_whole", [2, 2, 1], 5 * entry),
            ("image_u16_subsampled", [1, 4, 1], 6 * entry),
        ]
    );
    assert_eq!(launches[1].argument(0x1000), 0x1000 + 3 * entry);
    let (bytes, launches) = BatchTable::new(&format).unwrap().finish();
    assert!(bytes.is_empty() && launches.is_empty());
}

#[test]
fn a_launch_has_no_more_images_than_a_grid_can() {
    let mut memory = Memory::default();
    let picture = Picture::noise(PixelFormat::Rgb8, 1, 1, 8, Colors::JPEG);
    let image = picture.upload(&mut memory);
    let plan = Case::whole(&picture, 1, 1, ResizeFilter::Bilinear).plan();
    let mut table = BatchTable::new(&TensorSpec::new(Size::new(1, 1))).unwrap();
    for _ in 0..65_537 {
        table.push(&image, &plan, 64).unwrap();
    }
    let (bytes, launches) = table.finish();
    assert_eq!(launches.iter().map(|launch| launch.grid[2]).collect::<Vec<_>>(), [65_535, 2]);
    assert_eq!(launches[1].argument(0), bytes.len() as u64 / 65_537 * 65_535);
}
