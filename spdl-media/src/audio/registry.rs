//! Codec selection by file content, and decoding with the codecs of a registry.

#[cfg(feature = "records")]
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{
    AUDIO_SNIFF_BYTES, AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest,
};
use super::limits::AudioLimits;
use super::waveform::Waveform;
use crate::image::panicked;
use crate::source::{MediaSource, Tail};

/// The size of the header of an ID3v2 tag, and of its footer.
const ID3_HEADER: u64 = 10;

/// The audio codecs of a program. The first bytes of a file select the codec; the file name has no
/// influence. If several codecs recognise a file, and the first one returns `Unsupported`, the next one decodes it.
///
/// The program builds the registry; codecs do not register themselves. Clones are cheap: they share
/// the codecs.
///
/// ```
/// # #[cfg(feature = "flac")] {
/// use spdl_media::audio::AudioRegistry;
/// assert_eq!(AudioRegistry::with_defaults().find(b"fLaC")?.name(), "flac");
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AudioRegistry {
    codecs: Vec<Arc<dyn AudioCodec>>,
}

impl AudioRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        AudioRegistry::default()
    }

    /// The codec of each format that this build supports; cargo features decide which.
    pub fn with_defaults() -> Self {
        AudioRegistry { codecs: super::defaults() }
    }

    /// Adds a codec. The codec takes precedence over the codecs that were registered before.
    pub fn register(&mut self, codec: impl AudioCodec) -> &mut Self {
        self.codecs.insert(0, Arc::new(codec));
        self
    }

    /// The codecs, in order of precedence.
    pub fn codecs(&self) -> impl Iterator<Item = &Arc<dyn AudioCodec>> {
        self.codecs.iter()
    }

    /// The first codec, in order of precedence, whose signature matches the first bytes of a file.
    ///
    /// # Errors
    /// `Truncated` for an empty file; `Unsupported` if no codec matches.
    pub fn find(&self, encoded: &[u8]) -> Result<&Arc<dyn AudioCodec>> {
        self.position(encoded, 0).map(|at| &self.codecs[at]).ok_or_else(|| self.unknown(encoded))
    }

    /// The first codec from `start` on that recognises a file.
    fn position(&self, encoded: &[u8], start: usize) -> Option<usize> {
        let head = &encoded[..encoded.len().min(AUDIO_SNIFF_BYTES)];
        (start..self.codecs.len()).find(|&at| !encoded.is_empty() && self.codecs[at].sniff(head))
    }

    /// The error for a file that no codec recognises.
    fn unknown(&self, encoded: &[u8]) -> Error {
        if encoded.is_empty() {
            return Error::new(ErrorKind::Truncated, "the file is empty");
        }
        let known: Vec<_> = self.codecs.iter().map(|codec| codec.name()).collect();
        let start = encoded[..encoded.len().min(8)].escape_ascii();
        let message = format!(
            "unknown audio format: the file starts with \"{start}\"; registered codecs: {}{}",
            if known.is_empty() { "none".into() } else { known.join(", ") },
            if cfg!(feature = "ffmpeg") {
                ""
            } else {
                "; for other formats, build with the cargo feature \"ffmpeg\""
            }
        );
        Error::new(ErrorKind::Unsupported, message)
    }
}

/// Decodes audio files of every format of a registry.
///
/// Create one per worker: it keeps the decoder of each format, with its scratch memory. A panic
/// inside a decoder becomes an error of the kind `Panicked`; the next file uses a new decoder. ID3v2
/// tags at the start of a file are skipped.
///
/// ```no_run
/// use spdl_media::audio::{AudioLimits, AudioReader, AudioRegistry, AudioRequest, Waveform};
/// let limits = AudioLimits::default();
/// let mut reader = AudioReader::new(&AudioRegistry::with_defaults(), &limits);
/// let mut waveform = Waveform::new(&limits);
/// let file = std::fs::read("speech.flac")?;
/// let info = reader.inspect(&file)?;
/// // The second second.
/// let rate = u64::from(info.sample_rate);
/// reader.decode(&file, &AudioRequest::frames(rate..2 * rate), &mut waveform)?;
/// assert_eq!(waveform.channels().len(), usize::from(info.channels));
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct AudioReader {
    registry: AudioRegistry,
    limits: AudioLimits,
    /// The decoder of each codec of the registry, created on first use.
    decoders: Vec<Option<Box<dyn AudioDecoder>>>,
}

