//! What the dispatcher's parts share.
//!
//! Runtime threads hold this, never the [`JobDispatcher`](super::JobDispatcher) itself, so that
//! the drop of its last clone can end them.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::Owner;
use super::chores::Chores;
use super::delayed::DueSubmission;
use super::door::SubmitError;
use super::entry::Entry;
use super::limiters::LimiterRegistry;
use super::models::Models;
use super::reaper::Pool;
use super::routing::Router;
use super::settle;
use super::shutdown::ShutdownReport;
use super::stoppable::Stoppable;
use super::timer::{AlarmKey, Timer};
use super::unresponsive::{Unresponsive, UnresponsiveReason};
use super::{starvation, timeout};
use crate::admission::{Admission, HttpConnectionGate, MemorySettings};
use crate::aside::{self, Elsewhere, Relieved};
use crate::clock::{Clock, WaitCell};
use crate::db::DbResourceProviders;
use crate::error::JobError;
use crate::events::MessageBus;
use crate::job::behalf::Handed;
use crate::job::core::{Decision, JobCore, Supervisor};
use crate::job::resources::ResourceSet;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use crate::threads::{Seat, Threads};

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
    chores: Arc<Chores>,
    http: Arc<HttpConnectionGate>,
    models: Models,
    databases: DbResourceProviders,
    limiters: LimiterRegistry,
    stoppables: Mutex<Vec<Handed<Arc<dyn Stoppable>>>>,
    own_seats: Mutex<Vec<Seat>>,
    phase: Mutex<Phase>,
    /// How the shutdown went, once it is over.
    report: Mutex<Option<ShutdownReport>>,
    /// Notified when the shutdown is over.
    ended: Arc<WaitCell>,
    /// Held through a start.
    starting: Mutex<()>,
    jobs: Mutex<HashMap<Arc<str>, Arc<Entry>>>,
    /// Jobs that were taken and whose handles have not answered.
    unsettled: AtomicUsize,
    /// Notified when a handle answers.
    job_settled: Arc<WaitCell>,
    failed_spawn: Mutex<Option<Instant>>,
    /// Started jobs whose threads do not wait for another job. Below zero for a moment when one that
    /// waits is left behind.
    active: AtomicIsize,
    /// Counts whatever changes who is active or who has a thread.
    moves: AtomicUsize,
    /// Jobs that were settled without their threads, until those end.
    abandoned: Mutex<HashMap<Arc<str>, Abandoned>>,
}

/// A job whose thread was left behind.
struct Abandoned {
    entry: Arc<Entry>,
    resources: Option<Arc<ResourceSet>>,
    since: Instant,
}

/// What the builder hands over.
pub(super) struct Parts {
    /// For the runtime's own threads, so that nothing else takes them before the start.
    pub(super) own_seats: Vec<Seat>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) bus: MessageBus,
    pub(super) threads: Arc<Threads>,
    pub(super) router: Router,
    pub(super) closers: Arc<Pool>,
    pub(super) aborters: Arc<Pool>,
    pub(super) settlers: Arc<Pool>,
    pub(super) chores: Arc<Chores>,
    pub(super) http: Arc<HttpConnectionGate>,
    pub(super) models: Models,
    pub(super) databases: DbResourceProviders,
    pub(super) memory: Option<MemorySettings>,
}

impl Inner {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let clock = &parts.clock;
        let admission = Admission::new(Arc::clone(clock), parts.bus.clone(), parts.memory);
        let timer = Timer::new();
        let [priority, fifo] = parts.router.cells();
        for cell in [timer.cell(), priority, fifo] {
            cell.vacate();
        }
        let catalog = parts.models.catalog().clone();
        let limiters = LimiterRegistry::new(Arc::clone(clock), admission.clone(), catalog);
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            owner: OnceLock::new(),
            admission,
            limiters,
            clock: parts.clock,
            bus: parts.bus,
            threads: parts.threads,
            router: parts.router,
            timer,
            closers: parts.closers,
            aborters: parts.aborters,
            settlers: parts.settlers,
            chores: parts.chores,
            http: parts.http,
            models: parts.models,
            databases: parts.databases,
            stoppables: Mutex::default(),
            own_seats: Mutex::new(parts.own_seats),
            phase: Mutex::new(Phase::Built),
            report: Mutex::new(None),
            ended: WaitCell::new(),
            starting: Mutex::new(()),
            jobs: Mutex::default(),
            unsettled: AtomicUsize::new(0),
            job_settled: WaitCell::new(),
            failed_spawn: Mutex::new(None),
            active: AtomicIsize::new(0),
            moves: AtomicUsize::new(0),
            abandoned: Mutex::default(),
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

