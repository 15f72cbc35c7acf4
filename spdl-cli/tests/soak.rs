//! Epochs of whole and damaged images, sounds and videos, from files and from a web server with faults,
//! again and again: memory, threads and open files do not grow.

// promise of this file: R17
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use spdl_core::{
    BatchLayout, DType, DatasetSource, Field, Fill, FillContext, Labeled, OnError, PipelineBuilder,
    SlotMut, block_on,
};
use spdl_io::datasets::OpenedDataset;
use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{ResilientOptions, SourceOptions, StoreRegistry};
use spdl_media::audio::{AudioChannels, AudioLimits, AudioRegistry, AudioTransform};
use spdl_media::encode::{BmpEncoder, ImageEncoder, JpegEncoder, PngEncoder, WebpEncoder};
use spdl_media::fill::FillAudio;
#[cfg(feature = "ffmpeg")]
use spdl_media::fill::FillVideo;
#[cfg(feature = "ffmpeg")]
use spdl_media::video::{VideoClip, VideoLimits, VideoRegistry, VideoTransform};
use spdl_media::{
    CodecRegistry, FillImage, ImageTransform, Limits, Mode, SampleFormat, Size, image_fields,
};

/// Duration in seconds. Default: 10.
const SECONDS: &str = "SPDL_SOAK_SECONDS";
/// Runs of at least this duration check the growth of memory.
const LONG: Duration = Duration::from_secs(300);
/// Maximum growth of memory, in bytes per minute.
const MAX_GROWTH: f64 = 1e6;
/// Time between two measurements of resources.
const PAUSE: Duration = Duration::from_secs(20);
const IMAGES: u32 = 60;
const BATCH: usize = 8;

/// Resources of this process.
#[derive(Clone, Copy, Debug)]
struct Resources {
    threads: u64,
    files: u64,
    resident_bytes: f64,
}

impl Resources {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let files = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let resident_bytes = number("VmRSS:") as f64 * 1024.0;
        Resources { threads: number("Threads:"), files, resident_bytes }
    }

    /// Waits until idle threads have ended: up to 40 s, or less if there are no more threads and
    /// files than before.
    fn at_rest(before: Option<Resources>) -> Self {
        let start = Instant::now();
        loop {
            let now = Resources::now();
            let is_released = before
                .is_some_and(|before| now.threads <= before.threads && now.files <= before.files);
            let limit = if before.is_some() { 40 } else { 13 };
            if is_released || start.elapsed() > Duration::from_secs(limit) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An image of one of five formats. One in ten is damaged.
fn image(number: u32) -> Vec<u8> {
    let size = Size { width: 120 + number % 70, height: 90 + number % 50 };
    let value = |place: u32| (place * (number % 7 + 1) / 3 + place / 97 * number) as u8;
    let pixels: Vec<u8> = (0..size.width * size.height * 3).map(value).collect();
    let encoder: &dyn ImageEncoder = match number % 5 {
        0 => &JpegEncoder::new(),
        1 => &JpegEncoder::new().progressive(true),
        2 => &PngEncoder::new(),
        3 => &WebpEncoder::new(),
        _ => &BmpEncoder::new(),
    };
    let mut file = encoder.encode(&pixels, size).unwrap();
    let len = file.len();
    match (number % 10 == number / 10).then_some(number % 5) {
        None => {}
        Some(0) => file.truncate(len / 2),
        Some(1) => file[len / 2..len / 2 + 200].fill(0xa5),
        Some(2) => file.clear(),
        Some(3) => file[..20].fill(0),
        Some(_) => file = b"This is not an image.".to_vec(),
    }
    file
}

/// Writes the images as files, as tar shards (one of them truncated) and as a list.
fn write_data(folder: &Path) {
    let mut shards = [(); 3].map(|()| tar::Builder::new(Vec::new()));
    let mut list = String::new();
    for number in 0..IMAGES {
        let (name, bytes) = (format!("{number:04}.img"), image(number));
        let class = folder.join("photos").join((number % 3).to_string());
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(&name).with_extension("jpg"), &bytes).unwrap();
        list.push_str(&format!("photos/{}/{number:04}.jpg,{}\n", number % 3, number % 3));
        let shard = &mut shards[number as usize % 3];
        let mut append = |name: String, bytes: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            shard.append_data(&mut header, name, bytes).unwrap();
        };
        append(format!("{number:04}.jpg"), &bytes);
        append(format!("{number:04}.cls"), (number % 3).to_string().as_bytes());
    }
    for (number, shard) in shards.into_iter().enumerate() {
        let mut bytes = shard.into_inner().unwrap();
        if number == 2 {
            bytes.truncate(bytes.len() / 2);
        }
        fs::write(folder.join(format!("shard-{number}.tar")), bytes).unwrap();
    }
    fs::write(folder.join("list.csv"), list).unwrap();
}

