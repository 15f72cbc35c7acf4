//! The calls of the fake driver.

use std::collections::hash_map::Entry;
use std::sync::MutexGuard;
use std::thread;

use super::accesses::{AccessKind, ViolationKind};
use super::fake_driver::FakeDriver;
use super::kernels::Kernel;
use super::memory;
use super::streams::{FakeEvent, HostBytes, StreamOp};
use super::world::FakeState;
use crate::driver::{
    CAPTURE_IMPLICIT, ContextHandle, DeviceAddress, DeviceAttribute, DeviceId, Driver, DriverError,
    DriverResult, EventHandle, FunctionHandle, INVALID_CONTEXT, INVALID_VALUE, LaunchDimensions,
    Memcpy2D, MemoryAccess, MemoryHandle, ModuleHandle, NOT_READY, OUT_OF_MEMORY,
    RegistrationHandle, StreamHandle,
};

/// The capture mode in which a thread may call everything.
const RELAXED: i32 = 2;

impl FakeDriver {
    /// Counts a call, and lets it fail where it is its turn.
    fn call(&self, call: &'static str) -> DriverResult<MutexGuard<'_, FakeState>> {
        let mut world = self.world();
        *world.calls.entry(call).or_default() += 1;
        let number = world.call_count;
        world.call_count += 1;
        world.run_some();
        let code = world.fault.as_ref().and_then(|fault| {
            let is_meant = fault.function.as_deref().is_none_or(|function| function == call);
            (is_meant && fault.calls.contains(&number)).then_some(fault.code)
        });
        let Some(code) = code else { return Ok(world) };
        if world.fault.as_ref().is_some_and(|fault| fault.function.is_some()) {
            world.fault = None;
        }
        Err(DriverError { call, code })
    }

    /// The same for a call that needs a current context.
    fn call_in_context(&self, call: &'static str) -> DriverResult<MutexGuard<'_, FakeState>> {
        let mut world = self.call(call)?;
        if !world.current.contains_key(&thread::current().id()) {
            world.violate(ViolationKind::NoCurrentContext, call);
            return Err(DriverError { call, code: INVALID_CONTEXT });
        }
        let mode = world.capture_modes.get(&thread::current().id()).copied().unwrap_or(0);
        if world.is_captured && mode != RELAXED && super::fake_driver::disturbs_captures(call) {
            world.violate(ViolationKind::DisturbsCapture, call);
            return Err(DriverError { call, code: 900 });
        }
        Ok(world)
    }

    /// The same for a call that destroys something: it cannot be called again, so what it was to
    /// destroy stays for ever where it fails.
    fn destroy(
        &self,
        call: &'static str,
        destroyed: impl Fn(&mut FakeState) -> bool,
        forget: impl Fn(&mut FakeState),
    ) -> DriverResult<()> {
        let called = self.call_in_context(call).map(|mut world| {
            if !destroyed(&mut world) {
                world.violate(ViolationKind::NoSuchHandle, call);
            }
        });
        called.inspect_err(|_| {
            let mut world = self.world();
            world.abandoned += 1;
            forget(&mut world);
        })
    }
}

/// Reports a stream, or event, that is none.
fn check_handles(
    world: &mut FakeState,
    call: &'static str,
    stream: Option<&StreamHandle>,
    event: Option<&EventHandle>,
) -> DriverResult<()> {
    let stream = stream.map(|stream| world.stream_of(stream.0));
    let stream_is_known = stream.is_none_or(|stream| world.streams.contains_key(&stream));
    let event_is_known = event.is_none_or(|event| world.events.contains_key(&event.0));
    if stream_is_known && event_is_known {
        return Ok(());
    }
    world.violate(ViolationKind::NoSuchHandle, call);
    Err(DriverError { call, code: 400 })
}

/// Reports what is told to a stream that is captured: a wait breaks the capture off, an event becomes one
/// that nobody else can wait for.
fn check_capture(world: &mut FakeState, call: &'static str, stream: &StreamHandle) {
    if world.is_capturing(stream.0) != Some(false) {
        world.violate(ViolationKind::DisturbsCapture, call);
    }
}

impl Driver for FakeDriver {
    fn version(&self) -> DriverResult<i32> {
        self.call("cuDriverGetVersion").map(|_| 13000)
    }

    fn device_count(&self) -> DriverResult<u32> {
        self.call("cuDeviceGetCount").map(|world| world.contexts.len() as u32)
    }

    fn device(&self, ordinal: u32) -> DriverResult<DeviceId> {
        let call = "cuDeviceGet";
        let world = self.call(call)?;
        if ordinal as usize >= world.contexts.len() {
            return Err(DriverError { call, code: 101 });
        }
        Ok(DeviceId(ordinal as i32))
    }

    fn device_name(&self, _: DeviceId) -> DriverResult<String> {
        self.call("cuDeviceGetName").map(|_| "Fake".to_owned())
    }

    fn device_attribute(&self, _: DeviceId, attribute: DeviceAttribute) -> DriverResult<i32> {
        self.call("cuDeviceGetAttribute").map(|world| match attribute {
            DeviceAttribute::Multiprocessors => 132,
            DeviceAttribute::PciBus => 0x3b,
            DeviceAttribute::PciDevice => 0,
            DeviceAttribute::CopyEngines => 3,
            // No machine has it: the CPUs near the device are not known.
            DeviceAttribute::PciDomain => 0xfffff,
            DeviceAttribute::ComputeMajor => world.compute_capability.0,
            DeviceAttribute::ComputeMinor => world.compute_capability.1,
        })
    }

    fn device_memory(&self, _: DeviceId) -> DriverResult<usize> {
        self.call("cuDeviceTotalMem_v2").map(|world| world.capacity)
    }

    fn retain_primary_context(&self, device: DeviceId) -> DriverResult<ContextHandle> {
        let mut world = self.call("cuDevicePrimaryCtxRetain")?;
        world.contexts[device.0 as usize] += 1;
        Ok(ContextHandle { raw: device.0 as usize, device })
    }

    fn release_primary_context(&self, context: ContextHandle) -> DriverResult<()> {
        let called = self.call("cuDevicePrimaryCtxRelease_v2").map(|_| ());
        let mut world = self.world();
        world.contexts[context.raw] -= 1;
        world.abandoned += usize::from(called.is_err());
        called
    }

    fn push_context(&self, context: &ContextHandle) -> DriverResult<()> {
        let mut world = self.call("cuCtxPushCurrent_v2")?;
        if world.contexts[context.raw] == 0 {
            world.violate(
                ViolationKind::NoSuchHandle,
                "a context that was released is made current",
            );
        }
        world.current.entry(thread::current().id()).or_default().push(context.raw);
        Ok(())
    }

    fn pop_context(&self) -> DriverResult<()> {
        // What fails here is some earlier work; the context is no longer current for all that.
        let called = self.call("cuCtxPopCurrent_v2").map(|_| ());
        let mut world = self.world();
        if let Entry::Occupied(mut stack) = world.current.entry(thread::current().id()) {
            stack.get_mut().pop();
            if stack.get().is_empty() {
                stack.remove();
            }
        }
        called
    }

    fn exchange_capture_mode(&self, mode: i32) -> DriverResult<i32> {
        let mut world = self.call("cuThreadExchangeStreamCaptureMode")?;
        Ok(world.capture_modes.insert(thread::current().id(), mode).unwrap_or(0))
    }

    fn is_capturing(&self, stream: &StreamHandle) -> DriverResult<bool> {
        let call = "cuStreamIsCapturing";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), None)?;
        let answer = world.is_capturing(stream.0);
        answer.ok_or(DriverError { call, code: CAPTURE_IMPLICIT })
    }

