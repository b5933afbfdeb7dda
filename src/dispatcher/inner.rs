//! What the dispatcher's parts share.
//!
//! Runtime threads hold this, never the [`JobDispatcher`](super::JobDispatcher) itself, so that
//! the drop of its last clone can end them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::Owner;
use super::delayed::DueSubmission;
use super::door::SubmitError;
use super::entry::Entry;
use super::reaper::Pool;
use super::routing::Router;
use super::settle;
use super::timer::{AlarmKey, Timer};
use crate::admission::{
    Admission, CountingGate, Demand, HttpConnectionGate, ModelGate, TokenBucket,
};
use crate::clock::{Clock, WaitCell};
use crate::db::DbResourceProviders;
use crate::error::JobError;
use crate::events::MessageBus;
use crate::job::core::{JobCore, Supervisor};
use crate::job::resources::ModelAccess;
use crate::llm::{CallOptions, LlmClient, ModelClient};
use crate::models::{ModelNeed, ModelSlot, ModelSpec, Reservation};
use crate::sync::Mutex;
use crate::threads::Threads;

/// How often stale subscriptions are looked for (BUS-7).
const STALE_SWEEP: Duration = Duration::from_secs(60);

/// What rings.
pub(super) enum Alarm {
    /// An attempt's timeout: phase one.
    Timeout(Arc<Entry>),
    /// The grace after it: phase two. Most jobs have ended by then, and are not kept for it.
    Grace(Weak<Entry>),
    /// An abort that takes too long.
    Abort(Arc<Entry>),
    /// Hooks that take too long.
    Hooks(Arc<Entry>),
    /// A delayed submission is due.
    Delayed(Box<dyn DueSubmission>),
    StaleSweep,
}

/// Where the dispatcher is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Built,
    Started,
    /// No new roots; what runs may submit and finish.
    Draining,
    Stopping,
    Stopped,
}

pub(crate) struct Inner {
    me: Weak<Inner>,
    owner: OnceLock<Weak<Owner>>,
    clock: Arc<dyn Clock>,
    bus: MessageBus,
    threads: Arc<Threads>,
    admission: Admission,
    router: Router,
    timer: Timer<Alarm>,
    closers: Arc<Pool>,
    aborters: Arc<Pool>,
    settlers: Arc<Pool>,
    http: Arc<HttpConnectionGate>,
    model: Option<ConfiguredModel>,
    databases: DbResourceProviders,
    phase: Mutex<Phase>,
    jobs: Mutex<HashMap<Arc<str>, Arc<Entry>>>,
    /// Notified when a job leaves.
    job_left: Arc<WaitCell>,
    failed_spawn: Mutex<Option<Instant>>,
}

/// What the builder hands over.
pub(super) struct Parts {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) bus: MessageBus,
    pub(super) threads: Arc<Threads>,
    pub(super) router: Router,
    pub(super) closers: Arc<Pool>,
    pub(super) aborters: Arc<Pool>,
    pub(super) settlers: Arc<Pool>,
    pub(super) http: Arc<HttpConnectionGate>,
    pub(super) model: Option<ConfiguredModel>,
    pub(super) databases: DbResourceProviders,
}

