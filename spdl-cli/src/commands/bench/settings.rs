//! Settings of the stages: those of `--tune`, and those that `spdl tune` changes.

use spdl_core::observe::{SettingChange, SettingNames};
use spdl_core::pipeline::{StaticSettings, Tune};
use spdl_core::{Batch, Pipeline, PipelineBuilder, Result};

use super::arguments::BenchArguments;
use super::run::DECODE;

/// The stage that reads.
const FETCH: &str = "fetch";

/// Settings of the stages; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageSettings {
    /// Number of samples that are read at the same time.
    pub(crate) in_flight: Option<usize>,
    /// Number of samples that are decoded at the same time.
    pub(crate) decoding: Option<usize>,
    /// Number of finished batches that wait for the consumer.
    pub(crate) prefetch: Option<usize>,
    /// Whether `spdl tune` sets them, not the user of the command line.
    pub(crate) by_protocol: bool,
}

/// Applies `--tune`, and names the settings for the diagnosis.
///
/// # Errors
/// Those of [`StaticSettings::load`].
pub(super) fn tuned(
    pipeline: PipelineBuilder<Batch>,
    arguments: &BenchArguments,
) -> Result<PipelineBuilder<Batch>> {
    let pipeline = pipeline.setting_names(names(arguments));
    Ok(match &arguments.tune {
        None => pipeline,
        Some(None) => pipeline.tune(Tune::automatic()),
        Some(Some(file)) => pipeline.tune(Tune::fixed(StaticSettings::load(file)?)),
    })
}

/// The options, or the settings of the protocol, that make a change.
fn names(arguments: &BenchArguments) -> SettingNames {
    let (is_protocol, is_tuned) = (arguments.settings.by_protocol, arguments.tune.is_some());
    SettingNames::new(move |change, _| match is_protocol {
        true => in_protocol(change),
        false => option(change, is_tuned),
    })
}

fn option(change: &SettingChange, is_tuned: bool) -> Option<String> {
    Some(match change {
        SettingChange::Threads { threads } => format!("--threads {threads}"),
        SettingChange::Memory { bytes } => format!("--memory-budget {bytes}"),
        SettingChange::CacheShare { .. } => "--cache-size or --cache-memory".to_owned(),
        SettingChange::Concurrency { .. } | SettingChange::Queue { .. } if is_tuned => {
            "in the file of --tune=FILE".to_owned()
        }
        SettingChange::Concurrency { .. } | SettingChange::Queue { .. } => "--tune".to_owned(),
        _ => return None,
    })
}

fn in_protocol(change: &SettingChange) -> Option<String> {
    Some(match change {
        SettingChange::Threads { threads } => format!("threads: {threads}"),
        SettingChange::Concurrency { stage, items } => match &**stage {
            FETCH => format!("in_flight: {items}"),
            DECODE => format!("decode_concurrency: {items}"),
            _ => return None,
        },
        SettingChange::Queue { stage, items } if &**stage == DECODE => format!("prefetch: {items}"),
        change => return option(change, false).filter(|name| name != "--tune"),
    })
}

impl StageSettings {
    /// Applies the settings of a running pipeline: all but `prefetch`.
    ///
    /// # Errors
    /// Errors of [`Control::set_concurrency`](spdl_core::pipeline::Control::set_concurrency).
    pub(super) fn apply(&self, pipeline: Pipeline<Batch>) -> Result<Pipeline<Batch>> {
        let control = pipeline.control();
        for (stage, concurrency) in [(FETCH, self.in_flight), (DECODE, self.decoding)] {
            if let Some(concurrency) = concurrency {
                control.set_concurrency(stage, concurrency)?;
            }
        }
        Ok(pipeline)
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::tests::options;
    use super::super::tune::NAMES;
    use super::*;

    #[test]
    fn advice_names_only_options_and_settings_that_exist() {
        let all = |name: &str| {
            let stage = || name.into();
            [
                SettingChange::Threads { threads: 8 },
                SettingChange::Memory { bytes: 1 << 30 },
                SettingChange::Concurrency { stage: stage(), items: 8 },
                SettingChange::Queue { stage: stage(), items: 8 },
                SettingChange::CacheShare { stage: stage(), share: 1.0 },
                SettingChange::CompletionOrder { stage: stage() },
                SettingChange::WithoutGil,
            ]
        };
        let options = options();
        for change in [FETCH, DECODE, "mix"].iter().flat_map(|stage| all(stage)) {
            for name in [option(&change, false), option(&change, true)].into_iter().flatten() {
                let words = name.split([' ', '=']).filter_map(|word| word.strip_prefix("--"));
                let words: Vec<&str> = words.collect();
                assert!(!words.is_empty(), "{name}");
                assert!(words.iter().all(|word| options.iter().any(|it| it == word)), "{name}");
            }
            let Some(name) = in_protocol(&change).filter(|name| !name.starts_with("--")) else {
                continue;
            };
            let (setting, _) = name.split_once(": ").unwrap();
            assert!(NAMES.contains(&setting), "{name}");
        }
        // The order of a run is fixed.
        assert_eq!(option(&SettingChange::CompletionOrder { stage: FETCH.into() }, false), None);
        let fetch = SettingChange::Concurrency { stage: FETCH.into(), items: 8 };
        assert_eq!(option(&fetch, false).unwrap(), "--tune");
        assert_eq!(in_protocol(&fetch).unwrap(), "in_flight: 8");
    }
}
