//! Settings of augmentations as text, independent of the compiler.

use spdl_core::source::Fingerprint;

use super::functional::Interpolation;

/// A setting as text. Different values have different texts; lists are in brackets, so that the
/// texts of different nested lists differ too.
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

/// Enums without fields, whose derived `Debug` is the variant name.
macro_rules! settings_by_name {
    ($($kind:ty)*) => { $(
        impl $crate::augment::setting::Setting for $kind {
            fn text(&self) -> String {
                format!("{self:?}")
            }
        }
    )* };
}
pub(super) use settings_by_name;

settings_by_name!(Interpolation);

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

/// The fingerprint of a type: its name and all its fields. A missing field is a compile error.
macro_rules! fingerprint_of {
    ($this:expr, $kind:ident { $($field:ident),* $(,)? }) => {{
        let $kind { $($field),* } = $this;
        spdl_core::source::Fingerprint::default().with("", stringify!($kind))
            $(.with(stringify!($field), $crate::augment::setting::Setting::text($field)))*
    }};
}
pub(super) use fingerprint_of;

/// The entries of `fingerprint`, with the prefix `own` before their names.
pub(super) fn prefixed_parts(own: &str, fingerprint: &Fingerprint) -> Vec<(String, String)> {
    let name = |part: &str| match part {
        "" => own.to_owned(),
        part => format!("{own} {part}"),
    };
    fingerprint.parts().iter().map(|(part, value)| (name(part), value.clone())).collect()
}

/// The settings of an augmentation that is a separate stage, as stage parameters.
pub(super) fn stage_parameters(
    fingerprint: &Fingerprint,
) -> impl Iterator<Item = (String, String)> + use<> {
    let parts = fingerprint.parts().clone();
    parts.into_iter().map(|(part, value)| match part.is_empty() {
        true => ("augmentation".into(), value),
        false => (part, value),
    })
}
