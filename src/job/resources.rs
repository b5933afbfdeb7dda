//! What an attempt was given, and how it goes back (`RES`).
//!
//! # Invariants
//!
//! 1. The grant is released after the handles are closed, and the permit of a connection that a
//!    stuck call still has returns only when that call leaves.
//! 2. Closing twice is harmless, from whichever thread.
//! 3. No provider is called with a lock of ours held.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::admission::{AccountKey, Grant};
use crate::db::{Abort, DbResourceProvider, ErasedHandle, ErasedProvider, HeldPermit, identity};
use crate::error::JobError;
use crate::llm::{DecisionModel, EmbeddingsModel, ModelClient};
use crate::models::{ModelBinding, ModelKind, ModelSlot, ModelSpec};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::unwind::{contain, contain_result, discard};

/// What the job was admitted with. The runtime takes all of it back when the attempt ends.
#[derive(Clone)]
pub struct JobResources {
    set: Arc<ResourceSet>,
}

impl JobResources {
    pub(crate) fn new(set: Arc<ResourceSet>) -> Self {
        Self { set }
    }

    /// The handle of a provider that the job declared. It is an owned clone, so the job's fields
    /// stay free; the connection goes back when the attempt ends, whoever still has a clone.
    ///
    /// # Errors
    /// `IllegalState` naming a provider that was not declared.
    pub fn get<P: DbResourceProvider>(&self, provider: &Arc<P>) -> Result<P::Handle, JobError> {
        self.set
            .handles()
            .iter()
            .find(|held| held.provider.same_as(identity(provider)))
            .and_then(|held| held.handle.handle_any().downcast_ref::<P::Handle>())
            .cloned()
            .ok_or_else(|| {
                JobError::illegal_state(format!(
                    "the database provider '{}' was not declared: add it in `requirements`",
                    provider.name()
                ))
            })
    }

    /// The model that the slot was resolved to for this attempt, and its client.
    ///
    /// # Errors
    /// `IllegalState` naming a slot that was not declared, or was declared for another kind of
    /// model.
    pub fn model(&self, slot: ModelSlot) -> Result<&ModelAccess, JobError> {
        match self.granted(slot)? {
            GrantedModel::Llm(access) => Ok(access),
            other => Err(other_kind(slot, other)),
        }
    }

    /// The model for embeddings that the slot was resolved to for this attempt, and its client.
    ///
    /// # Errors
    /// As for [`model`](Self::model).
    pub fn embeddings(&self, slot: ModelSlot) -> Result<&ModelAccess<EmbeddingsModel>, JobError> {
        match self.granted(slot)? {
            GrantedModel::Embeddings(access) => Ok(access),
            other => Err(other_kind(slot, other)),
        }
    }

    /// The model for decisions that the slot was resolved to for this attempt, and its client.
    ///
    /// # Errors
    /// As for [`model`](Self::model).
    pub fn decision(&self, slot: ModelSlot) -> Result<&ModelAccess<DecisionModel>, JobError> {
        match self.granted(slot)? {
            GrantedModel::Decision(access) => Ok(access),
            other => Err(other_kind(slot, other)),
        }
    }

    fn granted(&self, slot: ModelSlot) -> Result<&GrantedModel, JobError> {
        self.set
            .models
            .iter()
            .find(|model| model.binding().slot() == slot)
            .ok_or_else(|| {
                JobError::illegal_state(format!(
                    "the model slot '{}' was not declared: add it in `requirements`",
                    slot.name()
                ))
            })
    }

    /// Whether the job holds any database handle.
    #[must_use]
    pub fn has_database(&self) -> bool {
        !self.set.handles().is_empty()
    }
}

impl fmt::Debug for JobResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let providers: Vec<_> = self
            .set
            .handles()
            .iter()
            .map(|held| held.provider.name().to_owned())
            .collect();
        f.debug_struct("JobResources")
            .field("providers", &providers)
            .field("models", &self.set.models)
            .finish()
    }
}

fn other_kind(slot: ModelSlot, granted: &GrantedModel) -> JobError {
    let (kind, method) = match granted.binding().kind() {
        ModelKind::Llm => ("conversations", "model"),
        ModelKind::Embeddings => ("embeddings", "embeddings"),
        ModelKind::Decision => ("decisions", "decision"),
    };
    JobError::illegal_state(format!(
        "the model slot '{}' was declared for {kind}: ask for it with `{method}`",
        slot.name()
    ))
}

/// One attempt's model: which it is, and the client to call it with.
#[derive(Debug)]
pub struct ModelAccess<C = ModelClient> {
    pub(crate) binding: Arc<ModelBinding>,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) client: C,
}

