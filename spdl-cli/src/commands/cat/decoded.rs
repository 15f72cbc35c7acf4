//! Decodes a frame of a video to PNG, or a part of audio to WAV.

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::encode::{ImageEncoder, PngEncoder};
use spdl_media::video::VideoIndex;

use super::arguments::CatArguments;
use crate::inspection::media::{AudioInspector, VideoInspector};

/// What is written instead of the bytes of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Decoded {
    /// The frame with this number in order of presentation, from 0.
    Frame(usize),
    /// The frame that is shown at this time, in seconds from the first frame.
    FrameAt(f64),
    /// The audio from `start` to `end`, in seconds.
    Audio { start: f64, end: f64 },
}

impl Decoded {
    /// What the options request; `None` for the bytes of the member.
    pub(super) fn of(arguments: &CatArguments) -> Option<Self> {
        match arguments {
            CatArguments { frame: Some(frame), .. } => Some(Decoded::Frame(*frame)),
            CatArguments { time: Some(seconds), .. } => Some(Decoded::FrameAt(*seconds)),
            CatArguments { start: None, end: None, .. } => None,
            CatArguments { start, end, .. } => Some(Decoded::Audio {
                start: start.unwrap_or(0.0),
                end: end.unwrap_or(f64::INFINITY),
            }),
        }
    }

    /// The PNG or WAV file.
    ///
    /// # Errors
    /// Errors of decoding; `InvalidArgument` if the video has no such frame, or the audio ends before
    /// the start; `LimitExceeded` for more audio than a WAV file holds.
    pub(super) fn convert(self, file: &[u8]) -> Result<Vec<u8>> {
        match self {
            Decoded::Audio { start, end } => audio(file, start, end),
            Decoded::Frame(number) => {
                let mut inspector = VideoInspector::new();
                let index = inspector.index(file)?;
                frame(&mut inspector, file, &index, number)
            }
            Decoded::FrameAt(seconds) => {
                let mut inspector = VideoInspector::new();
                let index = inspector.index(file)?;
                let length = index.end_seconds() - index.start_seconds();
                if seconds >= length && seconds > 0.0 {
                    let message =
                        format!("no frame at {seconds} s: the video ends at {length:.3} s");
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                let number = index.frame_at(index.start_seconds() + seconds);
                frame(&mut inspector, file, &index, number)
            }
        }
    }
}

fn frame(
    inspector: &mut VideoInspector,
    file: &[u8],
    index: &VideoIndex,
    number: usize,
) -> Result<Vec<u8>> {
    let images = inspector.images(file, index, &[number], |size| size)?;
    match images.first() {
        Some(image) => PngEncoder::new().encode_image(image),
        None => Err(Error::new(ErrorKind::Corrupt, format!("frame {number} cannot be decoded"))),
    }
}

/// A WAV file with 16-bit samples: samples are rounded and clamped.
fn audio(file: &[u8], start: f64, end: f64) -> Result<Vec<u8>> {
    let (mut channels, mut data) = (0, Vec::new());
    let mut inspector = AudioInspector::new();
    let (rate, frames) = inspector.decode(file, start, end, |waveform| {
        channels = waveform.channels().len();
        for frame in 0..waveform.frames() {
            for channel in waveform.channels() {
                // A cast to an integer saturates.
                let sample = (channel[frame] * 32_768.0).round_ties_even() as i16;
                data.extend_from_slice(&sample.to_le_bytes());
            }
        }
        Ok(())
    })?;
    if frames == 0 {
        let message = format!("there is no audio from {start} s on");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let too_long = || Error::new(ErrorKind::LimitExceeded, "a WAV file holds at most 4 GiB");
    let bytes = u32::try_from(data.len()).map_err(|_| too_long())?;
    let whole = bytes.checked_add(36).ok_or_else(too_long)?;
    // The number of channels is at most 64, the limit of decoders.
    let (channels, frame_bytes) = (channels as u16, 2 * channels as u16);
    let mut wav = b"RIFF".to_vec();
    wav.extend_from_slice(&whole.to_le_bytes());
    wav.extend_from_slice(b"WAVEfmt ");
    wav.extend_from_slice(&16_u32.to_le_bytes());
    // The format PCM.
    wav.extend_from_slice(&1_u16.to_le_bytes());
    wav.extend_from_slice(&channels.to_le_bytes());
    wav.extend_from_slice(&rate.to_le_bytes());
    wav.extend_from_slice(&rate.saturating_mul(frame_bytes.into()).to_le_bytes());
    wav.extend_from_slice(&frame_bytes.to_le_bytes());
    wav.extend_from_slice(&16_u16.to_le_bytes());
    wav.extend_from_slice(b"data");
    wav.extend_from_slice(&bytes.to_le_bytes());
    wav.extend_from_slice(&data);
    Ok(wav)
}
