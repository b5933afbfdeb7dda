//! What an attempt needs (`DEM-2`).

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::admission::{CountingGate, Demand, McpEndpoint, RateLimiter};
use crate::db::{DbResourceProvider, ErasedProvider, erase, identity};
use crate::error::{JobError, UpstreamFailure};
use crate::models::{Depth, Grade, ModelNeed, ModelSlot, OutputSize, estimate_tokens};

/// Everything that one attempt needs. All of it is granted at once, or the job waits holding
/// nothing.
#[must_use]
#[derive(Default)]
pub struct JobRequirements {
    pub(crate) providers: Vec<Arc<dyn ErasedProvider>>,
    /// Whether a provider was declared twice, by its name.
    repeated_provider: Option<String>,
    pub(crate) limits: Vec<Box<dyn LimitNeed>>,
    pub(crate) models: Vec<ModelNeed>,
    pub(crate) http: bool,
    pub(crate) read_only: bool,
    pub(crate) transaction: bool,
    pub(crate) tolerates_dependency_failures: bool,
    pub(crate) run_at_once: bool,
}

/// An amount on a limit of the user's own.
pub(crate) trait LimitNeed: Send + Sync {
    fn add_to(&self, demand: &mut Demand);
    fn requires_http_connection(&self) -> bool;
    fn on_success(&self, now: Instant);
    fn on_rate_limit_error(&self, failure: &UpstreamFailure, now: Instant);
    /// Tells limiters apart, so that each hears a verdict once.
    fn limiter(&self) -> *const ();
    fn name(&self) -> String;
}

struct AmountOn<L: RateLimiter> {
    limiter: Arc<L>,
    amount: L::Amount,
}

impl<L: RateLimiter> LimitNeed for AmountOn<L> {
    fn add_to(&self, demand: &mut Demand) {
        demand.add(&self.limiter, self.amount.clone());
    }

    fn requires_http_connection(&self) -> bool {
        self.limiter.requires_http_connection()
    }

    fn on_success(&self, now: Instant) {
        self.limiter.on_success(now);
    }

    fn on_rate_limit_error(&self, failure: &UpstreamFailure, now: Instant) {
        self.limiter.on_rate_limit_error(failure, now);
    }

    fn limiter(&self) -> *const () {
        Arc::as_ptr(&self.limiter).cast()
    }

    fn name(&self) -> String {
        self.limiter.account_for(&self.amount).name().to_owned()
    }
}

impl JobRequirements {
    /// Nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// A connection of this provider, under its permit.
    pub fn provider<P: DbResourceProvider>(mut self, provider: &Arc<P>) -> Self {
        let address = identity(provider);
        if self.providers.iter().any(|other| other.same_as(address)) {
            self.repeated_provider = Some(provider.name().to_owned());
        } else {
            self.providers.push(erase(provider));
        }
        self
    }

    /// Has `execute` run in a transaction on every declared provider: committed when it succeeds,
    /// rolled back when it fails. Without this each statement stands alone.
    pub fn transaction(mut self) -> Self {
        self.transaction = true;
        self
    }

    /// Says that the job writes to none of its providers. Where writing has a permit of its own,
    /// the job does without it.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// An amount on a limit of the user's own.
    pub fn limiter<L: RateLimiter>(mut self, limiter: &Arc<L>, amount: L::Amount) -> Self {
        self.limits.push(Box::new(AmountOn {
            limiter: Arc::clone(limiter),
            amount,
        }));
        self
    }

    /// One permit of a gate of the user's own.
    pub fn permit(self, gate: &Arc<CountingGate>) -> Self {
        self.limiter(gate, ())
    }

    /// A slot for a call of an MCP server over stdio: one of the pool and one of the server's own.
    pub fn mcp_slot(self, endpoint: &McpEndpoint) -> Self {
        self.permit(endpoint.pool()).permit(endpoint.gate())
    }

    /// A place in the dispatcher's HTTP pool. A job that calls a model has one without asking.
    pub fn http_connection(mut self) -> Self {
        self.http = true;
        self
    }

    /// A model of at least `grade`, for a request of `input_tokens` tokens and an answer of
    /// `output`. In `execute` the job finds it under `slot`.
    pub fn model(
        mut self,
        slot: ModelSlot,
        grade: Grade,
        depth: Depth,
        input_tokens: u32,
        output: OutputSize,
    ) -> Self {
        self.models.push(ModelNeed {
            slot,
            grade,
            depth,
            input_tokens,
            output,
        });
        self
    }

    /// As [`model`](Self::model), for the tokens that `prompt` is estimated to be.
    pub fn model_for_prompt(
        self,
        slot: ModelSlot,
        grade: Grade,
        depth: Depth,
        prompt: &str,
        output: OutputSize,
    ) -> Self {
        self.model(slot, grade, depth, estimate_tokens(prompt), output)
    }

    /// Has the job run although a job that it depends on failed; it finds the failure under
    /// [`dependency_errors`](super::JobContext::dependency_errors). Read at submission.
    pub fn tolerate_dependency_failures(mut self) -> Self {
        self.tolerates_dependency_failures = true;
        self
    }

    /// Has the job start ahead of the queue. Read at submission.
    pub fn run_at_once(mut self) -> Self {
        self.run_at_once = true;
        self
    }

    /// Whether anything is declared that the job would hold.
    pub(crate) fn declares_resources(&self) -> bool {
        !self.providers.is_empty()
            || !self.limits.is_empty()
            || !self.models.is_empty()
            || self.http
    }

    /// What is declared twice and may be declared once.
    ///
    /// # Errors
    /// `InvalidInput` naming the slot or the provider.
    pub(crate) fn validate(&self) -> Result<(), JobError> {
        for (index, need) in self.models.iter().enumerate() {
            if self
                .models
                .iter()
                .take(index)
                .any(|other| other.slot == need.slot)
            {
                return Err(JobError::invalid_input(
                    "requirements.model",
                    need.slot.name(),
                    "the slot is declared twice; give each model need a slot of its own",
                ));
            }
        }
        if let Some(name) = &self.repeated_provider {
            return Err(JobError::invalid_input(
                "requirements.provider",
                name,
                "the provider is declared twice; a job has one connection of each",
            ));
        }
        Ok(())
    }

    /// One line for events and logs.
    pub(crate) fn summary(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(
            self.models
                .iter()
                .map(|need| format!("model '{}' {:?}", need.slot.name(), need.grade)),
        );
        if self.http {
            parts.push("http".to_owned());
        }
        parts.extend(self.limits.iter().map(|need| need.name()));
        parts.extend(
            self.providers
                .iter()
                .map(|provider| format!("db:{}", provider.name())),
        );
        if self.transaction {
            parts.push("transaction".to_owned());
        }
        if parts.is_empty() {
            "none".to_owned()
        } else {
            parts.join(", ")
        }
    }
}

impl fmt::Debug for JobRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobRequirements({})", self.summary())
    }
}
