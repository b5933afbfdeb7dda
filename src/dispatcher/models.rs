//! The models of a dispatcher: which one a need becomes, what that costs, and who calls it (`PICK`,
//! `BIND`, `COST-3`).
//!
//! # Invariants
//!
//! 1. Nothing foreign (picker, envelope, provider, counter, spend gate) runs under a lock.
//! 2. The envelope is sealed once, and read as it is.
//! 3. The id that embeddings were first resolved to, with a client to call it, holds for the dispatcher's life (PICK-5).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::books::Books;
use super::limiters::{LimiterRegistry, ModelAccount};
use super::rerun::Execution;
use crate::admission::{CountingGate, Demand};
use crate::error::JobError;
use crate::events::ModelCall;
use crate::job::JobSnapshot;
use crate::job::core::JobCore;
use crate::job::resources::{GrantedModel, ModelAccess};
use crate::llm::{
    CallOptions, Caller, ClientProvider, Clients, DecisionClient, DecisionModel, EmbeddingsClient,
    EmbeddingsModel, EnvSecrets, LlmClient, ModelClient, SecretStore,
};
use crate::models::{
    ByteEstimate, Catalog, ComplianceEnvelope, DefaultComplianceEnvelope, DefaultModelPicker, Gate,
    ModelBinding, ModelKind, ModelPicker, ModelSpec, PricedAttempt, PricedModel, Reservation, Said,
    SpendGate, TokenCounter,
};
use crate::sync::atomic::AtomicBool;
use crate::unwind::contain_result;

/// A `Retry-After` above this is not waited for unless set (SIG-1).
const MAX_RETRY_AFTER: Duration = Duration::from_secs(15 * 60);

/// What the builder gathers.
pub(super) struct Settings {
    pub(super) catalog: Catalog,
    /// Entries with a client of their own, each the preferred one of its grade.
    pub(super) own: Vec<(ModelSpec, Arc<dyn LlmClient>)>,
    pub(super) providers: Vec<Arc<dyn ClientProvider>>,
    pub(super) secrets: Arc<dyn SecretStore>,
    pub(super) picker: Arc<dyn ModelPicker>,
    pub(super) counter: Arc<dyn TokenCounter>,
    pub(super) spend_gates: Vec<Arc<dyn SpendGate>>,
    pub(super) max_retry_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            own: Vec::new(),
            providers: Vec::new(),
            secrets: Arc::new(EnvSecrets),
            picker: Arc::new(DefaultModelPicker::new()),
            counter: Arc::new(ByteEstimate),
            spend_gates: Vec::new(),
            max_retry_after: MAX_RETRY_AFTER,
        }
    }
}

pub(super) struct Models {
    catalog: Catalog,
    clients: Clients,
    picker: Arc<dyn ModelPicker>,
    counter: Arc<dyn TokenCounter>,
    books: Books,
    max_retry_after: Duration,
    envelope: OnceLock<Arc<dyn ComplianceEnvelope>>,
    unsealed: Arc<dyn ComplianceEnvelope>,
    embeddings: OnceLock<String>,
    said: Said,
}

