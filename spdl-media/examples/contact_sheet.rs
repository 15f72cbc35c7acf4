//! Writes a sheet of the training samples of one image: each epoch's random crop, flip and
//! augmentation.
//!
//! ```sh
//! cargo run --release -p spdl-media --features encode --example contact_sheet -- \
//!     assets/photos/chelsea.jpg target/sheet.png
//! ```
#![expect(clippy::print_stdout, reason = "prints a summary")]

use spdl_core::{Error, ErrorKind, Result, SampleId, SampleRng};
use spdl_media::augment::{Augmenter, ColorJitter, RandomApply, TrivialAugmentWide};
use spdl_media::encode::{ImageEncoder, PngEncoder};
use spdl_media::image::PixelsMut;
use spdl_media::{CodecRegistry, FillImage, Image, ImageTransform, Limits, Mode, Sample, Size};

const SIDE: u32 = 160;
const ACROSS: u32 = 6;
const DOWN: u32 = 4;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [photo, sheet] = &arguments[..] else {
        let usage = "usage: contact_sheet IMAGE SHEET.png";
        return Err(Error::new(ErrorKind::InvalidArgument, usage));
    };
    let encoded = std::fs::read(photo)?;
    let augmenter = Augmenter::new()
        .then(RandomApply::new(ColorJitter::new().brightness(0.3).saturation(0.3)).probability(0.5))
        .then(TrivialAugmentWide::new());
    let transform = ImageTransform::new(SIDE).mode(Mode::Train);
    let mut fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?
        .augment(augmenter)?;

    let size = Size::new(ACROSS * SIDE, DOWN * SIDE);
    let mut image = Image { size, pixels: vec![0; size.pixels() as usize * 3] };
    let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
    for epoch in 0..ACROSS * DOWN {
        // Seed, epoch and sample determine the random numbers.
        let id = SampleId { epoch: epoch.into(), index: 0 };
        fill.write(&encoded, Sample::U8(&mut sample), || SampleRng::new(7, id, "decode"))?;
        let mut place = PixelsMut::new(&mut image.pixels, size)?;
        let left = (epoch % ACROSS * SIDE * 3) as usize;
        for (row, line) in (epoch / ACROSS * SIDE..).zip(sample.chunks((SIDE * 3) as usize)) {
            place.row_mut(row)[left..left + line.len()].copy_from_slice(line);
        }
    }
    std::fs::write(sheet, PngEncoder::new().encode_image(&image)?)?;
    println!("{sheet}: {} samples of {photo}", ACROSS * DOWN);
    Ok(())
}
