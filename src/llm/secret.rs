//! Credentials (`LLM-7`): where they come from, and that they go nowhere else.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::{JobError, Redactor};
use crate::sync::Mutex;

/// A credential. Neither `Debug` nor `Display` shows any of it.
///
/// ```
/// use nucleo_runtime::llm::Secret;
///
/// let key = Secret::new("sk-123");
/// assert_eq!(format!("{key} {key:?}"), "[secret] [secret]");
/// assert_eq!(key.expose(), "sk-123");
/// ```
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text, for the one place that sends it to whom it is meant for.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Where credentials come from. Asked when a client is first built, and before that to see whether
/// it could be.
pub trait SecretStore: Send + Sync + 'static {
    /// The secret of this name, where there is one. An empty one counts as none.
    fn secret(&self, name: &str) -> Option<Secret>;
}

/// Secrets from the environment, by the names of its variables. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnvSecrets;

impl SecretStore for EnvSecrets {
    fn secret(&self, name: &str) -> Option<Secret> {
        // Such a name makes the look-up of some systems panic; no variable has it.
        if name.is_empty() || name.contains(['=', '\0']) {
            return None;
        }
        std::env::var(name).ok().map(Secret::new)
    }
}

/// Secrets that the program has already, by name.
#[derive(Clone, Debug, Default)]
pub struct FixedSecrets {
    secrets: HashMap<String, Secret>,
}

impl FixedSecrets {
    /// These secrets.
    pub fn new<N: Into<String>, S: Into<Arc<str>>>(
        secrets: impl IntoIterator<Item = (N, S)>,
    ) -> Self {
        Self {
            secrets: secrets
                .into_iter()
                .map(|(name, secret)| (name.into(), Secret::new(secret)))
                .collect(),
        }
    }
}

impl SecretStore for FixedSecrets {
    fn secret(&self, name: &str) -> Option<Secret> {
        self.secrets.get(name).cloned()
    }
}

/// Shorter texts are too common to be taken out of errors, and too short to be secrets.
const LEAST_REDACTED: usize = 4;

/// The store that clients are built from. It remembers what it handed out, to take it out of what
/// providers say.
pub(crate) struct Secrets {
    store: Arc<dyn SecretStore>,
    handed_out: Mutex<HandedOut>,
}

#[derive(Default)]
struct HandedOut {
    secrets: Vec<Secret>,
    redactor: Arc<Redactor>,
}

impl Secrets {
    pub(crate) fn new(store: Arc<dyn SecretStore>) -> Self {
        Self {
            store,
            handed_out: Mutex::default(),
        }
    }

    /// Whether there is one of this name; it is not handed out.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.store
            .secret(name)
            .is_some_and(|secret| !secret.expose().trim().is_empty())
    }

    /// The error without any secret in it (ERR-4).
    pub(crate) fn redact(&self, error: JobError) -> JobError {
        let redactor = self.redactor();
        if redactor.is_empty() {
            return error;
        }
        error.redacted(&redactor)
    }

    /// The text without any secret in it.
    pub(crate) fn hide(&self, text: &str) -> Option<String> {
        self.redactor().hide(text)
    }

    fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.handed_out.lock().redactor)
    }
}

impl SecretStore for Secrets {
    fn secret(&self, name: &str) -> Option<Secret> {
        let secret = self.store.secret(name)?;
        let text = secret.expose().trim();
        if text.is_empty() {
            return None;
        }
        if text.len() >= LEAST_REDACTED {
            let mut handed_out = self.handed_out.lock();
            if handed_out
                .secrets
                .iter()
                .all(|known| known.expose() != text)
            {
                handed_out.secrets.push(Secret::new(text));
                let texts = handed_out.secrets.iter().map(Secret::expose);
                handed_out.redactor = Arc::new(Redactor::new(texts));
            }
        }
        Some(secret)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handed_out_is_taken_out_of_errors() {
        let store = FixedSecrets::new([("KEY", "sk-abc-123"), ("EMPTY", " "), ("SHORT", "ab")]);
        assert!(!format!("{store:?}").contains("sk-abc"));
        let secrets = Secrets::new(Arc::new(store));
        let says = || JobError::external("acme", "bad key sk-abc-123 ab");
        assert!(secrets.has("KEY") && !secrets.has("EMPTY") && !secrets.has("NONE"));
        assert!(secrets.redact(says()).to_string().contains("sk-abc-123"));
        assert!(secrets.secret("KEY").is_some() && secrets.secret("SHORT").is_some());
        assert!(secrets.secret("EMPTY").is_none());
        let clean = secrets.redact(says()).to_string();
        assert!(clean.contains("bad key [secret] ab"), "{clean}");
    }

    #[test]
    fn a_name_that_no_variable_can_have_is_none() {
        for name in ["", "A=B", "A\0B"] {
            assert!(EnvSecrets.secret(name).is_none());
        }
        assert!(EnvSecrets.secret("PATH").is_some());
    }
}
