//! The callbacks of the parser, which create decoders, decode pictures and output frames.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::{CuVideoFormat, ParserDispInfo, PicParams};
use super::decoder::{Decoder, PictureStatus, Surface};
use super::decoders::SharedDecoders;
use super::format::{VideoCodec, VideoFormat};
use super::frame::{FrameLayout, VideoFrame};
use super::limits::VideoLimits;
use crate::runtime::{CudaMemory, DeviceInner, Event};

/// The return value of a successful callback for decoding or output.
const SUCCESS: c_int = 1;

/// `CUresult` codes of errors that affect only one picture: invalid value, image or source, and not
/// supported.
const PICTURE_ERRORS: [u32; 4] = [1, 200, 300, 801];

/// The state of a video.
pub(crate) struct Session {
    codec: VideoCodec,
    limits: VideoLimits,
    current: Option<ActiveSequence>,
    /// Decoded frames in display order.
    frames: VecDeque<Result<VideoFrame>>,
    /// Number of frames that were output, including corrupt frames.
    output_count: u64,
    /// Whether decoding failed. After a failure, the decoder is not reused.
    pub(crate) is_broken: bool,
    decoders: Arc<SharedDecoders>,
}

/// The current coded video sequence and its decoder.
struct ActiveSequence {
    video: VideoFormat,
    layout: FrameLayout,
    /// The state of each decode surface, by the picture index of the parser.
    pictures: Vec<PictureState>,
    decoder: Decoder,
}

/// The state of a decode surface.
#[derive(Clone, Debug)]
enum PictureState {
    /// No picture was decoded to this surface.
    Empty,
    /// A picture was decoded, or its decoding is in flight.
    Decoded,
    /// The decoder failed.
    Failed(Error),
}

impl Session {
    pub(crate) fn new(
        decoders: &Arc<SharedDecoders>,
        codec: VideoCodec,
        limits: VideoLimits,
    ) -> Session {
        Session {
            codec,
            limits,
            current: None,
            frames: VecDeque::new(),
            output_count: 0,
            is_broken: false,
            decoders: Arc::clone(decoders),
        }
    }

    pub(crate) fn video(&self) -> Option<&VideoFormat> {
        self.current.as_ref().map(|current| &current.video)
    }

    pub(crate) fn next_frame(&mut self) -> Option<Result<VideoFrame>> {
        self.frames.pop_front()
    }

