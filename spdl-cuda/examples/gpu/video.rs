//! g5: videos decoded on the device: whether frames are right, and how many there are in a second.

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

use crate::copies::said;
use crate::images::cpu_seconds;
use crate::lines::Measuring;
use crate::raw::Driver;
use crate::videos::{Expected, decode, expected, hash, packets, taken};
use crate::{Outcome, together};
use spdl_media::image::CropBox;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, Size};

/// So many videos at the same time, by a thread each.
const STREAMS: [usize; 3] = [1, 4, 16];

/// How many frames become samples by one launch.
const BATCH: usize = 16;

pub(crate) fn measure(measuring: &Measuring) -> Outcome {
    let driver = Driver::open()?;
    let device = CudaDevice::open(0).map_err(said)?;
    let decoders = match NvDec::new(&device) {
        Ok(decoders) => decoders,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            measuring.unsupported("video", &error.report());
            return Ok(());
        }
        Err(error) => return Err(said(error)),
    };
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new(".")).join("videos");
    let Ok(table) = fs::read_to_string(folder.join("frames.tsv")) else {
        measuring.unsupported("video", &format!("{} holds no videos", folder.display()));
        return Ok(());
    };
    note_capabilities(measuring, &decoders);
    let bench = Bench { driver, device, decoders };
    let videos = expected(&table);
    let outcomes = videos.iter().enumerate().map(|(at, video)| {
        let share = |part: f64| (at as f64 + part) / videos.len() as f64;
        let file = fs::read(folder.join(video.name));
        let file = file.map_err(|error| format!("{}: {error}", video.name))?;
        bench.video(measuring, video, &file, share)
    });
    let outcome = together(outcomes.collect::<Vec<_>>());
    measuring.note(&format!("{:?}", bench.decoders.statistics()));
    outcome
}

/// Which codecs the device decodes.
fn note_capabilities(measuring: &Measuring, decoders: &NvDec) {
    for codec in VideoCodec::ALL {
        let told =
            [(ChromaFormat::Yuv420, 8), (ChromaFormat::Yuv420, 10), (ChromaFormat::Yuv444, 8)].map(
                |(chroma, bits)| match decoders.capability(codec, chroma, bits) {
                    Ok(told) if told.supported => format!(
                        "{chroma} of {bits} bits by {} engines, to {} x {}",
                        told.engines, told.max_size.0, told.max_size.1
                    ),
                    Ok(_) => format!("no {chroma} of {bits} bits"),
                    Err(error) => error.report(),
                },
            );
        measuring.note(&format!("{codec}: {}", told.join("; ")));
    }
}

struct Bench {
    driver: Rc<Driver>,
    device: CudaDevice,
    decoders: NvDec,
}

impl Bench {
    /// One file: its frames, then its rates. `share` says how much of the time is over when a part of its
    /// own is.
    fn video(
        &self,
        measuring: &Measuring,
        video: &Expected<'_>,
        file: &[u8],
        share: impl Fn(f64) -> f64,
    ) -> Outcome {
        let name = video.name;
        let refused = self.decoders.statistics().unsupported_videos;
        let promise = format!("frames of {name} are those of FFmpeg, bit by bit");
        match decode(&self.decoders, name, file) {
            Ok(frames) => {
                let sound = sound_frames(&frames, video).map_err(said)?;
                let (found, count) = (frames.len(), video.hashes.len());
                let found = format!("{sound} of {found} frames");
                measuring.promise(&promise, sound == count, &found, &format!("{count}"));
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let counted = self.decoders.statistics().unsupported_videos - refused;
                measuring.promise(
                    &format!("G6: {name}, which the device does not decode, is counted"),
                    counted == 1,
                    &format!("counted {counted} times"),
                    "once",
                );
                measuring.unsupported(name, &error.report());
                return Ok(());
            }
            Err(error) => {
                measuring.promise(&promise, false, &error.report(), "no error");
                return Err(format!("{name}: {}", error.report()));
            }
        }
        let parts = STREAMS.len() + 1;
        let tiny = measuring.size.is_tiny();
        for (at, streams) in STREAMS.into_iter().enumerate() {
            let streams = if tiny { streams.min(2) } else { streams };
            let until = share((at + 1) as f64 / parts as f64);
            self.rate(measuring, video, file, streams, false, until)?;
            if tiny {
                break;
            }
        }
        let streams = if tiny { 1 } else { STREAMS[STREAMS.len() - 1] };
        self.rate(measuring, video, file, streams, true, share(1.0))
    }