impl Inner {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            owner: OnceLock::new(),
            admission: Admission::new(Arc::clone(&parts.clock), parts.bus.clone()),
            clock: parts.clock,
            bus: parts.bus,
            threads: parts.threads,
            router: parts.router,
            timer: Timer::new(),
            closers: parts.closers,
            aborters: parts.aborters,
            settlers: parts.settlers,
            http: parts.http,
            model: parts.model,
            databases: parts.databases,
            phase: Mutex::new(Phase::Built),
            jobs: Mutex::default(),
            job_left: WaitCell::new(),
            failed_spawn: Mutex::new(None),
        })
    }

    pub(super) fn weak(&self) -> Weak<Inner> {
        Weak::clone(&self.me)
    }

    /// Remembers whose this is, without keeping it alive.
    pub(super) fn set_owner(&self, owner: &Arc<Owner>) {
        // Set once, by the one constructor.
        let _ = self.owner.set(Arc::downgrade(owner));
    }

    pub(super) fn owner(&self) -> Option<Arc<Owner>> {
        self.owner.get()?.upgrade()
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn bus(&self) -> &MessageBus {
        &self.bus
    }

    pub(super) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(super) fn router(&self) -> &Router {
        &self.router
    }

    pub(super) fn timer(&self) -> &Timer<Alarm> {
        &self.timer
    }

    pub(super) fn closers(&self) -> &Arc<Pool> {
        &self.closers
    }

    pub(super) fn aborters(&self) -> &Arc<Pool> {
        &self.aborters
    }

    pub(super) fn settlers(&self) -> &Arc<Pool> {
        &self.settlers
    }

    pub(super) fn http(&self) -> &Arc<HttpConnectionGate> {
        &self.http
    }

    pub(super) fn databases(&self) -> &DbResourceProviders {
        &self.databases
    }

    // Its life.

    pub(super) fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// Moves from one phase to the next; false when it is in none of `from`.
    pub(super) fn advance(&self, from: &[Phase], to: Phase) -> bool {
        let mut phase = self.phase.lock();
        let moves = from.contains(&phase);
        if moves {
            *phase = to;
        }
        moves
    }

    /// Whether a submission is taken now.
    pub(super) fn accepts(&self, root: bool) -> Result<(), SubmitError> {
        match self.phase() {
            Phase::Built => Err(SubmitError::NotStarted),
            Phase::Started => Ok(()),
            Phase::Draining if !root => Ok(()),
            Phase::Draining | Phase::Stopping | Phase::Stopped => Err(SubmitError::ShutDown),
        }
    }

    // Its jobs.

    pub(super) fn enter(&self, entry: &Arc<Entry>) {
        let id = Arc::clone(&entry.job().profile().ids.job);
        self.jobs.lock().insert(id, Arc::clone(entry));
    }

    pub(super) fn leave(&self, job: &JobCore) {
        let entry = self.jobs.lock().remove(job.id());
        // Outside of the lock: the last reference to a job may go here.
        drop(entry);
        self.job_left.notify();
    }

    pub(super) fn entry(&self, id: &str) -> Option<Arc<Entry>> {
        self.jobs.lock().get(id).cloned()
    }

    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        self.jobs.lock().values().cloned().collect()
    }

    pub(super) fn job_count(&self) -> usize {
        self.jobs.lock().len()
    }

    pub(super) fn job_left(&self) -> &Arc<WaitCell> {
        &self.job_left
    }

    pub(super) fn route(self: &Arc<Self>, entry: &Arc<Entry>) {
        if !self.router.route(self, entry) {
            settle::cancelled_by_shutdown(self, entry);
        }
    }

    /// Routes a job whose last dependency has settled; nothing when it has ended meanwhile.
    /// Answers it back when the queues have stopped.
    pub(super) fn route_dependent(self: &Arc<Self>, job: &JobCore) -> Option<Arc<Entry>> {
        if let Some(entry) = self.entry(job.id()) {
            return (!self.router.route(self, &entry)).then_some(entry);
        }
        // It may be a job of another dispatcher, which routes it there.
        if let Some(supervisor) = job.supervisor() {
            supervisor.dependencies_settled(job);
        }
        None
    }

    pub(super) fn note_failed_spawn(&self) {
        *self.failed_spawn.lock() = Some(self.clock.now());
    }

    pub(super) fn last_failed_spawn(&self) -> Option<Instant> {
        *self.failed_spawn.lock()
    }

    // Its alarms.

    /// Arms an alarm that far from now; none when that is past the end of time.
    pub(super) fn arm_in(&self, delay: Duration, alarm: Alarm) -> Option<AlarmKey> {
        let at = self.clock.now().checked_add(delay)?;
        Some(self.timer.arm(at, alarm))
    }

    /// Starts the clock of an attempt's timeout.
    pub(super) fn arm_timeout(&self, entry: &Arc<Entry>) -> Option<AlarmKey> {
        let timeout = entry.job().terms().timeout?;
        let at = self.clock.now().checked_add(timeout)?;
        entry.job().set_deadline(Some(at));
        Some(self.timer.arm(at, Alarm::Timeout(Arc::clone(entry))))
    }

    pub(super) fn disarm(&self, key: AlarmKey) {
        let alarm = self.timer.disarm(key);
        drop(alarm);
    }

    pub(super) fn arm_stale_sweep(&self) {
        self.arm_in(STALE_SWEEP, Alarm::StaleSweep);
    }

    /// Has a submission made after `delay`; one past the end of time is refused at once.
    pub(super) fn arm_delayed(&self, delay: Duration, submission: Box<dyn DueSubmission>) {
        match self.clock.now().checked_add(delay) {
            Some(at) => {
                self.timer.arm(at, Alarm::Delayed(submission));
            }
            None => submission.refuse(JobError::invalid_input(
                "delay",
                format_args!("{delay:?}"),
                "must end before the end of time",
            )),
        }
    }

    /// Has a queue's thread submit what was delayed until now.
    pub(super) fn submit_due(&self, submission: Box<dyn DueSubmission>) {
        let errand = Box::new(move |inner: &Arc<Inner>| submission.submit(inner));
        if let Err(late) = self.router.run_errand(errand) {
            // The queues have stopped. Its drop answers whoever waits; it drops the job as well,
            // which is no work for the timer's thread.
            self.settlers.run(move || drop(late));
        }
    }

    // Its models.

    /// The model for a need, with its price.
    pub(super) fn resolve(&self, need: &ModelNeed) -> Result<ResolvedModel, JobError> {
        let model = self.model.as_ref().ok_or_else(|| {
            JobError::model_resolution("no model is configured: give the builder one with `model`")
        })?;
        if need.grade > model.spec.grade {
            return Err(JobError::model_resolution(format!(
                "the slot '{}' asks for grade {:?}, and {} is {:?}",
                need.slot.name(),
                need.grade,
                model.spec.id,
                model.spec.grade
            )));
        }
        Ok(ResolvedModel {
            slot: need.slot,
            reservation: need.price(&model.spec)?,
            model: model.clone(),
        })
    }
}

