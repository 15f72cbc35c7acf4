//! [`Collector`]: takes the frames that a request wants from decoded blocks.

use std::ops::Range;

use spdl_core::Result;

use super::waveform::Waveform;

/// Appends to a waveform the frames of consecutive blocks that a request wants.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    out: &'a mut Waveform,
    wanted: Range<u64>,
    /// The index of the first frame of the next block; negative for frames that precede the audio.
    next: i64,
}

impl<'a> Collector<'a> {
    /// Appends frames of `wanted` to `out`; the first block starts at the frame `next`.
    pub(super) fn new(out: &'a mut Waveform, wanted: Range<u64>, next: i64) -> Self {
        Collector { out, wanted, next }
    }

    /// Whether all wanted frames are there.
    pub(super) fn is_done(&self) -> bool {
        self.next >= 0 && self.next as u64 >= self.wanted.end
    }

    /// The index of the first frame of the next block.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// Sets the index of the first frame of the next block.
    pub(super) fn skip(&mut self, next: i64) {
        self.next = next;
    }

    /// Takes a block of this number of frames. `channels` are the samples of each channel, in which
    /// `convert` converts a part.
    ///
    /// # Errors
    /// The errors of [`Waveform::append`].
    pub(super) fn push<T>(
        &mut self,
        channels: impl Iterator<Item = T>,
        frames: usize,
        convert: impl Fn(T, Range<usize>, &mut [f32]),
    ) -> Result<()> {
        let end = self.next.saturating_add(frames as i64);
        let bound = |at: u64| i64::try_from(at).unwrap_or(i64::MAX).clamp(self.next, end);
        let (first, last) = (bound(self.wanted.start), bound(self.wanted.end));
        let part = (first - self.next) as usize..(last.max(first) - self.next) as usize;
        self.next = end;
        if !part.is_empty() {
            let out = self.out.append(part.len())?;
            out.zip(channels).for_each(|(out, channel)| convert(channel, part.clone(), out));
        }
        Ok(())
    }
}
