//! Device memory from the allocator functions of a training framework.

use std::fmt;
use std::sync::Arc;

use spdl_core::Result;

use crate::runtime::DeviceAllocator;

/// The functions of an allocator, in the form in which a binding passes them.
pub trait AllocatorFunctions: fmt::Debug + Send + Sync + 'static {
    /// Allocates `bytes` bytes and returns their address.
    ///
    /// # Errors
    /// The errors of [`DeviceAllocator::allocate`].
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees memory. The caller guarantees that all work that uses the memory has completed.
    fn free(&self, address: u64);
}

/// Creates an allocator from functions.
///
/// The functions return plain addresses. This function trusts the functions to satisfy the contract
/// of [`DeviceAllocator`]. Therefore, it exists only for bindings.
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
