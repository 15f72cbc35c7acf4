//! Choice of a device by a string such as `auto` or `cuda:1`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::device::CudaDevice;
use crate::libraries::Search;
use spdl_core::memory::{BufferPool, HostDevice};
use spdl_core::{Device, Error, ErrorKind, Result};

/// Number of times that `auto` fell back to the host in this process.
static FALLBACKS: AtomicUsize = AtomicUsize::new(0);

/// A device, and the buffers in which the pipeline assembles batches for it.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The same device, if it is a CUDA device.
    pub cuda: Option<CudaDevice>,
    /// Buffers for [`PipelineBuilder::buffers`](spdl_core::PipelineBuilder::buffers).
    pub buffers: BufferPool,
    /// Why `auto` fell back to the host; `None` if it did not.
    pub fallback: Option<Fallback>,
}

/// A fallback from a CUDA device to the host.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// The error that prevented the use of a CUDA device.
    pub reason: Error,
    /// Whether this is the first fallback in this process. Log only the first fallback.
    pub is_first: bool,
}

/// Opens the device that `request` names: `cpu`, `cuda` (device 0), `cuda:N`, or `auto`.
///
/// `auto` means `cuda` if that device is available, otherwise `cpu`.
///
/// ```
/// use spdl_cuda::{Search, choose_device};
/// let chosen = choose_device("auto", &Search::default())?;
/// if let Some(fallback) = &chosen.fallback
///     && fallback.is_first
/// {
///     eprintln!("batches stay on the host: {}", fallback.reason.report());
/// }
/// assert!(chosen.device.host_buffer(100)?.len() == 100);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for any other `request`; for `cuda` and `cuda:N`, the errors of
/// [`CudaDevice::open`].
pub fn choose_device(request: &str, search: &Search) -> Result<ChosenDevice> {
    let ordinal = match request {
        "cpu" => return Ok(ChosenDevice::host(None)),
        "auto" | "cuda" => 0,
        _ => parse_ordinal(request)?,
    };
    match CudaDevice::open_with(ordinal, search) {
        Ok(device) => {
            let buffers = device.buffers();
            let cuda = Some(device.clone());
            Ok(ChosenDevice { device: Arc::new(device), cuda, buffers, fallback: None })
        }
        Err(reason) if request == "auto" => {
            let is_first = FALLBACKS.fetch_add(1, Ordering::Relaxed) == 0;
            Ok(ChosenDevice::host(Some(Fallback { reason, is_first })))
        }
        Err(error) => Err(error),
    }
}

/// Returns how many times `auto` fell back to the host in this process.
pub fn fallbacks() -> usize {
    FALLBACKS.load(Ordering::Relaxed)
}

fn parse_ordinal(request: &str) -> Result<u32> {
    let number = request.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    number.ok_or_else(|| {
        let message = format!("unknown device {request:?}: expected cpu, cuda, cuda:N, or auto");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

impl ChosenDevice {
    fn host(fallback: Option<Fallback>) -> Self {
        let buffers = BufferPool::new();
        let device = Arc::new(HostDevice::new(buffers.clone()));
        ChosenDevice { device, cuda: None, buffers, fallback }
    }
}
