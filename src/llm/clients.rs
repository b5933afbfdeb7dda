//! The clients of a dispatcher, built at their first need.
//!
//! # Invariants
//!
//! 1. A provider's client of a kind is one, whoever asks; of two built at once the first that is
//!    entered stays.
//! 2. No provider is called with the lock held.
//! 3. What a provider says on the way out has no secret in it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::client::LlmClient;
use super::decision::DecisionClient;
use super::embeddings::EmbeddingsClient;
use super::provider::{ClientProvider, no_client};
use super::secret::{SecretStore, Secrets};
use crate::error::JobError;
use crate::models::{ModelKind, ModelSpec};
use crate::sync::Mutex;
use crate::unwind::{contain, contain_result};

pub(crate) struct Clients {
    providers: HashMap<String, Provider>,
    /// Clients of single entries, which go before their provider's.
    of_models: HashMap<String, Arc<dyn LlmClient>>,
    secrets: Arc<Secrets>,
}

struct Provider {
    provider: Arc<dyn ClientProvider>,
    built: Mutex<Built>,
}

#[derive(Clone, Default)]
struct Built {
    llm: Option<Arc<dyn LlmClient>>,
    embeddings: Option<Arc<dyn EmbeddingsClient>>,
    decision: Option<Arc<dyn DecisionClient>>,
}

impl Built {
    fn has(&self, kind: ModelKind) -> bool {
        match kind {
            ModelKind::Llm => self.llm.is_some(),
            ModelKind::Embeddings => self.embeddings.is_some(),
            ModelKind::Decision => self.decision.is_some(),
        }
    }
}

impl Clients {
    /// # Errors
    /// The key that is empty or given twice.
    pub(crate) fn new(
        providers: Vec<Arc<dyn ClientProvider>>,
        of_models: HashMap<String, Arc<dyn LlmClient>>,
        secrets: Arc<dyn SecretStore>,
    ) -> Result<Self, String> {
        let mut by_key = HashMap::new();
        for provider in providers {
            let key = contain("client provider", || provider.key().to_owned())
                .map_err(|error| error.to_string())?;
            if key.trim().is_empty() {
                return Err("a provider's key must not be empty".to_owned());
            }
            let entry = Provider {
                provider,
                built: Mutex::default(),
            };
            if by_key.insert(key.clone(), entry).is_some() {
                return Err(format!("two providers have the key '{key}'"));
            }
        }
        Ok(Self {
            providers: by_key,
            of_models,
            secrets: Arc::new(Secrets::new(secrets)),
        })
    }

    pub(crate) fn secrets(&self) -> &Arc<Secrets> {
        &self.secrets
    }

    /// What is lacking for the model to be called; `None` when nothing is known to be.
    pub(crate) fn missing(&self, spec: &ModelSpec) -> Option<String> {
        if spec.kind == ModelKind::Llm && self.of_models.contains_key(&spec.id) {
            return None;
        }
        let Some(known) = self.providers.get(&spec.provider) else {
            return Some("no client is registered for this provider".to_owned());
        };
        if known.built.lock().has(spec.kind) {
            return None;
        }
        let provider = &known.provider;
        let asked = contain("client provider", || {
            if !provider.serves(spec.kind) {
                return Some(format!("it has no client for {:?}", spec.kind));
            }
            let lacking: Vec<_> = provider
                .required_secrets()
                .into_iter()
                .filter(|name| !self.secrets.has(name))
                .collect();
            (!lacking.is_empty())
                .then(|| format!("the secret {} is not set", lacking.join(" and ")))
        });
        asked.unwrap_or_else(|error| Some(error.to_string()))
    }

    pub(crate) fn llm(&self, spec: &ModelSpec) -> Result<Arc<dyn LlmClient>, JobError> {
        if let Some(client) = self.of_models.get(&spec.id) {
            return Ok(Arc::clone(client));
        }
        self.built(
            spec,
            |built| &mut built.llm,
            |provider| provider.llm(&*self.secrets),
        )
    }

    pub(crate) fn embeddings(
        &self,
        spec: &ModelSpec,
    ) -> Result<Arc<dyn EmbeddingsClient>, JobError> {
        self.built(
            spec,
            |built| &mut built.embeddings,
            |provider| provider.embeddings(&*self.secrets),
        )
    }

    pub(crate) fn decision(&self, spec: &ModelSpec) -> Result<Arc<dyn DecisionClient>, JobError> {
        self.built(
            spec,
            |built| &mut built.decision,
            |provider| provider.decision(&*self.secrets),
        )
    }

    fn built<C: ?Sized>(
        &self,
        spec: &ModelSpec,
        place: impl Fn(&mut Built) -> &mut Option<Arc<C>>,
        build: impl FnOnce(&dyn ClientProvider) -> Result<Arc<C>, JobError>,
    ) -> Result<Arc<C>, JobError> {
        let known = self
            .providers
            .get(&spec.provider)
            .ok_or_else(|| no_client(&spec.provider, spec.kind))?;
        if let Some(client) = place(&mut known.built.lock()) {
            return Ok(Arc::clone(client));
        }
        let built = contain_result("client provider", || build(&*known.provider))
            .map_err(|error| self.secrets.redact(error))?;
        let entered = {
            let mut all = known.built.lock();
            Arc::clone(place(&mut all).get_or_insert_with(|| Arc::clone(&built)))
        };
        Ok(entered)
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("providers", &self.providers.keys())
            .field("models", &self.of_models.keys())
            .finish_non_exhaustive()
    }
}
