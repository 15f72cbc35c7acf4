//! Delayed consumers on a device that compute checksums, with the kernels of `testing.cu`.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use spdl_core::memory::DeviceMemory;
use spdl_cuda::{ConsumerStream, CudaMemory};

use super::raw::{Driver, Event, Host, HostKind, Memory, Module, Raw, Stream};

const PTX: &str = include_str!("../../kernels/built/testing.compute_75.ptx");

/// Blocks and threads that read a batch.
const BLOCKS: u32 = 16;
const THREADS: u32 = 256;

/// The kernels of `testing.cu`.
pub(crate) struct Kernels(Module);

impl Kernels {
    pub(crate) fn load(driver: &Rc<Driver>) -> Raw<Kernels> {
        driver.module(&[PTX.as_bytes(), b"\0"].concat()).map(Kernels)
    }

    /// Delays a stream.
    pub(crate) fn delay(&self, stream: &Stream, time: Duration) -> Raw<()> {
        let nanoseconds = time.as_nanos() as u64;
        stream.launch(&self.0.function("delay")?, [1, 1, 1], 1, &[&nanoseconds.to_ne_bytes()])
    }

    /// Writes to an invalid address, after which the context is unusable in this process.
    pub(crate) fn fault(&self, stream: &Stream) -> Raw<()> {
        stream.launch(&self.0.function("fault")?, [1, 1, 1], 1, &[])
    }

    /// Adds the checksum of the words at `address` to that at `sum`.
    pub(crate) fn checksum(&self, stream: &Stream, address: u64, words: u32, sum: u64) -> Raw<()> {
        let parameters: [&[u8]; 3] =
            [&address.to_ne_bytes(), &words.to_ne_bytes(), &sum.to_ne_bytes()];
        stream.launch(&self.0.function("checksum")?, [BLOCKS, 1, 1], THREADS, &parameters)
    }
}

/// The checksum of the kernel, for whole words of 4 bytes.
pub(crate) fn checksum_of(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4).enumerate().map(|(at, word)| {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        let mixed = word ^ (at as u32).wrapping_mul(0x9e37_79b9);
        u64::from(mixed).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ u64::from(mixed >> 7)
    });
    words.fold(0, u64::wrapping_add)
}

/// Maximum number of checksums in flight.
const RING: usize = 128;
const HALF: usize = RING / 2;

/// A slow training loop: it reads each batch on one of its streams, and holds the last few.
pub(crate) struct Consumer {
    kernels: Kernels,
    streams: Vec<Stream>,
    sums: Memory,
    found: Host,
    /// The expected sums in device memory.
    expected: Vec<u64>,
    /// Recorded on each stream after each half of the ring.
    halves: [Vec<Event>; 2],
    taken: usize,
    corrupted: usize,
    held: VecDeque<Box<CudaMemory>>,
    max_held: usize,
}

impl Consumer {
    /// Creates a consumer with `streams` streams that holds up to `max_held` batches.
    pub(crate) fn new(driver: &Rc<Driver>, streams: usize, max_held: usize) -> Raw<Consumer> {
        let streams = (0..streams).map(|_| driver.stream()).collect::<Raw<Vec<_>>>()?;
        let half = || streams.iter().map(|_| driver.event()).collect::<Raw<Vec<_>>>();
        let halves = [half()?, half()?];
        let (sums, found) = (driver.memory(8 * RING)?, driver.host(8 * RING, HostKind::Allocated)?);
        streams[0].to_device(&sums, &found, 8 * RING)?;
        streams[0].synchronize()?;
        Ok(Consumer {
            kernels: Kernels::load(driver)?,
            streams,
            sums,
            found,
            expected: vec![0; RING],
            halves,
            taken: 0,
            corrupted: 0,
            held: VecDeque::new(),
            max_held,
        })
    }

    /// Reads a batch on its stream after `delay`, and drops the oldest batch.
    pub(crate) fn take(
        &mut self,
        batch: Box<CudaMemory>,
        checksum: u64,
        delay: Duration,
    ) -> Result<(), String> {
        let slot = self.taken % RING;
        if slot.is_multiple_of(HALF) {
            // The last sums of this half are compared before it is reused.
            self.compare(slot / HALF)?;
        }
        let stream = &self.streams[self.taken % self.streams.len()];
        // SAFETY: the streams are dropped after all batches, see `Drop`.
        let consumer = unsafe { ConsumerStream::from_raw(stream.handle()) };
        batch.wait_on(&consumer).map_err(|error| error.report())?;
        if !delay.is_zero() {
            self.kernels.delay(stream, delay)?;
        }
        let (address, words) = (batch.address() as u64, (batch.len() / 4) as u32);
        let sum = self.sums.address + 8 * slot as u64;
        self.kernels.checksum(stream, address, words, sum)?;
        self.expected[slot] = self.expected[slot].wrapping_add(checksum);
        self.taken += 1;
        if self.taken.is_multiple_of(HALF) {
            for (stream, event) in self.streams.iter().zip(&self.halves[slot / HALF]) {
                stream.record(event)?;
            }
        }
        self.held.push_back(batch);
        while self.held.len() > self.max_held {
            self.held.pop_front();
        }
        Ok(())
    }

    fn compare(&mut self, half: usize) -> Result<(), String> {
        for event in &self.halves[half] {
            event.wait()?;
        }
        self.read_sums(half * HALF..(half + 1) * HALF)
    }

    fn read_sums(&mut self, slots: std::ops::Range<usize>) -> Result<(), String> {
        self.streams[0].to_host(&self.found, &self.sums, 8 * RING)?;
        self.streams[0].synchronize()?;
        for slot in slots {
            let word = self.found.bytes()[8 * slot..8 * (slot + 1)].try_into();
            let found = u64::from_ne_bytes(word.map_err(|_| "a sum has 8 bytes")?);
            if found != self.expected[slot] {
                self.corrupted += 1;
                // Counted once: later sums start from the found one.
                self.expected[slot] = found;
            }
        }
        Ok(())
    }

    /// Drops all batches and waits. Returns the number of batches, and how many were corrupted.
    pub(crate) fn finish(&mut self) -> Result<(usize, usize), String> {
        self.held.clear();
        for stream in &self.streams {
            stream.synchronize()?;
        }
        self.read_sums(0..RING)?;
        Ok((self.taken, self.corrupted))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Dropping memory records events on the streams, so batches are dropped first.
        self.held.clear();
    }
}
