//! The two ways in which a device decodes JPEGs: what each of them needs.

use std::collections::VecDeque;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::error::{NvJpegError, NvJpegResult};
use super::library::{
    BatchState, Codec, ImageDecoder, ImageState, NvJpegBackend, NvJpegLibrary, ParsedJpeg,
};
use crate::runtime::{ComputeStream, Context, DeviceInner, Event};

/// How many images are decoded one by one at the same time, at first and at most. Each takes memory
/// for itself; where there are no more, the host waits.
const IMAGES_AT_ONCE: usize = 8;
const MOST_IMAGES_AT_ONCE: usize = 64;

/// How many batches the engines have at the same time, at most. Where all are under way, the host waits
/// for the first of them.
const MOST_BATCHES_AT_ONCE: usize = 8;

/// The device's engines. Fields are dropped in their order.
pub(super) struct HardwareBackend {
    /// Those that were not used for the longest time first.
    pub(super) states: VecDeque<HardwareState>,
    /// How many there are.
    made: usize,
    pub(super) parsed: ParsedJpeg,
    pub(super) engines: (u32, u32),
    pub(super) codec: Codec,
    pub(super) stream: ComputeStream,
}

/// What the engines decode one batch with.
pub(super) struct HardwareState {
    pub(super) state: BatchState,
    /// For how many images it is prepared.
    pub(super) prepared: usize,
    /// Behind its last batch.
    pub(super) busy: Option<Arc<Event>>,
}

/// The CPU and the multiprocessors.
pub(super) struct HybridBackend {
    /// Those that were not used for the longest time first.
    pub(super) states: VecDeque<(ImageState, Option<Arc<Event>>)>,
    /// How many there are.
    made: usize,
    pub(super) decoder: ImageDecoder,
    pub(super) codec: Codec,
    pub(super) stream: ComputeStream,
}

impl HardwareBackend {
    /// `None` where the device has no engines for JPEGs.
    pub(super) fn new(
        library: &NvJpegLibrary,
        device: &DeviceInner,
        stream: ComputeStream,
    ) -> NvJpegResult<Option<HardwareBackend>> {
        let codec = match Codec::new(library, &device.context, NvJpegBackend::Hardware) {
            Ok(codec) => codec,
            Err(NvJpegError { status: 4 | 7 | 9, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let engines = codec.engines()?;
        if engines.0 == 0 {
            return Ok(None);
        }
        let state = HardwareState { state: codec.batch_state()?, prepared: 0, busy: None };
        let states = VecDeque::from([state]);
        let parsed = codec.parsed_jpeg()?;
        Ok(Some(HardwareBackend { states, made: 1, parsed, engines, codec, stream }))
    }

    /// What the next batch is decoded with, once its last one is done.
    pub(super) fn take_state(&mut self, context: &Context, doing: &str) -> Result<HardwareState> {
        let busy = self.states.front().and_then(|state| state.busy.as_ref());
        let is_free = busy.map_or(Ok(true), |busy| busy.is_complete());
        if !is_free.map_err(|error| context.error(error, doing))?
            && self.made < MOST_BATCHES_AT_ONCE
        {
            // Where there is no memory for one more, one batch comes after the other.
            if let Ok(state) = context.run(doing, |_| Ok(self.codec.batch_state()))? {
                self.made += 1;
                return Ok(HardwareState { state, prepared: 0, busy: None });
            }
        }
        self.states.pop_front().ok_or_else(|| {
            Error::new(ErrorKind::Internal, "there is nothing to decode a batch with")
        })
    }
}

impl HybridBackend {
    pub(super) fn new(
        library: &NvJpegLibrary,
        device: &DeviceInner,
        stream: ComputeStream,
    ) -> NvJpegResult<HybridBackend> {
        let codec = Codec::new(library, &device.context, NvJpegBackend::Hybrid)?;
        let decoder = codec.image_decoder()?;
        let states = (0..IMAGES_AT_ONCE).map(|_| Ok((codec.image_state(&decoder)?, None)));
        let states = states.collect::<NvJpegResult<_>>()?;
        Ok(HybridBackend { states, made: IMAGES_AT_ONCE, decoder, codec, stream })
    }

    /// What the next image is decoded with, and the event to wait for before, unless it was reached.
    pub(super) fn take_state(
        &mut self,
        context: &Context,
        doing: &str,
    ) -> Result<(ImageState, Option<Arc<Event>>)> {
        let is_free = match self.states.front() {
            Some((_, Some(busy))) => {
                busy.is_complete().map_err(|error| context.error(error, doing))?
            }
            Some((_, None)) => true,
            None => false,
        };
        if !is_free && self.made < MOST_IMAGES_AT_ONCE {
            let made = context.run(doing, |_| Ok(self.codec.image_state(&self.decoder)))?;
            match made {
                Ok(state) => {
                    self.made += 1;
                    return Ok((state, None));
                }
                // There is no memory for one more: then one after the other.
                Err(_) if !self.states.is_empty() => {}
                Err(error) => return Err(error.into_error(doing)),
            }
        }
        let (state, busy) = self.states.pop_front().ok_or_else(|| {
            Error::new(ErrorKind::Internal, "there is nothing to decode an image with")
        })?;
        Ok((state, busy.filter(|_| !is_free)))
    }
}
