//! g5: videos decoded on the device: correctness of the frames, and frames per second.

use std::env;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use spdl_core::{DType, ErrorKind, Result};
use spdl_cuda::kernels::{ImageKernels, ResizePlan};
use spdl_cuda::pixels::{ColorMatrix, ColorRange, ColorStandard};
use spdl_cuda::video::{ChromaFormat, VideoCodec, VideoFrame};
use spdl_cuda::{CudaDevice, NvDec};

use crate::copies::message;
use crate::images::cpu_seconds;
use crate::lines::Measurement;
use crate::raw::Driver;
use crate::videos::{Expected, available_frames, decode, expected, hash, packets};
use crate::{Outcome, join_errors};
use spdl_media::image::CropBox;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, Size};

/// The measured numbers of concurrent videos. Each video has a thread.
const STREAMS: [usize; 3] = [1, 4, 16];

/// Frames per launch of the kernels.
const BATCH: usize = 16;

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    let driver = Driver::open()?;
    let device = CudaDevice::open(0).map_err(message)?;
    let decoders = match NvDec::new(&device) {
        Ok(decoders) => decoders,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            measurement.unsupported("video", &error.report());
            return Ok(());
        }
        Err(error) => return Err(message(error)),
    };
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new(".")).join("videos");
    let Ok(table) = fs::read_to_string(folder.join("frames.tsv")) else {
        let reason = format!("no frames.tsv in {:?}", folder.display().to_string());
        measurement.unsupported("video", &reason);
        return Ok(());
    };
    note_capabilities(measurement, &decoders);
    let bench = Bench { driver, device, decoders };
    let videos = expected(&table);
    let outcomes = videos.iter().enumerate().map(|(at, video)| {
        let share = |part: f64| (at as f64 + part) / videos.len() as f64;
        let file = fs::read(folder.join(video.name));
        let file = file.map_err(|error| format!("cannot read {:?}: {error}", video.name))?;
        bench.video(measurement, video, &file, share)
    });
    let outcome = join_errors(outcomes.collect::<Vec<_>>());
    measurement.note(&format!("{:?}", bench.decoders.statistics()));
    outcome
}

/// Prints which codecs the device decodes.
fn note_capabilities(measurement: &Measurement, decoders: &NvDec) {
    for codec in VideoCodec::ALL {
        let formats =
            [(ChromaFormat::Yuv420, 8), (ChromaFormat::Yuv420, 10), (ChromaFormat::Yuv444, 8)].map(
                |(chroma, bits)| match decoders.capability(codec, chroma, bits) {
                    Ok(found) if found.supported => format!(
                        "{chroma} of {bits} bits by {} engines, up to {} x {}",
                        found.engines, found.max_size.0, found.max_size.1
                    ),
                    Ok(_) => format!("no {chroma} of {bits} bits"),
                    Err(error) => error.report(),
                },
            );
        measurement.note(&format!("{codec}: {}", formats.join("; ")));
    }
}

struct Bench {
    driver: Rc<Driver>,
    device: CudaDevice,
    decoders: NvDec,
}

impl Bench {
    /// Checks the frames of a file, then measures its rates. `share` converts a part of the time
    /// for this file, 0 to 1, to a share of the whole time.
    fn video(
        &self,
        measurement: &Measurement,
        video: &Expected<'_>,
        file: &[u8],
        share: impl Fn(f64) -> f64,
    ) -> Outcome {
        let name = video.name;
        let refused = self.decoders.statistics().unsupported_videos;
        let promise = format!("frames of {name} are bit-identical to FFmpeg's");
        match decode(&self.decoders, name, file) {
            Ok(frames) => {
                let matching = count_matching(&frames, video).map_err(message)?;
                let (found, count) = (frames.len(), video.hashes.len());
                let found = format!("{matching} of {found} frames");
                measurement.promise(&promise, matching == count, &found, &format!("{count}"));
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let counted = self.decoders.statistics().unsupported_videos - refused;
                measurement.promise(
                    &format!("G6: unsupported video {name} is counted"),
                    counted == 1,
                    &format!("counted {counted} times"),
                    "once",
                );
                measurement.unsupported(name, &error.report());
                return Ok(());
            }
            Err(error) => {
                measurement.promise(&promise, false, &error.report(), "no error");
                return Err(format!("{name}: {}", error.report()));
            }
        }
        let parts = STREAMS.len() + 1;
        let tiny = measurement.size.is_tiny();
        for (at, streams) in STREAMS.into_iter().enumerate() {
            let streams = if tiny { streams.min(2) } else { streams };
            let until = share((at + 1) as f64 / parts as f64);
            self.rate(measurement, video, file, streams, false, until)?;
            if tiny {
                break;
            }
        }
        let streams = if tiny { 1 } else { STREAMS[STREAMS.len() - 1] };
        self.rate(measurement, video, file, streams, true, share(1.0))
    }

