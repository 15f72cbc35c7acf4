//! The demo data set: random crops of the photos in `assets/photos`, with the image and file sizes
//! of ImageNet or of cameras.
//!
//! Each image depends only on the photos, the settings and its index, not on the number of threads.
//! The steps are: choose photo and size, crop, resize, add noise, encode. The files must have
//! realistic sizes in bytes, because most of the time to decode a JPEG is entropy decoding: with
//! smaller files, measured rates would be too high.

use std::f64::consts::TAU;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use indicatif::{ProgressBar, ProgressStyle};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::tools::Workspace;

/// Version of the recipe. Must be incremented whenever a change of this module changes the images
/// of the same settings, so that old data sets are not reused.
const RECIPE_VERSION: u64 = 1;

/// Sizes of the pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Sizes of ImageNet: about 470 x 390 pixels and 100 KB.
    Imagenet,
    /// Sizes of cameras and phones: 2 to 12 megapixels.
    Photographs,
}

/// Settings that determine a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) shape: Shape,
    pub(crate) images: u32,
    pub(crate) classes: u32,
    pub(crate) seed: u64,
}

/// One encoded picture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) bytes: Vec<u8>,
    pub(crate) width: u16,
    pub(crate) height: u16,
}

/// Creates or reuses the data set below `parent`, prints whether it was reused, and returns its
/// folder.
pub(crate) fn prepare(photos: &Path, parent: &Path, settings: Settings) -> Result<PathBuf> {
    let (folder, is_new) = find_or_make(photos, parent, settings)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    println!("data set {name}: {}", if is_new { "created" } else { "reused" });
    Ok(folder)
}

/// The number of images of [`for_benchmarks`].
pub(crate) const BENCHMARK_IMAGES: u32 = 2000;

/// The data set of most benchmarks: images in 50 classes, as large as those of ImageNet.
pub(crate) fn for_benchmarks(workspace: &Workspace) -> Result<PathBuf> {
    let settings =
        Settings { shape: Shape::Imagenet, images: BENCHMARK_IMAGES, classes: 50, seed: 0 };
    prepare(&workspace.root.join("assets/photos"), &workspace.target.join("demo"), settings)
}

/// The folder of the data set below `parent`, and whether this call created it.
pub(crate) fn find_or_make(
    photos: &Path,
    parent: &Path,
    settings: Settings,
) -> Result<(PathBuf, bool)> {
    ensure!(settings.images > 0, "--images must be at least 1");
    ensure!(
        (1..=settings.images).contains(&settings.classes),
        "--classes must be between 1 and the number of images ({}), found {}",
        settings.images,
        settings.classes
    );
    let files = photo_files(photos)?;
    let name = format!("data-{:016x}", digest(&files, settings));
    let finished = parent.join(&name);
    if finished.is_dir() {
        return Ok((finished, false));
    }

    let unfinished = parent.join(format!(".{name}.unfinished"));
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)
            .with_context(|| format!("cannot remove {}", unfinished.display()))?;
    }
    let recipe = Recipe::new(&files, settings)?;
    recipe.write_all(&unfinished)?;
    fs::rename(&unfinished, &finished)
        .with_context(|| format!("cannot rename {} to {name}", unfinished.display()))?;
    Ok((finished, true))
}

/// Names and contents of the photos, sorted by name.
fn photo_files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jpg") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push((name, bytes));
        }
    }
    if files.is_empty() {
        bail!("{} contains no .jpg files", folder.display());
    }
    files.sort();
    Ok(files)
}

/// FNV-1a hash of everything that determines the bytes of the data set.
fn digest(files: &[(String, Vec<u8>)], settings: Settings) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let Settings { shape, images, classes, seed } = settings;
    for number in [RECIPE_VERSION, u64::from(images), u64::from(classes), seed] {
        add(&number.to_le_bytes());
    }
    if shape == Shape::Photographs {
        add(b"photographs");
    }
    for (name, bytes) in files {
        add(name.as_bytes());
        add(bytes);
    }
    hash
}

