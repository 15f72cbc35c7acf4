//! Trials of audio codecs and of containers of video.

use std::sync::Arc;

use spdl_core::Result;
use spdl_media::OnTruncated;
use spdl_media::audio::{
    AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioLimits, AudioRequest, Waveform,
};
use spdl_media::image::Picture;
use spdl_media::video::{VideoClip, VideoContainer, VideoLimits, VideoReader, VideoRegistry};

use crate::hash::hash;
use crate::{inconsistent, print_line, request};

/// The frames of the clip of a video.
const FRAMES: usize = 4;

/// Decodes an audio file: the whole, a part, and what is there of a truncated file.
pub(crate) fn try_audio(codec: &dyn AudioCodec, limits: &AudioLimits, file: &[u8]) {
    let decode = |decoder: &mut dyn AudioDecoder,
                  request: &AudioRequest|
     -> Result<(Vec<Vec<f32>>, AudioDecoded)> {
        let mut waveform = Waveform::new(limits);
        let decoded = decoder.decode(file, request, &mut waveform)?;
        Ok((waveform.channels().to_vec(), decoded))
    };
    let name = codec.name();
    let mut info: Option<AudioInfo> = None;
    request(name, "inspect", || {
        info = Some(codec.decoder(limits)?.inspect(file)?);
        Ok(())
    });
    let mut whole = None;
    request(name, "decode", || {
        let (channels, _) = decode(&mut *codec.decoder(limits)?, &AudioRequest::all())?;
        let Some(info) = &info else {
            return Err(inconsistent("the decoder accepts a file that it cannot inspect"));
        };
        if channels.len() != usize::from(info.channels) {
            return Err(inconsistent(format!(
                "{} channels, not {}",
                channels.len(),
                info.channels
            )));
        }
        whole = Some(channels);
        Ok(())
    });
    let frames = whole.as_ref().and_then(|channels| channels.first()).map_or(0, Vec::len) as u64;
    request(name, "part", || {
        let part = AudioRequest::frames(frames / 3..frames / 2 + 1);
        let (channels, _) = decode(&mut *codec.decoder(limits)?, &part)?;
        let expected = (frames / 2 + 1).min(frames).saturating_sub(frames / 3);
        let found = channels.first().map_or(0, Vec::len) as u64;
        match whole.is_some() && found != expected {
            true => Err(inconsistent(format!("a part has {found} frames, not {expected}"))),
            false => Ok(()),
        }
    });
    request(name, "partial", || {
        let all = AudioRequest::all().on_truncated(OnTruncated::Partial);
        let (channels, decoded) = decode(&mut *codec.decoder(limits)?, &all)?;
        match &whole {
            Some(whole) if decoded.is_truncated || channels != *whole => {
                Err(inconsistent("`OnTruncated::Partial` changes the samples of a complete file"))
            }
            _ => Ok(()),
        }
    });
}

/// Indexes a video and decodes frames of it, if this build has a decoder.
pub(crate) fn try_video(container: &Arc<dyn VideoContainer>, limits: &VideoLimits, file: &[u8]) {
    let name = container.name();
    let mut index = None;
    request(name, "index", || {
        index = Some(container.index(&file, limits)?);
        Ok(())
    });
    let Some(index) = index else { return };
    let registry = VideoRegistry::with_defaults();
    if registry.codec(&index.stream().codec).is_err() {
        return;
    }
    let frames = FRAMES.min(index.frames().len());
    let decode = |frames: &[usize], on_truncated: OnTruncated| -> Result<Vec<Option<u64>>> {
        let mut hashes = vec![None; frames.len()];
        let mut reader = VideoReader::new(&registry, limits).on_truncated(on_truncated);
        reader.decode(&file, &index, frames, &mut |place, picture| {
            hashes[place] = Some(digest(picture));
            Ok(())
        })?;
        Ok(hashes)
    };
    let mut clip = None;
    request(name, "clip", || {
        let chosen = VideoClip::new(frames).choose(&index, None)?.frames;
        let hashes = decode(&chosen, OnTruncated::Error)?;
        clip = Some((chosen, hashes));
        Ok(())
    });
    // Pixels are not compared with those of the clip: a decoder may not notice damage to the references
    // between frames, and then shows what it was fed.
    if let Some((chosen, _)) = &clip {
        request(name, "frame", || decode(&chosen[frames - 1..], OnTruncated::Error).map(drop));
    }
    request(name, "partial", || {
        let chosen = VideoClip::new(frames).choose(&index, None)?.frames;
        let partial = decode(&chosen, OnTruncated::Partial)?;
        match &clip {
            Some((_, hashes)) if partial != *hashes => {
                Err(inconsistent("`OnTruncated::Partial` changes the frames of a complete video"))
            }
            _ => Ok(()),
        }
    });
}

/// Prints the hash of each frame of a video, in order of presentation.
pub(crate) fn print_frames(file: &[u8]) -> Result<()> {
    let mut reader = VideoReader::new(&VideoRegistry::with_defaults(), &VideoLimits::default());
    let index = reader.index(&file)?;
    let all: Vec<_> = (0..index.frames().len()).collect();
    let mut hashes = vec![String::new(); all.len()];
    reader.decode(&file, &index, &all, &mut |place, picture| {
        hashes[place] = hash(picture);
        Ok(())
    })?;
    hashes.iter().for_each(|hash| print_line(&[hash]));
    Ok(())
}

/// FNV-1a hash of the planes.
fn digest(picture: &Picture) -> u64 {
    let bytes = picture.planes().iter().flat_map(|plane| {
        (0..plane.shape().area.height).flat_map(|row| plane.row(row).iter().copied())
    });
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