    /// Measures the frames per second of `streams` concurrent videos.
    fn rate(
        &self,
        measurement: &Measurement,
        video: &Expected<'_>,
        file: &[u8],
        streams: usize,
        with_samples: bool,
        until: f64,
    ) -> Outcome {
        let what = if with_samples { ", to samples of 224 x 224" } else { "" };
        let case = format!("{}, {streams} concurrent{what}", video.name);
        let playback = Playback {
            device: &self.device,
            decoders: &self.decoders,
            name: video.name,
            file,
            with_samples,
            is_over: AtomicBool::new(false),
            streams_running: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            frames: AtomicUsize::new(0),
        };
        let least = Duration::from_millis(if measurement.size.is_tiny() { 10 } else { 300 });
        let (frames_before, start, cpu) = thread::scope(|scope| {
            let threads: Vec<_> = (0..streams).map(|_| scope.spawn(|| playback.run())).collect();
            let has_failed = || threads.iter().any(thread::ScopedJoinHandle::is_finished);
            let wait = || thread::sleep(Duration::from_millis(2));
            // After one round of each stream, all decoders and buffers exist.
            while playback.streams_running.load(Relaxed) < streams && !has_failed() {
                wait();
            }
            let before = (playback.frames.load(Relaxed), Instant::now(), cpu_seconds());
            while (before.1.elapsed() < least || !measurement.is_enough(until)) && !has_failed() {
                wait();
            }
            playback.is_over.store(true, Relaxed);
            join_errors(threads.into_iter().map(|thread| match thread.join() {
                Ok(played) => played.map_err(message),
                Err(_) => Err("a thread panicked".to_owned()),
            }))
            .map(|()| before)
            .map_err(|error| format!("{case}: {error}"))
        })?;
        self.driver.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let frames = playback.frames.load(Relaxed);
        measurement.figure(&case, "rate", (frames - frames_before) as f64 / seconds, "frames/s");
        if let (Some(before), Some(after)) = (cpu, cpu_seconds()) {
            measurement.figure(&case, "busy CPU cores", (after - before) / seconds, "");
        }
        let expected = playback.rounds.load(Relaxed) * video.hashes.len();
        measurement.promise(
            &format!("every frame is delivered: {case}"),
            frames == expected,
            &format!("{frames}"),
            &format!("{expected}"),
        );
        Ok(())
    }
}

/// Repeated decoding of one video by several threads, each with a separate video stream.
struct Playback<'a> {
    device: &'a CudaDevice,
    decoders: &'a NvDec,
    name: &'a str,
    file: &'a [u8],
    with_samples: bool,
    is_over: AtomicBool,
    /// The number of streams that have finished a round.
    streams_running: AtomicUsize,
    /// Passes over the video, by all streams.
    rounds: AtomicUsize,
    frames: AtomicUsize,
}

impl Playback<'_> {
    /// Decodes the video repeatedly, as one stream, until the measurement is over.
    fn run(&self) -> Result<()> {
        let (codec, packets) = packets(self.name, self.file)?;
        let mut video = self.decoders.open(codec)?;
        let mut consumer = Consumer::new(self.device, self.with_samples)?;
        let mut take = |frame: Result<VideoFrame>| {
            self.frames.fetch_add(1, Relaxed);
            consumer.take(frame?)
        };
        let mut is_first = true;
        while !self.is_over.load(Relaxed) {
            for (packet, timestamp) in &packets {
                video.push(packet, Some(*timestamp))?;
                available_frames(&mut video).try_for_each(&mut take)?;
            }
            self.rounds.fetch_add(1, Relaxed);
            self.streams_running.fetch_add(usize::from(std::mem::take(&mut is_first)), Relaxed);
        }
        video.finish()?;
        available_frames(&mut video).try_for_each(take)
    }
}

/// The number of frames with the expected size and hash; 0 if the total number of frames is wrong.
fn count_matching(frames: &[VideoFrame], video: &Expected<'_>) -> Result<usize> {
    let mut matching = 0;
    for (frame, expected) in frames.iter().zip(&video.hashes) {
        let bytes = frame.memory.download(None)?.wait()?;
        let is_of_size = (frame.width, frame.height) == video.size;
        matching += usize::from(is_of_size && hash(&bytes) == *expected);
    }
    Ok(if frames.len() == video.hashes.len() { matching } else { 0 })
}

/// The consumer of the frames: none, or kernels that turn them into training samples.
struct Consumer(Option<(ImageKernels, TensorSpec, Vec<VideoFrame>)>);

impl Consumer {
    fn new(device: &CudaDevice, with_samples: bool) -> Result<Consumer> {
        if !with_samples {
            return Ok(Consumer(None));
        }
        let format = *ImageTransform::with_size(Size::new(224, 224))
            .layout(Layout::Nchw)
            .dtype(DType::F16)
            .tensor();
        Ok(Consumer(Some((ImageKernels::new(device)?, format, Vec::new()))))
    }

    fn take(&mut self, frame: VideoFrame) -> Result<()> {
        let Some((kernels, format, frames)) = &mut self.0 else { return Ok(()) };
        frames.push(frame);
        if frames.len() < BATCH {
            return Ok(());
        }
        let mut batch = kernels.batch(format, BATCH)?;
        for frame in frames.drain(..) {
            let image = frame.image(matrix_of(&frame)?)?;
            let whole = CropBox {
                left: 0.0,
                top: 0.0,
                width: f64::from(frame.width),
                height: f64::from(frame.height),
            };
            let plan = ResizePlan::new(whole, Size::new(224, 224));
            batch.push(&Arc::new(frame.memory), &image, &plan)?;
        }
        kernels.launch(batch).map(drop)
    }
}

/// The colour matrix that the stream declares, or else the matrix of BT.709.
fn matrix_of(frame: &VideoFrame) -> Result<ColorMatrix> {
    let standard = ColorStandard::of_video(frame.color.matrix).unwrap_or(ColorStandard::BT709);
    let range = if frame.color.full_range { ColorRange::Full } else { ColorRange::Limited };
    ColorMatrix::new(standard, range, frame.bits)
}