impl AudioReader {
    /// A reader of the formats of `registry`.
    pub fn new(registry: &AudioRegistry, limits: &AudioLimits) -> Self {
        let decoders = registry.codecs.iter().map(|_| None).collect();
        AudioReader { registry: registry.clone(), limits: limits.clone(), decoders }
    }

    /// Reads the header only.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and the errors of [`AudioDecoder::inspect`].
    pub fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        let audio = after_id3(encoded)?;
        let info = self.with_decoder(audio, |decoder| decoder.inspect(audio));
        let info = info.map_err(|error| shifted(error, (encoded.len() - audio.len()) as u64))?;
        // Third-party codecs may forget this check.
        self.limits.check_format(info.sample_rate, info.channels)?;
        Ok(info)
    }

    /// Decodes the frames that `request` selects into `out`, whose content is replaced.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and the errors of [`AudioDecoder::decode`].
    pub fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let audio = after_id3(encoded)?;
        let decoded = self.with_decoder(audio, |decoder| decoder.decode(audio, request, out));
        decoded.map_err(|error| shifted(error, (encoded.len() - audio.len()) as u64))
    }

    /// [`inspect`](Self::inspect) of a file that need not be in memory. Of WAV and FLAC, only the header is
    /// read; of other formats, the whole file.
    ///
    /// # Errors
    /// Those of `inspect`, and of the source.
    pub fn inspect_source(&mut self, file: &dyn MediaSource) -> Result<AudioInfo> {
        if let Some(bytes) = file.as_bytes() {
            return self.inspect(bytes);
        }
        let info = self.with_source(file, |decoder, audio| decoder.inspect_source(audio))?;
        self.limits.check_format(info.sample_rate, info.channels)?;
        Ok(info)
    }

    /// [`decode`](Self::decode) of a file that need not be in memory. Of WAV and FLAC, only the part is read that
    /// has the frames; of other formats, the whole file.
    ///
    /// ```no_run
    /// use spdl_media::audio::{AudioLimits, AudioReader, AudioRegistry, AudioRequest, Waveform};
    /// let limits = AudioLimits::default();
    /// let mut reader = AudioReader::new(&AudioRegistry::with_defaults(), &limits);
    /// let mut waveform = Waveform::new(&limits);
    /// let file = std::fs::File::open("recording.wav")?;
    /// reader.decode_source(&file, &AudioRequest::frames(0..16_000), &mut waveform)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `decode`, and of the source.
    pub fn decode_source(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        if let Some(bytes) = file.as_bytes() {
            return self.decode(bytes, request, out);
        }
        self.with_source(file, |decoder, audio| decoder.decode_source(audio, request, out))
    }

    /// The ranges of a file that [`decode_source`](Self::decode_source) reads; `None` for the whole file.
    #[cfg(feature = "records")]
    pub(crate) fn parts(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
    ) -> Result<Option<Vec<Range<u64>>>> {
        let tags = tags_of(file)?;
        let parts = self.with_source(file, |decoder, audio| decoder.parts(audio, request))?;
        let moved = |range: Range<u64>| range.start + tags..range.end + tags;
        Ok(parts.map(|parts| parts.into_iter().map(moved).collect()))
    }

    /// Whether the decoder of a file selects parts.
    #[cfg(feature = "records")]
    pub(crate) fn has_parts(&mut self, file: &dyn MediaSource) -> Result<bool> {
        let audio = Tail::new(file, tags_of(file)?);
        let mut memory = Vec::new();
        let codec = self.registry.find(head_of(&audio, &mut memory)?)?;
        // The first codec may refuse the file.
        Ok(codec.has_parts() && self.parts(file, &AudioRequest::frames(0..0))?.is_some())
    }

    /// Calls the decoder of a file, without its tags.
    fn with_source<T>(
        &mut self,
        file: &dyn MediaSource,
        mut call: impl FnMut(&mut dyn AudioDecoder, &dyn MediaSource) -> Result<T>,
    ) -> Result<T> {
        let tags = tags_of(file)?;
        let audio = Tail::new(file, tags);
        let mut memory = Vec::new();
        let head = head_of(&audio, &mut memory)?;
        let result = self.with_decoder(head, |decoder| call(decoder, &audio));
        result.map_err(|error| shifted(error, tags))
    }

    /// Calls the decoder of a file, whose first bytes are `encoded`: of the codecs that recognise it, the first one
    /// that does not return `Unsupported`.
    fn with_decoder<T>(
        &mut self,
        encoded: &[u8],
        mut call: impl FnMut(&mut dyn AudioDecoder) -> Result<T>,
    ) -> Result<T> {
        let mut refusals: Vec<(&str, Error)> = Vec::new();
        let mut start = 0;
        while let Some(at) = self.registry.position(encoded, start) {
            match self.with_decoder_at(at, &mut call) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    refusals.push((self.registry.codecs[at].name(), error));
                }
                outcome => return outcome,
            }
            start = at + 1;
        }
        Err(match refusals.len() {
            0 => self.registry.unknown(encoded),
            1 => refusals.remove(0).1,
            _ => refused_by_all(&refusals),
        })
    }

    /// Calls the decoder of the codec of this number.
    fn with_decoder_at<T>(
        &mut self,
        at: usize,
        call: &mut impl FnMut(&mut dyn AudioDecoder) -> Result<T>,
    ) -> Result<T> {
        let codec = &self.registry.codecs[at];
        let slot = &mut self.decoders[at];
        // `AssertUnwindSafe` is correct, because a decoder that panicked is dropped with its state.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let decoder = match slot.take() {
                Some(decoder) => decoder,
                None => codec.decoder(&self.limits)?,
            };
            call(slot.insert(decoder).as_mut())
        }));
        outcome.unwrap_or_else(|panic| {
            *slot = None;
            Err(panicked(&format!("{} decoder", codec.name()), panic.as_ref()))
        })
    }
}

