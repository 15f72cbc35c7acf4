//! [`SettingNames`]: how the users of a program change settings.

use std::fmt;
use std::sync::Arc;

use crate::observe::model::SettingChange;
use crate::observe::statistics::StageStatistics;

type NameOf = dyn Fn(&SettingChange, &[StageStatistics]) -> Option<String> + Send + Sync;

/// How the users of a program change settings: for advice in the terms of its arguments or options.
///
/// [`PipelineBuilder::setting_names`](crate::PipelineBuilder::setting_names) sets them. By default,
/// a [`Diagnosis`](crate::observe::Diagnosis) has no names, and recommends changes of all settings.
#[derive(Clone, Default)]
pub struct SettingNames(Option<Arc<NameOf>>);

impl SettingNames {
    /// `name_of(change, stages)` returns how a user makes a change, for example `--threads 8`. The
    /// stages are those of the pipeline. The function returns `None` if no argument makes the change;
    /// a diagnosis then does not recommend it. An empty text stands for a change without a name.
    pub fn new(
        name_of: impl Fn(&SettingChange, &[StageStatistics]) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        SettingNames(Some(Arc::new(name_of)))
    }

    /// The name of the setting, empty if there are no names; `None` if no argument makes the change.
    pub(super) fn name_of(
        &self,
        change: &SettingChange,
        stages: &[StageStatistics],
    ) -> Option<String> {
        self.0.as_ref().map_or(Some(String::new()), |name_of| name_of(change, stages))
    }
}

impl fmt::Debug for SettingNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingNames")
    }
}
