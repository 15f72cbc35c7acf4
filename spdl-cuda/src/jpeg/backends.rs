//! The hardware and the hybrid backend of nvJPEG, with their decode states.

use std::collections::VecDeque;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::error::{NvJpegError, NvJpegResult};
use super::library::{
    BatchState, Codec, ImageDecoder, ImageState, NvJpegBackend, NvJpegLibrary, ParsedJpeg,
};
use crate::runtime::{ComputeStream, Context, DeviceInner, Event};

/// Initial and maximum number of states of the hybrid backend. Each image in flight needs a state,
/// which holds device and pinned memory. If all states are in use, the host waits for the oldest
/// one.
const INITIAL_HYBRID_STATES: usize = 8;
const MAX_HYBRID_STATES: usize = 64;

/// Maximum number of states of the hardware backend. Each batch in flight needs a state. If all
/// states are in use, the host waits for the oldest one.
const MAX_HARDWARE_STATES: usize = 8;

/// The JPEG engines of the device. Fields are dropped in declaration order.
pub(super) struct HardwareBackend {
    /// The decode states, least recently used first.
    pub(super) states: VecDeque<HardwareState>,
    /// Number of states that exist.
    made: usize,
    pub(super) parsed: ParsedJpeg,
    /// Number of JPEG engines, and number of cores per engine.
    pub(super) engines: (u32, u32),
    pub(super) codec: Codec,
    pub(super) stream: ComputeStream,
}

/// The state of one batch.
pub(super) struct HardwareState {
    pub(super) state: BatchState,
    /// The number of images that the state is initialised for.
    pub(super) prepared: usize,
    /// An event that completes with the last batch of this state.
    pub(super) busy: Option<Arc<Event>>,
}

/// The hybrid backend: entropy decoding on the CPU, the remaining steps on the multiprocessors.
/// Fields are dropped in declaration order.
pub(super) struct HybridBackend {
    /// The decode states, least recently used first.
    pub(super) states: VecDeque<(ImageState, Option<Arc<Event>>)>,
    /// Number of states that exist.
    made: usize,
    pub(super) decoder: ImageDecoder,
    pub(super) codec: Codec,
    pub(super) stream: ComputeStream,
}

impl HardwareBackend {
    /// Returns `None` if the device has no JPEG engines.
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

    /// Returns the state for the next batch. The caller must wait for the last batch of this state.
    pub(super) fn take_state(&mut self, context: &Context, doing: &str) -> Result<HardwareState> {
        let busy = self.states.front().and_then(|state| state.busy.as_ref());
        let is_free = busy.map_or(Ok(true), |busy| busy.is_complete());
        if !is_free.map_err(|error| context.error(error, doing))? && self.made < MAX_HARDWARE_STATES
        {
            // If memory for another state is exhausted, the next batch waits for an existing state.
            if let Ok(state) = context.run(doing, |_| Ok(self.codec.batch_state()))? {
                self.made += 1;
                return Ok(HardwareState { state, prepared: 0, busy: None });
            }
        }
        self.states
            .pop_front()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "no free decode state for a JPEG batch"))
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
        let states = (0..INITIAL_HYBRID_STATES).map(|_| Ok((codec.image_state(&decoder)?, None)));
        let states = states.collect::<NvJpegResult<_>>()?;
        Ok(HybridBackend { states, made: INITIAL_HYBRID_STATES, decoder, codec, stream })
    }

    /// Returns the state for the next image, and the event to wait for before the state is used, if
    /// any.
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
        if !is_free && self.made < MAX_HYBRID_STATES {
            let made = context.run(doing, |_| Ok(self.codec.image_state(&self.decoder)))?;
            match made {
                Ok(state) => {
                    self.made += 1;
                    return Ok((state, None));
                }
                // If memory for another state is exhausted, the image waits for an existing state.
                Err(_) if !self.states.is_empty() => {}
                Err(error) => return Err(error.into_error(doing)),
            }
        }
        let (state, busy) = self
            .states
            .pop_front()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "no free decode state for a JPEG"))?;
        Ok((state, busy.filter(|_| !is_free)))
    }
}