    pub(super) fn chores(&self) -> &Chores {
        &self.chores
    }

    /// The calling thread drops nothing of a user's and writes no log until the answer is dropped.
    pub(super) fn relieved(&self) -> Relieved {
        aside::enter(Arc::clone(&self.chores) as Arc<dyn Elsewhere>)
    }

    /// Starts the threads that end what does not end by itself, and those that tell spend gates.
    pub(super) fn start_reserves(&self) -> io::Result<()> {
        for pool in [&self.closers, &self.aborters, &self.settlers] {
            pool.start()?;
        }
        self.models.start()
    }

    pub(super) fn http(&self) -> &Arc<HttpConnectionGate> {
        &self.http
    }

    pub(super) fn limiters(&self) -> &LimiterRegistry {
        &self.limiters
    }

    pub(super) fn databases(&self) -> &DbResourceProviders {
        &self.databases
    }

    pub(super) fn register_stoppable(&self, stoppable: Arc<dyn Stoppable>) {
        self.stoppables.lock().push(Handed::here(stoppable));
    }

    pub(super) fn take_stoppables(&self) -> Vec<Handed<Arc<dyn Stoppable>>> {
        std::mem::take(&mut *self.stoppables.lock())
    }

    // Its life.

    pub(super) fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    pub(super) fn starting(&self) -> &Mutex<()> {
        &self.starting
    }

    /// A seat that was kept for one of the runtime's own threads.
    pub(super) fn own_seat(&self) -> Option<Seat> {
        self.own_seats.lock().pop()
    }

    /// Gives back the seats of threads that will not be started.
    pub(super) fn release_own_seats(&self) {
        let seats = std::mem::take(&mut *self.own_seats.lock());
        drop(seats);
    }

    /// Whether the end has begun.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase(), Phase::Stopping | Phase::Stopped)
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

    pub(super) fn report(&self) -> Option<ShutdownReport> {
        self.report.lock().clone()
    }

    pub(super) fn set_report(&self, report: ShutdownReport) {
        *self.report.lock() = Some(report);
        self.ended.notify();
    }

    pub(super) fn ended(&self) -> &Arc<WaitCell> {
        &self.ended
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
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        let id = Arc::clone(&entry.job().profile().ids.job);
        self.jobs.lock().insert(id, Arc::clone(entry));
    }

    /// A job leaves the running set. Answers whether it was in it: a job born failed never is.
    pub(super) fn leave(&self, job: &JobCore) -> bool {
        let entry = self.jobs.lock().remove(job.id());
        // Outside of the lock: the last reference to a job may go here.
        entry.is_some()
    }

    /// The handle of a job that was in the running set has answered.
    pub(super) fn settled(&self) {
        self.unsettled.fetch_sub(1, Ordering::SeqCst);
        self.job_settled.notify();
    }

