//! The third-party loaders (peers): their packages, and their installation below target/.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use super::contest::Contestant;
use crate::tools::{Output, Workspace, command, install_packages};
use crate::venv::Venv;

/// The environment of the peers that need torch, and its packages.
pub(super) const TORCH: (&str, &[&str]) =
    ("venv-bench-torch", &["numpy", "pillow", "torch", "torchvision", "webdataset"]);

/// The environment of upstream, the original SPDL.
pub(super) const SPDL: (&str, &[&str]) =
    ("venv-bench-spdl", &["numpy", "spdl", "spdl-core", "spdl-io"]);

/// Python code that fails without the FFmpeg libraries of the system, which upstream's wheel loads.
pub(super) const SPDL_NEEDS_FFMPEG: &str = "import spdl.io; spdl.io.demux_config()";

/// The environment of TorchCodec and torchaudio.
pub(super) const TORCHCODEC: (&str, &[&str]) =
    ("venv-bench-torchcodec", &["numpy", "torch", "torchcodec", "torchaudio"]);

/// Python code that fails without the FFmpeg libraries of the system, which TorchCodec loads.
pub(super) const TORCHCODEC_NEEDS_FFMPEG: &str = "import torchcodec.decoders";

/// A third-party loader that is measured for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// libjpeg-turbo alone: decodes whole files in memory, without resizing or batching
    LibjpegTurbo,
    /// Pillow in a pool of threads
    Pillow,
    /// libjpeg-turbo (simplejpeg) and OpenCV's area filter in a pool of threads
    Simplejpeg,
    /// Like simplejpeg, but libjpeg-turbo decodes at a reduced size
    SimplejpegScaled,
    /// Pillow in PyTorch's DataLoader
    TorchPillow,
    /// torchvision's decode_jpeg and transforms in PyTorch's DataLoader
    Torchvision,
    /// tf.data with decode_and_crop_jpeg and an antialiasing resize
    Tensorflow,
    /// tf.data without antialiasing, which is less work and results in different pixels
    TensorflowAliased,
    /// The original SPDL (Python and C++), one image per stage call, as in its documentation
    Spdl,
    /// NVIDIA DALI, on the CPU
    Dali,
}

impl Peer {
    /// Peers whose packages are small downloads.
    pub(crate) const DEFAULT: [Peer; 3] = [Peer::LibjpegTurbo, Peer::Pillow, Peer::Simplejpeg];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::LibjpegTurbo => "libjpeg-turbo alone, decode only",
            Peer::Pillow => "thread pool: Pillow",
            Peer::Simplejpeg => "thread pool: simplejpeg + OpenCV area",
            Peer::SimplejpegScaled => "thread pool: simplejpeg, scaled, + OpenCV area",
            Peer::TorchPillow => "torch DataLoader: Pillow",
            Peer::Torchvision => "torch DataLoader: torchvision",
            Peer::Tensorflow => "tf.data, antialias",
            Peer::TensorflowAliased => "tf.data, no antialias",
            Peer::Spdl => "spdl (Python, C++)",
            Peer::Dali => "DALI, CPU",
        }
    }

    /// The script of the peer in `xtask/peers`, with additional arguments.
    fn script(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Peer::LibjpegTurbo => ("simplejpeg_decode.py", &[]),
            Peer::Pillow => ("pillow_pool.py", &[]),
            Peer::Simplejpeg => ("simplejpeg_opencv_pool.py", &[]),
            Peer::SimplejpegScaled => ("simplejpeg_opencv_pool.py", &["--scaled"]),
            Peer::TorchPillow => ("pillow_torch.py", &[]),
            Peer::Torchvision => ("torchvision_loader.py", &[]),
            Peer::Tensorflow => ("tensorflow_data.py", &[]),
            Peer::TensorflowAliased => ("tensorflow_data.py", &["--alias"]),
            Peer::Spdl => ("spdl_pipeline.py", &[]),
            Peer::Dali => ("dali_pipeline.py", &[]),
        }
    }

    /// The name of the peer's environment below target/, and its packages. Large peers have
    /// separate environments, because the versions of their packages conflict.
    pub(super) fn environment(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Peer::LibjpegTurbo | Peer::Pillow | Peer::Simplejpeg | Peer::SimplejpegScaled => {
                ("venv-bench", &["numpy", "pillow", "simplejpeg", "opencv-python-headless"])
            }
            Peer::TorchPillow | Peer::Torchvision => TORCH,
            Peer::Tensorflow | Peer::TensorflowAliased => {
                ("venv-bench-tensorflow", &["numpy", "tensorflow-cpu"])
            }
            Peer::Spdl => SPDL,
            Peer::Dali => ("venv-bench-dali", &["numpy", "nvidia-dali-cuda130"]),
        }
    }

    fn needs_torch(self) -> bool {
        matches!(self, Peer::TorchPillow | Peer::Torchvision)
    }
}

