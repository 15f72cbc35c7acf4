//! Batches of JPEGs to pixels in the memory of a device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::header::JpegHeader;
use super::library::{
    Backend, BatchState, Codec, ImageDecoder, ImageState, NvJpegError, NvJpegLibrary, NvJpegResult,
    ParsedJpeg, Planes,
};
use super::paths::{JpegPath, Rates, Ways};
use crate::context::Event;
use crate::device::{CudaDevice, Shared};
use crate::libraries::Search;
use crate::memory::CudaMemory;
use crate::slabs::Slab;
use crate::stream::WorkStream;

/// How many images are decoded one by one at the same time. Each takes memory for itself.
const IMAGES_AT_ONCE: usize = 8;

/// Where an image of a batch begins: at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// Decodes JPEGs on a device, with nvJPEG.
///
/// What a header says is read on the CPU first. Then each image goes to the engines for JPEGs that some
/// devices have, or to the device's multiprocessors after the CPU has undone its Huffman codes: two
/// thirds of the pixels to the engines, as far as they take them. An image that fails spoils no other.
/// Nothing waits until the pixels are there; [`DecodedJpegs::memory`] says when.
///
/// One decoder is for one thread at a time. Several decode at the same time.
pub struct NvJpeg {
    hybrid: Hybrid,
    hardware: Option<Hardware>,
    rates: Rates,
    /// What is decoded now, and the event behind it.
    held: VecDeque<(Arc<Event>, Vec<Bytes>)>,
    device: Arc<Shared>,
    library: NvJpegLibrary,
}

/// The device's engines. Fields are dropped in their order.
struct Hardware {
    state: BatchState,
    parsed: ParsedJpeg,
    /// For how many images the state is prepared.
    prepared: usize,
    engines: (u32, u32),
    codec: Codec,
    stream: WorkStream,
}

