//! The device that a user names in words, `auto` among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::device::CudaDevice;
use crate::libraries::Search;
use spdl_core::memory::{BufferPool, HostDevice};
use spdl_core::{Device, Error, ErrorKind, Result};

/// How often `auto` fell back to the host in this process.
static FALLBACKS: AtomicUsize = AtomicUsize::new(0);

/// A device, and where batches for it are assembled best.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The same, where it is a CUDA device.
    pub cuda: Option<CudaDevice>,
    /// For [`PipelineBuilder::buffers`](spdl_core::PipelineBuilder::buffers).
    pub buffers: BufferPool,
    /// Why it is the host, where `auto` was to find a CUDA device.
    pub fallback: Option<Fallback>,
}

/// That the host was taken instead of a device.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// Why.
    pub reason: Error,
    /// Whether it is the first time in this process: the one to be told to people.
    pub is_first: bool,
}

/// The device that `request` names: `cpu`, `cuda` (device 0), `cuda:N`, or `auto`, which is `cuda`
/// where there is one and else `cpu`.
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
/// `InvalidArgument` where `request` is none of those. For `cuda`, why it cannot be used.
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

/// How often `auto` fell back to the host in this process.
pub fn fallbacks() -> usize {
    FALLBACKS.load(Ordering::Relaxed)
}

fn parse_ordinal(request: &str) -> Result<u32> {
    let number = request.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    number.ok_or_else(|| {
        let message = format!("{request:?} is no device: it is cpu, cuda, cuda:N, or auto");
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
