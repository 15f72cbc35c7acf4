//! Decoding of batches of JPEGs into device memory.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::formats::jpeg::JpegHeader;

use super::backends::{HardwareBackend, HardwareState, HybridBackend};
use super::decoded::DecodedJpegs;
use super::error::NvJpegResult;
use super::header::{BackendSet, JpegBackend, parse_header};
use super::image::{PendingImage, assign_offsets, assigned_to};
use super::library::{NvJpegLibrary, OutputPlanes};
use crate::driver::{DriverResult, MemoryAccess};
use crate::libraries::Search;
use crate::runtime::{
    ComputeStream, CudaDevice, CudaMemory, DeviceInner, Event, SizeEstimator, Slab,
};

/// The name under which the fake driver reports work of nvJPEG.
const LIBRARY: &str = "nvJPEG";

/// Decodes JPEGs on a device, with nvJPEG.
///
/// The CPU parses the headers. The hardware backend, which uses the JPEG engines of the device,
/// decodes all images that it supports. The hybrid backend decodes the others, and all images on a
/// device without JPEG engines: it runs Huffman decoding on the CPU and the remaining steps on the
/// multiprocessors.
///
/// A failed image does not affect the other images. Corruption after the header may not be
/// detected; the pixels of that image are then wrong. [`decode`](NvJpeg::decode) does not wait for
/// the pixels: consumers wait on [`DecodedJpegs::memory`]. If too many images are in flight,
/// `decode` waits for the oldest ones.
///
/// The backends may differ in the last bit of a value, because their inverse DCTs differ. On one
/// kind of device, the backend depends only on the image.
///
/// One decoder is used by one thread at a time. Several decoders can run concurrently.
///
/// ```no_run
/// use spdl_cuda::jpeg::DecodedJpeg;
/// use spdl_cuda::{CudaDevice, NvJpeg};
///
/// let device = CudaDevice::open(0)?;
/// let mut decoder = NvJpeg::new(&device)?;
/// let batch = decoder.decode(&[std::fs::read("cat.jpg")?.into()])?;
/// for image in &batch.images {
///     match image {
///         DecodedJpeg::Decoded { header, offset, .. } => println!("{} at {offset}", header.size),
///         other => println!("not decoded: {other:?}"),
///     }
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct NvJpeg {
    /// The fields `hybrid` and `hardware` are leaked if the device may still use their resources.
    hybrid: ManuallyDrop<HybridBackend>,
    hardware: ManuallyDrop<Option<HardwareBackend>>,
    slab_sizes: SizeEstimator,
    only: Option<JpegBackend>,
    /// The encoded images of each batch in flight, and an event that completes after the batch.
    in_flight: VecDeque<(Arc<Event>, Vec<Bytes>)>,
    device: Arc<DeviceInner>,
    library: NvJpegLibrary,
}

impl NvJpeg {
    /// Creates a decoder on a device, with nvJPEG from its default location.
    ///
    /// # Errors
    /// `Unsupported` if nvJPEG is missing, with a remedy; errors of nvJPEG and of the driver.
    pub fn new(device: &CudaDevice) -> Result<NvJpeg> {
        NvJpeg::new_with(device, &Search::default())
    }

    /// Like [`new`](NvJpeg::new), with additional places to search for nvJPEG.
    ///
    /// # Errors
    /// The errors of [`new`](NvJpeg::new).
    pub fn new_with(device: &CudaDevice, search: &Search) -> Result<NvJpeg> {
        let library = NvJpegLibrary::open(search).map_err(|missing| {
            let message =
                format!("cannot decode JPEGs on the device; {}", missing.library.remedy());
            Error::new(ErrorKind::Unsupported, message).with_source(missing)
        })?;
        let device = Arc::clone(device.inner());
        let context = &device.context;
        let doing = "initialise nvJPEG";
        let made = |made: NvJpegResult<_>| made.map_err(|error| error.into_error(doing));
        let hybrid_stream = ComputeStream::new(context)?;
        let hybrid =
            context.run(doing, |_| Ok(HybridBackend::new(&library, &device, hybrid_stream)))?;
        let hardware_stream = ComputeStream::new(context)?;
        let hardware =
            context.run(doing, |_| Ok(HardwareBackend::new(&library, &device, hardware_stream)))?;
        let hybrid = hybrid.map_err(|error| error.into_error(doing))?;
        let hardware = made(hardware)?;
        Ok(NvJpeg {
            hybrid: ManuallyDrop::new(hybrid),
            hardware: ManuallyDrop::new(hardware),
            slab_sizes: SizeEstimator::default(),
            only: None,
            in_flight: VecDeque::new(),
            library,
            device,
        })
    }