impl Models {
    /// # Errors
    /// The setting at fault and the rule that it breaks.
    pub(super) fn new(settings: Settings, books: Books) -> Result<Self, (&'static str, String)> {
        let mut of_models = HashMap::new();
        let mut builder = settings.catalog.extend();
        for (spec, client) in settings.own {
            of_models.insert(spec.id.clone(), client);
            builder = builder.pinned_model(spec);
        }
        let catalog = builder
            .build()
            .map_err(|error| ("model", error.to_string()))?;
        let clients = Clients::new(settings.providers, of_models, settings.secrets)
            .map_err(|rule| ("provider", rule))?;
        Ok(Self {
            catalog,
            clients,
            picker: settings.picker,
            counter: settings.counter,
            books,
            max_retry_after: settings.max_retry_after,
            envelope: OnceLock::new(),
            unsealed: Arc::new(DefaultComplianceEnvelope::new()),
            embeddings: OnceLock::new(),
            said: Said::default(),
        })
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(super) fn max_retry_after(&self) -> Duration {
        self.max_retry_after
    }

    /// Seals the envelope. Answers whether it was the first.
    pub(super) fn seal(&self, envelope: Arc<dyn ComplianceEnvelope>) -> bool {
        self.envelope.set(envelope).is_ok()
    }

    pub(super) fn envelope(&self) -> &Arc<dyn ComplianceEnvelope> {
        self.envelope.get().unwrap_or(&self.unsealed)
    }

    /// The models of an attempt, priced, with the clients to call them, once the spend gates agree
    /// (ATT-3).
    pub(super) fn resolve(
        &self,
        limiters: &LimiterRegistry,
        job: &JobCore,
        bindings: &[Arc<ModelBinding>],
        execution: &mut Execution,
    ) -> Result<Vec<ResolvedModel>, JobError> {
        if bindings.is_empty() {
            return Ok(Vec::new());
        }
        let snapshot = job.snapshot();
        let mut models = Vec::with_capacity(bindings.len());
        for binding in bindings {
            let model = self.resolve_one(limiters, &snapshot, binding, execution)?;
            execution
                .models
                .push((binding.slot(), Arc::clone(&model.spec)));
            models.push(model);
        }
        self.judge_spending(&snapshot, &models, &job.model_calls())?;
        Ok(models)
    }

    fn resolve_one(
        &self,
        limiters: &LimiterRegistry,
        job: &JobSnapshot,
        binding: &Arc<ModelBinding>,
        execution: &Execution,
    ) -> Result<ResolvedModel, JobError> {
        let resolution = contain_result("model picker", || {
            Gate {
                catalog: &self.catalog,
                picker: &*self.picker,
                envelope: &**self.envelope(),
                missing: &|spec| self.clients.missing(spec),
                slowdown: &|spec| {
                    let bucket = limiters.bucket_of(&spec.id);
                    bucket.map_or(1.0, |bucket| 1.0 + bucket.throttle())
                },
                history: &execution.history,
                chance: rand::random(),
                job: Some(job),
            }
            .resolve(binding)
        })?;
        if let Some((asked, served)) = resolution.lowered {
            self.said.warn(format!(
                "grade {asked:?} is asked for and {served:?} is the strongest that is served: \
                 {served:?} takes its place"
            ));
        }
        let spec = resolution.spec;
        self.refuse_other_embeddings(&spec, self.embeddings.get())?;
        let reservation = contain_result("token counter", || {
            binding.price(&spec, &*self.counter, execution.raised(binding.slot()))
        })?;
        binding.resolve(Arc::clone(&spec), reservation)?;
        let client = match spec.kind {
            ModelKind::Llm => Client::Llm(self.clients.llm(&spec)?),
            ModelKind::Embeddings => {
                let client = self.clients.embeddings(&spec)?;
                // Not before: a model that nothing can call binds nobody to it.
                let first = self.embeddings.get_or_init(|| spec.id.clone());
                self.refuse_other_embeddings(&spec, Some(first))?;
                Client::Embeddings(client)
            }
            ModelKind::Decision => Client::Decision(self.clients.decision(&spec)?),
        };
        Ok(ResolvedModel {
            binding: Arc::clone(binding),
            reservation,
            account: limiters.account_for(&spec)?,
            client,
            spec,
        })
    }

    /// PICK-5: vectors of two models do not compare.
    fn refuse_other_embeddings(
        &self,
        spec: &ModelSpec,
        first: Option<&String>,
    ) -> Result<(), JobError> {
        let Some(first) = first.filter(|_| spec.kind == ModelKind::Embeddings) else {
            return Ok(());
        };
        if *first == spec.id {
            return Ok(());
        }
        Err(JobError::model_resolution(format!(
            "embeddings were resolved to {first} before, and now to {}: vectors of two models do \
             not compare, so the first holds for the dispatcher's life",
            spec.id
        )))
    }

    fn judge_spending(
        &self,
        job: &JobSnapshot,
        models: &[ResolvedModel],
        calls: &[ModelCall],
    ) -> Result<(), JobError> {
        if self.books.is_empty() {
            return Ok(());
        }
        let priced: Vec<_> = models.iter().map(ResolvedModel::priced).collect();
        let attempt = PricedAttempt::new(job, &priced, calls);
        self.books
            .gates()
            .try_for_each(|gate| contain_result("spend gate", || gate.judge(&attempt)))
    }

    /// The job has ended. On every path, and before anybody hears of it.
    pub(super) fn settle(&self, job: &Arc<JobCore>, calls: &Arc<[ModelCall]>) {
        self.books.close(job, calls);
    }

    /// Starts the threads on which spend gates are told.
    pub(super) fn start(&self) -> std::io::Result<()> {
        self.books.start()
    }

    /// No job ends any more.
    pub(super) fn stop(&self) {
        self.books.stop();
    }

    pub(super) fn caller(&self, model: &ResolvedModel, job: &Arc<JobCore>) -> Caller {
        Caller {
            slot: model.binding.slot(),
            reservation: model.reservation,
            counter: Arc::clone(&self.counter),
            spent: AtomicBool::new(false),
            spec: Arc::clone(&model.spec),
            job: Arc::clone(job),
            bucket: match &model.account {
                ModelAccount::Bucket(bucket) => Some(Arc::clone(bucket)),
                ModelAccount::Gate(_) => None,
            },
            secrets: Arc::clone(self.clients.secrets()),
        }
    }
}

enum Client {
    Llm(Arc<dyn LlmClient>),
    Embeddings(Arc<dyn EmbeddingsClient>),
    Decision(Arc<dyn DecisionClient>),
}

/// A need, resolved and priced for one attempt.
pub(super) struct ResolvedModel {
    binding: Arc<ModelBinding>,
    spec: Arc<ModelSpec>,
    reservation: Reservation,
    account: ModelAccount,
    client: Client,
}

impl ResolvedModel {
    pub(super) fn add_to(&self, demand: &mut Demand) {
        match &self.account {
            ModelAccount::Bucket(bucket) => demand.add(bucket, self.reservation.total()),
            ModelAccount::Gate(gate) => demand.add::<CountingGate>(gate, ()),
        }
    }

    fn priced(&self) -> PricedModel {
        PricedModel {
            slot: self.binding.slot(),
            spec: Arc::clone(&self.spec),
            reservation: self.reservation,
            cost: self.reservation.cost(&self.spec),
        }
    }

    pub(super) fn access(self, models: &Models, job: &Arc<JobCore>) -> GrantedModel {
        let caller = models.caller(&self, job);
        let (binding, spec) = (self.binding, self.spec);
        match self.client {
            Client::Llm(client) => GrantedModel::Llm(ModelAccess {
                client: ModelClient::new(
                    caller,
                    client,
                    Arc::clone(&binding),
                    CallOptions::new(self.reservation.ceiling()),
                ),
                binding,
                spec,
            }),
            Client::Embeddings(client) => GrantedModel::Embeddings(ModelAccess {
                client: EmbeddingsModel::new(caller, client),
                binding,
                spec,
            }),
            Client::Decision(client) => GrantedModel::Decision(ModelAccess {
                client: DecisionModel::new(caller, client),
                binding,
                spec,
            }),
        }
    }
}