impl Supervisor for Inner {
    fn cancel(&self, job: &Arc<JobCore>, reason: &str) -> bool {
        let Some(inner) = self.me.upgrade() else {
            return false;
        };
        let Some(entry) = self.entry(job.id()) else {
            return false;
        };
        let queued = format!("Cancelled while queued: {reason}");
        if settle::cancel_queued(&inner, &entry, reason, &queued) {
            return true;
        }
        entry.job().signal_cancellation(reason, reason);
        entry.job().fire_cancellation();
        true
    }

    fn dependencies_settled(&self, job: &JobCore) {
        if let (Some(inner), Some(entry)) = (self.me.upgrade(), self.entry(job.id())) {
            inner.route(&entry);
        }
    }
}

/// A model, its client and its account.
#[derive(Clone)]
pub(super) struct ConfiguredModel {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) client: Arc<dyn LlmClient>,
    pub(super) account: ModelAccount,
}

/// What bounds the use of a model.
#[derive(Clone)]
pub(super) enum ModelAccount {
    Bucket(Arc<TokenBucket>),
    Gate(Arc<ModelGate>),
}

/// A need, resolved and priced for one attempt.
pub(super) struct ResolvedModel {
    slot: ModelSlot,
    reservation: Reservation,
    model: ConfiguredModel,
}

impl ResolvedModel {
    pub(super) fn add_to(&self, demand: &mut Demand) {
        match &self.model.account {
            ModelAccount::Bucket(bucket) => demand.add(bucket, self.reservation.total()),
            ModelAccount::Gate(gate) => demand.add::<CountingGate>(gate, ()),
        }
    }

    pub(super) fn access(self, job: &Arc<JobCore>) -> ModelAccess {
        let Reservation {
            output, thinking, ..
        } = self.reservation;
        let bucket = match &self.model.account {
            ModelAccount::Bucket(bucket) => Some(Arc::clone(bucket)),
            ModelAccount::Gate(_) => None,
        };
        ModelAccess {
            slot: self.slot,
            client: ModelClient::new(
                Arc::clone(&self.model.spec),
                self.model.client,
                bucket,
                Arc::clone(job),
                CallOptions::new(output.saturating_add(thinking)),
            ),
            spec: self.model.spec,
        }
    }
}
