//! What happens when the parser calls: decoders are made, pictures decoded, frames brought out.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::{self, ParserDispInfo, PicParams};
use super::decoder::{Decoder, PictureStatus, Surface};
use super::engine::NvDecInner;
use super::format::{VideoCodec, VideoFormat};
use super::frame::{FrameLayout, VideoFrame};
use super::stream::VideoLimits;
use crate::runtime::{CudaMemory, DeviceInner, Event};

/// What the parser is told where a callback has done its work; where it has not, 0.
const DONE: c_int = 1;

/// Failures of the library by which a picture is refused, and nothing else: a wrong value, image or
/// source, and what the device does not do.
const REFUSES_THE_PICTURE: [u32; 4] = [1, 200, 300, 801];

/// A video under way.
pub(crate) struct Session {
    codec: VideoCodec,
    limits: VideoLimits,
    current: Option<ActiveSequence>,
    /// In the order in which they are shown.
    frames: VecDeque<Result<VideoFrame>>,
    /// How many were shown so far.
    shown: u64,
    /// Whether something has failed that the decoder had part in: it is not used again.
    pub(crate) is_broken: bool,
    engine: Arc<NvDecInner>,
}

/// What its headers have said, and what was made for that.
struct ActiveSequence {
    video: VideoFormat,
    layout: FrameLayout,
    /// By the parser's index.
    pictures: Vec<Picture>,
    decoder: Decoder,
}

/// What is known of one of the decoder's pictures.
#[derive(Clone, Debug)]
enum Picture {
    /// It was never decoded.
    Empty,
    /// It is being decoded, or is already.
    Decoded,
    /// The decoder has refused it.
    Refused(Error),
}

impl Session {
    pub(crate) fn new(engine: &Arc<NvDecInner>, codec: VideoCodec, limits: VideoLimits) -> Session {
        Session {
            codec,
            limits,
            current: None,
            frames: VecDeque::new(),
            shown: 0,
            is_broken: false,
            engine: Arc::clone(engine),
        }
    }

    pub(crate) fn video(&self) -> Option<&VideoFormat> {
        self.current.as_ref().map(|current| &current.video)
    }

    pub(crate) fn next_frame(&mut self) -> Option<Result<VideoFrame>> {
        self.frames.pop_front()
    }

    /// The stream has headers, again or for the first time. How many pictures the parser is to count with.
    pub(crate) fn sequence(&mut self, told: &bindings::VideoFormat) -> Result<c_int> {
        let video = VideoFormat::read(self.codec, told)?;
        self.limits.check(&video)?;
        let kind = self.engine.kind_for(&video)?;
        let layout = FrameLayout::of(&video).ok_or_else(|| {
            let message = format!("a frame of {} x {} pixels", video.size.0, video.size.1);
            Error::new(ErrorKind::LimitExceeded, format!("{message} is too large for this machine"))
        })?;
        let mut pictures = vec![Picture::Empty; kind.surfaces as usize];
        let decoder = match self.current.take() {
            Some(ActiveSequence { mut decoder, video: before, pictures: decoded, .. })
                if decoder.kind() == kind =>
            {
                if before.coded_size == video.coded_size {
                    // Some may still wait to be shown.
                    pictures = decoded;
                }
                self.engine.configure(&mut decoder, &video)?;
                decoder
            }
            other => {
                if let Some(ActiveSequence { decoder, .. }) = other {
                    self.engine.cache.give_back(decoder.kind(), decoder);
                }
                self.engine.decoder(kind, &video)?
            }
        };
        self.current = Some(ActiveSequence { video, layout, pictures, decoder });
        Ok(c_int::try_from(kind.surfaces).unwrap_or(c_int::MAX))
    }

    /// A picture is to be decoded.
    ///
    /// # Safety
    /// The parser is calling about this picture.
    pub(crate) unsafe fn decode(&mut self, picture: *mut PicParams) -> Result<c_int> {
        // SAFETY: the parser has made it, and it lives during the call.
        let told = unsafe { picture.as_ref() };
        let told = told.ok_or_else(|| wrong_call("decodes no picture"))?;
        let (index, is_second_field) = (told.picture_index, told.second_field != 0);
        let (current, at) = self.picture(index)?;
        // SAFETY: the caller says so.
        let decoded = unsafe { current.decoder.decode(picture) };
        let place = &mut current.pictures[at];
        match decoded {
            // A frame is no better than its first field.
            Ok(()) if is_second_field && matches!(place, Picture::Refused(_)) => {}
            Ok(()) => *place = Picture::Decoded,
            Err(error) if REFUSES_THE_PICTURE.contains(&error.code) => {
                let message = "the device cannot decode this frame";
                *place =
                    Picture::Refused(Error::new(ErrorKind::Corrupt, message).with_source(error));
            }
            Err(error) => {
                return Err(self.engine.device.context.error(error, "decode a video"));
            }
        }
        Ok(DONE)
    }