impl std::fmt::Debug for AudioReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AudioReader")
            .field("registry", &self.registry)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The error for a file that several codecs recognise, but do not support.
fn refused_by_all(refusals: &[(&str, Error)]) -> Error {
    let reason = |(name, error): &(&str, Error)| format!("{} ({name})", error.message());
    let reasons: Vec<_> = refusals.iter().map(reason).collect();
    let error = Error::new(ErrorKind::Unsupported, reasons.join("; "));
    match refusals.iter().find_map(|(_, error)| error.offset()) {
        Some(offset) => error.with_offset(offset),
        None => error,
    }
}

/// The file without the ID3v2 tags at its start, which any format may have.
fn after_id3(encoded: &[u8]) -> Result<&[u8]> {
    let tags = tags_of(&encoded)?;
    Ok(encoded.get(tags as usize..).unwrap_or_default())
}

/// The number of bytes of the ID3v2 tags at the start of a file.
fn tags_of(file: &dyn MediaSource) -> Result<u64> {
    let size = file.size();
    let (mut tags, mut memory) = (0, Vec::new());
    while size - tags >= ID3_HEADER {
        let header = file.read(tags..tags + ID3_HEADER, &mut memory)?;
        let Some(&[b'I', b'D', b'3', _, _, flags, a, b, c, d]) = header.first_chunk() else {
            break;
        };
        let content = [a, b, c, d].iter().fold(0, |size, byte| size << 7 | u64::from(byte & 0x7F));
        let footer = if flags & 0x10 != 0 { ID3_HEADER } else { 0 };
        tags += ID3_HEADER + content + footer;
        if tags >= size {
            let message = "truncated: the file ends inside its ID3v2 tag, before any audio";
            return Err(Error::new(ErrorKind::Truncated, message).with_offset(size));
        }
    }
    Ok(tags)
}

/// The bytes by which a format is recognised.
fn head_of<'a>(audio: &'a dyn MediaSource, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
    audio.read(0..audio.size().min(AUDIO_SNIFF_BYTES as u64), memory)
}

/// The error with its offset in the whole file.
fn shifted(error: Error, tags: u64) -> Error {
    match error.offset() {
        Some(offset) if tags > 0 => error.with_offset(offset + tags),
        _ => error,
    }
}
