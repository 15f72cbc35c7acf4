//! Pinned (page-locked) host memory, from which the device copies directly.

use std::fmt;
use std::sync::Arc;

use super::affinity::on_cpus;
use super::context::Context;
use crate::driver::RegistrationHandle;
use spdl_core::Result;
use spdl_core::memory::{BufferPool, Pin, PinMemory};

/// Returns a pool of buffers that `cuMemHostRegister` pins. If the process may use `near_cpus`, the
/// buffers are allocated on the NUMA node of these CPUs.
///
/// Registered memory remains cacheable, so that the host reads it at full speed. Copies from it to
/// the device are asynchronous.
pub(crate) fn pinned_buffers(context: &Arc<Context>, near_cpus: &Arc<[usize]>) -> BufferPool {
    let (context, near_cpus) = (Arc::clone(context), Arc::clone(near_cpus));
    BufferPool::pinned(Arc::new(HostRegistrar { context, near_cpus }))
}

/// This type is private, because callers of [`PinMemory::pin`] must keep the memory until the pin
/// is dropped. Buffer pools satisfy this condition.
#[derive(Debug)]
struct HostRegistrar {
    context: Arc<Context>,
    near_cpus: Arc<[usize]>,
}

impl PinMemory for HostRegistrar {
    fn pin(&self, memory: &mut [u8]) -> Result<Pin> {
        let bytes = memory.len();
        let doing = format!("pin {bytes} bytes of host memory");
        // Registration is the first access to the pages, so it determines their NUMA node.
        let handle = on_cpus(&self.near_cpus, || {
            let address = memory.as_mut_ptr();
            // SAFETY: the pool drops the pin, which unregisters the memory, before it frees the
            // memory.
            self.context.run(&doing, |driver| unsafe { driver.register_host(address, bytes) })
        })?;
        Ok(Box::new(HostRegistration { handle, context: Arc::clone(&self.context) }))
    }
}

/// Registered host memory, which is unregistered on drop.
struct HostRegistration {
    handle: RegistrationHandle,
    context: Arc<Context>,
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let handle = RegistrationHandle(self.handle.0);
        // SAFETY: no copy is in flight: copies hold their buffer, so that it is not freed.
        self.context.release(|driver| unsafe { driver.unregister_host(handle) });
    }
}

impl fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:#x})", self.handle.0)
    }
}