    /// A picture's turn has come to be shown.
    pub(crate) fn display(&mut self, shown: &ParserDispInfo) -> Result<c_int> {
        if self.frames.len() >= self.limits.most_waiting_frames {
            let message = format!(
                "{} frames wait to be taken, which is the limit: take them after each packet, and push \
                 packets of one frame",
                self.frames.len()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let number = self.shown;
        let engine = Arc::clone(&self.engine);
        let (current, at) = self.picture(shown.picture_index)?;
        let frame = match &current.pictures[at] {
            Picture::Decoded => current.bring(&engine.device, shown, number)?,
            Picture::Refused(error) => Err(error.clone()),
            Picture::Empty => Err(damaged("it was never decoded")),
        };
        let counts = &engine.counts;
        let counter = if frame.is_ok() { &counts.frames } else { &counts.damaged };
        counter.fetch_add(1, Ordering::Relaxed);
        let what = format!("frame {number}, timestamp {}", shown.timestamp);
        self.shown += 1;
        self.frames.push_back(frame.map_err(|error| error.with_key(what)));
        Ok(DONE)
    }

    /// Where a picture of the parser's is.
    fn picture(&mut self, index: c_int) -> Result<(&mut ActiveSequence, usize)> {
        let current = self.current.as_mut();
        let current = current.ok_or_else(|| wrong_call("has pictures before it has headers"))?;
        let at = usize::try_from(index).ok().filter(|at| *at < current.pictures.len());
        match at {
            Some(at) => Ok((current, at)),
            None => {
                let count = current.pictures.len();
                Err(wrong_call(&format!("has a picture {index}, of {count}")))
            }
        }
    }
}

impl ActiveSequence {
    /// Brings a picture out. What fails inside is the frame's alone, and what fails outside the video's.
    fn bring(
        &mut self,
        device: &Arc<DeviceInner>,
        shown: &ParserDispInfo,
        number: u64,
    ) -> Result<Result<VideoFrame>> {
        let context = &device.context;
        let doing = "bring a frame out of the video decoder";
        let device_error = |error| context.error(error, doing);
        let surface = self.decoder.map(shown).map_err(device_error)?;
        let flaw = match surface.status(shown.picture_index) {
            PictureStatus::NotDamaged => None,
            PictureStatus::Concealed => Some("part of it would have to be made up"),
            PictureStatus::Damaged => Some("it cannot be decoded"),
        };
        if let Some(flaw) = flaw {
            surface.unmap().map_err(device_error)?;
            return Ok(Err(damaged(flaw)));
        }
        let memory = copy_out(device, &surface, &self.layout, doing)?;
        // The copy may not have run yet. This assumes that the library puts what it writes to the surface
        // next behind all that the stream was told before: the one it was mapped with.
        surface.unmap().map_err(device_error)?;
        Ok(Ok(VideoFrame {
            memory,
            format: self.layout.format,
            bits: self.video.bits,
            width: self.video.size.0,
            height: self.video.size.1,
            planes: self.layout.planes.clone(),
            color: self.video.color,
            timestamp: shown.timestamp,
            number,
        }))
    }
}

/// Copies a frame from its surface to memory of its own, on the stream of the surface.
fn copy_out(
    device: &Arc<DeviceInner>,
    surface: &Surface<'_>,
    layout: &FrameLayout,
    doing: &str,
) -> Result<CudaMemory> {
    let DeviceInner { context, slabs, .. } = &**device;
    let copied = Event::new(context).map_err(|error| context.error(error, doing))?;
    let copied = Arc::new(copied);
    let mut slab = slabs.take(layout.bytes)?;
    let copies = match layout.copies(surface.address, surface.pitch, slab.memory.address) {
        Ok(copies) => copies,
        Err(error) => {
            slabs.recycle(slab);
            return Err(error);
        }
    };
    let mut has_waited = false;
    let started = context.run(doing, |driver| {
        let stream = surface.stream().handle();
        // What was written there last, and by whom, may have been read by nobody.
        for used in slab.pending_for(stream) {
            driver.wait_event(stream, used.handle())?;
        }
        has_waited = true;
        for copy in &copies {
            // SAFETY: the slab is as long as the layout says, and only written and freed behind the
            // event; what the library writes to the surface next comes behind this, on this stream.
            unsafe { driver.copy_rows(copy, stream)? };
        }
        driver.record_event(copied.handle(), stream)
    });
    if let Err(error) = started {
        let is_over = surface.stream().synchronize();
        slabs.recycle_after_failure(slab, is_over && has_waited);
        return Err(error);
    }
    slab.record_write(surface.stream().handle(), &copied);
    Ok(CudaMemory::new(Arc::clone(device), slab, layout.bytes, copied))
}

fn damaged(how: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("this frame is damaged: {how}"))
}

fn wrong_call(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the video parser {what}"))
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(ActiveSequence { decoder, .. }) = self.current.take()
            && !self.is_broken
        {
            self.engine.cache.give_back(decoder.kind(), decoder);
        }
    }
}
