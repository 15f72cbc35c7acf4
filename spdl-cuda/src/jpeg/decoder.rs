//! Batches of JPEGs to pixels in the memory of a device.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::backends::{HardwareBackend, HardwareState, HybridBackend};
use super::error::NvJpegResult;
use super::header::JpegHeader;
use super::image::{PendingImage, at_path, place};
use super::library::{NvJpegLibrary, OutputPlanes};
use super::load_balance::{BackendSet, JpegBackend, LoadBalancer};
use super::timings::Timings;
use crate::driver::{DriverResult, MemoryAccess};
use crate::libraries::Search;
use crate::runtime::{
    ComputeStream, CudaDevice, CudaMemory, DeviceInner, Event, SizeEstimator, Slab,
};

/// Who does the work, for drivers that check who uses what.
const LIBRARY: &str = "nvJPEG";

/// Decodes JPEGs on a device, with nvJPEG.
///
/// What a header says is read on the CPU first. Then each image goes to the engines for JPEGs that some
/// devices have, or to the device's multiprocessors after the CPU has undone its Huffman codes. Which of
/// the two follows from how fast each was of late, so that both finish together; the device's own timers
/// tell that, without waiting. An image that fails spoils no other. Damage behind the header may go
/// unnoticed: then that image's pixels are wrong, and no other's. Nothing waits until the pixels are there; [`DecodedJpegs::memory`] says when.
///
/// The two ways may differ in the last bit of a sample, as they have transforms of their own: where
/// pixels are to be the same on every run, let only one of them be used
/// ([`only`](NvJpeg::only)).
///
/// One decoder is for one thread at a time. Several decode at the same time.
pub struct NvJpeg {
    /// Both are left as they are where the device may still use them.
    hybrid: ManuallyDrop<HybridBackend>,
    hardware: ManuallyDrop<Option<HardwareBackend>>,
    shares: LoadBalancer,
    timings: Timings,
    slab_sizes: SizeEstimator,
    only: Option<JpegBackend>,
    /// What is decoded now, and the event behind it.
    held: VecDeque<(Arc<Event>, Vec<Bytes>)>,
    device: Arc<DeviceInner>,
    library: NvJpegLibrary,
}

/// Images in the memory of a device, or on their way there.
#[derive(Debug)]
pub struct DecodedJpegs {
    /// What they lie in; its streams wait for them with [`CudaMemory::wait_on`].
    pub memory: CudaMemory,
    /// What became of each image, in their order.
    pub images: Vec<DecodedJpeg>,
}

/// What became of an image.
#[non_exhaustive]
#[derive(Debug)]
pub enum DecodedJpeg {
    /// It lies in the batch's memory: rows of RGB, one byte for each, without gaps.
    Decoded {
        /// Where it begins, in bytes.
        offset: usize,
        /// What its header says. It is not turned yet.
        header: JpegHeader,
        /// What has decoded it.
        path: JpegBackend,
    },
    /// It is sound as far as its header tells, but of a kind that the device does not decode.
    ForHost(JpegHeader),
    /// It is damaged, or too large.
    Failed(Error),
}

impl NvJpeg {
    /// A decoder on this device. The library is searched for in the usual places.
    ///
    /// # Errors
    /// `Unsupported` where there is no nvJPEG, with what to do; what the library or the driver says.
    pub fn new(device: &CudaDevice) -> Result<NvJpeg> {
        NvJpeg::new_with(device, &Search::default())
    }

