//! Device memory from the allocator functions of a training framework.

use std::fmt;
use std::sync::Arc;

use spdl_core::Result;

use crate::runtime::DeviceAllocator;

/// The functions of an allocator, as a binding calls them.
pub trait AllocatorFunctions: fmt::Debug + Send + Sync + 'static {
    /// Allocates `bytes` bytes and returns their address.
    ///
    /// # Errors
    /// As for [`DeviceAllocator::allocate`].
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees memory. All work on it has completed.
    fn free(&self, address: u64);
}

/// Creates an allocator from functions.
///
/// The functions return plain addresses, which are trusted to satisfy the contract of
/// [`DeviceAllocator`], as in C. Therefore this function exists only for bindings.
pub fn allocator_of(functions: impl AllocatorFunctions) -> Arc<dyn DeviceAllocator> {
    Arc::new(TrustedAllocator(functions))
}

#[derive(Debug)]
struct TrustedAllocator<F>(F);

// SAFETY: the provider of the functions guarantees the contract.
unsafe impl<F: AllocatorFunctions> DeviceAllocator for TrustedAllocator<F> {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.0.allocate(bytes)
    }

    fn free(&self, address: u64, _: usize) {
        self.0.free(address);
    }
}