/// A decoded photo in RGB.
struct Photograph {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Photograph {
    fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        let pixels =
            decoder.decode().map_err(|error| anyhow::anyhow!("cannot decode {name}: {error:?}"))?;
        let (width, height) =
            decoder.dimensions().with_context(|| format!("{name} has no dimensions"))?;
        Ok(Photograph { width: u32::try_from(width)?, height: u32::try_from(height)?, pixels })
    }
}

/// The settings, photos and noise from which all images are made.
pub(crate) struct Recipe {
    settings: Settings,
    photographs: Vec<Photograph>,
    grain: Vec<i8>,
}

impl Recipe {
    fn new(files: &[(String, Vec<u8>)], settings: Settings) -> Result<Self> {
        let photographs = files
            .iter()
            .map(|(name, bytes)| Photograph::decode(name, bytes))
            .collect::<Result<Vec<_>>>()?;
        Ok(Recipe { settings, photographs, grain: grain_table(settings.seed) })
    }

    /// Writes all images below `folder`, on all cores, with a progress bar.
    fn write_all(&self, folder: &Path) -> Result<()> {
        for class in 0..self.settings.classes {
            let class_folder = folder.join(class_name(class));
            fs::create_dir_all(&class_folder)
                .with_context(|| format!("cannot create {}", class_folder.display()))?;
        }
        let progress = ProgressBar::new(u64::from(self.settings.images)).with_style(
            ProgressStyle::with_template(
                "creating the data set {bar:40} {pos}/{len} images, {eta} left",
            )?,
        );
        let next = AtomicU32::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        let mut resizer = Resizer::new();
                        loop {
                            let index = next.fetch_add(1, Ordering::Relaxed);
                            if index >= self.settings.images {
                                return Ok(());
                            }
                            let picture = self.picture(index, &mut resizer)?;
                            let path = folder.join(self.path(index));
                            fs::write(&path, picture.bytes)
                                .with_context(|| format!("cannot write {}", path.display()))?;
                            progress.inc(1);
                        }
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => bail!("a rendering thread panicked"),
            })
        })?;
        progress.finish_and_clear();
        Ok(())
    }

    /// The path of image `index`. With more than one class, consecutive images belong to different
    /// classes.
    fn path(&self, index: u32) -> PathBuf {
        PathBuf::from(class_name(index % self.settings.classes)).join(format!("{index:06}.jpg"))
    }

    /// Renders image `index`.
    pub(crate) fn picture(&self, index: u32, resizer: &mut Resizer) -> Result<Picture> {
        let mut random = Random::new(self.settings.seed, u64::from(index));
        // All images of a class show the same photo, so that a classifier can learn it.
        let class = (index % self.settings.classes) as usize;
        let photograph = &self.photographs[class % self.photographs.len()];
        let (width, height) = match self.settings.shape {
            Shape::Imagenet => random_size(&mut random),
            Shape::Photographs => random_photograph_size(&mut random),
        };

        let mut pixels = crop(photograph, width, height, &mut random, resizer)?;
        self.add_grain(&mut pixels, width, &mut random);
        let bytes = encode(pixels, width, height, &mut random)?;
        Ok(Picture { bytes, width, height })
    }

    /// Adds noise similar to the noise of a camera at high sensitivity: mostly luma, some chroma.
    fn add_grain(&self, pixels: &mut [u8], width: u16, random: &mut Random) {
        let strength = random.between(GRAIN_STRENGTH.0, GRAIN_STRENGTH.1) as i32;
        let row_bytes = 3 * usize::from(width);
        let last_start = (self.grain.len() - row_bytes) as u64;
        for row in pixels.chunks_exact_mut(row_bytes) {
            let brightness = &self.grain[random.below(last_start) as usize..];
            let colour = &self.grain[random.below(last_start) as usize..];
            for ((pixel, &brightness), colour) in
                row.chunks_exact_mut(3).zip(brightness).zip(colour.chunks_exact(3))
            {
                for (value, &colour) in pixel.iter_mut().zip(colour) {
                    let noise = (2 * i32::from(brightness) + i32::from(colour)) * strength;
                    *value = (i32::from(*value) + ((noise + 512) >> 10)).clamp(0, 255) as u8;
                }
            }
        }
    }
}