    /// The version of nvJPEG, for example `[13, 3, 2]`.
    pub fn version(&self) -> [i32; 3] {
        self.library.version()
    }

    /// The number of JPEG engines, and of cores per engine; 0 and 0 if the device has none.
    pub fn engines(&self) -> (u32, u32) {
        self.hardware.as_ref().map_or((0, 0), |hardware| hardware.engines)
    }

    /// Restricts decoding to one backend. Images that this backend does not decode are
    /// [unsupported](super::DecodedJpeg::Unsupported). With [`JpegBackend::Host`], no image is
    /// decoded.
    #[must_use]
    pub fn only(mut self, backend: JpegBackend) -> Self {
        self.only = Some(backend);
        self
    }

    /// Starts to decode images. The CPU part of the hybrid backend is complete on return.
    ///
    /// # Errors
    /// `LimitExceeded` if memory is exhausted; failures of the device. Failures of single images
    /// are in [`DecodedJpegs::images`].
    pub fn decode(&mut self, encoded: &[Bytes]) -> Result<DecodedJpegs> {
        let headers = encoded.iter().map(|bytes| parse_header(bytes)).collect();
        self.decode_parsed(encoded, headers)
    }

    /// Like [`decode`](NvJpeg::decode), with headers that are already parsed.
    pub(crate) fn decode_parsed(
        &mut self,
        encoded: &[Bytes],
        headers: Vec<Result<JpegHeader>>,
    ) -> Result<DecodedJpegs> {
        let doing = "decode JPEGs on the device";
        self.release_completed().map_err(|error| self.device.context.error(error, doing))?;
        let mut images = self.assign(encoded, headers, doing)?;
        let len = assign_offsets(&mut images);
        let slab = self.take_slab(len.max(1))?;
        if let Err(error) = self.wait_for(&slab) {
            // If a wait fails now, the same wait would also fail for the next batch.
            self.device.slabs.withhold(slab);
            return Err(self.device.context.error(error, doing));
        }
        match self.start(encoded, &mut images, &slab, doing) {
            Ok(decoded) => self.finish(encoded, images, slab, len, decoded),
            Err(error) => {
                self.release_after_failure(encoded, slab);
                Err(error)
            }
        }
    }

    /// Assigns a backend to each image.
    fn assign(
        &mut self,
        encoded: &[Bytes],
        headers: Vec<Result<JpegHeader>>,
        doing: &str,
    ) -> Result<Vec<PendingImage>> {
        let mut images: Vec<PendingImage> = Vec::with_capacity(encoded.len());
        for (bytes, header) in encoded.iter().zip(headers) {
            images.push(match header {
                Ok(header) => {
                    let is_allowed = |backend| self.only.is_none_or(|only| only == backend);
                    let mut backends = BackendSet::of(&header, bytes);
                    backends.hybrid &= is_allowed(JpegBackend::Hybrid);
                    backends.hardware = backends.hardware
                        && is_allowed(JpegBackend::Hardware)
                        && self.hardware_supports(bytes, &header, doing)?;
                    let backend = backends.best();
                    PendingImage::Assigned { offset: 0, header, backend, backends }
                }
                Err(error) => PendingImage::Failed(error),
            });
        }
        Ok(images)
    }

    /// Whether the JPEG engines support the image, and nvJPEG parses the same size as this crate.
    fn hardware_supports(
        &mut self,
        encoded: &[u8],
        header: &JpegHeader,
        doing: &str,
    ) -> Result<bool> {
        let Some(hardware) = &mut *self.hardware else { return Ok(false) };
        let HardwareBackend { codec, parsed, .. } = hardware;
        let supported = self.device.context.run(doing, |_| {
            // SAFETY: `parsed` is only used while `encoded` exists.
            let parse = unsafe { codec.parse_header(encoded, parsed) };
            Ok(parse.and_then(|()| {
                let size = [header.size.width, header.size.height];
                Ok(codec.is_of_size(parsed, size)? && codec.hardware_supports(parsed)?)
            }))
        })?;
        // The hybrid backend reports why nvJPEG cannot parse an image.
        Ok(supported.unwrap_or(false))
    }

