//! [`Waveform`]: decoded samples.

use spdl_core::{Error, ErrorKind, Result};

use super::limits::AudioLimits;

/// Decoded samples: for each channel, one `f32` per frame, where ±1 is full scale.
///
/// It keeps its memory, so that one waveform serves many files.
#[derive(Clone, Debug, Default)]
pub struct Waveform {
    limits: AudioLimits,
    sample_rate: u32,
    channels: Vec<Vec<f32>>,
    /// Channels of an earlier file, whose memory is kept.
    unused: Vec<Vec<f32>>,
}

impl Waveform {
    /// An empty waveform that decoders fill within these limits.
    pub fn new(limits: &AudioLimits) -> Self {
        Waveform { limits: limits.clone(), ..Waveform::default() }
    }

    /// Frames per second.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// The number of frames.
    pub fn frames(&self) -> usize {
        self.channels.first().map_or(0, Vec::len)
    }

    /// The samples of each channel; all have the same length.
    pub fn channels(&self) -> &[Vec<f32>] {
        &self.channels
    }

    /// Removes all samples and sets the format. A decoder calls it first.
    ///
    /// `frames` is the expected number of frames, whose memory is reserved; 0 if it is unknown.
    ///
    /// # Errors
    /// The errors of [`AudioLimits::check_format`] and [`AudioLimits::check_frames`];
    /// `LimitExceeded` if there is not enough memory.
    pub fn start(&mut self, sample_rate: u32, channels: u16, frames: u64) -> Result<()> {
        self.limits.check_format(sample_rate, channels)?;
        self.limits.check_frames(frames, sample_rate, channels)?;
        self.sample_rate = sample_rate;
        let wanted = usize::from(channels);
        self.unused.extend(self.channels.drain(wanted.min(self.channels.len())..));
        while self.channels.len() < wanted {
            self.channels.push(self.unused.pop().unwrap_or_default());
        }
        for channel in &mut self.channels {
            channel.clear();
            channel.try_reserve(frames as usize).map_err(|_| out_of_memory(frames))?;
        }
        Ok(())
    }

    /// Appends `frames` frames of silence, and returns their samples: one slice per channel.
    ///
    /// # Errors
    /// `LimitExceeded` if the samples exceed the limits, or if there is not enough memory.
    pub fn append(&mut self, frames: usize) -> Result<impl Iterator<Item = &mut [f32]>> {
        let start = self.frames();
        let total = start.saturating_add(frames);
        let count = self.channels.len() as u16;
        self.limits.check_frames(total as u64, self.sample_rate, count)?;
        for channel in &mut self.channels {
            channel.try_reserve(frames).map_err(|_| out_of_memory(frames as u64))?;
            channel.resize(total, 0.0);
        }
        Ok(self.channels.iter_mut().map(move |channel| &mut channel[start..]))
    }

    /// Removes the frames after the first `frames`.
    pub fn truncate(&mut self, frames: usize) {
        self.channels.iter_mut().for_each(|channel| channel.truncate(frames));
    }
}

fn out_of_memory(frames: u64) -> Error {
    let message = format!("cannot allocate memory for {frames} frames of audio");
    Error::new(ErrorKind::LimitExceeded, message)
}
