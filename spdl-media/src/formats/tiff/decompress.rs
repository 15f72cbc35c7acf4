//! Byte-oriented compressions of strips and tiles, and predictors.

use flate2::{Decompress, FlushDecompress, Status};
use spdl_core::Result;
use weezl::decode::{Configuration, Decoder};
use weezl::{BitOrder, LzwStatus};

use super::super::errors;
use super::errors::NAME;

/// The compression of a strip or tile, with its TIFF number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteCompression {
    None = 1,
    Lzw = 5,
    Deflate = 8,
    PackBits = 32773,
}

impl ByteCompression {
    /// Whether the tag `Predictor` applies; libtiff ignores the tag for other compressions.
    pub(super) fn has_predictor(self) -> bool {
        matches!(self, ByteCompression::Lzw | ByteCompression::Deflate)
    }
}

/// Decompresses chunks, one after the other. The state is allocated when a compression is first
/// used.
#[derive(Default)]
pub(super) struct Decompressor {
    lzw: Option<Decoder>,
    old_lzw: Option<Decoder>,
    inflate: Option<Decompress>,
}

impl Decompressor {
    /// Decompresses `data` until `out` is full. Returns the number of bytes that the data yield, at
    /// most the length of `out`.
    pub(super) fn run(
        &mut self,
        compression: ByteCompression,
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize> {
        match compression {
            ByteCompression::None => {
                let count = data.len().min(out.len());
                out[..count].copy_from_slice(&data[..count]);
                Ok(count)
            }
            ByteCompression::PackBits => Ok(unpack_bits(data, out)),
            // Before TIFF 5.0, codes were stored from the least significant bit, and became longer
            // one code later. As in libtiff, the clear code at the start shows the order.
            ByteCompression::Lzw if matches!(data, [0, second, ..] if second & 1 == 1) => {
                let decoder = self.old_lzw.get_or_insert_with(|| {
                    let old = Configuration::new(BitOrder::Lsb, 8);
                    old.with_yield_on_full_buffer(true).build()
                });
                decode_lzw(decoder, data, out)
            }
            ByteCompression::Lzw => {
                let decoder = self.lzw.get_or_insert_with(|| {
                    let new = Configuration::with_tiff_size_switch(BitOrder::Msb, 8);
                    new.with_yield_on_full_buffer(true).build()
                });
                decode_lzw(decoder, data, out)
            }
            ByteCompression::Deflate => {
                inflate(self.inflate.get_or_insert_with(|| Decompress::new(true)), data, out)
            }
        }
    }
}

fn decode_lzw(decoder: &mut Decoder, data: &[u8], out: &mut [u8]) -> Result<usize> {
    decoder.reset();
    let (mut read, mut written) = (0, 0);
    while written < out.len() {
        let step = decoder.decode_bytes(&data[read..], &mut out[written..]);
        read += step.consumed_in;
        written += step.consumed_out;
        match step.status {
            Ok(LzwStatus::Ok) => {}
            Ok(LzwStatus::NoProgress | LzwStatus::Done) => break,
            Err(_) if written == out.len() => break,
            Err(error) => return Err(errors::corrupt(NAME, error)),
        }
    }
    Ok(written)
}

fn inflate(decoder: &mut Decompress, data: &[u8], out: &mut [u8]) -> Result<usize> {
    decoder.reset(true);
    let (mut read, mut written) = (0, 0);
    while written < out.len() {
        let flush = FlushDecompress::None;
        let status = decoder
            .decompress(&data[read..], &mut out[written..], flush)
            .map_err(|error| errors::corrupt(NAME, error))?;
        let before = (read, written);
        (read, written) = (decoder.total_in() as usize, decoder.total_out() as usize);
        if status == Status::StreamEnd || before == (read, written) {
            break;
        }
    }
    Ok(written)
}

fn unpack_bits(data: &[u8], out: &mut [u8]) -> usize {
    let (mut at, mut written) = (0, 0);
    while written < out.len() {
        let Some(&head) = data.get(at) else { break };
        let rest = &data[at + 1..];
        let room = out.len() - written;
        let count = match head {
            0..=127 => {
                let count = (usize::from(head) + 1).min(rest.len()).min(room);
                out[written..written + count].copy_from_slice(&rest[..count]);
                at += 1 + count;
                count
            }
            128 => {
                at += 1;
                0
            }
            129..=255 => {
                let Some(&value) = rest.first() else { break };
                let count = (257 - usize::from(head)).min(room);
                out[written..written + count].fill(value);
                at += 2;
                count
            }
        };
        written += count;
    }
    written
}

/// The differences that a predictor stores in place of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predictor {
    None = 1,
    /// Differences of neighbouring samples of 8, 16 or 32 bits.
    Horizontal = 2,
    /// The bytes of 32-bit floats, the most significant ones of all samples first, as differences.
    Float = 3,
}

impl Predictor {
    /// Restores the samples of a row in the byte order of the file. `step` is the number of samples
    /// between those of a channel.
    pub(super) fn restore(
        self,
        row: &mut [u8],
        bits: usize,
        step: usize,
        is_little: bool,
        scratch: &mut Vec<u8>,
    ) {
        match (self, bits) {
            (Predictor::None, _) => {}
            (Predictor::Horizontal, 16) => accumulate::<2>(row, step, is_little),
            (Predictor::Horizontal, 32) => accumulate::<4>(row, step, is_little),
            (Predictor::Horizontal, _) => accumulate::<1>(row, step, is_little),
            (Predictor::Float, _) => {
                accumulate::<1>(row, step, is_little);
                scratch.clear();
                scratch.extend_from_slice(row);
                let count = scratch.len() / 4;
                for (index, value) in row.chunks_exact_mut(4).enumerate() {
                    for (place, byte) in value.iter_mut().enumerate() {
                        let place = if is_little { 3 - place } else { place };
                        *byte = scratch[place * count + index];
                    }
                }
            }
        }
    }
}

/// Adds to each sample of `N` bytes the one `step` samples before it.
fn accumulate<const N: usize>(row: &mut [u8], step: usize, is_little: bool) {
    let (samples, _) = row.as_chunks_mut::<N>();
    for at in step..samples.len() {
        let before = samples[at - step];
        let sample = &mut samples[at];
        let mut carry = 0;
        for place in 0..N {
            let place = if is_little { place } else { N - 1 - place };
            let sum = u16::from(sample[place]) + u16::from(before[place]) + carry;
            sample[place] = sum as u8;
            carry = sum >> 8;
        }
    }
}