impl<C> ModelAccess<C> {
    /// The need that the model was found for.
    #[must_use]
    pub fn binding(&self) -> &Arc<ModelBinding> {
        &self.binding
    }

    /// The model that the slot was resolved to.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The client to call it with. Every call is recorded on the job.
    #[must_use]
    pub fn client(&self) -> &C {
        &self.client
    }
}

/// One attempt's model, of whichever kind.
#[derive(Debug)]
pub(crate) enum GrantedModel {
    Llm(ModelAccess),
    Embeddings(ModelAccess<EmbeddingsModel>),
    Decision(ModelAccess<DecisionModel>),
}

impl GrantedModel {
    fn binding(&self) -> &ModelBinding {
        match self {
            Self::Llm(access) => &access.binding,
            Self::Embeddings(access) => &access.binding,
            Self::Decision(access) => &access.binding,
        }
    }
}

/// A provider's handle and where it stands.
#[derive(Clone)]
pub(crate) struct Held {
    provider: Arc<dyn ErasedProvider>,
    handle: Arc<dyn ErasedHandle>,
    gates: Arc<[AccountKey]>,
    committed: Arc<AtomicBool>,
}

impl Held {
    /// A call of the provider; its panic is its error.
    fn call<T>(
        &self,
        call: impl FnOnce(&dyn ErasedHandle) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        contain_result("database provider", || call(&*self.handle))
    }
}

/// Everything that one attempt holds.
pub(crate) struct ResourceSet {
    grant: Grant,
    models: Vec<GrantedModel>,
    handles: Mutex<Arc<Vec<Held>>>,
    /// Closed by force: what arrives now is thrown away.
    severed: AtomicBool,
    /// By provider, whether permits of its connection are still with a call that has it.
    kept: Mutex<Vec<(String, Weak<()>)>>,
}

impl ResourceSet {
    pub(crate) fn new(grant: Grant, models: Vec<GrantedModel>) -> Arc<Self> {
        Arc::new(Self {
            grant,
            models,
            handles: Mutex::default(),
            severed: AtomicBool::new(false),
            kept: Mutex::default(),
        })
    }

    fn handles(&self) -> Arc<Vec<Held>> {
        Arc::clone(&self.handles.lock())
    }

    pub(crate) fn has_handles(&self) -> bool {
        !self.handles().is_empty()
    }

