//! Tuning: the argument `tune`, and the settings of a run.

use std::path::PathBuf;

use pyo3::prelude::*;
use spdl_core::pipeline::{Control, StaticSettings, Tune};
use spdl_core::{Error, ErrorKind, Result};

/// The argument `tune`: a flag, or the path of a file of settings.
#[derive(FromPyObject)]
pub(crate) enum TuneArgument {
    Flag(bool),
    Path(PathBuf),
}

/// What the argument `tune` requests.
#[derive(Debug)]
pub(crate) enum TuneSetting {
    Off,
    Automatic,
    Fixed(StaticSettings),
}

impl TuneSetting {
    /// Reads the file of settings, if `tune` is a path.
    pub(crate) fn of(tune: Option<TuneArgument>) -> Result<Self> {
        Ok(match tune {
            None | Some(TuneArgument::Flag(false)) => TuneSetting::Off,
            Some(TuneArgument::Flag(true)) => TuneSetting::Automatic,
            Some(TuneArgument::Path(path)) => TuneSetting::Fixed(StaticSettings::load(path)?),
        })
    }

    /// How to tune a run. Automatic tuning begins with the settings of an earlier run.
    pub(crate) fn tune(&self, earlier: Option<StaticSettings>) -> Option<Tune> {
        match self {
            TuneSetting::Off => None,
            TuneSetting::Automatic => {
                Some(earlier.into_iter().fold(Tune::automatic(), Tune::starting_with))
            }
            TuneSetting::Fixed(settings) => Some(Tune::fixed(settings.clone())),
        }
    }
}

/// The settings of a run.
#[derive(Debug, Default)]
pub(crate) enum RunControl {
    /// No run has started.
    #[default]
    NotStarted,
    Running(Control),
    /// The last settings. A control would keep the stages, which may hold Python functions.
    Ended(StaticSettings),
}

impl RunControl {
    /// The settings of the run, or its last ones.
    pub(crate) fn settings(&self) -> Option<StaticSettings> {
        match self {
            RunControl::NotStarted => None,
            RunControl::Running(control) => Some(control.freeze()),
            RunControl::Ended(settings) => Some(settings.clone()),
        }
    }

    /// Writes the settings as a file.
    pub(crate) fn freeze(&self, path: PathBuf) -> Result<()> {
        let settings = self.settings().ok_or_else(|| {
            let message = "cannot write the settings: nothing has run yet";
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        settings.save(path)
    }

    /// Releases the control of a run that ends.
    pub(crate) fn end(&mut self) {
        if let RunControl::Running(control) = self {
            *self = RunControl::Ended(control.freeze());
        }
    }
}