    /// Handles a sequence header: sets up the decoder. Returns the number of decode surfaces of the
    /// decoder.
    pub(crate) fn sequence(&mut self, format: &CuVideoFormat) -> Result<c_int> {
        let video = VideoFormat::read(self.codec, format)?;
        self.limits.check(&video)?;
        let config = self.decoders.config_for(&video)?;
        let layout = FrameLayout::of(&video).ok_or_else(|| {
            let (width, height) = video.size;
            let message = format!("frame of {width}x{height} pixels exceeds the address space");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        let mut pictures = vec![PictureState::Empty; config.surfaces as usize];
        let decoder = match self.current.take() {
            Some(ActiveSequence { mut decoder, video: before, pictures: decoded, .. })
                if decoder.config() == config =>
            {
                if before.coded_size == video.coded_size {
                    // Decoded pictures of the previous sequence may still wait for output.
                    pictures = decoded;
                }
                self.decoders.reconfigure(&mut decoder, &video)?;
                decoder
            }
            other => {
                if let Some(ActiveSequence { decoder, .. }) = other {
                    self.decoders.cache.put(decoder.config(), decoder);
                }
                self.decoders.decoder(config, &video)?
            }
        };
        self.current = Some(ActiveSequence { video, layout, pictures, decoder });
        Ok(c_int::try_from(config.surfaces).unwrap_or(c_int::MAX))
    }

    /// Decodes a picture.
    ///
    /// # Safety
    /// `picture` is the argument of the callback of the parser.
    pub(crate) unsafe fn decode(&mut self, picture: *mut PicParams) -> Result<c_int> {
        // SAFETY: the parser provides the picture, which exists during the call.
        let params = unsafe { picture.as_ref() };
        let params = params.ok_or_else(|| parser_error("passed no picture to decode"))?;
        let (index, is_second_field) = (params.picture_index, params.second_field != 0);
        let (current, at) = self.picture(index)?;
        // SAFETY: the caller guarantees it.
        let decoded = unsafe { current.decoder.decode(picture) };
        let state = &mut current.pictures[at];
        match decoded {
            // If the first field of a frame failed, the whole frame failed.
            Ok(()) if is_second_field && matches!(state, PictureState::Failed(_)) => {}
            Ok(()) => *state = PictureState::Decoded,
            Err(error) if PICTURE_ERRORS.contains(&error.code) => {
                let message = "the device cannot decode this frame";
                *state = PictureState::Failed(
                    Error::new(ErrorKind::Corrupt, message).with_source(error),
                );
            }
            Err(error) => {
                return Err(self.decoders.device.context.error(error, "decode a video"));
            }
        }
        Ok(SUCCESS)
    }

    /// Outputs a picture in display order.
    pub(crate) fn display(&mut self, shown: &ParserDispInfo) -> Result<c_int> {
        if self.frames.len() >= self.limits.max_waiting_frames {
            let message = format!(
                "limit of {} waiting frames exceeded: take the frames after each packet, and push packets \
                 of one frame",
                self.frames.len()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let number = self.output_count;
        let decoders = Arc::clone(&self.decoders);
        let (current, at) = self.picture(shown.picture_index)?;
        let frame = match &current.pictures[at] {
            PictureState::Decoded => current.output(&decoders.device, shown, number)?,
            PictureState::Failed(error) => Err(error.clone()),
            PictureState::Empty => Err(corrupt_frame("it was never decoded")),
        };
        let counters = &decoders.counters;
        let counter = if frame.is_ok() { &counters.frames } else { &counters.damaged };
        counter.fetch_add(1, Ordering::Relaxed);
        let key = format!("frame {number}, timestamp {}", shown.timestamp);
        self.output_count += 1;
        self.frames.push_back(frame.map_err(|error| error.with_key(key)));
        Ok(SUCCESS)
    }

    /// The current sequence, and the picture index as a position in it. Fails if the index is
    /// invalid.
    fn picture(&mut self, index: c_int) -> Result<(&mut ActiveSequence, usize)> {
        let current = self.current.as_mut();
        let current =
            current.ok_or_else(|| parser_error("passed a picture before a sequence header"))?;
        let at = usize::try_from(index).ok().filter(|at| *at < current.pictures.len());
        match at {
            Some(at) => Ok((current, at)),
            None => {
                let count = current.pictures.len();
                Err(parser_error(&format!("passed invalid picture index {index} of {count}")))
            }
        }
    }
}

impl ActiveSequence {
    /// Copies a picture out of the decoder. The inner error affects only this frame; the outer
    /// error ends the video.
    fn output(
        &mut self,
        device: &Arc<DeviceInner>,
        shown: &ParserDispInfo,
        number: u64,
    ) -> Result<Result<VideoFrame>> {
        let context = &device.context;
        let doing = "output a frame of the video decoder";
        let device_error = |error| context.error(error, doing);
        let surface = self.decoder.map(shown).map_err(device_error)?;
        let defect = match surface.status(shown.picture_index) {
            PictureStatus::Success => None,
            PictureStatus::Concealed => Some("the decoder concealed errors in it"),
            PictureStatus::Failed => Some("decoding failed"),
        };
        if let Some(defect) = defect {
            surface.unmap().map_err(device_error)?;
            return Ok(Err(corrupt_frame(defect)));
        }
        let memory = copy_out(device, &surface, &self.layout, doing)?;
        // The copy may still be queued. nvcuvid orders the next write to the surface after all work
        // that is queued on the output stream of the mapping.
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

/// Queues the copy of a frame from its surface to a slab, on the stream of the surface.
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
        for event in slab.pending_for(stream) {
            driver.wait_event(stream, event.handle())?;
        }
        has_waited = true;
        for copy in &copies {
            // SAFETY: the slab has the size of the layout, and is written or freed only after
            // `copied`. The library writes to the surface only after this copy, which is on the
            // output stream.
            unsafe { driver.copy_rows(copy, stream)? };
        }
        driver.record_event(copied.handle(), stream)
    });
    if let Err(error) = started {
        let is_done = surface.stream().synchronize();
        slabs.recycle_after_failure(slab, is_done && has_waited);
        return Err(error);
    }
    slab.record_write(surface.stream().handle(), &copied);
    Ok(CudaMemory::new(Arc::clone(device), slab, layout.bytes, copied))
}

fn corrupt_frame(defect: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt frame: {defect}"))
}

fn parser_error(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the video parser {what}"))
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(ActiveSequence { decoder, .. }) = self.current.take()
            && !self.is_broken
        {
            self.decoders.cache.put(decoder.config(), decoder);
        }
    }
}
