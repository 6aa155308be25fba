//! Secrets that the config refers to. They print as `***` and are read where they are used, so that a rotated file counts.

use std::fmt;
use std::path::PathBuf;

/// Most bytes of a secret file.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// A reference to a secret, `{ file = "…" }` or `{ env = "…" }`.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The content of this file, without white space at its end.
    File(PathBuf),
    /// A variable of the environment that the agent was started with.
    Environment {
        /// Its name, which is no secret.
        name: String,
        /// What it held when the config was loaded.
        value: String,
    },
}

impl Secret {
    /// The secret as it is now. Blocks for as long as it takes to read a small file.
    ///
    /// # Errors
    /// When the file cannot be read, is larger than 64 KiB or is not UTF-8.
    pub fn read(&self) -> std::io::Result<String> {
        use std::io::Read as _;

        match self {
            Self::Environment { value, .. } => Ok(value.clone()),
            Self::File(path) => {
                let mut text = String::new();
                let file = std::fs::File::open(path)?;
                file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text)?;
                if text.len() as u64 > SECRET_BYTES_MAX {
                    return Err(std::io::Error::other("the secret is larger than 64 KiB"));
                }
                text.truncate(text.trim_end().len());
                Ok(text)
            }
        }
    }
}

/// Prints where the secret is, never what it is.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "Secret::File({path:?})"),
            Self::Environment { name, .. } => write!(f, "Secret::Environment({name:?}, ***)"),
        }
    }
}

/// A text that stands in the config, or a reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// It stands there for everybody to read.
    Plain(String),
    /// It stands elsewhere.
    Secret(Secret),
}
