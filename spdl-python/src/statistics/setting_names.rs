//! How users change settings: the arguments of loaders and pipelines, for the advice of a diagnosis.

use spdl_core::observe::{SettingChange, SettingNames, StageKind, StageStatistics};

use crate::interop::tuning::TuneSetting;

/// How a setting without an argument is changed.
fn tuned(tune: &TuneSetting) -> &'static str {
    match tune {
        TuneSetting::Off | TuneSetting::Waiting => "tune=True",
        TuneSetting::Automatic => "in a file that freeze has written, for tune",
        TuneSetting::Fixed(_) => "in the file of tune",
    }
}

/// The stage of Python functions with the most busy time.
fn most_python(stages: &[StageStatistics]) -> Option<&StageStatistics> {
    stages.iter().filter(|stage| stage.holds_gil).max_by_key(|stage| stage.busy)
}

/// The arguments of a loader. `movable` are the stages that `executor="processes"` moves to processes. `has_map` is
/// whether the loader has the argument `map` for work that other functions do.
pub(crate) fn of_loader(movable: Vec<String>, has_map: bool, tune: &TuneSetting) -> SettingNames {
    let tuned = tuned(tune);
    SettingNames::new(move |change, stages| {
        let stage = || stages.iter().find(|stage| Some(&stage.name) == change.stage());
        Some(match change {
            SettingChange::Threads { threads } => format!("threads={threads}"),
            SettingChange::Memory { bytes } => format!("memory_budget={bytes}"),
            SettingChange::CacheShare { .. } => "cache_size or cache_memory".to_owned(),
            SettingChange::Concurrency { items, .. } => match stage()? {
                stage if stage.dedicated => format!("processes={items}"),
                stage if stage.kind == StageKind::Async => tuned.to_owned(),
                // The concurrency is the number of threads.
                _ => return None,
            },
            SettingChange::Queue { .. } => tuned.to_owned(),
            SettingChange::WithoutGil => {
                let is_movable = |name: &str| movable.iter().any(|it| it == name);
                match most_python(stages)? {
                    stage if is_movable(&stage.name) => "executor=\"processes\"".to_owned(),
                    _ if has_map => "in map, with executor=\"processes\"".to_owned(),
                    _ => return None,
                }
            }
            _ => return None,
        })
    })
}

/// The arguments of `PipelineBuilder`: of `pipe`, `add_sink` and `build`.
pub(crate) fn of_pipeline(tune: &TuneSetting) -> SettingNames {
    let tuned = tuned(tune);
    SettingNames::new(move |change, stages| {
        let is_last = || stages.last().map(|stage| &stage.name) == change.stage();
        Some(match change {
            SettingChange::Threads { threads } => format!("num_threads={threads}"),
            SettingChange::Memory { bytes } => format!("memory_budget={bytes}"),
            SettingChange::Concurrency { items, .. } => format!("concurrency={items}"),
            SettingChange::Queue { items, .. } if is_last() => format!("add_sink({items})"),
            SettingChange::Queue { .. } => tuned.to_owned(),
            SettingChange::CompletionOrder { .. } => "output_order=\"completion\"".to_owned(),
            SettingChange::WithoutGil => "executor=ProcessPoolExecutor()".to_owned(),
            _ => return None,
        })
    })
}