/// The CPU and the multiprocessors.
struct Hybrid {
    /// Those that were not used for the longest time first.
    states: VecDeque<(ImageState, Option<Arc<Event>>)>,
    decoder: ImageDecoder,
    codec: Codec,
    stream: WorkStream,
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
        path: JpegPath,
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
        let device = Arc::clone(device.shared());
        let context = &device.context;
        let doing = "start nvJPEG";
        let made = |made: NvJpegResult<_>| made.map_err(|error| error.into_error(doing));
        let hybrid_stream = WorkStream::new(context)?;
        let hybrid = context.run(doing, |_| Ok(Hybrid::new(&library, &device, hybrid_stream)))?;
        let hardware_stream = WorkStream::new(context)?;
        let hardware =
            context.run(doing, |_| Ok(Hardware::new(&library, &device, hardware_stream)))?;
        Ok(NvJpeg {
            hybrid: hybrid.map_err(|error| error.into_error(doing))?,
            hardware: made(hardware)?,
            rates: Rates::new(),
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

    /// Starts to decode images. Those that need the CPU first have been through it when this returns.
    ///
    /// # Errors
    /// What the device fails with, whatever the image. Damage is told for each image alone.
    pub fn decode(&mut self, encoded: &[Bytes]) -> Result<DecodedJpegs> {
        let doing = "decode JPEGs on the device";
        self.let_go_of_finished().map_err(|error| self.device.context.error(error, doing))?;
        let mut images = self.judge(encoded, doing)?;
        let len = place(&mut images);
        let slab = self.device.slabs.take(len.max(1))?;
        match self.start(encoded, &mut images, &slab, doing) {
            Ok(decoded) => self.deliver(encoded, images, slab, len, decoded),
            Err(error) => {
                self.abandon(encoded, slab);
                Err(error)
            }
        }
    }

    /// What is to become of each image.
    fn judge(&mut self, encoded: &[Bytes], doing: &str) -> Result<Vec<Image>> {
        let mut images: Vec<Image> = Vec::with_capacity(encoded.len());
        for bytes in encoded {
            images.push(match JpegHeader::parse(bytes) {
                Ok(header) => {
                    let mut ways = Ways::of(&header);
                    ways.hardware &= self.engines_take(bytes, ways.hardware, doing)?;
                    Image::To { offset: 0, header, path: JpegPath::Host, ways }
                }
                Err(error) => Image::Failed(error),
            });
        }
        let known: Vec<(u64, Ways)> = images.iter().map(Image::size_and_ways).collect();
        for (image, chosen) in images.iter_mut().zip(self.rates.assign(&known)) {
            if let Image::To { path, .. } = image {
                *path = chosen;
            }
        }
        Ok(images)
    }

    /// Whether the library, too, says that the engines decode it.
    fn engines_take(&mut self, encoded: &[u8], may: bool, doing: &str) -> Result<bool> {
        let Some(hardware) = self.hardware.as_mut().filter(|_| may) else { return Ok(false) };
        let Hardware { codec, parsed, .. } = hardware;
        let taken = self.device.context.run(doing, |_| {
            // SAFETY: what is parsed is asked about at once, and not used again.
            let parse = unsafe { codec.parse(encoded, parsed) };
            Ok(parse.and_then(|()| codec.engines_take(parsed)))
        })?;
        // What it does not understand goes where the reason is found.
        Ok(taken.unwrap_or(false))
    }

    /// Starts all of it; returns the event behind it.
    fn start(
        &mut self,
        encoded: &[Bytes],
        images: &mut [Image],
        slab: &Slab,
        doing: &str,
    ) -> Result<Arc<Event>> {
        let context = Arc::clone(&self.device.context);
        let device_error = |error| context.error(error, doing);
        for stream in self.streams() {
            stream.wait_for(&slab.uses).map_err(device_error)?;
        }
        self.start_hardware(encoded, images, slab, doing)?;
        self.start_hybrid(encoded, images, slab, doing)?;
        // The last stream waits for the other, and the event is behind both.
        if let Some(hardware) = &self.hardware {
            let event = Event::new(&context).map_err(device_error)?;
            hardware.stream.record(&event).map_err(device_error)?;
            self.hybrid.stream.wait_for(&[Arc::new(event)]).map_err(device_error)?;
        }
        let decoded = Event::new(&context).map_err(device_error)?;
        self.hybrid.stream.record(&decoded).map_err(device_error)?;
        Ok(Arc::new(decoded))
    }

    fn streams(&self) -> impl Iterator<Item = &WorkStream> {
        let hardware = self.hardware.as_ref().map(|hardware| &hardware.stream);
        hardware.into_iter().chain([&self.hybrid.stream])
    }

    /// What the engines refuse goes the other way, where each image is judged alone.
    fn start_hardware(
        &mut self,
        encoded: &[Bytes],
        images: &mut [Image],
        slab: &Slab,
        doing: &str,
    ) -> Result<()> {
        let Some(hardware) = &mut self.hardware else { return Ok(()) };
        let chosen: Vec<usize> = at_path(images, JpegPath::Hardware).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let data: Vec<&[u8]> = chosen.iter().map(|&at| &*encoded[at]).collect();
        let mut planes: Vec<Planes> = chosen.iter().map(|&at| images[at].planes(slab)).collect();
        let Hardware { codec, state, prepared, stream, .. } = hardware;
        let started = self.device.context.run(doing, |_| {
            if *prepared != chosen.len() {
                if let Err(error) = codec.prepare(state, chosen.len()) {
                    return Ok(Err(error));
                }
                *prepared = chosen.len();
            }
            // SAFETY: the images are held until the event behind this is reached, and so is the slab,
            // in which each has a place as large as its header says.
            Ok(unsafe { codec.decode_batch(state, &data, &mut planes, stream.handle()) })
        })?;
        if let Err(error) = started {
            *prepared = 0;
            for at in chosen {
                images[at].go_the_other_way(&error);
            }
        }
        Ok(())
    }

    fn start_hybrid(
        &mut self,
        encoded: &[Bytes],
        images: &mut [Image],
        slab: &Slab,
        doing: &str,
    ) -> Result<()> {
        let chosen: Vec<usize> = at_path(images, JpegPath::Hybrid).collect();
        let context = &self.device.context;
        for at in chosen {
            let plane = images[at].planes(slab);
            let Hybrid { states, decoder, codec, stream } = &mut self.hybrid;
            let Some((mut state, busy)) = states.pop_front() else {
                let message = "there is nothing to decode an image with";
                return Err(Error::new(ErrorKind::Internal, message));
            };
            let attempt = context
                .attempt(|_| {
                    if let Some(busy) = &busy
                        && !busy.is_reached()?
                    {
                        busy.wait()?;
                    }
                    // SAFETY: the image is held until the event behind this is reached, and so is the
                    // slab, in which it has a place as large as its header says; what the state did
                    // before is done.
                    Ok(unsafe {
                        codec.decode_image(
                            decoder,
                            &mut state,
                            &encoded[at],
                            plane,
                            stream.handle(),
                        )
                    })
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
                images[at] = Image::Failed(error.into_error("decode this JPEG"));
            }
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        encoded: &[Bytes],
        images: Vec<Image>,
        mut slab: Slab,
        len: usize,
        decoded: Arc<Event>,
    ) -> Result<DecodedJpegs> {
        slab.uses.clear();
        slab.written = Some(Arc::clone(&decoded));
        self.held.push_back((Arc::clone(&decoded), encoded.to_vec()));
        let memory = CudaMemory::new(Arc::clone(&self.device), slab, len, decoded);
        let images = images.into_iter().map(Image::delivered).collect();
        Ok(DecodedJpegs { memory, images })
    }

    /// After a failure: nothing is let go while the device may use it.
    fn abandon(&mut self, encoded: &[Bytes], slab: Slab) {
        if self.settle() {
            self.device.slabs.give_back(slab);
        } else {
            std::mem::forget(encoded.to_vec());
            self.device.slabs.give_up(slab);
        }
    }

    /// Waits until both streams are done. Whether they are.
    fn settle(&self) -> bool {
        self.streams().all(WorkStream::settle)
    }

    fn let_go_of_finished(&mut self) -> crate::driver::DriverResult<()> {
        while let Some((decoded, _)) = self.held.front() {
            if !decoded.is_reached()? {
                break;
            }
            self.held.pop_front();
        }
        Ok(())
    }
}

impl Hardware {
    /// `None` where the device has no engines for JPEGs.
    fn new(
        library: &NvJpegLibrary,
        device: &Shared,
        stream: WorkStream,
    ) -> NvJpegResult<Option<Hardware>> {
        let codec = match Codec::new(library, &device.context, Backend::Hardware) {
            Ok(codec) => codec,
            Err(NvJpegError { status: 4 | 7 | 9, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let engines = codec.engines()?;
        if engines.0 == 0 {
            return Ok(None);
        }
        let (state, parsed) = (codec.batch_state()?, codec.parsed_jpeg()?);
        Ok(Some(Hardware { state, parsed, prepared: 0, engines, codec, stream }))
    }
}

impl Hybrid {
    fn new(library: &NvJpegLibrary, device: &Shared, stream: WorkStream) -> NvJpegResult<Hybrid> {
        let codec = Codec::new(library, &device.context, Backend::Hybrid)?;
        let decoder = codec.image_decoder()?;
        let states = (0..IMAGES_AT_ONCE).map(|_| Ok((codec.image_state(&decoder)?, None)));
        Ok(Hybrid { states: states.collect::<NvJpegResult<_>>()?, decoder, codec, stream })
    }
}

impl Drop for NvJpeg {
    fn drop(&mut self) {
        if !self.settle() {
            // Whether the device still uses them, nobody knows.
            std::mem::forget(std::mem::take(&mut self.held));
            std::mem::forget(std::mem::take(&mut self.hybrid.states));
        }
    }
}

/// An image on its way.
enum Image {
    To { offset: usize, header: JpegHeader, path: JpegPath, ways: Ways },
    Failed(Error),
}

impl Image {
    fn size_and_ways(&self) -> (u64, Ways) {
        match self {
            Image::To { header, ways, .. } => (header.rgb_bytes(), *ways),
            Image::Failed(_) => (0, Ways { hardware: false, hybrid: false }),
        }
    }

    /// Where it goes.
    fn planes(&self, slab: &Slab) -> Planes {
        match self {
            Image::To { offset, header, .. } => {
                let address = slab.memory.address.0 + *offset as u64;
                Planes::interleaved(address, header.width as usize * 3)
            }
            Image::Failed(_) => Planes::interleaved(0, 0),
        }
    }

    fn go_the_other_way(&mut self, error: &NvJpegError) {
        if let Image::To { path, ways, .. } = self {
            if ways.hybrid {
                *path = JpegPath::Hybrid;
            } else {
                *self = Image::Failed(error.into_error("decode this JPEG"));
            }
        }
    }

    fn delivered(self) -> DecodedJpeg {
        match self {
            Image::Failed(error) => DecodedJpeg::Failed(error),
            Image::To { header, path: JpegPath::Host, .. } => DecodedJpeg::ForHost(header),
            Image::To { offset, header, path, .. } => DecodedJpeg::Decoded { offset, header, path },
        }
    }
}

fn at_path(images: &[Image], wanted: JpegPath) -> impl Iterator<Item = usize> {
    let is_it = move |image: &Image| matches!(image, Image::To { path, .. } if *path == wanted);
    images.iter().enumerate().filter(move |(_, image)| is_it(image)).map(|(at, _)| at)
}

/// Gives each image that the device decodes a place; the bytes of all of them.
fn place(images: &mut [Image]) -> usize {
    let mut end = 0_usize;
    for image in images {
        if let Image::To { offset, header, path, .. } = image
            && *path != JpegPath::Host
        {
            *offset = end;
            // At most 2^28 pixels: it fits.
            end += (header.rgb_bytes() as usize).next_multiple_of(ALIGNMENT);
        }
    }
    end
}

impl fmt::Debug for NvJpeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvJpeg")
            .field("library", &self.library)
            .field("engines", &self.engines())
            .finish_non_exhaustive()
    }
}