    fn synchronize_context(&self) -> DriverResult<()> {
        let mut world = self.call_in_context("cuCtxSynchronize")?;
        let streams: Vec<usize> = world.streams.keys().copied().collect();
        for stream in streams {
            world.run_until(|world| world.is_idle(stream));
        }
        Ok(())
    }

    fn stream_priorities(&self) -> DriverResult<(i32, i32)> {
        self.call_in_context("cuCtxGetStreamPriorityRange").map(|_| (0, -5))
    }

    fn create_stream(&self, priority: i32) -> DriverResult<StreamHandle> {
        let call = "cuStreamCreateWithPriority";
        let mut world = self.call_in_context(call)?;
        if !(-5..=0).contains(&priority) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let handle = world.new_handle();
        world.add_stream(handle, true);
        Ok(StreamHandle(handle))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> DriverResult<()> {
        let remove = |world: &mut FakeState| {
            // What is under way goes on; tests see to it that nothing is.
            let known = world.streams.contains_key(&stream.0);
            world.run_until(|world| world.is_idle(stream.0));
            world.streams.remove(&stream.0);
            known
        };
        self.destroy("cuStreamDestroy_v2", remove, |world| {
            remove(world);
        })
    }

    fn synchronize_stream(&self, stream: &StreamHandle) -> DriverResult<()> {
        let call = "cuStreamSynchronize";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), None)?;
        world.run_until(|world| world.is_idle(stream.0));
        Ok(())
    }

    fn create_event(&self) -> DriverResult<EventHandle> {
        let mut world = self.call_in_context("cuEventCreate")?;
        let handle = world.new_handle();
        world.events.insert(handle, FakeEvent::default());
        Ok(EventHandle(handle))
    }

    fn create_timing_event(&self) -> DriverResult<EventHandle> {
        let mut world = self.call_in_context("cuEventCreate")?;
        let handle = world.new_handle();
        world.events.insert(handle, FakeEvent { is_timer: true, ..FakeEvent::default() });
        Ok(EventHandle(handle))
    }

    fn elapsed(&self, from: &EventHandle, to: &EventHandle) -> DriverResult<f32> {
        let call = "cuEventElapsedTime";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, None, Some(from))?;
        check_handles(&mut world, call, None, Some(to))?;
        let reached = |event: &EventHandle| {
            let event = &world.events[&event.0];
            let (record, _) = event.record.as_ref().filter(|_| event.is_timer)?;
            Some(world.reached.get(record).copied())
        };
        match (reached(from), reached(to)) {
            (Some(Some(from)), Some(Some(to))) => Ok((to as f32 - from as f32) / 1000.0),
            (Some(_), Some(_)) => Err(DriverError { call, code: NOT_READY }),
            _ => Err(DriverError { call, code: 400 }),
        }
    }

    fn destroy_event(&self, event: EventHandle) -> DriverResult<()> {
        let remove = |world: &mut FakeState| world.events.remove(&event.0).is_some();
        self.destroy("cuEventDestroy_v2", remove, |world| {
            remove(world);
        })
    }

    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> DriverResult<()> {
        let call = "cuEventRecord";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), Some(event))?;
        check_capture(&mut world, call, stream);
        if !is_left_out(&mut world) {
            world.record(event.0, stream.0);
        }
        Ok(())
    }

    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> DriverResult<()> {
        let call = "cuStreamWaitEvent";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), Some(event))?;
        check_capture(&mut world, call, stream);
        if !is_left_out(&mut world) {
            world.wait(stream.0, event.0);
        }
        Ok(())
    }

    fn query_event(&self, event: &EventHandle) -> DriverResult<bool> {
        let call = "cuEventQuery";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, None, Some(event))?;
        Ok(world.is_complete(event.0))
    }

    fn synchronize_event(&self, event: &EventHandle) -> DriverResult<()> {
        let call = "cuEventSynchronize";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, None, Some(event))?;
        world.run_until(|world| world.is_complete(event.0));
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> DriverResult<MemoryHandle> {
        let call = "cuMemAlloc_v2";
        let mut world = self.call_in_context(call)?;
        if bytes == 0 {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let none_left = DriverError { call, code: OUT_OF_MEMORY };
        let address = DeviceAddress(world.allocate(bytes).ok_or(none_left)?);
        Ok(MemoryHandle { address, bytes })
    }

    unsafe fn free(&self, memory: MemoryHandle) -> DriverResult<()> {
        let free = |world: &mut FakeState| {
            world.free(memory.address.0);
            true
        };
        self.destroy("cuMemFree_v2", free, |world| {
            world.memories.remove(&memory.address.0);
        })
    }

    unsafe fn register_host(
        &self,
        address: *mut u8,
        bytes: usize,
    ) -> DriverResult<RegistrationHandle> {
        let call = "cuMemHostRegister_v2";
        let mut world = self.call_in_context(call)?;
        let address = address.expose_provenance();
        if world.is_locked(address, bytes) {
            return Err(DriverError { call, code: 712 });
        }
        world.locked.insert(address, (bytes, Default::default()));
        Ok(RegistrationHandle(address))
    }

    unsafe fn unregister_host(&self, memory: RegistrationHandle) -> DriverResult<()> {
        let let_go = |world: &mut FakeState| {
            world.let_go(memory.0);
            true
        };
        self.destroy("cuMemHostUnregister", let_go, |world| {
            world.locked.remove(&memory.0);
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
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), None)?;
        let address = from.expose_provenance();
        let then = super::fake_driver::read_host(address, bytes);
        let from = if world.is_locked(address, bytes) {
            HostBytes::Locked { address, then }
        } else {
            HostBytes::Staged(then)
        };
        let read = address as u64..(address + bytes) as u64;
        let written = to.0..to.0 + bytes as u64;
        let accesses = [(read, AccessKind::CopyReadsHost), (written, AccessKind::CopyWritesDevice)];
        world.enqueue(stream.0, &accesses, StreamOp::ToDevice { to: to.0, from, bytes });
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
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), None)?;
        let to = to.expose_provenance();
        let read = from.0..from.0 + bytes as u64;
        let written = to as u64..(to + bytes) as u64;
        let accesses = [(read, AccessKind::CopyReadsDevice), (written, AccessKind::CopyWritesHost)];
        world.enqueue(stream.0, &accesses, StreamOp::ToHost { to, from: from.0, bytes });
        Ok(())
    }

    unsafe fn copy_rows(&self, copy: &Memcpy2D, stream: &StreamHandle) -> DriverResult<()> {
        let call = "cuMemcpy2DAsync_v2";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), None)?;
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
        world.enqueue(stream.0, &accesses, work);
        Ok(())
    }

    unsafe fn load_module(&self, _: &[u8]) -> DriverResult<ModuleHandle> {
        let mut world = self.call_in_context("cuModuleLoadData")?;
        let handle = world.new_handle();
        world.modules.insert(handle);
        Ok(ModuleHandle(handle))
    }

    unsafe fn unload_module(&self, module: ModuleHandle) -> DriverResult<()> {
        let remove = |world: &mut FakeState| {
            if world.is_queued(module.0) {
                let message = "a module is unloaded while a kernel of it is queued";
                world.violate(ViolationKind::ReleasedInUse, message);
            }
            world.modules.remove(&module.0)
        };
        self.destroy("cuModuleUnload", remove, |world| {
            remove(world);
        })
    }

    fn function(&self, module: &ModuleHandle, name: &str) -> DriverResult<FunctionHandle> {
        let call = "cuModuleGetFunction";
        let mut world = self.call_in_context(call)?;
        if !world.modules.contains(&module.0) || name.is_empty() {
            return Err(DriverError { call, code: 500 });
        }
        let handle = world.new_handle();
        world.functions.insert(handle, (module.0, name.to_owned()));
        Ok(FunctionHandle(handle))
    }

    /// What it does is up to [`FakeDriver::run_kernels_by`].
    unsafe fn launch(
        &self,
        function: &FunctionHandle,
        shape: LaunchDimensions,
        parameters: &[&[u8]],
        touched: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let call = "cuLaunchKernel";
        let mut world = self.call_in_context(call)?;
        check_handles(&mut world, call, Some(stream), None)?;
        let known = world.functions.get(&function.0).cloned();
        let Some((module, name)) = known.filter(|(module, _)| world.modules.contains(module))
        else {
            world.violate(ViolationKind::NoSuchHandle, call);
            return Err(DriverError { call, code: 400 });
        };
        let sizes = [shape.grid, shape.block].concat();
        if sizes.contains(&0) || shape.block.iter().product::<u32>() > 1024 {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        world.enqueue_kernel(
            Kernel {
                name,
                module: Some(module),
                grid: shape.grid,
                arguments: parameters.iter().map(|bytes| bytes.to_vec()).collect(),
                touched: touched.to_vec(),
            },
            stream.0,
        );
        Ok(())
    }

    fn note_library_work(
        &self,
        library: &'static str,
        touched: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let mut world = self.world();
        check_handles(&mut world, library, Some(stream), None)?;
        let (name, touched) = (library.to_owned(), touched.to_vec());
        let (module, grid, arguments) = (None, [1; 3], Vec::new());
        world.enqueue_kernel(Kernel { name, module, grid, arguments, touched }, stream.0);
        Ok(())
    }
}

/// Whether this record, or wait, is the one that is forgotten.
fn is_left_out(world: &mut FakeState) -> bool {
    let number = world.order_count;
    world.order_count += 1;
    world.left_out == Some(number)
}