/// Writes the audio and video files of the tests of `spdl-media`, half of each number damaged, and their
/// lists.
fn write_media(folder: &Path) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-media/tests");
    for (kind, extensions) in [
        ("audio", &["flac", "mp3", "ogg", "opus", "aac", "wav", "m4a"][..]),
        ("video", &["mp4", "mkv", "webm", "ts", "avi", "mov"]),
    ] {
        let mut paths: Vec<_> =
            fs::read_dir(tests.join(kind)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.retain(|path| {
            let extension = path.extension().unwrap_or_default().to_string_lossy();
            extensions.contains(&&*extension)
        });
        assert!(paths.len() > 8, "{paths:?}");
        let mut list = String::new();
        fs::create_dir_all(folder.join(kind)).unwrap();
        for (number, path) in paths.iter().enumerate() {
            let whole = fs::read(path).unwrap();
            let (len, mut damaged) = (whole.len(), whole.clone());
            match number % 3 {
                0 => damaged.truncate(len / 2),
                1 => damaged[len / 2..len * 3 / 4].fill(0xa5),
                _ => damaged[..20].fill(0),
            }
            for (state, bytes) in [("whole", whole), ("damaged", damaged)] {
                let name = path.file_name().unwrap().to_string_lossy();
                let name = format!("{kind}/{state}-{name}");
                fs::write(folder.join(&name), bytes).unwrap();
                list.push_str(&format!("{name},{}\n", number % 3));
            }
        }
        fs::write(folder.join(format!("{kind}.csv")), list).unwrap();
    }
}

/// Writes a tenth of a second of a sound.
struct FillSound(FillAudio);