/// `class_00`, `class_01`, …
fn class_name(class: u32) -> String {
    format!("class_{class:02}")
}

/// The range of the noise strength, from which each image draws a uniform random value. The
/// standard deviation of the noise is about strength / 16 pixel levels.
const GRAIN_STRENGTH: (f64, f64) = (38.0, 82.0);

/// A table of approximately normal noise (sums of four uniform numbers), from which rows are
/// copied.
fn grain_table(seed: u64) -> Vec<i8> {
    let mut random = Random::new(seed, u64::MAX);
    (0..1 << 20)
        .map(|_| {
            let dice = random.next_u64().to_le_bytes();
            let sum: i32 = dice[..4].iter().map(|&byte| i32::from(byte) - 128).sum();
            (sum / 5).clamp(-127, 127) as i8
        })
        .collect()
}

/// A random image size as in ImageNet: the longer side is often 500 pixels, sometimes 120 to 1,200.
fn random_size(random: &mut Random) -> (u16, u16) {
    let (longer, shorter) = if random.chance(0.65) {
        let shorter = [375.0, 375.0, 375.0, 333.0, 333.0, 334.0, 400.0, 500.0];
        (500.0, shorter[random.below(shorter.len() as u64) as usize])
    } else {
        let longer = (430.0 * (0.35 * random.normal()).exp()).clamp(120.0, 1200.0);
        (longer, longer / random.between(1.0, 1.8))
    };
    let (longer, shorter) = (longer.round() as u16, shorter.round() as u16);
    if random.chance(0.24) { (shorter, longer) } else { (longer, shorter) }
}

/// A random image size of 2 to 12 megapixels: 4:3 or 3:2, in landscape or portrait orientation.
fn random_photograph_size(random: &mut Random) -> (u16, u16) {
    let pixels = random.between(2e6, 12e6);
    let aspect: f64 = if random.chance(0.5) { 4.0 / 3.0 } else { 3.0 / 2.0 };
    let longer = (pixels * aspect).sqrt().round() as u16;
    let shorter = (pixels / aspect).sqrt().round() as u16;
    if random.chance(0.3) { (shorter, longer) } else { (longer, shorter) }
}

/// A random region of the photo with the aspect ratio of `width` x `height`, resized to that size,
/// in RGB.
fn crop(
    photograph: &Photograph,
    width: u16,
    height: u16,
    random: &mut Random,
    resizer: &mut Resizer,
) -> Result<Vec<u8>> {
    let wanted = (f64::from(width), f64::from(height));
    let whole = (f64::from(photograph.width), f64::from(photograph.height));
    let largest = (whole.0 / wanted.0).min(whole.1 / wanted.1);
    let scale = random.between(largest.min(0.8), largest);
    // Rounding may make the largest region too large.
    let region = ((wanted.0 * scale).min(whole.0), (wanted.1 * scale).min(whole.1));
    let left = random.between(0.0, whole.0 - region.0);
    let top = random.between(0.0, whole.1 - region.1);

    // Resizing is compiled for one pixel type only: all types would take minutes to compile.
    let source = TypedImageRef::<U8x3>::from_buffer(
        photograph.width,
        photograph.height,
        &photograph.pixels,
    )?;
    let mut pixels = vec![0; usize::from(width) * usize::from(height) * 3];
    let mut resized =
        TypedImage::<U8x3>::from_buffer(u32::from(width), u32::from(height), &mut pixels)?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
        .crop(left, top, region.0, region.1);
    resizer.resize_typed(&source, &mut resized, &options)?;
    Ok(pixels)
}