    /// Returns a slab for `bytes` bytes. If the device has enough memory, the slab is larger, to be
    /// reused for larger batches.
    fn take_slab(&mut self, bytes: usize) -> Result<Slab> {
        let size = self.slab_sizes.size_for(bytes);
        self.device.slabs.take(size).or_else(|error| {
            if error.kind() != ErrorKind::LimitExceeded {
                return Err(error);
            }
            self.slab_sizes = SizeEstimator::default();
            self.device.slabs.take(bytes)
        })
    }

    /// Makes the streams of the backends wait until they may write to the slab.
    fn wait_for(&self, slab: &Slab) -> DriverResult<()> {
        self.streams().try_for_each(|stream| {
            let pending_for: Vec<_> = slab.pending_for(stream.handle()).cloned().collect();
            stream.wait_for(&pending_for)
        })
    }

    /// Starts the decoding, and returns an event that completes after it.
    fn start(
        &mut self,
        encoded: &[Bytes],
        images: &mut [PendingImage],
        slab: &Slab,
        doing: &str,
    ) -> Result<Arc<Event>> {
        let context = Arc::clone(&self.device.context);
        let device_error = |error| context.error(error, doing);
        self.start_hardware(encoded, images, slab, doing)?;
        self.start_hybrid(encoded, images, slab, doing)?;
        // The hybrid stream waits for the hardware stream, so that the last event follows the work
        // of both.
        if let Some(hardware) = &*self.hardware {
            let event = Event::new(&context).map_err(device_error)?;
            hardware.stream.record(&event).map_err(device_error)?;
            self.hybrid.stream.wait_for(&[Arc::new(event)]).map_err(device_error)?;
        }
        let decoded = Event::new(&context).map_err(device_error)?;
        self.hybrid.stream.record(&decoded).map_err(device_error)?;
        Ok(Arc::new(decoded))
    }

    fn streams(&self) -> impl Iterator<Item = &ComputeStream> {
        let hardware = self.hardware.as_ref().map(|hardware| &hardware.stream);
        hardware.into_iter().chain([&self.hybrid.stream])
    }

    /// Starts the hardware backend. If nvJPEG rejects the batch, its images are assigned to the
    /// hybrid backend.
    fn start_hardware(
        &mut self,
        encoded: &[Bytes],
        images: &mut [PendingImage],
        slab: &Slab,
        doing: &str,
    ) -> Result<()> {
        let Some(hardware) = &mut *self.hardware else { return Ok(()) };
        let chosen: Vec<usize> = assigned_to(images, JpegBackend::Hardware).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let data: Vec<&[u8]> = chosen.iter().map(|&at| &*encoded[at]).collect();
        let mut planes: Vec<OutputPlanes> =
            chosen.iter().map(|&at| images[at].planes(slab)).collect();
        let written: Vec<MemoryAccess> =
            chosen.iter().map(|&at| images[at].written(slab)).collect();
        let context = &self.device.context;
        let HardwareState { mut state, mut prepared, busy } =
            hardware.take_state(context, doing)?;
        let HardwareBackend { codec, states, stream, .. } = hardware;
        if let Some(busy) = &busy
            && !busy.is_complete().unwrap_or(false)
            && let Err(error) = busy.wait()
        {
            let error = context.error(error, doing);
            states.push_back(HardwareState { state, prepared, busy: Some(Arc::clone(busy)) });
            return Err(error);
        }
        let attempt = context
            .attempt(|driver| {
                if prepared != chosen.len() {
                    // SAFETY: the last batch of the state is done.
                    if let Err(error) = unsafe { codec.prepare(&mut state, chosen.len()) } {
                        return Ok(Err(error));
                    }
                    prepared = chosen.len();
                }
                // SAFETY: the images and the slab exist until the event after this work completes.
                // In the slab, each image has as much memory as its header requires, and nvJPEG has
                // confirmed the size. The last batch of the state is done.
                let started =
                    unsafe { codec.decode_batch(&mut state, &data, &mut planes, stream.handle()) };
                if started.is_ok() {
                    driver.note_library_work(LIBRARY, &written, stream.handle())?;
                }
                Ok(started)
            })
            .and_then(|started| {
                // The event is recorded even after a failure, because the device may use the state.
                let done = Event::new(context)?;
                stream.record(&done)?;
                Ok((started, Arc::new(done)))
            });
        // Without an event, `release_after_failure` waits for the whole stream.
        let busy = attempt.as_ref().ok().map(|(_, done)| Arc::clone(done));
        let is_prepared = matches!(&attempt, Ok((Ok(()), _)));
        prepared = if is_prepared { prepared } else { 0 };
        states.push_back(HardwareState { state, prepared, busy });
        let (started, _) = attempt.map_err(|error| context.error(error, doing))?;
        if let Err(error) = started {
            for at in chosen {
                images[at].fall_back_to_hybrid(&error);
            }
        }
        Ok(())
    }

