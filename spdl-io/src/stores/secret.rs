//! [`Secret`]: text that is never displayed.

use std::fmt;
use std::sync::Arc;

/// A key, token or password. `Display` and `Debug` show `***`. Cheap to clone.
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
    /// Returns the secret text.
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
