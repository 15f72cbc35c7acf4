//! Kernels and library work: tests define what they do; accesses that were not declared are
//! violations.

use std::fmt;

use super::memory::{self, FakeAllocations};
use super::race_detector::{AccessKind, ViolationKind};
use super::state::FakeState;
use super::streams::StreamOp;
use crate::driver::MemoryAccess;

/// A queued kernel, or queued work of a library.
pub(super) struct QueuedKernel {
    pub(super) name: String,
    /// The module of the kernel; `None` for work of a library.
    pub(super) module: Option<usize>,
    pub(super) grid: [u32; 3],
    pub(super) arguments: Vec<Vec<u8>>,
    pub(super) accesses: Vec<MemoryAccess>,
}

/// The function that runs in place of kernels.
pub(super) type RunKernel = dyn FnMut(&mut RunningKernel<'_>) + Send;

/// A kernel or library work while it runs: its arguments and memory.
pub struct RunningKernel<'a> {
    kernel: &'a QueuedKernel,
    memories: &'a mut FakeAllocations,
    faults: Vec<String>,
}

impl RunningKernel<'_> {
    /// The name of the kernel in its module, or of the library.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// The grid dimensions in blocks.
    pub fn grid(&self) -> [u32; 3] {
        self.kernel.grid
    }

    /// The bytes of an argument; empty if the kernel has no such argument.
    pub fn argument(&self, number: usize) -> &[u8] {
        self.kernel.arguments.get(number).map_or(&[], |bytes| bytes)
    }

    /// The declared writes: address and number of bytes.
    pub fn written(&self) -> Vec<(u64, u64)> {
        let written = self.kernel.accesses.iter().filter(|access| access.writes);
        written.map(|access| (access.address.0, access.bytes)).collect()
    }

    /// Reads device memory. An access that was not declared is a violation. Returns no bytes if the
    /// address is invalid.
    pub fn read(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        self.check(address, bytes, false);
        memory::load(self.memories, address, bytes).map_or_else(Vec::new, <[u8]>::to_vec)
    }

    /// Writes device memory. An access that was not declared is a violation.
    pub fn write(&mut self, address: u64, data: &[u8]) {
        self.check(address, data.len(), true);
        memory::store(self.memories, address, data);
    }

    fn check(&mut self, address: u64, bytes: usize, writes: bool) {
        let end = address.saturating_add(bytes as u64);
        let is_declared = self.kernel.accesses.iter().any(|access| {
            let start = access.address.0;
            start <= address && end <= start + access.bytes && (access.writes || !writes)
        });
        if !is_declared {
            let does = if writes { "writes" } else { "reads" };
            let name = &self.kernel.name;
            self.faults.push(format!("{name} {does} {address:#x}..{end:#x} without declaration"));
        }
    }
}

impl fmt::Debug for RunningKernel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningKernel({}, {:?})", self.name(), self.grid())
    }
}

impl FakeState {
    pub(super) fn enqueue_kernel(&mut self, kernel: QueuedKernel, stream: usize) {
        let accesses = kernel.accesses.iter().map(|access| {
            let start = access.address.0;
            let kind =
                if access.writes { AccessKind::KernelWrites } else { AccessKind::KernelReads };
            (start..start + access.bytes, kind)
        });
        let accesses: Vec<_> = accesses.collect();
        self.enqueue(stream, &accesses, StreamOp::QueuedKernel(kernel));
    }

    pub(super) fn run_kernel(&mut self, kernel: QueuedKernel) {
        let Some(mut run) = self.run_kernel.take() else { return };
        let mut running =
            RunningKernel { kernel: &kernel, memories: &mut self.memories, faults: Vec::new() };
        run(&mut running);
        let faults = running.faults;
        self.run_kernel = Some(run);
        for fault in faults {
            self.violate(ViolationKind::UndeclaredAccess, fault);
        }
    }
}
