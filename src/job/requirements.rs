//! What an attempt needs (`DEM-2`).

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use crate::admission::{CountingGate, Demand, McpEndpoint, RateLimiter};
use crate::db::{DbResourceProvider, ErasedProvider, erase, identity};
use crate::error::{JobError, UpstreamFailure};
use crate::models::{
    Depth, Floor, InputKind, InputSize, ModelBinding, ModelKind, ModelSlot, ModelSpec, OutputSize,
    Wanted,
};
use crate::unwind::{discard, discard_each};

/// Everything that one attempt needs. All of it is granted at once, or the job waits holding
/// nothing.
#[must_use]
#[derive(Default)]
pub struct JobRequirements {
    pub(crate) providers: Vec<Arc<dyn ErasedProvider>>,
    /// What was declared and cannot be: the first of it.
    fault: Option<JobError>,
    pub(crate) limits: SmallVec<[Box<dyn LimitNeed>; 4]>,
    pub(crate) models: Vec<Arc<ModelBinding>>,
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
    fn add_name(&self, to: &mut String);
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

    fn add_name(&self, to: &mut String) {
        to.push_str(self.limiter.account_for(&self.amount).name());
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
            self.fault.get_or_insert_with(|| {
                JobError::invalid_input(
                    "requirements.provider",
                    provider.name(),
                    "the provider is declared twice; a job has one connection of each",
                )
            });
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

    /// A model of at least `floor`, for a request of `input_tokens` tokens and an answer of
    /// `output`. In `execute` the job finds it under `slot`.
    pub fn model(
        self,
        slot: ModelSlot,
        floor: impl Into<Floor>,
        depth: Depth,
        input_tokens: u32,
        output: OutputSize,
    ) -> Self {
        let wanted = Wanted::Floor(floor.into());
        let input = InputSize::Tokens(input_tokens);
        self.bind(ModelBinding::llm(slot, wanted, depth, input, output))
    }

    /// As [`model`](Self::model), for the tokens that the dispatcher's
    /// [`TokenCounter`](crate::models::TokenCounter) counts in `prompt`.
    pub fn model_for_prompt(
        self,
        slot: ModelSlot,
        floor: impl Into<Floor>,
        depth: Depth,
        prompt: &str,
        output: OutputSize,
    ) -> Self {
        let wanted = Wanted::Floor(floor.into());
        let input = InputSize::Prompt(prompt.into());
        self.bind(ModelBinding::llm(slot, wanted, depth, input, output))
    }

    /// As [`model`](Self::model), for this very model and no other. It has to be an `Llm`.
    pub fn model_pinned(
        mut self,
        slot: ModelSlot,
        spec: &Arc<ModelSpec>,
        depth: Depth,
        input_tokens: u32,
        output: OutputSize,
    ) -> Self {
        if spec.kind != ModelKind::Llm {
            self.fault.get_or_insert_with(|| {
                JobError::invalid_input(
                    "requirements.model_pinned",
                    &spec.id,
                    format!("the model is for {:?}, not for conversations", spec.kind),
                )
            });
        }
        let wanted = Wanted::Pinned(Arc::clone(spec));
        let input = InputSize::Tokens(input_tokens);
        self.bind(ModelBinding::llm(slot, wanted, depth, input, output))
    }

    /// A model for the vectors of `tokens` tokens of text.
    pub fn embeddings(self, slot: ModelSlot, tokens: u32) -> Self {
        self.bind(ModelBinding::plain(slot, ModelKind::Embeddings, tokens))
    }

    /// A model that chooses among given answers, for a question of `tokens` tokens.
    pub fn decision(self, slot: ModelSlot, tokens: u32) -> Self {
        self.bind(ModelBinding::plain(slot, ModelKind::Decision, tokens))
    }

    /// Says that the request of a slot declared before carries this besides text, so that its model
    /// takes it. What is not declared is not sent.
    pub fn sends(mut self, slot: ModelSlot, input: InputKind) -> Self {
        let declared = self
            .models
            .iter_mut()
            .find(|binding| binding.slot() == slot)
            .and_then(Arc::get_mut);
        match declared {
            Some(binding) => binding.sends(input),
            None => {
                self.fault.get_or_insert_with(|| {
                    JobError::invalid_input(
                        "requirements.sends",
                        slot.name(),
                        "no slot of this name is declared: declare the model first",
                    )
                });
            }
        }
        self
    }

    fn bind(mut self, binding: ModelBinding) -> Self {
        if self.binding(binding.slot()).is_some() {
            self.fault.get_or_insert_with(|| {
                JobError::invalid_input(
                    "requirements.model",
                    binding.slot().name(),
                    "the slot is declared twice; give each model need a slot of its own",
                )
            });
        }
        self.models.push(Arc::new(binding));
        self
    }

    /// The binding of a slot: unresolved until an attempt that these requirements are for has its
    /// model.
    #[must_use]
    pub fn binding(&self, slot: ModelSlot) -> Option<&Arc<ModelBinding>> {
        self.models.iter().find(|binding| binding.slot() == slot)
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

    /// Lets go of all that is a user's, each on its own.
    pub(crate) fn discard(self) {
        discard_each(self.providers);
        discard_each(self.limits);
        discard_each(self.models);
        discard(self.fault);
    }

    /// Whether anything is declared that the job would hold.
    pub(crate) fn declares_resources(&self) -> bool {
        !self.providers.is_empty()
            || !self.limits.is_empty()
            || !self.models.is_empty()
            || self.http
    }

    /// What is declared and cannot be.
    ///
    /// # Errors
    /// `InvalidInput` naming the slot, the model or the provider.
    pub(crate) fn validate(&self) -> Result<(), JobError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// One line for events and logs; empty when nothing is asked for.
    pub(crate) fn summary(&self) -> String {
        let mut line = String::new();
        if self.declares_resources() {
            line.reserve(SUMMARY);
        }
        for binding in &self.models {
            next(&mut line).push_str(&summary_of(binding));
        }
        if self.http {
            next(&mut line).push_str("http");
        }
        for need in &self.limits {
            need.add_name(next(&mut line));
        }
        for provider in &self.providers {
            let line = next(&mut line);
            line.push_str("db:");
            line.push_str(provider.name());
        }
        if self.transaction {
            next(&mut line).push_str("transaction");
        }
        line
    }
}

/// As long as most such lines are, so that one that grows by its parts is moved once.
const SUMMARY: usize = 64;

/// The line, ready for one more part.
fn next(line: &mut String) -> &mut String {
    if !line.is_empty() {
        line.push_str(", ");
    }
    line
}

fn summary_of(binding: &ModelBinding) -> String {
    let slot = binding.slot().name();
    match (binding.floor(), binding.pinned()) {
        (Some(Floor::AtLeast(grade)), _) => format!("model '{slot}' {grade:?}"),
        (Some(Floor::Ceiling), _) => format!("model '{slot}' Ceiling"),
        (None, Some(spec)) => format!("model '{slot}' {}", spec.id),
        (None, None) => format!("model '{slot}' {:?}", binding.kind()),
    }
}

impl fmt::Debug for JobRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobRequirements({})", self.summary())
    }
}