    /// The same, with places where to search.
    ///
    /// # Errors
    /// As of [`new`](NvJpeg::new).
    pub fn new_with(device: &CudaDevice, search: &Search) -> Result<NvJpeg> {
        let library = NvJpegLibrary::open(search).map_err(|missing| {
            let message =
                format!("cannot decode JPEGs on the device; {}", missing.library.remedy());
            Error::new(ErrorKind::Unsupported, message).with_source(missing)
        })?;
        let device = Arc::clone(device.inner());
        let context = &device.context;
        let doing = "start nvJPEG";
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
            shares: LoadBalancer::new(),
            timings: Timings::default(),
            slab_sizes: SizeEstimator::default(),
            only: None,
            held: VecDeque::new(),
            library,
            device,
        })
    }

    /// The library's version, as in 13.3.2.
    pub fn version(&self) -> [i32; 3] {
        self.library.version()
    }

    /// How many engines for JPEGs the device has, and how many images each decodes at once; 0 and 0
    /// where it has none.
    pub fn engines(&self) -> (u32, u32) {
        self.hardware.as_ref().map_or((0, 0), |hardware| hardware.engines)
    }

    /// Lets images go this way alone; those that it does not take are
    /// [for the host](DecodedJpeg::ForHost). With [`JpegBackend::Host`], that is all of them.
    #[must_use]
    pub fn only(mut self, path: JpegBackend) -> Self {
        self.only = Some(path);
        self
    }

    /// The share of pixels that goes to the engines, of those that could go either way, by what was
    /// measured so far. It says something only where there are engines.
    pub fn engines_share(&self) -> f64 {
        self.shares.shares()[0]
    }

    /// Starts to decode images. Those that need the CPU first have been through it when this returns.
    ///
    /// # Errors
    /// What the device fails with, whatever the image. Damage is told for each image alone.
    pub fn decode(&mut self, encoded: &[Bytes]) -> Result<DecodedJpegs> {
        let headers = encoded.iter().map(|bytes| JpegHeader::parse(bytes)).collect();
        self.decode_parsed(encoded, headers)
    }

    /// The same where headers were read before.
    pub(crate) fn decode_parsed(
        &mut self,
        encoded: &[Bytes],
        headers: Vec<Result<JpegHeader>>,
    ) -> Result<DecodedJpegs> {
        let doing = "decode JPEGs on the device";
        self.let_go_of_finished().map_err(|error| self.device.context.error(error, doing))?;
        let mut images = self.judge(encoded, headers, doing)?;
        let len = place(&mut images);
        let slab = self.take_slab(len.max(1))?;
        if let Err(error) = self.wait_for(&slab) {
            // Nothing was started with it, and the next batch could not wait for it either.
            self.device.slabs.withhold(slab);
            return Err(self.device.context.error(error, doing));
        }
        match self.start(encoded, &mut images, &slab, doing) {
            Ok(decoded) => self.deliver(encoded, images, slab, len, decoded),
            Err(error) => {
                self.abandon(encoded, slab);
                Err(error)
            }
        }
    }

    /// What is to become of each image.
    fn judge(
        &mut self,
        encoded: &[Bytes],
        headers: Vec<Result<JpegHeader>>,
        doing: &str,
    ) -> Result<Vec<PendingImage>> {
        let mut images: Vec<PendingImage> = Vec::with_capacity(encoded.len());
        for (bytes, header) in encoded.iter().zip(headers) {
            images.push(match header {
                Ok(header) => {
                    let mut ways = BackendSet::of(&header);
                    ways.hardware &= self.only.is_none_or(|only| only == JpegBackend::Hardware);
                    ways.hybrid &= self.only.is_none_or(|only| only == JpegBackend::Hybrid);
                    ways.hardware &= self.engines_take(bytes, &header, ways.hardware, doing)?;
                    PendingImage::Assigned { offset: 0, header, path: JpegBackend::Host, ways }
                }
                Err(error) => PendingImage::Failed(error),
            });
        }
        let known: Vec<(u64, BackendSet)> =
            images.iter().map(PendingImage::size_and_ways).collect();
        for (image, chosen) in images.iter_mut().zip(self.shares.assign(&known)) {
            if let PendingImage::Assigned { path, .. } = image {
                *path = chosen;
            }
        }
        Ok(images)
    }

    /// Whether the library, too, says that the engines decode it, and how large it is.
    fn engines_take(
        &mut self,
        encoded: &[u8],
        header: &JpegHeader,
        may: bool,
        doing: &str,
    ) -> Result<bool> {
        let Some(hardware) = self.hardware.as_mut().filter(|_| may) else { return Ok(false) };
        let HardwareBackend { codec, parsed, .. } = hardware;
        let taken = self.device.context.run(doing, |_| {
            // SAFETY: what is parsed is asked about at once, and not used again.
            let parse = unsafe { codec.parse(encoded, parsed) };
            Ok(parse.and_then(|()| {
                let size = [header.width, header.height];
                Ok(codec.is_of_size(parsed, size)? && codec.engines_take(parsed)?)
            }))
        })?;
        // What it does not understand goes where the reason is found.
        Ok(taken.unwrap_or(false))
    }

    /// Memory for images of so many bytes; where the device has none to spare, none to spare is taken.
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

    /// Lets both streams wait until the slab may be written.
    fn wait_for(&self, slab: &Slab) -> DriverResult<()> {
        self.streams().try_for_each(|stream| {
            let pending_for: Vec<_> = slab.pending_for(stream.handle()).cloned().collect();
            stream.wait_for(&pending_for)
        })
    }

    /// Starts all of it; returns the event behind it.
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
        // The last stream waits for the other, and the event is behind both.
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

    /// What the engines refuse goes the other way, where each image is judged alone.
    fn start_hardware(
        &mut self,
        encoded: &[Bytes],
        images: &mut [PendingImage],
        slab: &Slab,
        doing: &str,
    ) -> Result<()> {
        let Some(hardware) = &mut *self.hardware else { return Ok(()) };
        let chosen: Vec<usize> = at_path(images, JpegBackend::Hardware).collect();
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
        let begin = self.timings.begin(context, stream);
        let attempt = context
            .attempt(|driver| {
                if prepared != chosen.len() {
                    // SAFETY: its last batch is done.
                    if let Err(error) = unsafe { codec.prepare(&mut state, chosen.len()) } {
                        return Ok(Err(error));
                    }
                    prepared = chosen.len();
                }
                // SAFETY: the images are held until the event behind this is reached, and so is the
                // slab, in which each has a place as large as its header says, by the library's own
                // reading, too. The state's last batch is done, and it waits for this one.
                let started =
                    unsafe { codec.decode_batch(&mut state, &data, &mut planes, stream.handle()) };
                if started.is_ok() {
                    driver.note_library_work(LIBRARY, &written, stream.handle())?;
                }
                Ok(started)
            })
            .and_then(|started| {
                // Also after a failure: the device may be at work with it.
                let done = Event::new(context)?;
                stream.record(&done)?;
                Ok((started, Arc::new(done)))
            });
        // Without an event everything is waited for before anybody comes back to it: `abandon`.
        let busy = attempt.as_ref().ok().map(|(_, done)| Arc::clone(done));
        let is_prepared = matches!(&attempt, Ok((Ok(()), _)));
        prepared = if is_prepared { prepared } else { 0 };
        states.push_back(HardwareState { state, prepared, busy });
        let (started, _) = attempt.map_err(|error| context.error(error, doing))?;
        match started {
            Ok(()) => self.timings.end(begin, stream, JpegBackend::Hardware, &written),
            Err(error) => {
                for at in chosen {
                    images[at].go_the_other_way(&error);
                }
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
        let chosen: Vec<usize> = at_path(images, JpegBackend::Hybrid).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let context = &self.device.context;
        let begin = self.timings.begin(context, &self.hybrid.stream);
        let mut decoded = Vec::with_capacity(chosen.len());
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
                    // SAFETY: the image is held until the event behind this is reached, and so is the
                    // slab, in which it has a place as large as its header says; what the state did
                    // before is done.
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
            // Also after a failure: the device may be at work with it.
            let done = attempt.as_ref().ok().map(|(_, done)| Arc::clone(done));
            states.push_back((state, done));
            let (started, _) = attempt.map_err(|error| context.error(error, doing))?;
            if let Err(error) = started {
                if !error.blames_the_image() {
                    return Err(error.into_error(doing));
                }
                images[at] = PendingImage::Failed(error.into_error("decode this JPEG"));
            } else {
                decoded.push(written);
            }
        }
        self.timings.end(begin, &self.hybrid.stream, JpegBackend::Hybrid, &decoded);
        Ok(())
    }

    fn deliver(
        &mut self,
        encoded: &[Bytes],
        images: Vec<PendingImage>,
        mut slab: Slab,
        len: usize,
        decoded: Arc<Event>,
    ) -> Result<DecodedJpegs> {
        slab.record_write(self.hybrid.stream.handle(), &decoded);
        self.held.push_back((Arc::clone(&decoded), encoded.to_vec()));
        let memory = CudaMemory::new(Arc::clone(&self.device), slab, len, decoded);
        let images = images.into_iter().map(PendingImage::delivered).collect();
        Ok(DecodedJpegs { memory, images })
    }

    /// After a failure: nothing is let go while the device may use it.
    fn abandon(&mut self, encoded: &[Bytes], slab: Slab) {
        if self.synchronize() {
            self.device.slabs.recycle(slab);
        } else {
            std::mem::forget(encoded.to_vec());
            self.device.slabs.withhold(slab);
        }
    }

    /// Waits until both streams are done. Whether they are.
    fn synchronize(&self) -> bool {
        self.streams().all(ComputeStream::synchronize)
    }

    fn let_go_of_finished(&mut self) -> DriverResult<()> {
        while let Some((decoded, _)) = self.held.front() {
            if !decoded.is_complete()? {
                break;
            }
            self.held.pop_front();
        }
        self.timings.learn(&mut self.shares)
    }
}

impl Drop for NvJpeg {
    fn drop(&mut self) {
        if !self.synchronize() {
            // Whether the device still uses them, nobody knows.
            std::mem::forget(std::mem::take(&mut self.held));
            return;
        }
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.hybrid) };
        // SAFETY: it is not used again.
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