/// Settings of all peers.
pub(crate) struct PeerTask<'a> {
    pub(crate) data: &'a Path,
    pub(crate) mode: &'static str,
    pub(crate) epochs: u32,
    pub(crate) workers: usize,
    /// An interpreter with torch; if set, torch is not installed.
    pub(crate) torch_python: Option<&'a Path>,
}

/// Installs the chosen peers and returns those that are installed.
///
/// For each other chosen peer, prints the reason. Fails if no peer is installed.
pub(crate) fn prepare(
    workspace: &Workspace,
    chosen: &[Peer],
    task: &PeerTask<'_>,
) -> Result<Vec<Contestant>> {
    let mut contestants = Vec::new();
    for &peer in chosen {
        match interpreter(workspace, peer, task) {
            Ok(python) => {
                let mut contestant = contestant(workspace, peer, python.clone(), task);
                contestant.versions = versions(&python, peer.environment().1);
                println!("{}: {}", contestant.name, contestant.versions);
                contestants.push(contestant);
            }
            Err(error) => println!("SKIPPED: {}: {error:#}", peer.name()),
        }
    }
    ensure!(!contestants.is_empty(), "none of the other loaders could be installed");
    Ok(contestants)
}

/// Installs a peer and returns the interpreter of its environment.
pub(crate) fn interpreter(
    workspace: &Workspace,
    peer: Peer,
    task: &PeerTask<'_>,
) -> Result<PathBuf> {
    if let Some(python) = task.torch_python.filter(|_| peer.needs_torch()) {
        return Ok(python.to_owned());
    }
    let (name, packages) = peer.environment();
    let output = &mut Output::Terminal;
    let python = Venv::prepare(workspace, output, name, packages)?.python();
    if peer == Peer::Spdl && !runs(&python, SPDL_NEEDS_FFMPEG) {
        install_packages(output, "upstream's wheel holds no FFmpeg", &["ffmpeg"])?;
    }
    Ok(python)
}

/// Whether Python code runs without an error.
pub(super) fn runs(python: &Path, code: &str) -> bool {
    let status =
        command(python).args(["-c", code]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn contestant(
    workspace: &Workspace,
    peer: Peer,
    python: PathBuf,
    task: &PeerTask<'_>,
) -> Contestant {
    let (script, extra) = peer.script();
    let script = workspace.root.join("xtask/peers").join(script).display().to_string();
    let data = task.data.display().to_string();
    let (epochs, workers) = (task.epochs.to_string(), task.workers.to_string());
    let words = [&script, &data, "--mode", task.mode, "--epochs", &epochs, "--workers", &workers];
    let words = words.into_iter().chain(extra.iter().copied()).map(str::to_owned).collect();
    Contestant::new(peer.name(), python, words)
}

/// Versions of the installed packages, such as `Pillow 13.0.0, numpy 2.4.6`.
pub(super) fn versions(python: &Path, packages: &[&str]) -> String {
    const SCRIPT: &str = "\
import importlib.metadata as metadata, sys
found = []
for name in sys.argv[1:]:
    name = name.partition('==')[0]
    try:
        found.append(f'{name} {metadata.version(name)}')
    except metadata.PackageNotFoundError:
        pass
print(', '.join(found))";
    let output = command(python).args(["-c", SCRIPT]).args(packages).output();
    output.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned()).unwrap_or_default()
}