    /// Frames a second of so many videos at the same time.
    fn rate(
        &self,
        measuring: &Measuring,
        video: &Expected<'_>,
        file: &[u8],
        streams: usize,
        with_samples: bool,
        until: f64,
    ) -> Outcome {
        let what = if with_samples { ", to samples of 224 x 224" } else { "" };
        let case = format!("{}, {streams} at the same time{what}", video.name);
        let playing = Playing {
            device: &self.device,
            decoders: &self.decoders,
            name: video.name,
            file,
            with_samples,
            is_over: AtomicBool::new(false),
            streams_under_way: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            frames: AtomicUsize::new(0),
        };
        let least = Duration::from_millis(if measuring.size.is_tiny() { 10 } else { 300 });
        let (frames_before, start, cpu) = thread::scope(|scope| {
            let threads: Vec<_> = (0..streams).map(|_| scope.spawn(|| playing.play())).collect();
            let has_failed = || threads.iter().any(thread::ScopedJoinHandle::is_finished);
            let wait = || thread::sleep(Duration::from_millis(2));
            // Once each has been through its video, nothing is made any more.
            while playing.streams_under_way.load(Relaxed) < streams && !has_failed() {
                wait();
            }
            let before = (playing.frames.load(Relaxed), Instant::now(), cpu_seconds());
            while (before.1.elapsed() < least || !measuring.is_enough(until)) && !has_failed() {
                wait();
            }
            playing.is_over.store(true, Relaxed);
            together(threads.into_iter().map(|thread| match thread.join() {
                Ok(played) => played.map_err(said),
                Err(_) => Err("a thread has panicked".to_owned()),
            }))
            .map(|()| before)
            .map_err(|error| format!("{case}: {error}"))
        })?;
        self.driver.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let frames = playing.frames.load(Relaxed);
        measuring.figure(&case, "rate", (frames - frames_before) as f64 / seconds, "frames/s");
        if let (Some(before), Some(after)) = (cpu, cpu_seconds()) {
            measuring.figure(&case, "CPU cores in use", (after - before) / seconds, "");
        }
        let wanted = playing.rounds.load(Relaxed) * video.hashes.len();
        measuring.promise(
            &format!("every frame arrives: {case}"),
            frames == wanted,
            &format!("{frames}"),
            &format!("{wanted}"),
        );
        Ok(())
    }
}

/// A video that several threads play, each for itself.
struct Playing<'a> {
    device: &'a CudaDevice,
    decoders: &'a NvDec,
    name: &'a str,
    file: &'a [u8],
    with_samples: bool,
    is_over: AtomicBool,
    /// How many have been through it.
    streams_under_way: AtomicUsize,
    /// How often it was played, by all of them.
    rounds: AtomicUsize,
    frames: AtomicUsize,
}

impl Playing<'_> {
    /// Again and again until it is over, without an end between.
    fn play(&self) -> Result<()> {
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
                taken(&mut video).try_for_each(&mut take)?;
            }
            self.rounds.fetch_add(1, Relaxed);
            self.streams_under_way.fetch_add(usize::from(std::mem::take(&mut is_first)), Relaxed);
        }
        video.finish()?;
        taken(&mut video).try_for_each(take)
    }
}

/// How many frames are as they are to be.
fn sound_frames(frames: &[VideoFrame], video: &Expected<'_>) -> Result<usize> {
    let mut sound = 0;
    for (frame, wanted) in frames.iter().zip(&video.hashes) {
        let bytes = frame.memory.download(None)?.wait()?;
        let is_of_size = (frame.width, frame.height) == video.size;
        sound += usize::from(is_of_size && hash(&bytes) == *wanted);
    }
    Ok(if frames.len() == video.hashes.len() { sound } else { 0 })
}

/// Who gets the frames: nobody, or the kernels, which make samples for training of them.
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

/// As the stream says; where it does not, as videos of high definition are.
fn matrix_of(frame: &VideoFrame) -> Result<ColorMatrix> {
    let standard = ColorStandard::of_video(frame.color.matrix).unwrap_or(ColorStandard::BT709);
    let range = if frame.color.full_range { ColorRange::Full } else { ColorRange::Limited };
    ColorMatrix::new(standard, range, frame.bits)
}
