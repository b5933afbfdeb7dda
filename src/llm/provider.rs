//! Who makes the clients of a provider (`LLM-1`).

use std::fmt;
use std::sync::Arc;

use super::client::LlmClient;
use super::decision::DecisionClient;
use super::embeddings::EmbeddingsClient;
use super::secret::SecretStore;
use crate::error::JobError;
use crate::models::ModelKind;

/// Makes the clients of one provider, by the key that catalog entries name.
///
/// A client is built when a job first gets one, so a provider that nobody calls needs no credentials;
/// it then serves all jobs. Building one that fails is tried again at the next need.
pub trait ClientProvider: fmt::Debug + Send + Sync + 'static {
    /// The key under which catalog entries name it.
    fn key(&self) -> &str;

    /// Whether it has clients for this kind of model. For all unless it says otherwise.
    fn serves(&self, kind: ModelKind) -> bool {
        let _ = kind;
        true
    }

    /// The names of the secrets that its clients need. Without one of them its models are passed
    /// over, and the failure names it. None unless it says otherwise.
    fn required_secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// A client for conversations.
    ///
    /// # Errors
    /// Whatever it lacks.
    fn llm(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn LlmClient>, JobError> {
        let _ = secrets;
        Err(no_client(self.key(), ModelKind::Llm))
    }

    /// A client for embeddings.
    ///
    /// # Errors
    /// Whatever it lacks.
    fn embeddings(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn EmbeddingsClient>, JobError> {
        let _ = secrets;
        Err(no_client(self.key(), ModelKind::Embeddings))
    }

    /// A client for decisions.
    ///
    /// # Errors
    /// Whatever it lacks.
    fn decision(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn DecisionClient>, JobError> {
        let _ = secrets;
        Err(no_client(self.key(), ModelKind::Decision))
    }
}

pub(crate) fn no_client(key: &str, kind: ModelKind) -> JobError {
    JobError::model_resolution(format!("the provider {key} has no client for {kind:?}"))
}

/// A provider whose clients are there already.
///
/// ```
/// use nucleo_runtime::llm::{FixedClients, ScriptedClient};
/// use std::sync::Arc;
///
/// let scripted = Arc::new(ScriptedClient::from_fn(|_| "42"));
/// let provider = FixedClients::new("scripted")
///     .llm(scripted.clone())
///     .embeddings(scripted.clone())
///     .decision(scripted);
/// ```
#[derive(Clone)]
pub struct FixedClients {
    key: String,
    llm: Option<Arc<dyn LlmClient>>,
    embeddings: Option<Arc<dyn EmbeddingsClient>>,
    decision: Option<Arc<dyn DecisionClient>>,
}

impl FixedClients {
    /// A provider without clients.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            llm: None,
            embeddings: None,
            decision: None,
        }
    }

    /// Adds a client for conversations.
    #[must_use]
    pub fn llm(mut self, client: Arc<dyn LlmClient>) -> Self {
        self.llm = Some(client);
        self
    }

    /// Adds a client for embeddings.
    #[must_use]
    pub fn embeddings(mut self, client: Arc<dyn EmbeddingsClient>) -> Self {
        self.embeddings = Some(client);
        self
    }

    /// Adds a client for decisions.
    #[must_use]
    pub fn decision(mut self, client: Arc<dyn DecisionClient>) -> Self {
        self.decision = Some(client);
        self
    }
}

impl ClientProvider for FixedClients {
    fn key(&self) -> &str {
        &self.key
    }

    fn serves(&self, kind: ModelKind) -> bool {
        match kind {
            ModelKind::Llm => self.llm.is_some(),
            ModelKind::Embeddings => self.embeddings.is_some(),
            ModelKind::Decision => self.decision.is_some(),
        }
    }

    fn llm(&self, _: &dyn SecretStore) -> Result<Arc<dyn LlmClient>, JobError> {
        self.llm
            .clone()
            .ok_or_else(|| no_client(&self.key, ModelKind::Llm))
    }

    fn embeddings(&self, _: &dyn SecretStore) -> Result<Arc<dyn EmbeddingsClient>, JobError> {
        self.embeddings
            .clone()
            .ok_or_else(|| no_client(&self.key, ModelKind::Embeddings))
    }

    fn decision(&self, _: &dyn SecretStore) -> Result<Arc<dyn DecisionClient>, JobError> {
        self.decision
            .clone()
            .ok_or_else(|| no_client(&self.key, ModelKind::Decision))
    }
}

impl fmt::Debug for FixedClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedClients")
            .field("key", &self.key)
            .field("llm", &self.llm.is_some())
            .field("embeddings", &self.embeddings.is_some())
            .field("decision", &self.decision.is_some())
            .finish()
    }
}
