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
    /// The default of loaders.
    Waiting,
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

    /// The setting of a loader; `None` is the default.
    pub(crate) fn of_loader(tune: Option<TuneArgument>) -> Result<Self> {
        match tune {
            None => Ok(TuneSetting::Waiting),
            tune => TuneSetting::of(tune),
        }
    }

    /// How to tune a run.
    pub(crate) fn tune(&self) -> Option<Tune> {
        match self {
            TuneSetting::Off => None,
            TuneSetting::Waiting => Some(Tune::waiting()),
            TuneSetting::Automatic => Some(Tune::automatic()),
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
    /// Writes the settings of the run, or its last ones, as a file.
    pub(crate) fn freeze(&self, path: PathBuf) -> Result<()> {
        match self {
            RunControl::NotStarted => {
                let message = "cannot write the settings: nothing has run yet";
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
            RunControl::Running(control) => control.freeze().save(path),
            RunControl::Ended(settings) => settings.save(path),
        }
    }

    /// Releases the control of a run that ends.
    pub(crate) fn end(&mut self) {
        if let RunControl::Running(control) = self {
            *self = RunControl::Ended(control.freeze());
        }
    }
}
