//! Pixels of the optional formats, compared with independent decoders.

// promise of this file: IMG2

use spdl_media::{CodecRegistry, Decoder, Limits};

use crate::files::{data, difference, expected, names};

/// The maximum difference from the expected pixels.
fn tolerance(name: &str) -> u8 {
    match name {
        // Block compression interpolates 5-bit and 6-bit colours; the rounding is unspecified.
        "rgb.dds" => 8,
        // Lossy JPEG XL is decoded with floats; the order of additions is unspecified.
        "lossy.jxl" | "groups.jxl" => 1,
        // Half floats.
        "rgb.exr" => 1,
        _ => 0,
    }
}

fn is_off(name: &str) -> bool {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "rgb" | "tsv" | "tiff" | "bmp" => true,
        "jxl" => cfg!(not(feature = "jxl")),
        "exr" => cfg!(not(feature = "exr")),
        _ => cfg!(not(feature = "more-formats")),
    }
}

#[test]
fn pixels_equal_independent_decoders() {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let mut faults = Vec::new();
    let mut compared = 0;
    for name in names("tests/formats/data") {
        if is_off(&name) {
            continue;
        }
        let expected = expected(&name);
        match decoder.decode_rgb(&data(&name)) {
            Err(error) => faults.push(format!("{name}: {error}")),
            Ok(image) => {
                assert_eq!(image.size, expected.size, "{name}");
                let (largest, mean) = difference(&image.pixels, &expected.pixels);
                if largest > tolerance(&name) {
                    faults.push(format!("{name}: differs by {largest}, mean {mean:.3}"));
                }
                compared += 1;
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(compared > 0);
}
