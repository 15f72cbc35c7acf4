//! Augmentations equal torchvision's. `golden/make_augment_golden.py` makes the expected results.

// promise of this file: IMG8

use std::collections::HashMap;
use std::io::Read;

use proptest::prelude::*;
use spdl_core::memory::{BufferPool, Element};
use spdl_core::{
    Array, Batch, BatchLayout, DType, DatasetSource, ErrorKind, Field, Fill, FillContext,
    PipelineBuilder, SampleId, SampleRng, SlotMut,
};
use spdl_media::augment::functional::{self, Affine};
use spdl_media::augment::{
    AugMix, Augment, Augmenter, AutoAugment, ColorJitter, CutMix, ErasingValue, GaussianBlur,
    ImageMut, Interpolation, Mix, Mixup, Operation, PolicyStep, RandAugment, RandomAdjustSharpness,
    RandomAffine, RandomApply, RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing,
    RandomGrayscale, RandomInvert, RandomOrder, RandomPerspective, RandomPosterize, RandomRotation,
    RandomSolarize, Scratch, TimmAugMix, TimmRandAugment, TrivialAugmentWide,
};
use spdl_media::{Image, Rect, Size};

use crate::files;

/// A line of `augment.tsv`.
struct Expectation {
    what: String,
    numbers: Vec<f64>,
    image: String,
    result: String,
    /// Empty if only a checksum is stored.
    pixels: Vec<u8>,
}

/// The images by name, and all expectations.
struct Golden {
    images: HashMap<String, Image>,
    expectations: Vec<Expectation>,
}

fn numbers(list: &str) -> Vec<f64> {
    list.split(',').filter(|word| !word.is_empty()).map(|word| word.parse().unwrap()).collect()
}

fn golden() -> Golden {
    let folder = files::own("tests/golden");
    let table = std::fs::read_to_string(folder.join("augment.tsv")).unwrap();
    let packed = std::fs::read(folder.join("augment.bin")).unwrap();
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut content).unwrap();
    let mut rest = &content[..];
    let mut golden = Golden { images: HashMap::new(), expectations: Vec::new() };
    for line in table.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let (pixels, after) = rest.split_at(fields[4].parse().unwrap());
        rest = after;
        let numbers = numbers(fields[1]);
        if fields[0] == "image" {
            let size = Size::new(numbers[0] as u32, numbers[1] as u32);
            golden.images.insert(fields[2].into(), Image { size, pixels: pixels.into() });
            continue;
        }
        golden.expectations.push(Expectation {
            what: fields[0].into(),
            numbers,
            image: fields[2].into(),
            result: fields[3].into(),
            pixels: pixels.into(),
        });
    }
    assert!(rest.is_empty(), "augment.bin is longer than augment.tsv specifies");
    // A grid of colours: computed, not stored.
    let levels: Vec<u8> = (0..=255).step_by(15).chain([1, 127, 254]).collect();
    let each = |f: &mut dyn FnMut(u8)| levels.iter().for_each(|&level| f(level));
    let mut pixels = Vec::new();
    each(&mut |r| each(&mut |g| each(&mut |b| pixels.extend([r, g, b]))));
    let side = levels.len() as u32;
    golden.images.insert("colors".into(), Image { size: Size::new(side, side * side), pixels });
    golden
}

fn checksum(bytes: &[u8]) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum().to_string()
}

fn interpolation(number: f64) -> Interpolation {
    if number == 0.0 { Interpolation::Nearest } else { Interpolation::Bilinear }
}

fn fill(numbers: &[f64]) -> Option<[u8; 3]> {
    (!numbers[0].is_nan()).then(|| [numbers[0] as u8, numbers[1] as u8, numbers[2] as u8])
}

fn center(numbers: &[f64]) -> Option<[f64; 2]> {
    (!numbers[0].is_nan()).then(|| [numbers[0], numbers[1]])
}

/// Runs the function of an expectation; `false` if it is not a function of an image.
fn act(what: &str, n: &[f64], image: &mut ImageMut<'_>, scratch: &mut Scratch) -> bool {
    let result = match (what, n) {
        ("brightness", &[factor]) => functional::adjust_brightness(image, factor),
        ("contrast", &[factor]) => functional::adjust_contrast(image, factor),
        ("saturation", &[factor]) => functional::adjust_saturation(image, factor),
        ("sharpness", &[factor]) => functional::adjust_sharpness(image, factor, scratch),
        ("hue", &[turn]) => functional::adjust_hue(image, turn),
        ("grayscale", []) => {
            functional::grayscale(image);
            Ok(())
        }
        ("invert", []) => {
            functional::invert(image);
            Ok(())
        }
        ("autocontrast", []) => {
            functional::autocontrast(image);
            Ok(())
        }
        ("equalize", []) => {
            functional::equalize(image);
            Ok(())
        }
        ("posterize", &[bits]) => functional::posterize(image, bits as u32),
        ("solarize", &[threshold]) => functional::solarize(image, threshold),
        ("blur", &[width, height, across, down]) => functional::gaussian_blur(
            image,
            [width as usize, height as usize],
            [across, down],
            scratch,
        ),
        ("affine", &[angle, x, y, scale, shear_x, shear_y, mode, ..]) => {
            let affine = Affine {
                angle,
                translate: [x, y],
                scale,
                shear: [shear_x, shear_y],
                center: center(&n[10..]),
            };
            functional::affine(image, &affine, interpolation(mode), fill(&n[7..]), scratch)
        }
        ("rotate", &[angle, mode, ..]) => {
            let (fill, center) = (fill(&n[2..]), center(&n[5..]));
            functional::rotate(image, angle, interpolation(mode), center, fill, scratch)
        }
        ("perspective", numbers) => {
            let coefficients = numbers.first_chunk::<8>().unwrap();
            let (mode, fill) = (interpolation(numbers[8]), fill(&numbers[9..]));
            functional::perspective(image, coefficients, mode, fill, scratch)
        }
        _ => return false,
    };
    result.unwrap();
    true
}