    /// Makes the handles under the grant, in declaration order. On a failure those made so far are
    /// closed in reverse and the grant is rolled back whole.
    pub(crate) fn materialize(
        &self,
        providers: &[Arc<dyn ErasedProvider>],
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<(), JobError> {
        for provider in providers {
            if let Err(error) = self.acquire(provider, read_only, deadline) {
                self.undo();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes everything back as if it had never been granted, metered debits included: closes the
    /// handles made so far in reverse, and rolls the grant back.
    pub(crate) fn undo(&self) {
        for held in self.handles().iter().rev() {
            if let Err(error) = held.call(|handle| handle.close()) {
                log::warn!("a handle that was never used failed to close: {error}");
            }
        }
        self.grant.rollback();
    }

    fn acquire(
        &self,
        provider: &Arc<dyn ErasedProvider>,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<(), JobError> {
        let gates = contain("database provider", || provider.gates(read_only))?;
        let handle = contain_result("database provider", || {
            provider.acquire(read_only, deadline)
        })?;
        let held = Held {
            provider: Arc::clone(provider),
            handle: handle.into(),
            gates: gates.iter().map(|gate| gate.key().clone()).collect(),
            committed: Arc::default(),
        };
        {
            let mut handles = self.handles.lock();
            if !self.severed.load(Ordering::SeqCst) {
                Arc::make_mut(&mut handles).push(held);
                return Ok(());
            }
        }
        // It arrived after everything was closed by force.
        if let Err(error) = held.call(|handle| handle.close()) {
            log::warn!("a connection that came too late failed to close: {error}");
        }
        Err(JobError::timed_out(None))
    }

    pub(crate) fn begin_all(&self) -> Result<(), JobError> {
        self.handles()
            .iter()
            .try_for_each(|held| held.call(|handle| handle.begin()))
    }

    /// Commits in declaration order, each visible to others before the next. On a failure what has
    /// not committed is rolled back in reverse, and failures of that are attached.
    pub(crate) fn commit_all(&self) -> Result<(), JobError> {
        for held in self.handles().iter() {
            let committed = held.call(|handle| handle.commit()).and_then(|()| {
                held.committed.store(true, Ordering::SeqCst);
                held.call(|handle| handle.await_visible())
            });
            if let Err(cause) = committed {
                let error = JobError::uncorrectable(format!(
                    "the commit on '{}' failed: {cause}",
                    held.provider.name()
                ))
                .with_source(cause);
                return Err(self
                    .rollback_all()
                    .into_iter()
                    .fold(error, JobError::with_attached));
            }
        }
        Ok(())
    }

    /// Rolls back in reverse what has not committed, and answers the failures.
    pub(crate) fn rollback_all(&self) -> Vec<JobError> {
        self.handles()
            .iter()
            .rev()
            .filter(|held| !held.committed.load(Ordering::SeqCst))
            .filter_map(|held| held.call(|handle| handle.rollback()).err())
            .collect()
    }

    /// Closes every handle, then gives the grant back.
    pub(crate) fn close(&self) -> Result<(), JobError> {
        let closed = self.close_handles();
        self.grant.release();
        closed
    }

    /// Closes every handle, so that what works with them fails. What else was granted stays: the
    /// work has not ended, and its place is not free.
    pub(crate) fn close_handles(&self) -> Result<(), JobError> {
        let mut failures = Vec::new();
        for held in self.handles().iter() {
            if let Err(error) = held.call(|handle| handle.close()) {
                failures.push(
                    JobError::system(
                        "database",
                        format!(
                            "failed to close the database handle of '{}': {error}",
                            held.provider.name()
                        ),
                    )
                    .with_source(error),
                );
            }
            self.return_permits_when_gone(held);
        }
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Ok(()),
            Some(first) => Err(failures.fold(first, JobError::with_attached)),
        }
    }

    /// Severs every handle, then gives the grant back; the permits of connections that a stuck call
    /// still has follow when it leaves.
    pub(crate) fn force_close(&self, deadline: Instant) {
        let handles = {
            let handles = self.handles.lock();
            self.severed.store(true, Ordering::SeqCst);
            Arc::clone(&handles)
        };
        for held in handles.iter() {
            match held.call(|handle| handle.abort(deadline)) {
                Ok(Abort::Severed) => {}
                Ok(Abort::Orphaned) => {
                    log::warn!(
                        "a connection of '{}' is orphaned: a call still has it, and its permit \
                         returns when that call ends",
                        held.provider.name()
                    );
                }
                Err(error) => log::warn!(
                    "the connection of '{}' could not be aborted: {error}",
                    held.provider.name()
                ),
            }
            if let Err(error) = held.call(|handle| handle.close()) {
                log::warn!(
                    "the handle of '{}' failed to close after its abort: {error}",
                    held.provider.name()
                );
            }
            self.return_permits_when_gone(held);
        }
        self.grant.release();
    }

    /// Gives back what no provider can hold up. For when an abort is stuck.
    pub(crate) fn release_all_but_connections(&self) {
        let held: Vec<_> = self
            .handles()
            .iter()
            .flat_map(|held| held.gates.iter().cloned())
            .collect();
        let stuck = self.grant.split_off(&held);
        self.grant.release();
        // The stuck abort returns these itself, through `keep_until_gone`, if it ever ends.
        if let Some(stuck) = stuck {
            self.grant.adopt(stuck);
        }
    }

    /// The names of the accounts of which something is still held.
    pub(crate) fn held(&self) -> Vec<String> {
        self.grant.open_accounts()
    }

    /// What is still out of an attempt that was given back: connections that a call has kept.
    pub(crate) fn outstanding(&self) -> Vec<String> {
        let mut out = self.held();
        out.extend(
            self.kept
                .lock()
                .iter()
                .filter(|(_, mark)| mark.strong_count() > 0)
                .map(|(name, _)| format!("db:{name}")),
        );
        out
    }

    fn return_permits_when_gone(&self, held: &Held) {
        if let Some(permits) = self.grant.split_off(&held.gates) {
            let mark = Arc::new(());
            self.kept
                .lock()
                .push((held.provider.name().to_owned(), Arc::downgrade(&mark)));
            let permit = HeldPermit::new((permits, mark));
            if let Err(error) = contain("database provider", || held.handle.keep_until_gone(permit))
            {
                log::error!("a provider failed to keep a permit: {error}");
            }
        }
    }
}

impl Drop for ResourceSet {
    fn drop(&mut self) {
        // A handle is the provider's, and its destructor may panic.
        let handles = self.handles.get_mut();
        if handles.is_empty() {
            return;
        }
        let handles = std::mem::take(handles);
        match Arc::try_unwrap(handles) {
            Ok(handles) => handles.into_iter().for_each(discard),
            // Whoever still looks at them drops them.
            Err(shared) => discard(shared),
        }
    }
}
