//! Memory of a device from functions of a training framework's.

use std::fmt;
use std::sync::Arc;

use crate::runtime::DeviceAllocator;
use spdl_core::Result;

/// The functions of an allocator, as a binding is told of them.
pub trait AllocatorFunctions: fmt::Debug + Send + Sync + 'static {
    /// So many bytes, by their address.
    ///
    /// # Errors
    /// As of [`DeviceAllocator::allocate`].
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Takes them back. All work with them is done.
    fn free(&self, address: u64);
}

/// An allocator of these functions.
///
/// An address is all that they tell, so this trusts it to be what [`DeviceAllocator`] asks for, as a
/// library would in C. That is why it is only there for bindings, which cannot know better.
pub fn allocator_of(functions: impl AllocatorFunctions) -> Arc<dyn DeviceAllocator> {
    Arc::new(Trusted(functions))
}

#[derive(Debug)]
struct Trusted<F>(F);

// SAFETY: whoever names the functions says so.
unsafe impl<F: AllocatorFunctions> DeviceAllocator for Trusted<F> {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.0.allocate(bytes)
    }

    fn free(&self, address: u64, _: usize) {
        self.0.free(address);
    }
}