/// Calls `act` with each expectation and a copy of its image, and compares the results.
fn compare(largest: impl Fn(&str) -> u8, mut act: impl FnMut(&Expectation, &mut Image) -> bool) {
    let golden = golden();
    let mut compared = 0;
    let mut faults = Vec::new();
    for expected in &golden.expectations {
        let Some(mut image) = golden.images.get(&expected.image).cloned() else { continue };
        if !act(expected, &mut image) {
            continue;
        }
        compared += 1;
        let Expectation { what, numbers, image: name, result, pixels } = expected;
        let largest = largest(what);
        let fits = if largest == 0 || pixels.is_empty() {
            checksum(&image.pixels) == *result || largest > 0
        } else {
            let differences = image.pixels.iter().zip(pixels).map(|(a, b)| a.abs_diff(*b));
            let count = differences.clone().filter(|&it| it > 0).count();
            differences.max() <= Some(largest) && count * 1000 < pixels.len()
        };
        if !fits {
            faults.push(format!("{what} {numbers:?} of {name}"));
        }
    }
    assert!(compared > 0);
    assert!(faults.is_empty(), "{} of {compared}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn functions_equal_torchvision() {
    let mut scratch = Scratch::new();
    // torchvision adds in another order.
    let largest = |what: &str| u8::from(what == "blur");
    let mut seen = std::collections::BTreeSet::new();
    compare(largest, |expected, image| {
        let mut view = ImageMut::of(image).unwrap();
        let known = act(&expected.what, &expected.numbers, &mut view, &mut scratch);
        if known {
            seen.insert(expected.what.clone());
        }
        known
    });
    assert_eq!(seen.len(), 15, "{seen:?}");
}

const OPERATIONS: [Operation; 15] = [
    Operation::Identity,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
    Operation::Rotate,
    Operation::Brightness,
    Operation::Color,
    Operation::Contrast,
    Operation::Sharpness,
    Operation::Posterize,
    Operation::Solarize,
    Operation::AutoContrast,
    Operation::Equalize,
    Operation::Invert,
];

fn operation(name: &str) -> Operation {
    *OPERATIONS.iter().find(|operation| format!("{operation:?}") == name).unwrap()
}

#[test]
fn policy_operations_equal_torchvision() {
    let golden = golden();
    let mut scratch = Scratch::new();
    let mut compared = 0;
    for expected in &golden.expectations {
        let Some(rest) = expected.what.strip_prefix("operation ") else { continue };
        let (policy, name) = rest.split_once(' ').unwrap();
        let mode = match policy {
            "AugMix" => Interpolation::Bilinear,
            _ => Interpolation::Nearest,
        };
        for (&magnitude, result) in expected.numbers.iter().zip(expected.result.split(',')) {
            let mut image = golden.images[&expected.image].clone();
            let mut view = ImageMut::of(&mut image).unwrap();
            operation(name).apply(&mut view, magnitude, mode, None, &mut scratch).unwrap();
            assert_eq!(checksum(&image.pixels), result, "{rest} {magnitude}");
            compared += 1;
        }
    }
    assert_eq!(compared, 1651);
}

#[test]
fn magnitudes_equal_torchvision() {
    let mut compared = 0;
    for expected in &golden().expectations {
        if expected.what != "magnitudes" {
            continue;
        }
        let [width, height, bins, signed] = expected.numbers[..] else { panic!() };
        let size = Size::new(width as u32, height as u32);
        let (policy, name) = expected.image.split_once(' ').unwrap();
        let operation = operation(name);
        assert_eq!(operation.is_signed(), signed == 1.0, "{name}");
        let bins = bins as usize;
        let magnitude = |bin: usize| match policy {
            "RandAugment" => RandAugment::new().magnitudes(bins).magnitude_of(operation, bin, size),
            "TrivialAugmentWide" => {
                TrivialAugmentWide::new().magnitudes(bins).magnitude_of(operation, bin, size)
            }
            "AutoAugment" => AutoAugment::new().magnitude_of(operation, bin, size),
            _ => AugMix::new().magnitude_of(operation, bin, size),
        };
        let values = numbers(&expected.result);
        if values.is_empty() {
            assert_eq!(magnitude(0), None, "{policy} {name}");
        }
        for (bin, value) in values.into_iter().enumerate() {
            let found = magnitude(bin).unwrap();
            // The last bit of torch depends on the vector width.
            assert!(
                (found - value).abs() <= value * 2e-7,
                "{policy} {name} {bin}: {found} {value}"
            );
            compared += 1;
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn auto_augment_policies_equal_torchvision() {
    let golden = golden();
    let expected = golden.expectations.iter().filter(|expected| expected.what == "policy");
    let augment = AutoAugment::new();
    let mut found = augment.list().iter();
    for expected in expected {
        let [_, first, first_bin, second, second_bin] = expected.numbers[..] else { panic!() };
        let (a, b) = expected.image.split_once(' ').unwrap();
        let steps = [(a, first, first_bin), (b, second, second_bin)];
        for (found, (name, probability, bin)) in found.next().unwrap().iter().zip(steps) {
            assert_eq!((found.operation, found.probability), (operation(name), probability));
            assert_eq!(found.magnitude, bin.max(0.0) as usize);
        }
    }
    assert!(found.next().is_none());
}

#[test]
fn augmix_blending_equals_torchvision() {
    let mut scratch = Scratch::new();
    compare(
        |_| 0,
        |expected, image| {
            if expected.what != "augmix" {
                return false;
            }
            let numbers: Vec<f32> = expected.numbers.iter().map(|&it| it as f32).collect();
            let chains =
                [(Operation::Rotate, 12.5), (Operation::Posterize, 3.0), (Operation::Color, -0.4)];
            let mut view = ImageMut::of(image).unwrap();
            let shares = [numbers[0], numbers[1]];
            AugMix::mix(&mut view, shares, &numbers[2..], &mut scratch, |at, image, scratch| {
                let (operation, magnitude) = chains[at];
                // torchvision's magnitude has single precision.
                let magnitude = f64::from(magnitude as f32);
                operation.apply(image, magnitude, Interpolation::Bilinear, None, scratch)
            })
            .unwrap();
            true
        },
    );
}

#[test]
fn perspective_coefficients_equal_torchvision() {
    let mut compared = 0;
    for expected in &golden().expectations {
        if expected.what != "coefficients" {
            continue;
        }
        let [right, bottom] = [expected.numbers[0] - 1.0, expected.numbers[1] - 1.0];
        let start = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]];
        let corners = expected.numbers[2..].as_chunks::<2>().0;
        let end = *corners.first_chunk::<4>().unwrap();
        let found = functional::perspective_coefficients(&start, &end).unwrap();
        for (found, value) in found.iter().zip(numbers(&expected.result)) {
            // Both round to single precision, at different steps.
            assert!((found - value).abs() <= value.abs() * 1e-6 + 1e-9, "{found} {value}");
        }
        compared += 1;
    }
    assert_eq!(compared, 12);
    let corners = [[0.0, 0.0], [9.0, 0.0], [9.0, 9.0], [0.0, 9.0]];
    let on_a_line = [[0.0, 0.0], [3.0, 3.0], [6.0, 6.0], [9.0, 9.0]];
    assert!(functional::perspective_coefficients(&corners, &on_a_line).is_err());
}

#[test]
fn cutmix_rectangles_equal_torchvision() {
    let mut compared = 0;
    for expected in &golden().expectations {
        if expected.what != "cut" {
            continue;
        }
        let [width, height, own, x, y] = expected.numbers[..] else { panic!() };
        let size = Size::new(width as u32, height as u32);
        let rect = CutMix::cut_box(own, (x as u32, y as u32), size);
        let values = numbers(&expected.result);
        let corners = [rect.left, rect.top, rect.left + rect.width, rect.top + rect.height];
        assert_eq!(corners.map(f64::from), values[..4]);
        assert_eq!(1.0 - rect.size().pixels() as f64 / size.pixels() as f64, values[4]);
        compared += 1;
    }
    assert_eq!(compared, 36);
}

fn array<T: Element + Copy>(shape: &[usize], values: &[T]) -> Array {
    let buffer = BufferPool::new().take(size_of_val(values)).unwrap();
    let mut array = Array::new(T::DTYPE, shape.to_vec(), buffer).unwrap();
    array.as_mut_slice::<T>().unwrap().copy_from_slice(values);
    array
}

fn batch(images: Array, labels: Array) -> Batch {
    let ids = (0..images.shape()[0] as u64).map(|index| SampleId { epoch: 0, index }).collect();
    Batch::new(ids, [("images", images), ("labels", labels)]).unwrap()
}

/// The square image, flipped vertically, and flipped horizontally, as in torchvision's example.
fn three_images(golden: &Golden) -> (usize, Vec<u8>) {
    let Image { size, pixels } = &golden.images["square"];
    let side = size.width as usize;
    let at = |y: usize, x: usize| pixels[(y * side + x) * 3..][..3].to_vec();
    let all = |f: &dyn Fn(usize, usize) -> Vec<u8>| -> Vec<u8> {
        (0..side * side).flat_map(|index| f(index / side, index % side)).collect()
    };
    let upside_down = all(&|y, x| at(side - 1 - y, x));
    let mirrored = all(&|y, x| at(y, side - 1 - x));
    (side, [pixels.clone(), upside_down, mirrored].concat())
}

#[test]
fn mixup_equals_torchvision() {
    let golden = golden();
    let (side, levels) = three_images(&golden);
    let image = side * side * 3;
    let planes: Vec<f32> = (0..3 * image)
        .map(|at| {
            let (number, channel, pixel) =
                (at / image, at % image / (side * side), at % (side * side));
            f32::from(levels[number * image + pixel * 3 + channel]) / 64.0 - 1.5
        })
        .collect();
    let find = |what: &str, own: f64| {
        let wanted = |it: &&Expectation| it.what == what && it.numbers == [own];
        golden.expectations.iter().find(wanted).unwrap()
    };
    for own in [0.0, 0.3, 0.77, 1.0] {
        let mut mixup = Mixup::new(5, 1.0).unwrap();
        let images = array(&[3, 3, side, side], &planes);
        let mixed = mixup.mix(batch(images, array(&[3], &[3_i64, 0, 3])), own).unwrap();
        let found = mixed.array("images").unwrap();
        assert_eq!(checksum(found.as_bytes()), find("mixup", own).result, "{own}");
        let labels = mixed.array("labels").unwrap();
        assert_eq!(labels.shape(), [3, 5]);
        let parts: Vec<f64> =
            labels.as_slice::<f32>().unwrap().iter().map(|&it| it.into()).collect();
        assert_eq!(parts, numbers(&find("soft", own).result));

        // Bytes are the rounded values.
        let images = array(&[3, side, side, 3], &levels);
        let mixed = mixup.mix(batch(images, array(&[3], &[3_i64, 0, 3])), own).unwrap();
        let found = mixed.array("images").unwrap().as_slice::<u8>().unwrap();
        for (at, found) in found.iter().enumerate() {
            let before = f64::from(levels[(at + 2 * image) % (3 * image)]);
            let exact = before * (1.0 - own) + f64::from(levels[at]) * own;
            assert!((f64::from(*found) - exact).abs() <= 0.5001, "{at}: {found} {exact}");
        }
    }
}

#[test]
fn cutmix_copies_a_rectangle_of_the_previous_sample() {
    let golden = golden();
    let (side, levels) = three_images(&golden);
    let rect = Rect { left: 5, top: 30, width: 20, height: 2 };
    let inside = |y: usize, x: usize| (30..32).contains(&y) && (5..25).contains(&x);
    let values: Vec<f32> = levels.iter().map(|&level| level.into()).collect();
    let mut cutmix = CutMix::new(2, 1.0).unwrap();
    let labels = || array(&[3], &[0_i64, 1, 1]);
    let interleaved =
        cutmix.mix(batch(array(&[3, side, side, 3], &levels), labels()), rect).unwrap();
    let planar = cutmix.mix(batch(array(&[3, 3, side, side], &values), labels()), rect).unwrap();
    let found = interleaved.array("images").unwrap().as_slice::<u8>().unwrap();
    let found_planar = planar.array("images").unwrap().as_slice::<f32>().unwrap();
    let image = side * side * 3;
    for number in 0..3 {
        for at in 0..image {
            let source =
                |inside: bool| (if inside { (number + 2) % 3 } else { number }) * image + at;
            let here = number * image + at;
            assert_eq!(found[here], levels[source(inside(at / 3 / side, at / 3 % side))]);
            assert_eq!(found_planar[here], values[source(inside(at / side % side, at % side))]);
        }
    }
    let part = 40.0 / 1024.0;
    let expected = [1.0 - part, part, part, 1.0 - part, 0.0, 1.0];
    assert_eq!(planar.array("labels").unwrap().as_slice::<f32>().unwrap(), expected);
    // If either dimension may be the channels, floats are planar and bytes are interleaved.
    let last_column = Rect { left: 3, top: 0, width: 1, height: 1 };
    let two = || array(&[2], &[0_i64, 1]);
    let bytes = batch(array(&[2, 3, 4, 3], &[0_u8; 72]), two());
    assert!(cutmix.mix(bytes, last_column).is_ok());
    let floats = batch(array(&[2, 3, 4, 3], &[0.0_f32; 72]), two());
    assert!(cutmix.mix(floats, last_column).is_err());
    // A second mix accepts the soft labels of the first.
    let again = cutmix.mix(planar, Rect { left: 0, top: 0, width: 16, height: 32 }).unwrap();
    let expected = [
        [(1.0 - part) * 0.5, part * 0.5 + 0.5],
        [part * 0.5 + (1.0 - part) * 0.5, (1.0 - part) * 0.5 + part * 0.5],
        [part * 0.5, 0.5 + (1.0 - part) * 0.5],
    ];
    let found = again.array("labels").unwrap().as_slice::<f32>().unwrap();
    assert_eq!(found, expected.as_flattened());
}

#[test]
fn mixup_supports_f16_and_bf16() {
    fn check<T: Element + Copy + Into<f64>>(from: fn(f32) -> T, precision: f64) {
        // More values than one block of the blend.
        let values: Vec<T> =
            (0..3 * 1500).map(|at| from((at * 7919 % 4001) as f32 / 999.0 - 2.0)).collect();
        let images = array(&[3, 3, 500], &values);
        let labels = array(&[3], &[0_i64, 1, 0]);
        let mixed = Mixup::new(2, 1.0).unwrap().mix(batch(images, labels), 0.3).unwrap();
        let found = mixed.array("images").unwrap().as_slice::<T>().unwrap();
        for (at, found) in found.iter().enumerate() {
            let before: f64 = values[(at + 3000) % 4500].into();
            let exact = before * 0.7 + values[at].into() * 0.3;
            let found: f64 = (*found).into();
            assert!((found - exact).abs() <= exact.abs() * precision + 1e-6, "{found} {exact}");
        }
    }
    // Half a unit in the last place, for 11 and 8 bits of precision.
    check(half::f16::from_f32, 0.5 / 1023.0);
    check(half::bf16::from_f32, 0.5 / 127.0);
}

#[test]
fn cutmix_supports_images_with_one_channel() {
    for shape in [[2, 1, 4, 6], [2, 4, 6, 1]] {
        let levels: Vec<u8> = (0..48).collect();
        let rect = Rect { left: 1, top: 2, width: 3, height: 2 };
        let labels = array(&[2], &[0_i64, 1]);
        let mixed = CutMix::new(2, 1.0).unwrap().mix(batch(array(&shape, &levels), labels), rect);
        let mixed = mixed.unwrap();
        let found = mixed.array("images").unwrap().as_slice::<u8>().unwrap();
        for (at, &found) in found.iter().enumerate() {
            let (y, x) = (at / 6 % 4, at % 6);
            let inside = (2..4).contains(&y) && (1..4).contains(&x);
            assert_eq!(usize::from(found), if inside { (at + 24) % 48 } else { at }, "{shape:?}");
        }
        assert_eq!(
            mixed.array("labels").unwrap().as_slice::<f32>().unwrap(),
            [0.75, 0.25, 0.25, 0.75]
        );
    }
}

/// Erases a batch of sixes. Returns the erased positions (image, row, column) with their values.
fn erased<T: Element + Copy + Into<f64>>(
    erasing: &RandomErasing,
    shape: [usize; 4],
    six: T,
) -> (Vec<usize>, Vec<Vec<f64>>) {
    let images = array(&shape, &vec![six; shape.iter().product()]);
    let labels = array(&[shape[0]], &vec![0_i64; shape[0]]);
    let result = erasing.erase_batch(batch(images, labels), &mut rng(3)).unwrap();
    let values = result.array("images").unwrap().as_slice::<T>().unwrap();
    let (channels, planar) = if shape[3] <= 3 { (shape[3], false) } else { (shape[1], true) };
    let pixels = values.len() / shape[0] / channels;
    let (mut places, mut found) = (Vec::new(), vec![Vec::new(); channels]);
    for image in 0..shape[0] {
        for pixel in 0..pixels {
            let value = |channel: usize| -> f64 {
                let at = if planar { channel * pixels + pixel } else { pixel * channels + channel };
                values[image * pixels * channels + at].into()
            };
            if (0..channels).any(|channel| value(channel) != 6.0) {
                places.push(image * pixels + pixel);
                found.iter_mut().enumerate().for_each(|(channel, it)| it.push(value(channel)));
            }
        }
    }
    (places, found)
}

#[test]
fn random_erasing_supports_every_batch_layout() {
    let constant =
        RandomErasing::new().probability(0.7).value(ErasingValue::Constant([1.0, 2.0, 3.0]));
    let (planar, interleaved) = ([8, 3, 20, 30], [8, 20, 30, 3]);
    let expected = erased(&constant, planar, 6.0_f32);
    // Most images have a rectangle.
    let images: std::collections::HashSet<usize> = expected.0.iter().map(|at| at / 600).collect();
    assert!((3..8).contains(&images.len()), "{images:?}");
    for (channel, values) in expected.1.iter().enumerate() {
        assert!(values.iter().all(|&value| value == channel as f64 + 1.0));
    }
    assert_eq!(erased(&constant, interleaved, 6.0_f32), expected);
    assert_eq!(erased(&constant, planar, half::f16::from_f32(6.0)), expected);
    assert_eq!(erased(&constant, planar, half::bf16::from_f32(6.0)), expected);
    assert_eq!(erased(&constant, interleaved, 6_u8), expected);
    assert_eq!(erased(&constant, [8, 20, 30, 1], 6.0_f32).0, expected.0);
    assert_eq!(erased(&constant, [8, 1, 20, 30], 6.0_f32).0, expected.0);
    // The rectangle equals that of a single image.
    let mut planes = vec![6.0; 3 * 600];
    constant.erase_planes(&mut planes, Size::new(30, 20), &mut rng(3)).unwrap();
    let alone: Vec<usize> = (0..600).filter(|&at| planes[at] != 6.0).collect();
    let first: Vec<usize> = expected.0.iter().copied().filter(|&at| at < 600).collect();
    assert_eq!(alone, first);

    let random = RandomErasing::new().probability(1.0).value(ErasingValue::Random);
    let numbers = erased(&random, planar, 6.0_f32).1.concat();
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    let square = numbers.iter().map(|it| it * it).sum::<f64>() / numbers.len() as f64;
    assert!(mean.abs() < 0.15 && (square - 1.0).abs() < 0.2, "{mean} {square}");
    let levels = erased(&random, interleaved, 6_u8).1.concat();
    let mean = levels.iter().sum::<f64>() / levels.len() as f64;
    assert!((mean - 127.5).abs() < 12.0, "{mean}");
}

#[test]
fn mix_chooses_mixup_or_cutmix_for_each_batch_and_makes_all_labels_soft() {
    let images = || array(&[2, 4, 4, 3], &[[10_u8; 48], [200; 48]].concat());
    let of = |mix: &Mix, index: u64| {
        let ids = vec![SampleId::default(); 2];
        let fields = [("photo", images()), ("class", array(&[2], &[0_i64, 1]))];
        let mixed = Batch::new(ids, fields)
            .and_then(|batch| mix.clone().fields("photo", "class").apply(batch, &mut rng(index)));
        let mixed = mixed.unwrap();
        let levels = mixed.array("photo").unwrap().as_slice::<u8>().unwrap()[..48].to_vec();
        (levels, mixed.array("class").unwrap().as_slice::<f32>().unwrap().to_vec())
    };
    // How many batches are unchanged, blended, and cut.
    let kinds = |mix: &Mix| {
        let mut counts = [0; 3];
        for index in 0..400 {
            let (levels, labels) = of(mix, index);
            assert_eq!(labels.len(), 4);
            assert!((labels.iter().sum::<f32>() - 2.0).abs() < 1e-5);
            let is_uniform = levels.iter().all(|level| *level == levels[0]);
            let kind = match levels[0] {
                _ if labels[0] == 1.0 => 0,
                11..200 if is_uniform => 1,
                _ => 2,
            };
            counts[kind] += 1;
        }
        counts
    };
    let mix = Mix::new(2).unwrap();
    assert_eq!(kinds(&mix), [400, 0, 0]);
    let both = mix.clone().mixup(1.0).unwrap().cutmix(1.0).unwrap();
    let [_, blended, cut] = kinds(&both);
    assert!(blended > 150 && cut > 120, "{blended} {cut}");
    let cut_only = both.clone().cutmix_probability(1.0).unwrap();
    assert_eq!(kinds(&cut_only)[1], 0);
    let rarely = both.clone().probability(0.25).unwrap();
    assert!((260..360).contains(&kinds(&rarely)[0]), "{:?}", kinds(&rarely));
    let (_, labels) = of(&mix.clone().smoothing(0.1).unwrap(), 0);
    assert_eq!(labels, [0.95, 0.05, 0.05, 0.95]);
    for invalid in [mix.clone().probability(1.5), mix.clone().smoothing(-0.1), mix.mixup(0.0)] {
        assert_eq!(invalid.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let text: Vec<String> =
        both.parameters().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(text, ["augmentation: Mix", "classes: 2", "cutmix: 1", "mixup: 1"]);
}

#[test]
fn batches_with_invalid_fields_are_errors() {
    let images = || array(&[2, 4, 4, 3], &[0_u8; 96]);
    let labels = || array(&[2], &[0_i64, 1]);
    let assert_invalid = |batch: Batch| {
        let mixed = Mixup::new(2, 1.0).unwrap().mix(batch, 0.5);
        assert_eq!(mixed.unwrap_err().kind(), ErrorKind::InvalidArgument);
    };
    assert_invalid(batch(images(), array(&[2], &[0_i64, 2])));
    assert_invalid(batch(images(), array(&[2], &[0_i64, -1])));
    assert_invalid(batch(images(), array(&[2, 3], &[0.0_f32; 6])));
    assert_invalid(batch(images(), array(&[2, 1], &[0_i64; 2])));
    assert_invalid(batch(array(&[2, 4], &[0_i64; 8]), labels()));
    let ids = vec![SampleId::default(); 2];
    assert_invalid(Batch::new(ids.clone(), [("labels", labels())]).unwrap());
    assert_invalid(Batch::new(ids, [("images", images())]).unwrap());
    assert!(Mixup::new(0, 1.0).is_err() && Mixup::new(2, 0.0).is_err());
    assert!(CutMix::new(0, 1.0).is_err() && CutMix::new(2, f64::NAN).is_err());
    let mut cutmix = CutMix::new(2, 1.0).unwrap();
    let rect = Rect { left: 3, top: 0, width: 2, height: 1 };
    assert!(cutmix.mix(batch(images(), labels()), rect).is_err());
    let mut random = rng(0);
    let erase = RandomErasing::new();
    let planes = batch(array(&[2, 4, 4], &[0.0_f32; 32]), labels());
    assert!(erase.erase_batch(planes, &mut random).is_err());
    let invalid = erase.probability(2.0);
    assert!(invalid.erase_batch(batch(images(), labels()), &mut random).is_err());
    assert!(cutmix.mix(batch(array(&[2, 4, 4], &[0_u8; 32]), labels()), Rect::default()).is_err());
    // A batch of one is mixed with itself.
    let one = batch(array(&[1, 4, 4, 3], &[7_u8; 48]), array(&[1], &[1_i64]));
    let mixed = Mixup::new(2, 1.0).unwrap().mix(one, 0.3).unwrap();
    assert_eq!(mixed.array("images").unwrap().as_slice::<u8>().unwrap(), [7; 48]);
    assert_eq!(mixed.array("labels").unwrap().as_slice::<f32>().unwrap(), [0.0, 1.0]);
}

/// Writes a uniform image whose level is the item. The label is the item modulo 10.
struct Flat;

impl Fill<u8> for Flat {
    fn fill(
        &mut self,
        item: u8,
        mut slot: SlotMut<'_>,
        _cx: &mut FillContext<'_>,
    ) -> spdl_core::Result<()> {
        slot.set(0, item)?;
        slot.set(1, i64::from(item % 10))
    }
}

#[test]
fn each_batch_of_a_pipeline_is_mixed_with_separate_random_numbers() {
    type Mix = fn(PipelineBuilder<Batch>) -> PipelineBuilder<Batch>;
    let run = |mix: Mix, threads: usize, seed: u64| -> Vec<Vec<u8>> {
        let layout = BatchLayout::new(
            4,
            [Field::new("images", DType::U8, &[8, 8, 3]), Field::new("labels", DType::I64, &[])],
        );
        let items: Vec<u8> = (0..40).map(|n| n * 6).collect();
        let filled = PipelineBuilder::new(DatasetSource::new(items))
            .fill("fill", layout, || Ok(Flat))
            .seed(seed)
            .threads(threads)
            .deterministic();
        let bytes = |batch: Batch| -> Vec<u8> {
            batch.arrays().iter().flat_map(|array| array.as_bytes().to_vec()).collect()
        };
        mix(filled).build().unwrap().map(|batch| bytes(batch.unwrap())).collect()
    };
    let mixes: [Mix; 3] = [
        |filled| filled.stage("mixup", || Mixup::new(10, 0.4)),
        |filled| filled.stage("cutmix", || CutMix::new(10, 1.0)),
        |filled| filled.stage("erase", || Ok(RandomErasing::new().value(ErasingValue::Random))),
    ];
    for mix in mixes {
        let first = run(mix, 1, 3);
        assert_eq!(first.len(), 10);
        assert_eq!(first, run(mix, 3, 3));
        assert_ne!(first, run(mix, 1, 4));
    }
}

fn rng(index: u64) -> SampleRng {
    SampleRng::new(9, SampleId { epoch: 0, index }, "augment")
}

fn every_augmentation() -> Augmenter {
    Augmenter::new()
        .then(ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1))
        .then(RandomGrayscale::new())
        .then(RandomInvert::new())
        .then(RandomEqualize::new())
        .then(RandomAutocontrast::new())
        .then(RandomPosterize::new(5))
        .then(RandomSolarize::new(200.0))
        .then(RandomAdjustSharpness::new(2.0))
        .then(RandomApply::new(GaussianBlur::new(5)))
        .then(RandomRotation::new(20.0))
        .then(RandomAffine::new(10.0).translate(0.1, 0.2).shear(5.0))
        .then(RandomPerspective::new())
        .then(RandAugment::new())
        .then(TrivialAugmentWide::new())
        .then(AutoAugment::new())
        .then(AugMix::new())
        .then(RandomErasing::new().value(ErasingValue::Random))
        .then(RandomChoice::new().or(RandomInvert::new()).or(RandomPosterize::new(3)))
        .then(RandomOrder::new().and(RandomSolarize::new(99.0)).and(RandomPosterize::new(3)))
}

#[test]
fn random_numbers_depend_only_on_the_sample() {
    let golden = golden();
    let mut results = std::collections::HashSet::new();
    let augmenter = every_augmentation();
    let mut used = augmenter.clone();
    for index in 0..20 {
        // A used augmenter and a new one.
        let results_of = [&mut used, &mut augmenter.clone()].map(|augmenter| {
            let mut image = golden.images["photo"].clone();
            augmenter.apply(&mut ImageMut::of(&mut image).unwrap(), &mut rng(index)).unwrap();
            image.pixels
        });
        assert_eq!(results_of[0], results_of[1]);
        let mut small = golden.images["small"].clone();
        used.apply(&mut ImageMut::of(&mut small).unwrap(), &mut rng(index)).unwrap();
        results.insert(results_of[0].clone());
    }
    assert!(results.len() > 15);
}

/// The results on an image and their counts, over `samples` samples.
fn results(step: impl Augment, image: &Image, samples: u64) -> HashMap<Vec<u8>, u64> {
    let mut augmenter = Augmenter::new().then(step);
    let mut results = HashMap::new();
    for index in 0..samples {
        let mut image = image.clone();
        augmenter.apply(&mut ImageMut::of(&mut image).unwrap(), &mut rng(index)).unwrap();
        *results.entry(image.pixels).or_insert(0) += 1;
    }
    results
}

/// Asserts that a count is within five standard deviations of the expected count.
#[track_caller]
fn assert_likely(count: u64, probability: f64, samples: u64) {
    let samples = samples as f64;
    let deviation = (samples * probability * (1.0 - probability)).sqrt();
    let expected = samples * probability;
    assert!((count as f64 - expected).abs() <= 5.0 * deviation, "{count}, expected {expected}");
}

#[test]
fn choices_have_the_probabilities_of_their_weights() {
    const SAMPLES: u64 = 4000;
    let image = &golden().images["tiny"];
    let always = || RandomInvert::new().probability(1.0);
    let never = || RandomInvert::new().probability(0.0);
    let posterized = || RandomPosterize::new(1).probability(1.0);
    let equal = RandomChoice::new().or(always()).or(never()).or(posterized());
    let counts = results(equal, image, SAMPLES);
    assert_eq!(counts.len(), 3);
    counts.values().for_each(|count| assert_likely(*count, 1.0 / 3.0, SAMPLES));
    let weighted = RandomChoice::new()
        .or_weighted(posterized(), 0.0)
        .or_weighted(always(), 1.0)
        .or_weighted(never(), 3.0)
        .or_weighted(posterized(), 0.0);
    let counts = results(weighted, image, SAMPLES);
    assert_eq!(counts.len(), 2);
    assert_likely(counts[&image.pixels], 0.75, SAMPLES);
}

#[test]
fn every_order_is_applied() {
    const SAMPLES: u64 = 4000;
    let image = &golden().images["tiny"];
    let invert = || RandomInvert::new().probability(1.0);
    let posterize = || RandomPosterize::new(1).probability(1.0);
    let both = RandomOrder::new().and(invert()).and(posterize());
    let counts = results(both, image, SAMPLES);
    let expected = [
        Augmenter::new().then(invert()).then(posterize()),
        Augmenter::new().then(posterize()).then(invert()),
    ];
    assert_eq!(counts.len(), 2);
    for mut order in expected {
        let mut image = image.clone();
        order.apply(&mut ImageMut::of(&mut image).unwrap(), &mut rng(0)).unwrap();
        assert_likely(counts[&image.pixels], 0.5, SAMPLES);
    }
    let none = results(RandomOrder::new(), image, 1);
    assert_eq!(none[&image.pixels], 1);
}

#[test]
fn lists_move_positions_if_one_of_them_does() {
    let (invert, rotate) = (RandomInvert::new, || RandomRotation::new(9.0));
    let choice = || Augmenter::new().then(RandomChoice::new().or(invert()).or(rotate()));
    let order = || Augmenter::new().then(RandomOrder::new().and(invert()).and(rotate()));
    for list in [choice(), order()] {
        assert!(!list.keeps_positions() && list.can_be_followed());
    }
    for list in [RandomChoice::new().or(invert()), RandomChoice::new().or(invert()).or(invert())] {
        assert!(Augmenter::new().then(list).keeps_positions());
    }
    assert!(Augmenter::new().then(RandomOrder::new().and(invert())).keeps_positions());
    assert!(!choice().then(RandomChoice::new().or(AugMix::new())).can_be_followed());
    assert!(!order().then(RandomOrder::new().and(AugMix::new())).can_be_followed());
}

#[test]
fn changes_have_the_documented_probability() {
    const SAMPLES: u64 = 4000;
    let image = &golden().images["tiny"];
    #[track_caller]
    fn check(step: impl Augment, probability: f64, image: &Image) {
        let unchanged = results(step, image, SAMPLES).get(&image.pixels).copied().unwrap_or(0);
        assert_likely(unchanged, 1.0 - probability, SAMPLES);
    }
    check(RandomGrayscale::new(), 0.1, image);
    check(RandomGrayscale::new().probability(0.8), 0.8, image);
    check(RandomInvert::new(), 0.5, image);
    check(RandomEqualize::new().probability(0.0), 0.0, image);
    check(RandomAutocontrast::new(), 0.5, image);
    check(RandomPosterize::new(2), 0.5, image);
    check(RandomSolarize::new(10.0), 0.5, image);
    check(RandomApply::new(RandomInvert::new().probability(1.0)), 0.5, image);
    check(RandomApply::new(RandomInvert::new()).probability(0.5), 0.25, image);
    let square = &golden().images["square"];
    check(RandomAdjustSharpness::new(0.0), 0.5, square);
    check(RandomEqualize::new(), 0.5, square);
    check(RandomPerspective::new().distortion(1.0).probability(0.3), 0.3, square);
}

#[test]
fn jitter_factors_are_uniform_in_their_range() {
    const SAMPLES: u64 = 4000;
    let image = Image { size: Size::new(1, 1), pixels: vec![100, 100, 100] };
    let found = results(ColorJitter::new().brightness(0.4), &image, SAMPLES);
    let mut quarters = [0; 4];
    for (pixels, count) in found {
        let level = pixels[0];
        assert!((60..=140).contains(&level), "{level}");
        quarters[usize::from((level - 60) / 20).min(3)] += count;
    }
    quarters.iter().for_each(|&count| assert_likely(count, 0.25, SAMPLES));
    // The lower bound is clamped to 0.
    let found = results(ColorJitter::new().brightness(3.0), &image, SAMPLES);
    assert!(found.contains_key(&vec![255; 3]));
    let turned = Image { size: Size::new(1, 1), pixels: vec![200, 0, 0] };
    let found = results(ColorJitter::new().hue_between(0.0, 1.0 / 6.0), &turned, SAMPLES);
    assert!(found.keys().all(|pixels| pixels[0] >= 199 && pixels[2] == 0));
    let half: u64 = found.iter().filter(|(pixels, _)| pixels[1] < 100).map(|it| it.1).sum();
    assert_likely(half, 0.5, SAMPLES);
}

#[test]
fn jitter_uses_every_order_of_changes() {
    const SAMPLES: u64 = 6000;
    // Fixed factors: results differ by the order only.
    let image = Image { size: Size::new(2, 1), pixels: vec![200, 120, 30, 20, 70, 90] };
    let jitter = ColorJitter::new().brightness_between(1.7, 1.7).contrast_between(0.4, 0.4);
    let found = results(jitter, &image, SAMPLES);
    assert_eq!(found.len(), 2);
    found.values().for_each(|&count| assert_likely(count, 0.5, SAMPLES));
    let jitter = ColorJitter::new()
        .brightness_between(1.7, 1.7)
        .contrast_between(0.4, 0.4)
        .saturation_between(2.5, 2.5)
        .hue_between(0.3, 0.3);
    assert!(results(jitter, &image, SAMPLES).len() > 8);
}

#[test]
fn translations_are_whole_pixels_within_the_range() {
    const SAMPLES: u64 = 6000;
    let mut image = Image { size: Size::new(21, 11), pixels: vec![0; 21 * 11 * 3] };
    image.pixels[(5 * 21 + 10) * 3..][..3].fill(255);
    let found = results(RandomAffine::new(0.0).translate(0.1, 0.4), &image, SAMPLES);
    let mut columns = [0; 5];
    let mut rows = [0; 9];
    for (pixels, count) in found {
        let at = pixels.iter().position(|&level| level == 255).unwrap() / 3;
        columns[at % 21 - 8] += count;
        rows[at / 21 - 1] += count;
    }
    // ±2.1 pixels: the outermost shifts have 0.6 of 4.2; ±4.4: 0.9 of 8.8.
    for (at, count) in columns.into_iter().enumerate() {
        assert_likely(count, if at % 4 == 0 { 0.6 } else { 1.0 } / 4.2, SAMPLES);
    }
    for (at, count) in rows.into_iter().enumerate() {
        assert_likely(count, if at % 8 == 0 { 0.9 } else { 1.0 } / 8.8, SAMPLES);
    }
}

#[test]
fn rotations_stay_in_their_range() {
    // A bar from the centre to the right, whose angle can be measured.
    let side = 101_u32;
    let mut image =
        Image { size: Size::new(side, side), pixels: vec![0; (side * side * 3) as usize] };
    for x in 80..90 {
        image.pixels[((50 * side + x) * 3) as usize..][..3].fill(255);
    }
    let angle = |pixels: &[u8]| {
        let lit = pixels.as_chunks::<3>().0.iter().enumerate().filter(|(_, pixel)| pixel[0] == 255);
        let (sum, count) = lit.fold(((0.0, 0.0), 0.0), |((x, y), count), (at, _)| {
            let at = at as u32;
            ((x + f64::from(at % side) - 50.0, y + 50.0 - f64::from(at / side)), count + 1.0)
        });
        assert!(count > 0.0);
        sum.1.atan2(sum.0).to_degrees()
    };
    const SAMPLES: u64 = 1000;
    let mut above = 0;
    for (pixels, count) in results(RandomRotation::between(10.0, 50.0), &image, SAMPLES) {
        let angle = angle(&pixels);
        assert!((8.5..=51.5).contains(&angle), "{angle}");
        above += if angle > 30.0 { count } else { 0 };
    }
    assert_likely(above, 0.5, SAMPLES);
    // Affine transforms rotate clockwise.
    for pixels in results(RandomAffine::new(0.0).degrees_between(10.0, 50.0), &image, 50).keys() {
        assert!((-51.5..=-8.5).contains(&angle(pixels)));
    }
}

/// The result of an operation on an image.
fn operated(operation: Operation, magnitude: f64, image: &Image) -> Vec<u8> {
    let mut image = image.clone();
    let mut view = ImageMut::of(&mut image).unwrap();
    let mode = Interpolation::Nearest;
    operation.apply(&mut view, magnitude, mode, None, &mut Scratch::new()).unwrap();
    image.pixels
}

/// The probability of each result if operations and magnitudes are uniform.
fn likely_results(
    operations: &[Operation],
    bins: std::ops::Range<usize>,
    image: &Image,
    magnitude: impl Fn(Operation, usize) -> Option<f64>,
) -> HashMap<Vec<u8>, f64> {
    let mut likely = HashMap::new();
    for &operation in operations {
        for bin in bins.clone() {
            for sign in [1.0, -1.0] {
                let sign = if operation.is_signed() { sign } else { 1.0 };
                let magnitude = magnitude(operation, bin).unwrap_or(0.0) * sign;
                let share = 0.5 / (operations.len() * bins.len()) as f64;
                *likely.entry(operated(operation, magnitude, image)).or_insert(0.0) += share;
            }
        }
    }
    likely
}

#[track_caller]
fn assert_all_likely(found: &HashMap<Vec<u8>, u64>, likely: &HashMap<Vec<u8>, f64>, samples: u64) {
    assert!(found.keys().all(|pixels| likely.contains_key(pixels)), "an impossible result");
    for (pixels, &probability) in likely {
        assert_likely(found.get(pixels).copied().unwrap_or(0), probability, samples);
    }
}

#[test]
fn rand_augment_and_trivial_augment_draw_uniformly() {
    const SAMPLES: u64 = 20_000;
    let golden = golden();
    let image = &golden.images["small"];
    let operations = &OPERATIONS[..14];
    let augment = RandAugment::new().operations(1);
    let magnitude = |operation, bin| augment.magnitude_of(operation, bin, image.size);
    let likely = likely_results(operations, 9..10, image, magnitude);
    assert!(likely.len() > 20);
    assert_all_likely(&results(augment.clone(), image, SAMPLES), &likely, SAMPLES);

    let augment = TrivialAugmentWide::new().magnitudes(4);
    let magnitude = |operation, bin| augment.magnitude_of(operation, bin, image.size);
    let likely = likely_results(operations, 0..4, image, magnitude);
    assert!(likely.len() > 50);
    assert_all_likely(&results(augment.clone(), image, SAMPLES), &likely, SAMPLES);

    // Two operations in sequence.
    let twice = results(RandAugment::new(), image, 2000);
    assert!(twice.keys().filter(|pixels| !likely.contains_key(*pixels)).count() > 100);
    let never = results(RandAugment::new().operations(0), image, 10);
    assert_eq!(never.len(), 1);
}

/// The operations of timm, with the magnitudes of level 9 for an image of 40 x 20 pixels: as they
/// are, and increasing.
const TIMM: [(Operation, f64, f64); 15] = [
    (Operation::AutoContrast, 0.0, 0.0),
    (Operation::Equalize, 0.0, 0.0),
    (Operation::Invert, 0.0, 0.0),
    (Operation::Rotate, 27.0, 27.0),
    (Operation::Posterize, 3.0, 1.0),
    (Operation::Solarize, 230.0 / 255.0, 26.0 / 255.0),
    (Operation::SolarizeAdd, 99.0, 99.0),
    (Operation::Color, 0.72, 0.81),
    (Operation::Contrast, 0.72, 0.81),
    (Operation::Brightness, 0.72, 0.81),
    (Operation::Sharpness, 0.72, 0.81),
    (Operation::ShearX, 0.27, 0.27),
    (Operation::ShearY, 0.27, 0.27),
    (Operation::TranslateX, 16.2, 16.2),
    (Operation::TranslateY, 8.1, 8.1),
];

#[test]
fn magnitudes_equal_timm() {
    let magnitude = |increasing, operation, level| {
        let policy = TimmRandAugment::new().increasing(increasing);
        policy.magnitude_of(operation, level, Size::new(40, 20)).unwrap_or(0.0)
    };
    for (operation, usual, increasing) in TIMM {
        let found = [magnitude(false, operation, 9.0), magnitude(true, operation, 9.0)];
        for (found, expected) in found.into_iter().zip([usual, increasing]) {
            assert!((found - expected).abs() < 1e-12, "{operation:?}: {found}, {expected}");
        }
    }
    // The limits of magnitudes, which levels above 10 reach.
    assert_eq!(magnitude(true, Operation::Posterize, 30.0), 0.0);
    assert_eq!(magnitude(false, Operation::Posterize, 30.0), 8.0);
    assert_eq!(magnitude(true, Operation::Solarize, 30.0), 0.0);
    assert_eq!(magnitude(true, Operation::Solarize, 0.0), 256.0 / 255.0);
    assert_eq!(magnitude(false, Operation::SolarizeAdd, 30.0), 128.0);
    assert_eq!(magnitude(false, Operation::Color, 0.0), -0.9);
}

#[test]
fn timm_draws_operations_signs_and_whether_to_apply_them() {
    const SAMPLES: u64 = 20_000;
    let golden = golden();
    let image = &golden.images["small"];
    for increasing in [false, true] {
        let policy = TimmRandAugment::new().operations(1).magnitude(9.0).increasing(increasing);
        let policy = policy.interpolation(Interpolation::Nearest).fill(None);
        let mut likely = HashMap::from([(image.pixels.clone(), 0.5)]);
        for (operation, ..) in TIMM {
            let magnitude = policy.magnitude_of(operation, 9.0, image.size).unwrap_or(0.0);
            let is_factor = [0.72, 0.81].iter().any(|it| (magnitude - it).abs() < 1e-9);
            for sign in [1.0, -1.0] {
                let is_signed = operation.is_signed() && (increasing || !is_factor);
                let magnitude = magnitude * if is_signed { sign } else { 1.0 };
                *likely.entry(operated(operation, magnitude, image)).or_insert(0.0) += 0.25 / 15.0;
            }
        }
        assert!(likely.len() > 15);
        assert_all_likely(&results(policy.clone(), image, SAMPLES), &likely, SAMPLES);
        // Every operation, twice: few images remain as they are.
        let always = results(policy.operations(2).probability(1.0), image, 2000);
        assert!(always.get(&image.pixels).copied().unwrap_or(0) < 200);
    }
}

#[test]
fn timm_draws_levels() {
    const SAMPLES: u64 = 60_000;
    // Only `SolarizeAdd` and `Invert` change black pixels.
    let black = Image { size: Size::new(1, 1), pixels: vec![0; 3] };
    let levels = |policy: TimmRandAugment| -> Vec<f64> {
        let policy = policy.operations(1).probability(1.0).fill(None).increasing(true);
        let found = results(policy, &black, SAMPLES).into_iter();
        let added = found.filter(|(pixels, _)| (1..=128).contains(&pixels[0]));
        added.flat_map(|(pixels, count)| vec![f64::from(pixels[0]); count as usize]).collect()
    };
    let moments = |levels: &[f64]| {
        let count = levels.len() as f64;
        let mean = levels.iter().sum::<f64>() / count;
        (mean, (levels.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / count).sqrt())
    };
    // 4,000 ± 5 standard deviations of 61.
    let fixed = levels(TimmRandAugment::new().magnitude(9.0));
    assert!((3_695..=4_305).contains(&fixed.len()) && fixed.iter().all(|&level| level == 99.0));
    // Of 11 levels per unit: 99 ± 5.5, without fractions, and 2.3 % are clipped to 110.
    let noisy = levels(TimmRandAugment::new().magnitude(9.0).deviation(0.5));
    let (mean, deviation) = moments(&noisy);
    assert!((mean - 98.4).abs() < 0.5 && (deviation - 5.4).abs() < 0.4, "{mean} {deviation}");
    let clipped = noisy.iter().filter(|&&level| level == 110.0).count() as u64;
    assert_likely(clipped, 0.0228, noisy.len() as u64);
    assert!(noisy.iter().all(|&level| level <= 110.0));
    // Above level 10, up to the limit of this operation.
    let wide = levels(TimmRandAugment::new().magnitude(11.0).maximum(20.0));
    assert!(wide.iter().all(|&level| level == 121.0) && !wide.is_empty());
    // Uniform in 1 to 98: its mean is 49.5, and its deviation 28.3.
    let (mean, deviation) = moments(&levels(TimmRandAugment::new().magnitude(9.0).uniform()));
    assert!((mean - 49.5).abs() < 2.3 && (deviation - 28.3).abs() < 1.2, "{mean} {deviation}");
}

#[test]
fn timm_augmix_blends_operations_of_uniform_levels() {
    // The fill has the level of the image: of one chain, brightness changes it by up to 9 % per level,
    // and posterisation lowers it.
    let grey = Image { size: Size::new(4, 4), pixels: vec![100; 48] };
    let mix = || TimmAugMix::new().mixture_width(1).chain_depth(Some(1)).fill(Some([100; 3]));
    for magnitude in [0.0, 3.0, 6.0] {
        let found = results(mix().magnitude(magnitude), &grey, 20_000);
        let levels = || found.keys().map(|pixels| f64::from(pixels[0]));
        let (least, most) = (levels().fold(255.0, f64::min), levels().fold(0.0, f64::max));
        let bound = 9.0 * magnitude;
        assert!(most <= 100.0 + bound && most >= 100.0 + 0.8 * bound, "{magnitude}: {most}");
        // Truncation lowers a level by up to one; level 0 leaves 4 bits, and so 96.
        assert!(least >= (100.0 - bound).min(96.0) - 1.0, "{magnitude}: {least}");
        assert!(least <= 100.0 - 0.8 * bound, "{magnitude}: {least}");
    }
    // Two weak chains differ from two strong ones, and all settings are part of the fingerprint.
    let strong = mix().mixture_width(2).deviation(1.0).alpha(0.5);
    for other in [
        strong.clone().mixture_width(3),
        strong.clone().deviation(2.0),
        strong.clone().alpha(1.0),
        strong.clone().chain_depth(None),
        strong.clone().magnitude(9.0),
    ] {
        assert_ne!(other.fingerprint(), strong.fingerprint());
        assert_ne!(results(other, &grey, 200), results(strong.clone(), &grey, 200));
    }
}

#[test]
fn solarize_add_changes_levels_below_128() {
    let mut pixels = vec![0, 100, 127, 128, 200, 255];
    let mut image = ImageMut::new(&mut pixels, Size::new(2, 1)).unwrap();
    functional::solarize_add(&mut image, 100);
    assert_eq!(pixels, [100, 200, 227, 128, 200, 255]);
    let mut image = ImageMut::new(&mut pixels, Size::new(2, 1)).unwrap();
    functional::solarize_add(&mut image, 200);
    assert_eq!(pixels, [255, 200, 227, 128, 200, 255]);
}

#[test]
fn auto_augment_draws_policies_and_steps() {
    const SAMPLES: u64 = 10_000;
    let golden = golden();
    let image = &golden.images["small"];
    let step = |operation, probability, magnitude| PolicyStep { operation, probability, magnitude };
    let policies = [
        [step(Operation::Invert, 0.3, 0), step(Operation::Equalize, 0.0, 0)],
        [step(Operation::Posterize, 1.0, 9), step(Operation::Rotate, 1.0, 3)],
    ];
    let found = results(AutoAugment::new().policies(policies), image, SAMPLES);
    let posterized = Image { size: image.size, pixels: operated(Operation::Posterize, 4.0, image) };
    let likely = HashMap::from([
        (image.pixels.clone(), 0.35),
        (operated(Operation::Invert, 0.0, image), 0.15),
        (operated(Operation::Rotate, f64::from(10.0_f32), &posterized), 0.25),
        (operated(Operation::Rotate, -f64::from(10.0_f32), &posterized), 0.25),
    ]);
    assert_all_likely(&found, &likely, SAMPLES);
}

#[test]
fn augmix_values_are_between_those_of_its_inputs() {
    let golden = golden();
    let image = &golden.images["small"];
    // All inputs equal the image, and so does the result.
    let mut copy = image.clone();
    let mut view = ImageMut::of(&mut copy).unwrap();
    let shares = [0.5, 0.5];
    AugMix::mix(&mut view, shares, &[0.25, 0.75], &mut Scratch::new(), |_, _, _| Ok(())).unwrap();
    assert_eq!(copy, *image);
    let found = results(AugMix::new(), image, 300);
    assert!(found.len() > 290, "{}", found.len());
    // Magnitude 0 is the identity, except for posterize to 4 bits and operations without magnitude.
    let weak = AugMix::new().severity(1).chain_depth(Some(1)).all_operations(false);
    let flat = Image { size: image.size, pixels: vec![0xf0; image.pixels.len()] };
    let found = results(weak, &flat, 300);
    for pixels in found.keys() {
        // If rounded weights add up to less than 1, one level is lost.
        assert!(pixels.iter().all(|&level| level == 0xf0 || level == 0xef));
    }
}

#[test]
fn erased_rectangles_keep_area_and_aspect() {
    const SAMPLES: u64 = 10_000;
    let size = Size::new(200, 100);
    let erasing = RandomErasing::new();
    let rects: Vec<Rect> = (0..SAMPLES).filter_map(|i| erasing.draw(size, &mut rng(i))).collect();
    let mut small = 0;
    let mut tall = 0;
    for rect in &rects {
        assert!(rect.is_within(size));
        let (width, height) = (f64::from(rect.width), f64::from(rect.height));
        assert!((width + 0.5) * (height + 0.5) >= 0.02 * 20_000.0);
        assert!((width - 0.5) * (height - 0.5) <= 0.33 * 20_000.0);
        assert!((height + 0.5) / (width - 0.5) >= 0.3 && (height - 0.5) / (width + 0.5) <= 3.3);
        small += u64::from(width * height < 0.1 * 20_000.0);
        tall += u64::from(height > width);
    }
    // Nearly all rectangles fit within ten draws.
    assert_likely(rects.len() as u64, 0.5, SAMPLES);
    // Large tall rectangles do not fit and are redrawn; small ones nearly always fit.
    assert!(small as f64 / rects.len() as f64 > 8.0 / 31.0 && tall > 0);
    let corners = rects.iter().filter(|rect| rect.left == 0 || rect.top == 0).count();
    assert!(corners > 0);
    let always = RandomErasing::new().probability(1.0);
    assert_eq!((0..100).filter_map(|i| always.draw(Size::new(1, 1), &mut rng(i))).count(), 0);
}

#[test]
fn erasing_changes_only_its_rectangle() {
    let size = Size::new(40, 30);
    for value in [ErasingValue::Constant([1.0, 2.0, 3.0]), ErasingValue::Random] {
        let erasing = RandomErasing::new().probability(1.0).value(value);
        let rect = erasing.draw(size, &mut rng(1)).unwrap();
        let mut planes = vec![-9.0; 40 * 30 * 3];
        assert_eq!(erasing.erase_planes(&mut planes, size, &mut rng(1)).unwrap(), Some(rect));
        let mut image = Image { size, pixels: vec![77; 40 * 30 * 3] };
        erasing
            .apply(&mut ImageMut::of(&mut image).unwrap(), &mut rng(1), &mut Scratch::new())
            .unwrap();
        let mut same = 0;
        for at in 0..40 * 30 {
            let (x, y) = (at as u32 % 40, at as u32 / 40);
            let inside = (rect.left..rect.left + rect.width).contains(&x)
                && (rect.top..rect.top + rect.height).contains(&y);
            for channel in 0..3 {
                let (level, number) = (image.pixels[at * 3 + channel], planes[channel * 1200 + at]);
                match value {
                    _ if !inside => assert_eq!((level, number), (77, -9.0)),
                    ErasingValue::Constant(value) => {
                        assert_eq!((f32::from(level), number), (value[channel], value[channel]));
                    }
                    ErasingValue::Random => same += usize::from(level == 77 || number == -9.0),
                }
            }
        }
        assert!(same < 20, "{same}");
    }
    assert!(RandomErasing::new().erase_planes(&mut [0.0; 7], size, &mut rng(0)).is_err());
}

#[test]
fn invalid_parameters_are_errors() {
    #[track_caller]
    fn assert_invalid(step: impl Augment) {
        let mut augmenter = Augmenter::new().then(RandomInvert::new()).then(step);
        assert_eq!(augmenter.validate().unwrap_err().kind(), ErrorKind::InvalidArgument);
        // `apply` fails without an earlier `validate`, and changes nothing.
        let mut pixels = [1; 3 * 16];
        let mut image = ImageMut::new(&mut pixels, Size::new(4, 4)).unwrap();
        for index in 0..10 {
            let error = augmenter.apply(&mut image, &mut rng(index)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(pixels, [1; 48]);
    }
    assert_invalid(ColorJitter::new().brightness(-0.1));
    assert_invalid(ColorJitter::new().contrast_between(0.5, 0.2));
    assert_invalid(ColorJitter::new().saturation_between(-0.5, 0.2));
    assert_invalid(ColorJitter::new().saturation(f64::NAN));
    assert_invalid(ColorJitter::new().hue(0.6));
    assert_invalid(ColorJitter::new().hue_between(0.1, -0.1));
    assert_invalid(RandomGrayscale::new().probability(1.1));
    assert_invalid(RandomInvert::new().probability(f64::NAN));
    assert_invalid(RandomPosterize::new(9));
    assert_invalid(RandomSolarize::new(256.0));
    assert_invalid(RandomAdjustSharpness::new(-1.0));
    assert_invalid(RandomApply::new(RandomPosterize::new(9)));
    assert_invalid(RandomApply::new(RandomInvert::new()).probability(-1.0));
    assert_invalid(RandomChoice::new());
    assert_invalid(RandomChoice::new().or(RandomPosterize::new(9)));
    assert_invalid(RandomChoice::new().or_weighted(RandomInvert::new(), 0.0));
    assert_invalid(
        RandomChoice::new().or(RandomInvert::new()).or_weighted(RandomInvert::new(), -0.5),
    );
    assert_invalid(RandomOrder::new().and(RandomPosterize::new(9)));
    assert_invalid(GaussianBlur::new(4));
    assert_invalid(GaussianBlur::new(3).kernel(3, 0));
    assert_invalid(GaussianBlur::new(3).sigma_between(0.0, 1.0));
    assert_invalid(GaussianBlur::new(3).sigma_between(2.0, 1.0));
    assert_invalid(RandomRotation::new(-1.0));
    assert_invalid(RandomRotation::between(0.0, f64::INFINITY));
    assert_invalid(RandomRotation::new(1.0).center(f64::NAN, 0.0));
    assert_invalid(RandomAffine::new(0.0).translate(1.5, 0.0));
    assert_invalid(RandomAffine::new(0.0).scale_between(0.0, 1.0));
    assert_invalid(RandomAffine::new(0.0).shear_between((0.0, 0.0), (1.0, 0.0)));
    assert_invalid(RandomPerspective::new().distortion(1.5));
    assert_invalid(RandomPerspective::new().probability(2.0));
    assert_invalid(RandAugment::new().magnitude(31));
    assert_invalid(RandAugment::new().magnitudes(1).magnitude(0));
    assert_invalid(TimmRandAugment::new().probability(1.1));
    assert_invalid(TimmRandAugment::new().magnitude(f64::NAN));
    assert_invalid(TimmRandAugment::new().deviation(-0.5));
    assert_invalid(TimmRandAugment::new().maximum(101.0));
    assert_invalid(TrivialAugmentWide::new().magnitudes(0));
    assert_invalid(AutoAugment::new().policies([]));
    let step = PolicyStep { operation: Operation::Invert, probability: 1.0, magnitude: 10 };
    assert_invalid(AutoAugment::new().policies([[step; 2]]));
    assert_invalid(AugMix::new().severity(0));
    assert_invalid(AugMix::new().severity(11));
    assert_invalid(AugMix::new().mixture_width(0));
    assert_invalid(AugMix::new().chain_depth(Some(0)));
    assert_invalid(AugMix::new().alpha(0.0));
    assert_invalid(TimmAugMix::new().mixture_width(0));
    assert_invalid(TimmAugMix::new().chain_depth(Some(0)));
    assert_invalid(TimmAugMix::new().alpha(f64::NAN));
    assert_invalid(TimmAugMix::new().magnitude(101.0));
    assert_invalid(TimmAugMix::new().deviation(-1.0));
    assert_invalid(RandomErasing::new().area_between(0.0, 1.1));
    assert_invalid(RandomErasing::new().aspect_between(0.0, 1.0));
    assert_invalid(RandomErasing::new().value(ErasingValue::Constant([f32::NAN; 3])));

    let mut pixels = vec![0; 3 * 4 * 3];
    assert!(ImageMut::new(&mut pixels, Size::new(4, 4)).is_err());
    assert!(ImageMut::new(&mut [], Size::new(0, 4)).is_err());
    let mut image = ImageMut::new(&mut pixels, Size::new(3, 4)).unwrap();
    let mut scratch = Scratch::new();
    assert!(functional::adjust_brightness(&mut image, -1.0).is_err());
    assert!(functional::adjust_contrast(&mut image, f64::NAN).is_err());
    assert!(functional::adjust_saturation(&mut image, f64::INFINITY).is_err());
    assert!(functional::adjust_sharpness(&mut image, -1.0, &mut scratch).is_err());
    assert!(functional::adjust_hue(&mut image, 0.51).is_err());
    assert!(functional::posterize(&mut image, 9).is_err());
    assert!(functional::solarize(&mut image, 255.5).is_err());
    assert!(functional::solarize(&mut image, f64::NAN).is_err());
    // A kernel larger than the reflected image.
    assert!(functional::gaussian_blur(&mut image, [7, 3], [1.0; 2], &mut scratch).is_err());
    assert!(functional::gaussian_blur(&mut image, [5, 7], [1.0; 2], &mut scratch).is_ok());
    let mode = Interpolation::Nearest;
    let flat = Affine { scale: 0.0, ..Affine::default() };
    assert!(functional::affine(&mut image, &flat, mode, None, &mut scratch).is_err());
    let nan = f64::NAN;
    assert!(functional::rotate(&mut image, nan, mode, None, None, &mut scratch).is_err());
    let coefficients = [f64::INFINITY; 8];
    assert!(functional::perspective(&mut image, &coefficients, mode, None, &mut scratch).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn augmentations_accept_images_of_any_size(
        width in 1_u32..20, height in 1_u32..20, level: u8, seed: u64,
        angle in -1e4_f64..1e4, scale in 1e-9_f64..1e9, shift in -1e12_f64..1e12,
        coefficients in prop::array::uniform8(-1e6_f64..1e6),
    ) {
        let size = Size::new(width, height);
        let pixels = (0..size.pixels() * 3).map(|at| (at as u8).wrapping_mul(level)).collect();
        let mut image = Image { size, pixels };
        let mut view = ImageMut::of(&mut image).unwrap();
        let mut scratch = Scratch::new();
        let affine = Affine { angle, translate: [shift, -shift], scale, ..Affine::default() };
        for mode in [Interpolation::Nearest, Interpolation::Bilinear] {
            for fill in [None, Some([1, 2, 3])] {
                functional::affine(&mut view, &affine, mode, fill, &mut scratch).unwrap();
                functional::perspective(&mut view, &coefficients, mode, fill, &mut scratch).unwrap();
            }
        }
        let mut rng = SampleRng::new(seed, SampleId::default(), "sizes");
        let mut augmenter = every_augmentation();
        // Only the blur has a minimum size: its kernel.
        let outcome = augmenter.apply(&mut view, &mut rng);
        prop_assert!(outcome.is_ok() || width < 3 || height < 3);
    }
}
