//! What decides an augmentation, as texts that stay the same with any compiler.

use spdl_core::source::Fingerprint;

use super::policy::Sampling;
use super::{ErasingValue, Interpolation, Operation, PolicyStep};

/// A setting as text. Texts of different values differ, also where they are nested: lists have
/// brackets around them.
pub(super) trait Setting {
    fn text(&self) -> String;
}

macro_rules! settings_as_displayed {
    ($($kind:ty)*) => { $(
        impl Setting for $kind {
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )* };
}
settings_as_displayed!(bool u8 u32 usize f32 f64);

/// Variants without fields, whose derived `Debug` is their name.
macro_rules! settings_by_name {
    ($($kind:ty)*) => { $(
        impl Setting for $kind {
            fn text(&self) -> String {
                format!("{self:?}")
            }
        }
    )* };
}
settings_by_name!(Interpolation Operation);

impl<T: Setting> Setting for Option<T> {
    fn text(&self) -> String {
        self.as_ref().map_or("none".into(), T::text)
    }
}

/// A range.
impl Setting for (f64, f64) {
    fn text(&self) -> String {
        format!("{} to {}", self.0, self.1)
    }
}

impl<T: Setting> Setting for [T] {
    fn text(&self) -> String {
        format!("[{}]", self.iter().map(T::text).collect::<Vec<_>>().join(", "))
    }
}

impl<T: Setting, const N: usize> Setting for [T; N] {
    fn text(&self) -> String {
        self[..].text()
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn text(&self) -> String {
        self[..].text()
    }
}

impl Setting for PolicyStep {
    fn text(&self) -> String {
        let PolicyStep { operation, probability, magnitude } = self;
        format!("{} {probability} {magnitude}", operation.text())
    }
}

impl Setting for Sampling {
    fn text(&self) -> String {
        let Sampling { interpolation, fill } = self;
        format!("{}, outside {}", interpolation.text(), fill.text())
    }
}

impl Setting for ErasingValue {
    fn text(&self) -> String {
        match self {
            ErasingValue::Constant(value) => value.text(),
            ErasingValue::Random => "random".into(),
        }
    }
}

/// The fingerprint of a type: its name, and all its fields. One that is left out does not compile.
macro_rules! fingerprint_of {
    ($this:expr, $kind:ident { $($field:ident),* $(,)? }) => {{
        let $kind { $($field),* } = $this;
        spdl_core::source::Fingerprint::default().with("", stringify!($kind))
            $(.with(stringify!($field), $crate::augment::setting::Setting::text($field)))*
    }};
}
pub(super) use fingerprint_of;

/// The parts of `fingerprint` by names that begin with `own`.
pub(super) fn parts_behind(own: &str, fingerprint: &Fingerprint) -> Vec<(String, String)> {
    let name = |part: &str| match part {
        "" => own.to_owned(),
        part => format!("{own} {part}"),
    };
    fingerprint.parts().iter().map(|(part, value)| (name(part), value.clone())).collect()
}

/// The parts of an augmentation that is a stage of its own, as the stage's parameters.
pub(super) fn stage_parameters(
    fingerprint: &Fingerprint,
) -> impl Iterator<Item = (String, String)> + use<> {
    let parts = fingerprint.parts().clone();
    parts.into_iter().map(|(part, value)| match part.is_empty() {
        true => ("augmentation".into(), value),
        false => (part, value),
    })
}
