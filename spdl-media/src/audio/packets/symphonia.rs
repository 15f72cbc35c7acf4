//! Decoders of the project Symphonia.

use spdl_core::{Error, ErrorKind, Result};
#[cfg(feature = "aac")]
use symphonia_codec_aac::AacDecoder;
#[cfg(feature = "vorbis")]
use symphonia_codec_vorbis::VorbisDecoder;
use symphonia_core::audio::{Audio, Channels, GenericAudioBufferRef};
use symphonia_core::codecs::audio::{
    AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions, well_known,
};
use symphonia_core::errors::Error as SymphoniaError;
use symphonia_core::packet::PacketRef;
use symphonia_core::units::{Duration, Timestamp};

use super::PacketDecoder;
use crate::audio::collector::Collector;

/// What a stream of packets is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::audio) enum PacketCodec {
    #[cfg(feature = "aac")]
    Aac,
    #[cfg(feature = "vorbis")]
    Vorbis,
}

impl PacketCodec {
    fn id(self) -> AudioCodecId {
        match self {
            #[cfg(feature = "aac")]
            PacketCodec::Aac => well_known::CODEC_ID_AAC,
            #[cfg(feature = "vorbis")]
            PacketCodec::Vorbis => well_known::CODEC_ID_VORBIS,
        }
    }

    /// The name in error messages.
    pub(in crate::audio) fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "aac")]
            PacketCodec::Aac => "aac",
            #[cfg(feature = "vorbis")]
            PacketCodec::Vorbis => "vorbis",
        }
    }
}

/// A decoder of one stream.
pub(in crate::audio) struct SymphoniaPackets {
    codec: PacketCodec,
    decoder: Box<dyn AudioDecoder>,
    channels: u16,
    sample_rate: u32,
}

impl SymphoniaPackets {
    /// A decoder of a stream. `setup` is the data that some codecs need before their packets.
    ///
    /// # Errors
    /// `Unsupported` or `Corrupt` if the setup is not that of a stream that can be decoded.
    pub(in crate::audio) fn new(
        codec: PacketCodec,
        sample_rate: u32,
        channels: u16,
        setup: Option<&[u8]>,
    ) -> Result<Self> {
        let mut parameters = AudioCodecParameters::new();
        parameters.for_codec(codec.id()).with_sample_rate(sample_rate);
        parameters.with_channels(Channels::Discrete(channels));
        if let Some(setup) = setup {
            parameters.with_extra_data(setup.into());
        }
        let options = AudioDecoderOptions::default();
        let decoder: Result<Box<dyn AudioDecoder>, SymphoniaError> = match codec {
            #[cfg(feature = "aac")]
            PacketCodec::Aac => {
                AacDecoder::try_new(&parameters, &options).map(|it| Box::new(it) as _)
            }
            #[cfg(feature = "vorbis")]
            PacketCodec::Vorbis => {
                VorbisDecoder::try_new(&parameters, &options).map(|it| Box::new(it) as _)
            }
        };
        let decoder = decoder.map_err(|error| fault(codec, error, None))?;
        Ok(SymphoniaPackets { codec, decoder, channels, sample_rate })
    }
}

impl PacketDecoder for SymphoniaPackets {
    fn decode(&mut self, packet: &[u8], offset: usize, out: &mut Collector<'_>) -> Result<()> {
        let packet = PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, packet);
        let decoded = self.decoder.decode_ref(&packet);
        let decoded = decoded.map_err(|error| fault(self.codec, error, Some(offset)))?;
        let GenericAudioBufferRef::F32(samples) = decoded else {
            let message = format!("{}: expected samples of 32-bit floats", self.codec.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let spec = samples.spec();
        let (channels, rate) = (spec.channels().count(), spec.rate());
        if channels != usize::from(self.channels) || rate != self.sample_rate {
            let message = format!(
                "unsupported {}: the format changes from {} channels at {} Hz to {channels} at {rate}",
                self.codec.name(),
                self.channels,
                self.sample_rate
            );
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset as u64));
        }
        out.push(samples.iter_planes(), samples.frames(), |plane, part, out| {
            out.copy_from_slice(&plane[part]);
        })
    }
}

fn fault(codec: PacketCodec, error: SymphoniaError, offset: Option<usize>) -> Error {
    let name = codec.name();
    let (kind, message) = match &error {
        SymphoniaError::Unsupported(what) => {
            (ErrorKind::Unsupported, format!("unsupported {name}: {what}"))
        }
        SymphoniaError::LimitError(what) => (ErrorKind::LimitExceeded, format!("{name}: {what}")),
        // Bits after the end of a packet.
        SymphoniaError::IoError(_) => {
            (ErrorKind::Corrupt, format!("corrupt {name}: a packet is too short"))
        }
        error => (ErrorKind::Corrupt, format!("corrupt {name}: {error}")),
    };
    let error = Error::new(kind, message);
    match offset {
        Some(offset) => error.with_offset(offset as u64),
        None => error,
    }
}