impl Fill<Labeled<Bytes>> for FillSound {
    fn fill(
        &mut self,
        file: Labeled<Bytes>,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> spdl_core::Result<()> {
        self.0.write(&file.value, &mut slot, 0, || cx.rng()).map(drop)
    }
}

/// Writes a clip of a video.
#[cfg(feature = "ffmpeg")]
struct FillClip(FillVideo);

#[cfg(feature = "ffmpeg")]
impl Fill<Labeled<Bytes>> for FillClip {
    fn fill(
        &mut self,
        file: Labeled<Bytes>,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> spdl_core::Result<()> {
        self.0.write(&file.value[..], &mut slot, 0, &|part| cx.rng_of_part(part)).map(drop)
    }
}

/// Stores that retry quickly.
fn stores() -> StoreRegistry {
    let resilience = ResilientOptions::default()
        .attempts(20)
        .first_delay(Duration::from_millis(2))
        .most_delay(Duration::from_millis(20))
        .stall_timeout(Duration::from_millis(500))
        .retry_tokens(10_000.0);
    StoreRegistry::new().with_options("http:", SourceOptions::default().resilience(resilience))
}

/// Opens the data set, reads two epochs (or the first batches, if `stops`), and returns the number
/// of samples.
fn epochs(address: &str, seed: u64, stops: bool) -> usize {
    if address.ends_with("audio.csv") {
        let transform = AudioTransform::new()
            .sample_rate(16_000)
            .channels(AudioChannels::Mono)
            .frames(1600)
            .random(true);
        let layout = BatchLayout::new(BATCH, [Field::new("audio", DType::F32, &transform.shape())]);
        return samples(address, seed, stops, layout, move || {
            let (registry, limits) = (AudioRegistry::with_defaults(), AudioLimits::default());
            FillAudio::new(&registry, &transform, &limits).map(FillSound)
        });
    }
    #[cfg(feature = "ffmpeg")]
    if address.ends_with("video.csv") {
        let transform = VideoTransform::new(VideoClip::new(4), ImageTransform::new(32));
        let field = Field::new("clip", transform.dtype(), &transform.shape());
        return samples(address, seed, stops, BatchLayout::new(BATCH, [field]), move || {
            let (registry, limits) = (VideoRegistry::with_defaults(), VideoLimits::default());
            FillVideo::new(&registry, &transform, &limits, &Limits::default()).map(FillClip)
        });
    }
    let transform = ImageTransform::new(64).mode(Mode::Train).format(SampleFormat::NHWC_U8);
    let layout = BatchLayout::new(BATCH, image_fields(&transform));
    let codecs = CodecRegistry::with_defaults();
    let fill = move || FillImage::new(&codecs, &transform, &Limits::default());
    samples(address, seed, stops, layout, fill)
}

fn samples<F: Fill<Labeled<Bytes>> + 'static>(
    address: &str,
    seed: u64,
    stops: bool,
    layout: BatchLayout,
    fill: impl Fn() -> spdl_core::Result<F> + Send + Sync + 'static,
) -> usize {
    let data = block_on(OpenedDataset::open(&[address], &stores())).unwrap();
    let fetch = data.fetch_labeled();
    let pipeline = PipelineBuilder::new(DatasetSource::new(data.samples).shuffled(seed))
        .async_stage("fetch", fetch)
        .fill("decode", layout, fill)
        .on_error(OnError::SKIP)
        .epochs(0..2)
        .build()
        .unwrap();
    let batches = if stops { 3 } else { usize::MAX };
    pipeline.take(batches).map(|batch| batch.unwrap().len()).sum()
}

/// Faults that a retry survives.
const FAULTS: [Fault; 8] = [
    Fault::InternalError,
    Fault::Unavailable,
    Fault::Reset,
    Fault::ClosedInBody,
    Fault::ResetInBody,
    Fault::StalledBody,
    Fault::NoAnswer,
    Fault::TruncatedChunks,
];

/// Reads epochs of each kind of data set. Returns the numbers of samples and of faults.
fn round(folder: &Path, number: u64) -> (Vec<usize>, u64) {
    let server = FaultServer::of_folder(folder);
    server.set_faults(FaultPlan::random(number, 0.01, &FAULTS).retry_after(Duration::ZERO));
    let local = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut addresses = vec![local("photos"), local("shard-{0..2}.tar"), local("list.csv")];
    addresses.push(local("audio.csv"));
    if cfg!(feature = "ffmpeg") {
        addresses.push(local("video.csv"));
    }
    if cfg!(feature = "http") {
        addresses.push(format!("{}/list.csv", server.url()));
        addresses.push(format!("{}/audio.csv", server.url()));
        addresses.push(format!("{}/shard-{{0..2}}.tar", server.url()));
    }
    let counts = addresses.iter().zip(0..).map(|(address, place)| {
        let stops = number % 4 == 3 && place == number / 4 % addresses.len() as u64;
        if stops {
            assert!(epochs(address, number, true) > 0);
        }
        epochs(address, number, false)
    });
    (counts.collect(), server.served().faults)
}

/// The slope of the least-squares line through values, per second.
fn slope(values: &[(f64, f64)]) -> f64 {
    let count = values.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| values.iter().map(of).sum::<f64>() / count;
    let (time, height) = (mean(|value| value.0), mean(|value| value.1));
    let rise: f64 = values.iter().map(|value| (value.0 - time) * (value.1 - height)).sum();
    let spread: f64 = values.iter().map(|value| (value.0 - time).powi(2)).sum();
    rise / spread
}

#[test]
fn epochs_over_damaged_data_with_faults_leak_nothing() {
    let seconds = std::env::var(SECONDS).map_or(10, |seconds| seconds.parse().unwrap());
    let length = Duration::from_secs(seconds);
    let folder = tempfile::tempdir().unwrap();
    write_data(folder.path());
    write_media(folder.path());
    let start = Instant::now();
    // The first rounds load libraries and fill caches.
    let (expected, _) = round(folder.path(), 0);
    // Two epochs of at least 9 whole sounds or videos.
    assert!(expected.iter().all(|samples| *samples > 15), "{expected:?}");
    let _ = round(folder.path(), 3);
    let before = Resources::at_rest(None);
    println!("samples of two epochs of each data set: {expected:?}; {before:?}");
    let (mut samples, mut faults, mut rounds) = (0, 0, 1);
    let mut measured = Vec::new();
    let mut last = Instant::now();
    while start.elapsed() < length || rounds < 4 {
        let (counts, of_round) = round(folder.path(), rounds);
        assert_eq!(counts, expected, "round {rounds}");
        samples += counts.iter().sum::<usize>();
        faults += of_round;
        rounds += 1;
        if last.elapsed() >= PAUSE {
            let now = Resources::at_rest(Some(before));
            let is_released = now.threads <= before.threads && now.files <= before.files;
            assert!(is_released, "round {rounds}: {before:?} became {now:?}");
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{seconds:.0} s: {rounds} rounds, {samples} samples, {faults} faults, {now:?}"
            );
            measured.push((seconds, now.resident_bytes));
            last = Instant::now();
        }
    }
    let now = Resources::at_rest(Some(before));
    println!("{rounds} rounds, {samples} samples, {faults} faults: {before:?} became {now:?}");
    let is_released = now.threads <= before.threads && now.files <= before.files;
    assert!(is_released, "{before:?} became {now:?}");
    if length >= LONG {
        // The allocator keeps memory that the first rounds needed.
        let settled = &measured[measured.len() / 5..];
        let growth = slope(settled) * 60.0;
        println!("memory grew by {:.3} MB per minute", growth / 1e6);
        assert!(growth < MAX_GROWTH, "memory grew by {growth:.0} bytes per minute");
    }
}

#[test]
fn a_leak_has_a_slope_and_noise_has_none() {
    let noise = |place: u32| f64::from(place * 7_919 % 101) * 40e3;
    let grown = |leak: f64| {
        let values = (0..90).map(|place| {
            let second = f64::from(place) * 20.0;
            (second, 3e8 + noise(place) + leak * second / 60.0)
        });
        slope(&values.collect::<Vec<_>>()) * 60.0
    };
    assert!(grown(0.0).abs() < MAX_GROWTH / 4.0, "{}", grown(0.0));
    assert!(grown(1.5e6) > MAX_GROWTH, "{}", grown(1.5e6));
}