    fn start_hybrid(
        &mut self,
        encoded: &[Bytes],
        images: &mut [PendingImage],
        slab: &Slab,
        doing: &str,
    ) -> Result<()> {
        let chosen: Vec<usize> = assigned_to(images, JpegBackend::Hybrid).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let context = &self.device.context;
        for at in chosen {
            let (plane, size) = (images[at].planes(slab), images[at].size());
            let written = images[at].written(slab);
            let (mut state, busy) = self.hybrid.take_state(context, doing)?;
            let HybridBackend { states, decoder, codec, stream, .. } = &mut *self.hybrid;
            let attempt = context
                .attempt(|driver| {
                    if let Some(busy) = &busy {
                        busy.wait()?;
                    }
                    // SAFETY: the image and the slab exist until the event after this work
                    // completes. In the slab, the image has as much memory as its header requires.
                    // The last image of the state is done.
                    let started = unsafe {
                        codec.decode_image(
                            decoder,
                            &mut state,
                            &encoded[at],
                            size,
                            plane,
                            stream.handle(),
                        )
                    };
                    if started.is_ok() {
                        driver.note_library_work(LIBRARY, &[written], stream.handle())?;
                    }
                    Ok(started)
                })
                .and_then(|started| {
                    let done = Event::new(context)?;
                    stream.record(&done)?;
                    Ok((started, Arc::new(done)))
                });
            // The state is kept even after a failure, because the device may use it.
            let done = attempt.as_ref().ok().map(|(_, done)| Arc::clone(done));
            states.push_back((state, done));
            let (started, _) = attempt.map_err(|error| context.error(error, doing))?;
            if let Err(error) = started {
                if !error.is_fault_of_image() {
                    return Err(error.into_error(doing));
                }
                images[at] = PendingImage::Failed(error.into_error("decode this JPEG"));
            }
        }
        Ok(())
    }

    fn finish(
        &mut self,
        encoded: &[Bytes],
        images: Vec<PendingImage>,
        mut slab: Slab,
        len: usize,
        decoded: Arc<Event>,
    ) -> Result<DecodedJpegs> {
        slab.record_write(self.hybrid.stream.handle(), &decoded);
        self.in_flight.push_back((Arc::clone(&decoded), encoded.to_vec()));
        let memory = CudaMemory::new(Arc::clone(&self.device), slab, len, decoded);
        let images = images.into_iter().map(PendingImage::into_decoded).collect();
        Ok(DecodedJpegs { memory, images })
    }

    /// Releases resources after a failure, or leaks them if the device may still use them.
    fn release_after_failure(&mut self, encoded: &[Bytes], slab: Slab) {
        if self.synchronize() {
            self.device.slabs.recycle(slab);
        } else {
            std::mem::forget(encoded.to_vec());
            self.device.slabs.withhold(slab);
        }
    }

    /// Waits for the streams of the backends, and returns whether all work has completed.
    fn synchronize(&self) -> bool {
        self.streams().all(ComputeStream::synchronize)
    }

    fn release_completed(&mut self) -> DriverResult<()> {
        while let Some((decoded, _)) = self.in_flight.front() {
            if !decoded.is_complete()? {
                break;
            }
            self.in_flight.pop_front();
        }
        Ok(())
    }
}

impl Drop for NvJpeg {
    fn drop(&mut self) {
        if !self.synchronize() {
            // The device may still use the encoded images, so they are leaked.
            std::mem::forget(std::mem::take(&mut self.in_flight));
            return;
        }
        // SAFETY: the field is not used again.
        unsafe { ManuallyDrop::drop(&mut self.hybrid) };
        // SAFETY: the field is not used again.
        unsafe { ManuallyDrop::drop(&mut self.hardware) };
    }
}

impl fmt::Debug for NvJpeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvJpeg")
            .field("library", &self.library)
            .field("engines", &self.engines())
            .finish_non_exhaustive()
    }
}
