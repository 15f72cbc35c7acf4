//! What kernels do, and the work of libraries: what tests say they do, and nothing that was not declared.

use std::fmt;

use super::accesses::{AccessKind, ViolationKind};
use super::memory::{self, FakeAllocations};
use super::streams::StreamOp;
use super::world::FakeState;
use crate::driver::MemoryAccess;

/// A kernel in a stream, or work that a library has put there.
pub(super) struct Kernel {
    pub(super) name: String,
    /// `None` for that of a library.
    pub(super) module: Option<usize>,
    pub(super) grid: [u32; 3],
    pub(super) arguments: Vec<Vec<u8>>,
    pub(super) touched: Vec<MemoryAccess>,
}

/// What runs in place of kernels.
pub(super) type RunKernel = dyn FnMut(&mut RunningKernel<'_>) + Send;

/// A kernel that runs now, or the work of a library: what it is told, and the memory that it uses.
pub struct RunningKernel<'a> {
    kernel: &'a Kernel,
    memories: &'a mut FakeAllocations,
    faults: Vec<String>,
}

impl RunningKernel<'_> {
    /// The kernel's name in its module, or that of the library.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// How many blocks there are on each axis.
    pub fn grid(&self) -> [u32; 3] {
        self.kernel.grid
    }

    /// The bytes of an argument; none where there is no such argument.
    pub fn argument(&self, number: usize) -> &[u8] {
        self.kernel.arguments.get(number).map_or(&[], |bytes| bytes)
    }

    /// What it was said to write: where, and how many bytes.
    pub fn written(&self) -> Vec<(u64, u64)> {
        let written = self.kernel.touched.iter().filter(|touched| touched.writes);
        written.map(|touched| (touched.address.0, touched.bytes)).collect()
    }

    /// Reads memory of the device. What it was not said to use is a violation, and reads as nothing.
    pub fn read(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        self.check(address, bytes, false);
        memory::load(self.memories, address, bytes).map_or_else(Vec::new, <[u8]>::to_vec)
    }

    /// Writes memory of the device. What it was not said to write is a violation.
    pub fn write(&mut self, address: u64, data: &[u8]) {
        self.check(address, data.len(), true);
        memory::store(self.memories, address, data);
    }

    fn check(&mut self, address: u64, bytes: usize, writes: bool) {
        let end = address.saturating_add(bytes as u64);
        let is_declared = self.kernel.touched.iter().any(|touched| {
            let start = touched.address.0;
            start <= address && end <= start + touched.bytes && (touched.writes || !writes)
        });
        if !is_declared {
            let does = if writes { "writes" } else { "reads" };
            let name = &self.kernel.name;
            self.faults
                .push(format!("{name} {does} {address:#x}..{end:#x}, which it was not said to"));
        }
    }
}

impl fmt::Debug for RunningKernel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningKernel({}, {:?})", self.name(), self.grid())
    }
}

impl FakeState {
    pub(super) fn enqueue_kernel(&mut self, kernel: Kernel, stream: usize) {
        let accesses = kernel.touched.iter().map(|touched| {
            let start = touched.address.0;
            let deed =
                if touched.writes { AccessKind::KernelWrites } else { AccessKind::KernelReads };
            (start..start + touched.bytes, deed)
        });
        let accesses: Vec<_> = accesses.collect();
        self.enqueue(stream, &accesses, StreamOp::Kernel(kernel));
    }

    pub(super) fn run_kernel(&mut self, kernel: Kernel) {
        // A byte takes a nanosecond.
        self.time += kernel.touched.iter().map(|touched| touched.bytes).sum::<u64>() / 1000;
        let Some(mut run) = self.run_kernel.take() else { return };
        let mut running =
            RunningKernel { kernel: &kernel, memories: &mut self.memories, faults: Vec::new() };
        run(&mut running);
        let faults = running.faults;
        self.run_kernel = Some(run);
        for fault in faults {
            self.violate(ViolationKind::Undeclared, fault);
        }
    }
}