/// Encodes an image as JPEG with random quality (94 to 97) and random chroma subsampling; 2 % of the
/// images are greyscale.
fn encode(pixels: Vec<u8>, width: u16, height: u16, random: &mut Random) -> Result<Vec<u8>> {
    let quality = 94 + random.below(4) as u8;
    let mut bytes = Vec::with_capacity(pixels.len() / 3);
    let mut encoder = Encoder::new(&mut bytes, quality);
    let share = random.unit();
    encoder.set_sampling_factor(if share < 0.82 {
        SamplingFactor::F_2_2
    } else if share < 0.96 {
        SamplingFactor::F_1_1
    } else {
        SamplingFactor::F_2_1
    });
    if random.chance(0.02) {
        encoder.encode(&brightness_of(&pixels), width, height, ColorType::Luma)?;
    } else {
        encoder.encode(&pixels, width, height, ColorType::Rgb)?;
    }
    Ok(bytes)
}

/// The luma of ITU-R BT.601, as in JPEG.
fn brightness_of(pixels: &[u8]) -> Vec<u8> {
    pixels
        .chunks_exact(3)
        .map(|rgb| {
            let weighted =
                299 * u32::from(rgb[0]) + 587 * u32::from(rgb[1]) + 114 * u32::from(rgb[2]);
            ((weighted + 500) / 1000) as u8
        })
        .collect()
}