    /// Whether every handle has answered.
    pub(super) fn is_at_rest(&self) -> bool {
        self.unsettled.load(Ordering::SeqCst) == 0
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

    pub(super) fn job_settled(&self) -> &Arc<WaitCell> {
        &self.job_settled
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

    // Who does not end, and who cannot begin.

    /// A seat for a job's thread, up to `mark`. Its job counts as active from before the seat is
    /// taken: a seat that nobody is seen to use would look as if nothing could move.
    pub(super) fn job_seat(&self, mark: usize) -> Option<Seat> {
        self.activate(1);
        let seat = self.threads.try_seat(mark);
        if seat.is_none() {
            // Whoever asked in vain puts its job in line, and the queue looks.
            self.activate(-1);
        }
        seat
    }

    /// A job's thread has done its work, at last when it was left behind.
    pub(super) fn thread_ends(&self, entry: &Entry) {
        let left_behind = {
            let mut abandoned = self.abandoned.lock();
            entry.end_thread();
            entry
                .is_abandoned()
                .then(|| abandoned.remove(entry.job().id()))
        };
        drop(left_behind);
    }

    /// The seat of a job's thread is back. One that was left behind is not counted any more.
    pub(super) fn thread_gone(self: &Arc<Self>, entry: &Entry) {
        if !entry.is_abandoned() && self.activate(-1) <= 0 {
            starvation::relieve(self);
        }
    }

    /// Leaves a job's thread behind and lists it until it ends. Answers false when it has ended, or
    /// has been left behind before.
    pub(super) fn leave_behind(self: &Arc<Self>, entry: &Arc<Entry>) -> bool {
        let resources = entry.attempt();
        {
            // Under the list's lock, so that a thread that ends now is either not listed or
            // taken off again.
            let mut abandoned = self.abandoned.lock();
            if !entry.abandon() {
                return false;
            }
            abandoned.insert(
                Arc::clone(&entry.job().profile().ids.job),
                Abandoned {
                    entry: Arc::clone(entry),
                    resources,
                    since: self.clock.now(),
                },
            );
        }
        self.activate(-1);
        starvation::relieve(self);
        true
    }

    /// The ids of the jobs whose threads were left behind and still run.
    pub(super) fn left_behind(&self) -> Vec<String> {
        let left = self.abandoned.lock();
        left.keys().map(|id| id.as_ref().to_owned()).collect()
    }

    /// How often it has changed who is active or who has a thread.
    pub(super) fn moves(&self) -> usize {
        self.moves.load(Ordering::SeqCst)
    }

    /// Changes who is active, and says so. The count moves on both sides of the change: whoever
    /// read it in between sees that something moved.
    fn activate(&self, by: isize) -> isize {
        self.moves.fetch_add(1, Ordering::SeqCst);
        let before = self.active.fetch_add(by, Ordering::SeqCst);
        self.moves.fetch_add(1, Ordering::SeqCst);
        before + by
    }

    pub(super) fn active(&self) -> isize {
        self.active.load(Ordering::SeqCst)
    }

    /// The jobs that do not respond: left behind, or told to stop longer ago than their grace.
    pub(super) fn unresponsive(&self) -> Vec<Unresponsive> {
        let now = self.clock.now();
        let mut found: Vec<_> = self
            .abandoned
            .lock()
            .values()
            .map(|left| Unresponsive {
                job: left.entry.job().snapshot(),
                reason: UnresponsiveReason::Abandoned,
                since: left.since,
                holds: left
                    .resources
                    .as_ref()
                    .map_or_else(Vec::new, |resources| resources.outstanding()),
            })
            .collect();
        found.extend(self.entries().iter().filter_map(|entry| {
            let told = entry.job().cancellation()?.at;
            let timeout = entry.job().terms().timeout.unwrap_or_default();
            let since = told.checked_add(timeout::grace(timeout))?;
            (since <= now).then(|| Unresponsive {
                job: entry.job().snapshot(),
                reason: UnresponsiveReason::IgnoresCancellation,
                since,
                holds: entry
                    .attempt()
                    .map_or_else(Vec::new, |resources| resources.held()),
            })
        }));
        found
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
            // The queues have stopped. Its drop answers whoever waits.
            drop(late);
        }
    }

    /// Its models.
    pub(super) fn models(&self) -> &Models {
        &self.models
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
        let in_time = entry.job().decision() != Decision::Finishing;
        entry.job().fire_cancellation();
        in_time
    }

    fn dependencies_settled(&self, job: &JobCore) {
        if let (Some(inner), Some(entry)) = (self.me.upgrade(), self.entry(job.id())) {
            inner.route(&entry);
        }
    }

    fn wait_begins(&self) {
        if self.activate(-1) <= 0
            && let Some(inner) = self.me.upgrade()
        {
            starvation::relieve(&inner);
        }
    }

    fn wait_ends(&self) {
        self.activate(1);
    }

    fn look(&self) {
        if self.active() <= 0
            && let Some(inner) = self.me.upgrade()
        {
            starvation::relieve(&inner);
        }
    }
}
