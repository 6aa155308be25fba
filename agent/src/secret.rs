//! Secrets that the config refers to. They print as `***` and are read where they are used, so that a rotated file counts.

use std::borrow::Cow;
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

impl Secret {
    /// Where it is, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Environment { name, .. } => format!("the variable {name}"),
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

/// JSON with references to secrets in it, which are filled in where it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretJson {
    /// As it stands in the config, references and all.
    text: String,
    /// Where the references stand in it, as JSON pointers (RFC 6901).
    secrets: Vec<(String, Secret)>,
}

/// JSON with its secrets filled in.
pub struct FilledJson<'a> {
    /// The JSON.
    pub text: Cow<'a, str>,
    /// The secrets in it, so that they can be kept out of what people read.
    pub secrets: Vec<String>,
}

/// A secret that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the secret at `{pointer}` cannot be read from {place}")]
pub struct SecretError {
    /// Which one, as a JSON pointer.
    pub pointer: String,
    /// Where it should be.
    pub place: String,
    /// Why.
    pub source: std::io::Error,
}

impl SecretJson {
    /// JSON that holds these references.
    #[must_use]
    pub fn new(json: &serde_json::Value, secrets: Vec<(String, Secret)>) -> Self {
        Self { text: json.to_string(), secrets }
    }

    /// The text with the references as they are, for showing.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text with secrets as they are now. Blocks for as long as it takes to read small files, if there are any.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn fill(&self) -> Result<FilledJson<'_>, SecretError> {
        let text = Cow::Borrowed(self.text.as_str());
        if self.secrets.is_empty() {
            return Ok(FilledJson { text, secrets: Vec::new() });
        }
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let mut secrets = Vec::with_capacity(self.secrets.len());
        for (pointer, secret) in &self.secrets {
            let held = secret.read().map_err(|source| {
                let place = secret.place();
                SecretError { pointer: pointer.clone(), place, source }
            })?;
            if let Some(reference) = json.pointer_mut(pointer) {
                *reference = held.clone().into();
            }
            secrets.push(held);
        }
        Ok(FilledJson { text: Cow::Owned(json.to_string()), secrets })
    }
}

/// `{}`.
impl Default for SecretJson {
    fn default() -> Self {
        Self { text: "{}".to_owned(), secrets: Vec::new() }
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
