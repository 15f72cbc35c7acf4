//! Implements the driver API for the fake driver.

use std::collections::hash_map::Entry;
use std::sync::MutexGuard;
use std::thread;

use super::fake_driver::FakeDriver;
use super::kernels::QueuedKernel;
use super::memory;
use super::race_detector::{AccessKind, ViolationKind};
use super::state::FakeState;
use super::streams::{CopySource, FakeEvent, StreamOp};
use crate::driver::{
    CAPTURE_IMPLICIT, ContextHandle, DeviceAddress, DeviceAttribute, DeviceId, Driver, DriverError,
    DriverResult, EventHandle, FunctionHandle, INVALID_CONTEXT, INVALID_VALUE, LaunchDimensions,
    Memcpy2D, MemoryAccess, MemoryHandle, ModuleHandle, OUT_OF_MEMORY, RegistrationHandle,
    StreamHandle,
};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

impl FakeDriver {
    /// Counts a call, and returns an error if the injected fault applies to this call.
    fn call(&self, call: &'static str) -> DriverResult<MutexGuard<'_, FakeState>> {
        let mut state = self.state();
        *state.calls.entry(call).or_default() += 1;
        let number = state.call_count;
        state.call_count += 1;
        state.run_some();
        let code = state.fault.as_ref().and_then(|fault| {
            let is_meant = fault.function.as_deref().is_none_or(|function| function == call);
            (is_meant && fault.calls.contains(&number)).then_some(fault.code)
        });
        let Some(code) = code else { return Ok(state) };
        if state.fault.as_ref().is_some_and(|fault| fault.function.is_some()) {
            state.fault = None;
        }
        Err(DriverError { call, code })
    }

    /// Like [`call`](FakeDriver::call), for a call that needs a current context.
    fn call_in_context(&self, call: &'static str) -> DriverResult<MutexGuard<'_, FakeState>> {
        let mut state = self.call(call)?;
        if !state.current.contains_key(&thread::current().id()) {
            state.violate(ViolationKind::NoCurrentContext, call);
            return Err(DriverError { call, code: INVALID_CONTEXT });
        }
        let mode = state.capture_modes.get(&thread::current().id()).copied().unwrap_or(0);
        if state.is_captured && mode != RELAXED && super::fake_driver::invalidates_captures(call) {
            state.violate(ViolationKind::InvalidatesCapture, call);
            return Err(DriverError { call, code: 900 });
        }
        Ok(state)
    }

    /// Like [`call_in_context`](FakeDriver::call_in_context), for a call that destroys a resource.
    /// If the call fails, the resource counts as abandoned, because the call consumed its handle.
    fn destroy(
        &self,
        call: &'static str,
        destroyed: impl Fn(&mut FakeState) -> bool,
        forget: impl Fn(&mut FakeState),
    ) -> DriverResult<()> {
        let called = self.call_in_context(call).map(|mut state| {
            if !destroyed(&mut state) {
                state.violate(ViolationKind::InvalidHandle, call);
            }
        });
        called.inspect_err(|_| {
            let mut state = self.state();
            state.abandoned += 1;
            forget(&mut state);
        })
    }
}

/// Reports invalid streams and events.
fn check_handles(
    state: &mut FakeState,
    call: &'static str,
    stream: Option<&StreamHandle>,
    event: Option<&EventHandle>,
) -> DriverResult<()> {
    let stream = stream.map(|stream| state.stream_of(stream.0));
    let stream_is_known = stream.is_none_or(|stream| state.streams.contains_key(&stream));
    let event_is_known = event.is_none_or(|event| state.events.contains_key(&event.0));
    if stream_is_known && event_is_known {
        return Ok(());
    }
    state.violate(ViolationKind::InvalidHandle, call);
    Err(DriverError { call, code: 400 })
}

/// Reports calls on a stream under capture: a wait invalidates the capture, and a record becomes a
/// node of the graph.
fn check_capture(state: &mut FakeState, call: &'static str, stream: &StreamHandle) {
    if state.is_capturing(stream.0) != Some(false) {
        state.violate(ViolationKind::InvalidatesCapture, call);
    }
}

impl Driver for FakeDriver {
    fn version(&self) -> DriverResult<i32> {
        self.call("cuDriverGetVersion").map(|_| 13000)
    }

    fn device_count(&self) -> DriverResult<u32> {
        self.call("cuDeviceGetCount").map(|state| state.contexts.len() as u32)
    }

    fn device(&self, ordinal: u32) -> DriverResult<DeviceId> {
        let call = "cuDeviceGet";
        let state = self.call(call)?;
        if ordinal as usize >= state.contexts.len() {
            return Err(DriverError { call, code: 101 });
        }
        Ok(DeviceId(ordinal as i32))
    }

    fn device_name(&self, _: DeviceId) -> DriverResult<String> {
        self.call("cuDeviceGetName").map(|_| "Fake".to_owned())
    }

    fn device_attribute(&self, _: DeviceId, attribute: DeviceAttribute) -> DriverResult<i32> {
        self.call("cuDeviceGetAttribute").map(|state| match attribute {
            DeviceAttribute::Multiprocessors => 132,
            DeviceAttribute::PciBus => 0x3b,
            DeviceAttribute::PciDevice => 0,
            DeviceAttribute::CopyEngines => 3,
            // No machine has this PCI domain, so the CPUs of the NUMA node are unknown.
            DeviceAttribute::PciDomain => 0xfffff,
            DeviceAttribute::ComputeMajor => state.compute_capability.0,
            DeviceAttribute::ComputeMinor => state.compute_capability.1,
        })
    }

    fn device_memory(&self, _: DeviceId) -> DriverResult<usize> {
        self.call("cuDeviceTotalMem_v2").map(|state| state.capacity)
    }

    fn retain_primary_context(&self, device: DeviceId) -> DriverResult<ContextHandle> {
        let mut state = self.call("cuDevicePrimaryCtxRetain")?;
        state.contexts[device.0 as usize] += 1;
        Ok(ContextHandle { raw: device.0 as usize, device })
    }

    fn release_primary_context(&self, context: ContextHandle) -> DriverResult<()> {
        let called = self.call("cuDevicePrimaryCtxRelease_v2").map(|_| ());
        let mut state = self.state();
        state.contexts[context.raw] -= 1;
        state.abandoned += usize::from(called.is_err());
        called
    }

    fn push_context(&self, context: &ContextHandle) -> DriverResult<()> {
        let mut state = self.call("cuCtxPushCurrent_v2")?;
        if state.contexts[context.raw] == 0 {
            state.violate(
                ViolationKind::InvalidHandle,
                "a context is made current after its release",
            );
        }
        state.current.entry(thread::current().id()).or_default().push(context.raw);
        Ok(())
    }

    fn pop_context(&self) -> DriverResult<()> {
        // The error was caused by earlier work; the context is popped nevertheless.
        let called = self.call("cuCtxPopCurrent_v2").map(|_| ());
        let mut state = self.state();
        if let Entry::Occupied(mut stack) = state.current.entry(thread::current().id()) {
            stack.get_mut().pop();
            if stack.get().is_empty() {
                stack.remove();
            }
        }
        called
    }

    fn exchange_capture_mode(&self, mode: i32) -> DriverResult<i32> {
        let mut state = self.call("cuThreadExchangeStreamCaptureMode")?;
        Ok(state.capture_modes.insert(thread::current().id(), mode).unwrap_or(0))
    }

    fn is_capturing(&self, stream: &StreamHandle) -> DriverResult<bool> {
        let call = "cuStreamIsCapturing";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), None)?;
        let answer = state.is_capturing(stream.0);
        answer.ok_or(DriverError { call, code: CAPTURE_IMPLICIT })
    }

