//! What options are called where they are given.

/// The names of options in messages that advise one: a program, or the library of another language, gives
/// its own. Default: those of Rust.
///
/// ```
/// use spdl_io::records::OptionNames;
/// assert_eq!(OptionNames::default().classes, Some("`FetchLabeled::with_classes`"));
/// const PROGRAM: OptionNames =
///     OptionNames { image_field: "--image", label_field: "--label", classes: None };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionNames {
    /// The one that says which field of a sample is its image, or which column of a list names the file.
    pub image_field: &'static str,
    /// The one that says which field or column is the label.
    pub label_field: &'static str,
    /// The one that tells the names of the classes, where there is one.
    pub classes: Option<&'static str>,
}

impl Default for OptionNames {
    fn default() -> Self {
        OptionNames {
            image_field: "`OpenOptions::image_field`",
            label_field: "`OpenOptions::label_field`",
            classes: Some("`FetchLabeled::with_classes`"),
        }
    }
}
