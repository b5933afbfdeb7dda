//! A provider that fails as providers do.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::JobError;
use crate::llm::{
    ClientProvider, DecisionClient, EmbeddingsClient, LlmClient, ProviderFailure, ScriptedClient,
    SecretStore, Step,
};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How one call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A 429 that does not say for how long.
    RateLimit,
    /// A 429 with a `Retry-After`.
    RateLimitFor(Duration),
    /// A 529.
    Overload,
    /// A 500.
    ServerError,
    /// No answer: the connection is refused.
    NoConnection,
    /// A 400: the conversation is longer than the model's window.
    ContextTooLong,
    /// A 429 of an account that is out of money.
    OutOfMoney,
    /// A 401.
    Unauthorized,
    /// The model refuses on grounds of safety.
    Refusal,
    /// The answer runs into its ceiling.
    Truncation,
    /// A body that is no answer.
    Unreadable,
    /// A stream that dies after its first piece; a 500 for a call without a stream.
    DiesMidStream,
}

/// A provider whose calls fail one after the other as told, and then answer.
///
/// ```
/// use nucleo_runtime::JobDispatcher;
/// use nucleo_runtime::models::Catalog;
/// use nucleo_runtime::testing::{Fault, FaultyProvider};
///
/// let provider = FaultyProvider::new("scripted", "42")
///     .fails([Fault::Overload, Fault::RateLimit]);
/// let dispatcher = JobDispatcher::builder()
///     .catalog(Catalog::starter())
///     .provider(provider.clone())
///     .build()?;
/// assert_eq!(provider.calls(), 0);
/// # Ok::<(), nucleo_runtime::BuildError>(())
/// ```
#[derive(Clone)]
pub struct FaultyProvider {
    script: Arc<Script>,
}

struct Script {
    key: String,
    answer: String,
    secret: Option<String>,
    faults: Mutex<VecDeque<Fault>>,
    calls: AtomicU64,
    builds: AtomicU64,
}

impl FaultyProvider {
    /// A provider of this key that always gives this answer.
    pub fn new(key: impl Into<String>, answer: impl Into<String>) -> Self {
        Self {
            script: Arc::new(Script {
                key: key.into(),
                answer: answer.into(),
                secret: None,
                faults: Mutex::default(),
                calls: AtomicU64::new(0),
                builds: AtomicU64::new(0),
            }),
        }
    }

    /// Has the next calls fail so, in this order, after those told before.
    #[must_use]
    pub fn fails(self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.script.faults.lock().extend(faults);
        self
    }

    /// Has it need this secret, which it quotes in everything that it fails with, as careless
    /// providers do.
    #[must_use]
    pub fn quoting(self, secret: impl Into<String>) -> Self {
        let script = &self.script;
        Self {
            script: Arc::new(Script {
                key: script.key.clone(),
                answer: script.answer.clone(),
                secret: Some(secret.into()),
                faults: Mutex::new(script.faults.lock().clone()),
                calls: AtomicU64::new(0),
                builds: AtomicU64::new(0),
            }),
        }
    }

    /// How many calls have begun.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.script.calls.load(Ordering::SeqCst)
    }

    /// How many clients have been built.
    #[must_use]
    pub fn builds(&self) -> u64 {
        self.script.builds.load(Ordering::SeqCst)
    }

    fn client(&self, secrets: &dyn SecretStore) -> Result<Arc<ScriptedClient>, JobError> {
        let quoted = match &self.script.secret {
            None => String::new(),
            Some(name) => {
                let secret = secrets.secret(name).ok_or_else(|| {
                    JobError::unauthorized(&self.script.key, format!("there is no secret {name}"))
                })?;
                format!(" (key {})", secret.expose())
            }
        };
        self.script.builds.fetch_add(1, Ordering::SeqCst);
        let script = Arc::clone(&self.script);
        Ok(Arc::new(ScriptedClient::from_fn(move |_| {
            script.calls.fetch_add(1, Ordering::SeqCst);
            let fault = script.faults.lock().pop_front();
            match fault {
                None => Step::reply(script.answer.as_str()),
                Some(fault) => step(&fault, &quoted),
            }
        })))
    }
}

fn step(fault: &Fault, quoted: &str) -> Step {
    let status =
        |status: u16, text: &str| ProviderFailure::status(status).body(format!("{text}{quoted}"));
    match fault {
        Fault::RateLimit => Step::failing(status(429, "slow down")),
        Fault::RateLimitFor(wait) => Step::failing(status(429, "slow down").retry_after(*wait)),
        Fault::Overload => Step::failing(status(529, "overloaded")),
        Fault::ServerError => Step::failing(status(500, "internal error")),
        Fault::NoConnection => {
            let refused = std::io::Error::other(format!("connection refused{quoted}"));
            Step::failing(ProviderFailure::no_answer(&refused))
        }
        Fault::ContextTooLong => {
            Step::failing(status(400, "the prompt is too long").context_too_long())
        }
        Fault::OutOfMoney => Step::failing(status(429, "insufficient_quota")),
        Fault::Unauthorized => Step::failing(status(401, "invalid key")),
        Fault::Refusal => Step::refusal("safety", format!("I will not{quoted}")),
        Fault::Truncation => Step::truncated(),
        Fault::Unreadable => Step::malformed(format!("<html>{quoted}")),
        Fault::DiesMidStream => {
            Step::failing(status(500, "the stream broke off")).after_delivering("so far")
        }
    }
}

impl ClientProvider for FaultyProvider {
    fn key(&self) -> &str {
        &self.script.key
    }

    fn required_secrets(&self) -> Vec<String> {
        self.script.secret.iter().cloned().collect()
    }

    fn llm(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn LlmClient>, JobError> {
        Ok(self.client(secrets)?)
    }

    fn embeddings(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn EmbeddingsClient>, JobError> {
        Ok(self.client(secrets)?)
    }

    fn decision(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn DecisionClient>, JobError> {
        Ok(self.client(secrets)?)
    }
}

impl fmt::Debug for FaultyProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyProvider")
            .field("key", &self.script.key)
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}