    fn synchronize_context(&self) -> DriverResult<()> {
        let mut state = self.call_in_context("cuCtxSynchronize")?;
        let streams: Vec<usize> = state.streams.keys().copied().collect();
        for stream in streams {
            state.run_until(|state| state.is_idle(stream));
        }
        Ok(())
    }

    fn stream_priorities(&self) -> DriverResult<(i32, i32)> {
        self.call_in_context("cuCtxGetStreamPriorityRange").map(|_| (0, -5))
    }

    fn create_stream(&self, priority: i32) -> DriverResult<StreamHandle> {
        let call = "cuStreamCreateWithPriority";
        let mut state = self.call_in_context(call)?;
        if !(-5..=0).contains(&priority) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let handle = state.new_handle();
        state.add_stream(handle, true);
        Ok(StreamHandle(handle))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> DriverResult<()> {
        let remove = |state: &mut FakeState| {
            // A real driver would still run queued work; tests ensure that no work is queued.
            let known = state.streams.contains_key(&stream.0);
            state.run_until(|state| state.is_idle(stream.0));
            state.streams.remove(&stream.0);
            known
        };
        self.destroy("cuStreamDestroy_v2", remove, |state| {
            remove(state);
        })
    }

    fn synchronize_stream(&self, stream: &StreamHandle) -> DriverResult<()> {
        let call = "cuStreamSynchronize";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), None)?;
        state.run_until(|state| state.is_idle(stream.0));
        Ok(())
    }

    fn create_event(&self) -> DriverResult<EventHandle> {
        let mut state = self.call_in_context("cuEventCreate")?;
        let handle = state.new_handle();
        state.events.insert(handle, FakeEvent::default());
        Ok(EventHandle(handle))
    }

    fn destroy_event(&self, event: EventHandle) -> DriverResult<()> {
        let remove = |state: &mut FakeState| state.events.remove(&event.0).is_some();
        self.destroy("cuEventDestroy_v2", remove, |state| {
            remove(state);
        })
    }

    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> DriverResult<()> {
        let call = "cuEventRecord";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), Some(event))?;
        check_capture(&mut state, call, stream);
        if !is_left_out(&mut state) {
            state.record(event.0, stream.0);
        }
        Ok(())
    }

    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> DriverResult<()> {
        let call = "cuStreamWaitEvent";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), Some(event))?;
        check_capture(&mut state, call, stream);
        if !is_left_out(&mut state) {
            state.wait(stream.0, event.0);
        }
        Ok(())
    }

    fn query_event(&self, event: &EventHandle) -> DriverResult<bool> {
        let call = "cuEventQuery";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, None, Some(event))?;
        Ok(state.is_complete(event.0))
    }

    fn synchronize_event(&self, event: &EventHandle) -> DriverResult<()> {
        let call = "cuEventSynchronize";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, None, Some(event))?;
        state.run_until(|state| state.is_complete(event.0));
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> DriverResult<MemoryHandle> {
        let call = "cuMemAlloc_v2";
        let mut state = self.call_in_context(call)?;
        if bytes == 0 {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let none_left = DriverError { call, code: OUT_OF_MEMORY };
        let address = DeviceAddress(state.allocate(bytes).ok_or(none_left)?);
        Ok(MemoryHandle { address, bytes })
    }

    unsafe fn free(&self, memory: MemoryHandle) -> DriverResult<()> {
        let free = |state: &mut FakeState| {
            state.free(memory.address.0);
            true
        };
        self.destroy("cuMemFree_v2", free, |state| {
            state.memories.remove(&memory.address.0);
        })
    }

    unsafe fn register_host(
        &self,
        address: *mut u8,
        bytes: usize,
    ) -> DriverResult<RegistrationHandle> {
        let call = "cuMemHostRegister_v2";
        let mut state = self.call_in_context(call)?;
        let address = address.expose_provenance();
        if state.is_registered(address, bytes) {
            return Err(DriverError { call, code: 712 });
        }
        state.registered.insert(address, (bytes, Default::default()));
        Ok(RegistrationHandle(address))
    }

    unsafe fn unregister_host(&self, memory: RegistrationHandle) -> DriverResult<()> {
        let unregister = |state: &mut FakeState| {
            state.unregister(memory.0);
            true
        };
        self.destroy("cuMemHostUnregister", unregister, |state| {
            state.registered.remove(&memory.0);
        })
    }

    unsafe fn copy_to_device(
        &self,
        to: DeviceAddress,
        from: *const u8,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let call = "cuMemcpyHtoDAsync_v2";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), None)?;
        let address = from.expose_provenance();
        let then = super::fake_driver::read_host(address, bytes);
        let from = if state.is_registered(address, bytes) {
            CopySource::Locked { address, then }
        } else {
            CopySource::Staged(then)
        };
        let read = address as u64..(address + bytes) as u64;
        let written = to.0..to.0 + bytes as u64;
        let accesses = [(read, AccessKind::CopyReadsHost), (written, AccessKind::CopyWritesDevice)];
        state.enqueue(stream.0, &accesses, StreamOp::ToDevice { to: to.0, from, bytes });
        Ok(())
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DeviceAddress,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let call = "cuMemcpyDtoHAsync_v2";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), None)?;
        let to = to.expose_provenance();
        let read = from.0..from.0 + bytes as u64;
        let written = to as u64..(to + bytes) as u64;
        let accesses = [(read, AccessKind::CopyReadsDevice), (written, AccessKind::CopyWritesHost)];
        state.enqueue(stream.0, &accesses, StreamOp::ToHost { to, from: from.0, bytes });
        Ok(())
    }

    unsafe fn copy_rows(&self, copy: &Memcpy2D, stream: &StreamHandle) -> DriverResult<()> {
        let call = "cuMemcpy2DAsync_v2";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), None)?;
        let copy = *copy;
        if copy.row_bytes > copy.from_pitch.min(copy.to_pitch) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let end = |pitch: usize| (copy.rows.saturating_sub(1) * pitch + copy.row_bytes) as u64;
        let read = copy.from.0..copy.from.0 + end(copy.from_pitch);
        let written = copy.to.0..copy.to.0 + end(copy.to_pitch);
        let accesses =
            [(read, AccessKind::CopyReadsDevice), (written, AccessKind::CopyWritesDevice)];
        let work = StreamOp::Look(Box::new(move |memories| {
            for row in 0..copy.rows {
                let from = copy.from.0 + (row * copy.from_pitch) as u64;
                let to = copy.to.0 + (row * copy.to_pitch) as u64;
                let bytes = memory::load(memories, from, copy.row_bytes).map(<[u8]>::to_vec);
                memory::store(memories, to, &bytes.unwrap_or_default());
            }
        }));
        state.enqueue(stream.0, &accesses, work);
        Ok(())
    }

    unsafe fn load_module(&self, _: &[u8]) -> DriverResult<ModuleHandle> {
        let mut state = self.call_in_context("cuModuleLoadData")?;
        let handle = state.new_handle();
        state.modules.insert(handle);
        Ok(ModuleHandle(handle))
    }

    unsafe fn unload_module(&self, module: ModuleHandle) -> DriverResult<()> {
        let remove = |state: &mut FakeState| {
            if state.is_queued(module.0) {
                let message = "a module is unloaded while one of its kernels is queued";
                state.violate(ViolationKind::ReleasedInUse, message);
            }
            state.modules.remove(&module.0)
        };
        self.destroy("cuModuleUnload", remove, |state| {
            remove(state);
        })
    }

    fn function(&self, module: &ModuleHandle, name: &str) -> DriverResult<FunctionHandle> {
        let call = "cuModuleGetFunction";
        let mut state = self.call_in_context(call)?;
        if !state.modules.contains(&module.0) || name.is_empty() {
            return Err(DriverError { call, code: 500 });
        }
        let handle = state.new_handle();
        state.functions.insert(handle, (module.0, name.to_owned()));
        Ok(FunctionHandle(handle))
    }

    /// [`FakeDriver::run_kernels_with`] defines what the kernel does.
    unsafe fn launch(
        &self,
        function: &FunctionHandle,
        shape: LaunchDimensions,
        parameters: &[&[u8]],
        accesses: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let call = "cuLaunchKernel";
        let mut state = self.call_in_context(call)?;
        check_handles(&mut state, call, Some(stream), None)?;
        let known = state.functions.get(&function.0).cloned();
        let Some((module, name)) = known.filter(|(module, _)| state.modules.contains(module))
        else {
            state.violate(ViolationKind::InvalidHandle, call);
            return Err(DriverError { call, code: 400 });
        };
        let sizes = [shape.grid, shape.block].concat();
        if sizes.contains(&0) || shape.block.iter().product::<u32>() > 1024 {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        state.enqueue_kernel(
            QueuedKernel {
                name,
                module: Some(module),
                grid: shape.grid,
                arguments: parameters.iter().map(|bytes| bytes.to_vec()).collect(),
                accesses: accesses.to_vec(),
            },
            stream.0,
        );
        Ok(())
    }

    fn note_library_work(
        &self,
        library: &'static str,
        accesses: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let mut state = self.state();
        check_handles(&mut state, library, Some(stream), None)?;
        let (name, accesses) = (library.to_owned(), accesses.to_vec());
        let (module, grid, arguments) = (None, [1; 3], Vec::new());
        state.enqueue_kernel(QueuedKernel { name, module, grid, arguments, accesses }, stream.0);
        Ok(())
    }
}

/// Whether the test skips this event record or wait.
fn is_left_out(state: &mut FakeState) -> bool {
    let number = state.order_count;
    state.order_count += 1;
    state.skipped_call == Some(number)
}