/// SplitMix64 generator (Steele, Lea and Flood, 2014), one stream per image.
///
/// The generator of the workspace's libraries is not used, because this crate must compile even if
/// the libraries do not.
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        let mut random = Random(seed);
        let mixed = random.next_u64();
        Random(mixed ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..n`, with a bias of at most n / 2⁶⁴.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Standard normal (Box and Muller, 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(images: u32, classes: u32, seed: u64) -> Recipe {
        let photos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/photos");
        // The test uses only four photos, to be faster.
        let files: Vec<_> = photo_files(&photos).unwrap().into_iter().take(4).collect();
        Recipe::new(&files, Settings { shape: Shape::Imagenet, images, classes, seed }).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
        let (a, b, c) = (recipe(10, 2, 7), recipe(10, 2, 7), recipe(10, 2, 8));
        let mut resizer = Resizer::new();
        for index in [0, 3, 9] {
            let picture = a.picture(index, &mut resizer).unwrap();
            // A reused resizer must not change the result.
            assert_eq!(picture, b.picture(index, &mut Resizer::new()).unwrap());
            assert_ne!(picture.bytes, c.picture(index, &mut resizer).unwrap().bytes);
        }
    }

    #[test]
    fn pictures_have_the_sizes_and_bytes_of_imagenet() {
        let photos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/photos");
        let files = photo_files(&photos).unwrap();
        let recipe = Recipe::new(
            &files,
            Settings { shape: Shape::Imagenet, images: 280, classes: 14, seed: 0 },
        )
        .unwrap();
        let mut resizer = Resizer::new();
        let pictures: Vec<_> =
            (0..280).map(|index| recipe.picture(index, &mut resizer).unwrap()).collect();
        let mean = |value: &dyn Fn(&Picture) -> f64| {
            pictures.iter().map(value).sum::<f64>() / pictures.len() as f64
        };
        let width = mean(&|picture| f64::from(picture.width));
        let height = mean(&|picture| f64::from(picture.height));
        let bytes = mean(&|picture| picture.bytes.len() as f64);
        assert!((450.0..490.0).contains(&width), "mean width {width}");
        assert!((370.0..410.0).contains(&height), "mean height {height}");
        assert!((90e3..115e3).contains(&bytes), "mean bytes {bytes}");
        assert!(pictures.iter().any(|picture| picture.width < picture.height));
    }

    #[test]
    fn photographs_have_2_to_12_megapixels() {
        let mut random = Random::new(0, 0);
        let sizes: Vec<_> = (0..500).map(|_| random_photograph_size(&mut random)).collect();
        let megapixels = |&(width, height): &(u16, u16)| f64::from(width) * f64::from(height) / 1e6;
        assert!(sizes.iter().map(megapixels).all(|pixels| (1.99..12.01).contains(&pixels)));
        let mean = sizes.iter().map(megapixels).sum::<f64>() / 500.0;
        assert!((6.5..7.5).contains(&mean), "{mean}");
        assert!(sizes.iter().any(|(width, height)| width < height));
    }

    #[test]
    fn sampling_has_the_shares_of_the_recipe() {
        let mut counts = std::collections::BTreeMap::<Vec<u8>, u32>::new();
        for stream in 0..2000 {
            let bytes = encode(vec![90; 48], 4, 4, &mut Random::new(1, stream)).unwrap();
            // Start of frame: marker, length, precision, height, width, components (id, sampling, table).
            let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
            let components = usize::from(bytes[frame + 9]);
            let sampling = (0..components).map(|i| bytes[frame + 11 + 3 * i]).collect();
            *counts.entry(sampling).or_default() += 1;
        }
        let share = |sampling: &[u8]| f64::from(counts.get(sampling).copied().unwrap_or(0)) / 20.0;
        assert!((share(&[0x22, 0x11, 0x11]) - 80.4).abs() < 3.0, "{counts:?}");
        assert!((share(&[0x11, 0x11, 0x11]) - 13.7).abs() < 3.0, "{counts:?}");
        assert!((share(&[0x21, 0x11, 0x11]) - 3.9).abs() < 2.0, "{counts:?}");
        assert!((1.0..3.0).contains(&share(&[0x11])), "{counts:?}");
    }

    #[test]
    fn every_class_has_its_share_and_a_finished_set_is_reused() {
        let folder = tempfile::tempdir().unwrap();
        let photos = folder.path().join("photos");
        fs::create_dir(&photos).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/photos/chelsea.jpg");
        fs::copy(source, photos.join("cat.jpg")).unwrap();

        let settings = Settings { shape: Shape::Imagenet, images: 11, classes: 3, seed: 5 };
        let made = prepare(&photos, folder.path(), settings).unwrap();
        let count = |class: &str| fs::read_dir(made.join(class)).unwrap().count();
        assert_eq!([count("class_00"), count("class_01"), count("class_02")], [4, 4, 3]);

        let marker = made.join("marker");
        fs::write(&marker, "").unwrap();
        assert_eq!(prepare(&photos, folder.path(), settings).unwrap(), made);
        assert!(marker.exists(), "the data set was created again");
        let other = prepare(&photos, folder.path(), Settings { seed: 6, ..settings }).unwrap();
        assert_ne!(other, made);
    }

    #[test]
    fn an_unfinished_set_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let photos = folder.path().join("photos");
        fs::create_dir(&photos).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/photos/chelsea.jpg");
        fs::copy(source, photos.join("cat.jpg")).unwrap();
        let settings = Settings { shape: Shape::Imagenet, images: 2, classes: 1, seed: 5 };
        let made = prepare(&photos, folder.path(), settings).unwrap();
        let name = made.file_name().unwrap().to_str().unwrap();

        let unfinished = folder.path().join(format!(".{name}.unfinished"));
        fs::rename(&made, &unfinished).unwrap();
        fs::write(unfinished.join("class_00/broken.jpg"), "half").unwrap();
        prepare(&photos, folder.path(), settings).unwrap();
        assert_eq!(fs::read_dir(made.join("class_00")).unwrap().count(), 2);
        assert!(!unfinished.exists());
    }

    #[test]
    fn more_classes_than_images_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { shape: Shape::Imagenet, images: 3, classes: 4, seed: 0 };
        let error = prepare(folder.path(), folder.path(), settings).unwrap_err();
        assert!(error.to_string().contains("--classes"), "{error}");
    }
}
