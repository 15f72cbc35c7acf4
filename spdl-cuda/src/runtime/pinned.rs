//! Host memory from which the device copies directly.

use std::fmt;
use std::sync::Arc;

use super::affinity::on_cpus;
use super::context::Context;
use crate::driver::RegistrationHandle;
use spdl_core::Result;
use spdl_core::memory::{BufferPool, Pin, PinMemory};

/// A pool of pinned buffers: the system's memory, locked where it is. It can be read as fast as any
/// other, and the device copies from it beside everything else. It lies near these CPUs, where there are
/// some.
pub(crate) fn pinned_buffers(context: &Arc<Context>, near_cpus: &Arc<[usize]>) -> BufferPool {
    let (context, near_cpus) = (Arc::clone(context), Arc::clone(near_cpus));
    BufferPool::pinned(Arc::new(Pinning { context, near_cpus }))
}

/// Private, since who calls [`PinMemory::pin`] has to keep the memory until the pin is dropped. Pools
/// do.
#[derive(Debug)]
struct Pinning {
    context: Arc<Context>,
    near_cpus: Arc<[usize]>,
}

impl PinMemory for Pinning {
    fn pin(&self, memory: &mut [u8]) -> Result<Pin> {
        let bytes = memory.len();
        let doing = format!("lock {bytes} bytes of the host's memory for copies");
        // Whoever touches it first decides where it lies, which is the call that locks it.
        let handle = on_cpus(&self.near_cpus, || {
            let address = memory.as_mut_ptr();
            // SAFETY: the pool drops the pin, which unregisters, before it frees the memory.
            self.context.run(&doing, |driver| unsafe { driver.register_host(address, bytes) })
        })?;
        Ok(Box::new(Registration { handle, context: Arc::clone(&self.context) }))
    }
}

/// Locked memory; dropping this lets it go.
struct Registration {
    handle: RegistrationHandle,
    context: Arc<Context>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let handle = RegistrationHandle(self.handle.0);
        // SAFETY: no copy is under way: those that are hold the buffer, so that it is not freed.
        self.context.release(|driver| unsafe { driver.unregister_host(handle) });
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:#x})", self.handle.0)
    }
}
