//! Texts that nobody may see.

use std::fmt;
use std::sync::Arc;

/// A key, a token, a password: a text that is used and never shown. Cheap to clone.
///
/// ```
/// use spdl_io::stores::Secret;
/// let secret = Secret::from("hunter2");
/// assert_eq!(format!("{secret} {secret:?}"), "*** Secret(***)");
/// assert_eq!(secret.reveal(), "hunter2");
/// ```
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// The text itself, for whoever sends it where it belongs.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Secret(text.into())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text.into())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}
