//! Batches of several images.

use spdl_core::DType;
use spdl_cuda::kernels::BatchTable;
use spdl_cuda::pixels::{DevicePlane, PixelFormat, SourceImage};

use crate::host::{Memory, UNWRITTEN, run_plan};
use crate::picture::{Colors, Picture};
use crate::reference::Case;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, ResizeFilter, Size};

/// Pictures of different formats and sizes, with their cases, and whether they are transposed.
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

// promise: DEV1
#[test]
fn samples_of_a_batch_equal_single_samples_and_free_slots_stay_unwritten() {
    let format = *ImageTransform::with_size(Size::new(50, 30))
        .layout(Layout::Nchw)
        .dtype(DType::BF16)
        .tensor();
    let bytes = format.bytes();
    let images = mixed();
    let mut memory = Memory::default();
    let mut table = BatchTable::new(&format).unwrap();
    let sources: Vec<_> = images.iter().map(|(picture, ..)| picture.upload(&mut memory)).collect();
    // Three slots stay free: at both ends and in the middle.
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
fn sanitizers_detect_accesses_outside_image_and_batch() {
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
        let Some(report) = memory.run_expecting_failure(table) else { return };
        assert!(report.contains("heap-buffer-overflow") && report.contains(of), "{report}");
    }
}

#[test]
fn images_with_the_same_kernel_share_a_launch() {
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
            // Targets of 50 x 30 and of 30 x 50 fit into the same grid.
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
fn a_launch_has_at_most_65535_images() {
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
