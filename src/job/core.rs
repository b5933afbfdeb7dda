//! The part of a job that its handle, its context, its thread and the runtime share.
//!
//! # Invariants
//!
//! 1. The outcome is decided once (`ST-3`): by the first of a cancellation, a timeout, or the job's
//!    own finish. All three go through `live.decision` under one lock.
//! 2. A job is settled once (`ST-4`): by whoever takes the settlement token.
//! 3. Of a job's events nothing follows its terminal one but the workflow's; see [`Telling`]. Nor does
//!    its snapshot change after that.
//! 4. The handle settles last: [`settle`](JobCore::settle) is the end of every path.
//!
//! Lock order within a job: `telling`, then `live`. The others are taken alone.

mod settling;
mod stopping;
mod waiting;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::behalf::Behalf;
use super::calls::CallRecord;
use super::cancellation::Callbacks;
use super::metadata::{Metadata, MetadataValue};
use super::snapshot::{JobProfile, JobSnapshot, Moment};
use super::state::JobState;
use super::telling::Telling;
use crate::clock::{Clock, WaitCell};
use crate::error::JobError;
use crate::events::{Event, EventKind, MessageBus, ModelCall, Overflow};
use crate::guard::ScopeGuard;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use crate::unwind::discard;
use settling::Settled;
pub(crate) use waiting::WaitingFor;

/// What a job ends with; shared by the handle, the dependents and the completed event.
pub(crate) type Outcome = Result<Arc<dyn Any + Send + Sync>, JobError>;

/// What the runtime does for a job that is reached through its handle.
pub(crate) trait Supervisor: Any + Send + Sync {
    /// Cancels a queued or running job; false when it is neither.
    fn cancel(&self, job: &Arc<JobCore>, reason: &str) -> bool;

    /// A job's own thread begins to wait for another job.
    fn wait_begins(&self);

    /// It goes on.
    fn wait_ends(&self);

    /// Somebody waits for a job of this one: looks whether it can have a thread.
    fn look(&self);

    /// Routes a job that waited for others; nothing when it has ended meanwhile.
    fn dependencies_settled(&self, job: &JobCore);
}

/// Tells jobs apart where they are kept in the order in which they were made; holds no state.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct JobCore {
    number: u64,
    profile: Arc<JobProfile>,
    behalf: Arc<Behalf>,
    terms: Terms,
    clock: Arc<dyn Clock>,
    bus: MessageBus,
    supervisor: Weak<dyn Supervisor>,
    /// The job that submitted this one, while both live in one tree of waits.
    parent: Option<Weak<JobCore>>,
    cell: Arc<WaitCell>,
    live: Mutex<Live>,
    cancelled: AtomicBool,
    timed_out: AtomicBool,
    holding: AtomicBool,
    on_cancel: Callbacks,
    on_timeout: Callbacks,
    telling: Arc<Telling>,
    settlement: AtomicBool,
    settled: Mutex<Settled>,
    /// Until the job has settled: a chain of jobs would keep all of its results otherwise, and
    /// drop them one inside the other.
    dependencies: Mutex<Arc<[Arc<JobCore>]>>,
    pending_dependencies: AtomicUsize,
    waiting: Mutex<Option<WaitingFor>>,
    /// The ordinal that an orchestrator's present step gives to its children.
    step: AtomicI64,
}

/// What was agreed at submission about how the job runs.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) orchestrator: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) upstream_retries: u32,
    pub(crate) tolerates_dependency_failures: bool,
    /// What the job is bound to: its caller's guard and its own scope, sealed here (SCP-3).
    pub(crate) guard: ScopeGuard,
}

struct Live {
    moment: Arc<Moment>,
    decision: Decision,
    cancellation: Option<Cancellation>,
    deadline: Option<Instant>,
    model_calls: CallRecord,
    /// The terminal event is out: what it says of the job stays.
    told: bool,
}

/// Who has decided how the job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Open,
    Cancelled,
    TimedOut,
    /// The job's own work is done; what is left is its end.
    Finishing,
}

/// Why a job is to stop.
#[derive(Clone, Debug)]
pub(crate) struct Cancellation {
    pub(crate) reason: String,
    /// What the event says.
    pub(crate) message: String,
    pub(crate) at: Instant,
}

/// What a new job is made of.
pub(crate) struct NewJob {
    pub(crate) profile: JobProfile,
    pub(crate) terms: Terms,
    pub(crate) metadata: Metadata,
    pub(crate) parent: Option<Weak<JobCore>>,
    pub(crate) dependencies: Vec<Arc<JobCore>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bus: MessageBus,
    pub(crate) supervisor: Weak<dyn Supervisor>,
}

impl JobCore {
    pub(crate) fn new(new: NewJob) -> Arc<Self> {
        let profile = Arc::new(new.profile);
        Arc::new(Self {
            behalf: Arc::new(Behalf {
                profile: Arc::clone(&profile),
                orchestrator: new.terms.orchestrator,
                guard: new.terms.guard.clone(),
            }),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            profile,
            terms: new.terms,
            clock: new.clock,
            bus: new.bus,
            supervisor: new.supervisor,
            parent: new.parent,
            cell: WaitCell::new(),
            live: Mutex::new(Live {
                moment: Arc::new(Moment::fresh(new.metadata)),
                decision: Decision::Open,
                cancellation: None,
                deadline: None,
                model_calls: CallRecord::default(),
                told: false,
            }),
            cancelled: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            holding: AtomicBool::new(false),
            on_cancel: Callbacks::default(),
            on_timeout: Callbacks::default(),
            telling: Arc::default(),
            settlement: AtomicBool::new(false),
            settled: Mutex::default(),
            pending_dependencies: AtomicUsize::new(new.dependencies.len()),
            dependencies: Mutex::new(shared(new.dependencies)),
            waiting: Mutex::new(None),
            step: AtomicI64::new(0),
        })
    }

    pub(crate) fn profile(&self) -> &JobProfile {
        &self.profile
    }

    /// The job, as the author of the code that it hands over.
    pub(crate) fn behalf(&self) -> &Arc<Behalf> {
        &self.behalf
    }

    pub(crate) fn id(&self) -> &str {
        &self.profile.ids.job
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn bus(&self) -> &MessageBus {
        &self.bus
    }

    pub(crate) fn supervisor(&self) -> Option<Arc<dyn Supervisor>> {
        self.supervisor.upgrade()
    }

    pub(crate) fn parent(&self) -> Option<Arc<JobCore>> {
        self.parent.as_ref()?.upgrade()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.profile.ids.parent().is_none()
    }

    /// The jobs that this one was submitted after; none once it has settled.
    pub(crate) fn dependencies(&self) -> Arc<[Arc<JobCore>]> {
        Arc::clone(&self.dependencies.lock())
    }

    /// Where the job's thread sleeps, whatever it waits for.
    pub(crate) fn cell(&self) -> &Arc<WaitCell> {
        &self.cell
    }

    // What it is now.

    pub(crate) fn snapshot(&self) -> JobSnapshot {
        JobSnapshot {
            profile: Arc::clone(&self.profile),
            moment: Arc::clone(&self.live.lock().moment),
        }
    }

    pub(crate) fn state(&self) -> JobState {
        self.live.lock().moment.state
    }

    pub(crate) fn decision(&self) -> Decision {
        self.live.lock().decision
    }

    /// Changes what the job is, unless its end has been told: a thread that was left behind changes
    /// nothing any more. Answers whether it has.
    fn change(&self, change: impl FnOnce(&mut Moment)) -> bool {
        let mut live = self.live.lock();
        if !live.told {
            change(Arc::make_mut(&mut live.moment));
        }
        !live.told
    }

    /// Notes a fact. Answers false when the job's end has been told, and nothing is noted any more.
    pub(crate) fn note(&self, key: &str, value: impl Into<MetadataValue>) -> bool {
        let value = value.into();
        self.change(|moment| moment.metadata.insert(key, value))
    }

    /// As [`note`](Self::note), under one of the runtime's own keys.
    pub(crate) fn note_own(&self, key: &'static str, value: impl Into<MetadataValue>) {
        let value = value.into();
        self.change(|moment| moment.metadata.insert_own(key, value));
    }

    /// Whether there is a fact under `key`.
    pub(crate) fn is_noted(&self, key: &str) -> bool {
        self.live.lock().moment.metadata.get(key).is_some()
    }

    pub(crate) fn note_waits<'a>(
        &self,
        wall: Duration,
        by_account: impl Iterator<Item = (&'a str, Duration)>,
    ) {
        let by_account: Vec<_> = by_account.collect();
        if wall.is_zero() && by_account.is_empty() {
            return;
        }
        self.change(|moment| {
            moment.metadata.add(Metadata::ADMISSION_WAIT, millis(wall));
            for (account, wait) in by_account {
                moment
                    .metadata
                    .add_to_table(Metadata::WAIT_TIMES, account, millis(wait));
            }
        });
    }

    pub(crate) fn note_progress(&self, message: Arc<str>, percent: Option<u8>) {
        self.change(|moment| {
            if matches!(moment.state, JobState::Queued | JobState::Scheduled) {
                moment.state = JobState::Running;
            }
            if percent.is_some() {
                moment.progress = percent;
            }
            moment.progress_message = Some(message);
        });
    }

    pub(crate) fn schedule(&self) {
        self.change(|moment| {
            if moment.state == JobState::Queued {
                moment.state = JobState::Scheduled;
            }
        });
    }

    /// An attempt begins at `wall`. Nothing changes when the job has been told to stop.
    pub(crate) fn start(&self, attempt: u32, wall: SystemTime) {
        self.change(|moment| {
            if moment.state.is_active() {
                moment.state = JobState::Running;
                moment.attempt = attempt;
                moment.started_at.get_or_insert(wall);
            }
        });
    }

    /// Enters a call that is about to be sent, as it stands should the job end before it comes back.
    /// Answers its number.
    ///
    /// # Errors
    /// `IllegalState` when the job has ended: nobody would hear of the call any more.
    pub(crate) fn begin_model_call(&self, out: ModelCall) -> Result<u64, JobError> {
        let begun = self.live.lock().model_calls.begin(out);
        begun.ok_or_else(|| {
            JobError::illegal_state("the job has ended, and calls no model any more")
        })
    }

    /// A call came back. After the job has ended it stays as it was charged then.
    pub(crate) fn end_model_call(&self, number: u64, call: ModelCall) {
        let over = self.live.lock().model_calls.end(number, call);
        drop(over);
    }

    /// The calls that its attempts made so far.
    pub(crate) fn model_calls(&self) -> Vec<ModelCall> {
        let now = self.clock.wall();
        self.live.lock().model_calls.all(now)
    }

    /// The calls that its attempts made, with those that have not come back until `now`; none begins
    /// after this.
    pub(crate) fn take_model_calls(&self, now: SystemTime) -> Arc<[ModelCall]> {
        shared(self.live.lock().model_calls.close(now))
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        self.live.lock().deadline = deadline;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.live.lock().deadline
    }

    pub(crate) fn set_holding(&self, holding: bool) {
        self.holding.store(holding, Ordering::SeqCst);
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::SeqCst)
    }

    /// Claims the next ordinal of this orchestrator (`ORD-1`).
    pub(crate) fn next_step(&self) -> i64 {
        self.step.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn current_step(&self) -> i64 {
        self.step.load(Ordering::SeqCst)
    }

    /// Moves to a terminal state at `wall`.
    ///
    /// # Errors
    /// `IllegalState` when the job is in another one; nothing changes.
    pub(crate) fn end(&self, state: JobState, wall: SystemTime) -> Result<(), JobError> {
        let mut live = self.live.lock();
        let now = live.moment.state;
        if now.is_terminal() && now != state {
            return Err(JobError::illegal_state(format!(
                "job {} is {now} and cannot become {state}: an ended job stays as it is",
                self.id()
            )));
        }
        if now != state {
            let moment = Arc::make_mut(&mut live.moment);
            moment.state = state;
            moment.ended_at = Some(wall);
        }
        drop(live);
        if state != JobState::TimedOut {
            // It will not time out any more. Of one that has, whoever signalled that runs them.
            self.on_timeout.close();
        }
        Ok(())
    }

    // What is told of it.

    /// Makes the job known to others through `enter`, and publishes its first event: whoever finds
    /// the job and ends it tells so after this.
    pub(crate) fn tell_first(
        &self,
        kind: EventKind,
        enter: impl FnOnce(),
        make: impl FnOnce(JobSnapshot) -> Event,
    ) {
        self.telling.tell(|| {
            enter();
            self.publish(kind, make)
        });
    }

    /// Publishes an event of this job, unless its terminal one is out.
    pub(crate) fn tell(&self, kind: EventKind, make: impl FnOnce(JobSnapshot) -> Event) {
        self.telling.tell(|| self.publish(kind, make));
    }

    /// Publishes the terminal event, once. What it says of the job is final.
    pub(crate) fn tell_terminal(&self, kind: EventKind, make: impl FnOnce(JobSnapshot) -> Event) {
        self.telling.tell_terminal(|| {
            self.live.lock().told = true;
            self.publish(kind, make)
        });
    }

    /// Publishes the end of the workflow that this root job stands for, once, after its terminal
    /// event.
    pub(crate) fn tell_complete(&self, make: impl FnOnce(JobSnapshot) -> Event) {
        self.telling
            .tell_complete(|| self.publish(EventKind::WorkflowComplete, make));
    }

    /// The order of what is told of this job, for what others tell of it.
    pub(crate) fn telling(&self) -> &Arc<Telling> {
        &self.telling
    }

    fn publish(&self, kind: EventKind, make: impl FnOnce(JobSnapshot) -> Event) -> Overflow {
        self.bus
            .publish_with(kind, Some(&self.profile), || make(self.snapshot()))
    }
}

impl Drop for JobCore {
    fn drop(&mut self) {
        // The last reference may be a runtime thread's, and the result's destructor is a user's.
        if let Some(outcome) = self.settled.get_mut().outcome.take() {
            discard(outcome);
        }
    }
}

/// As a shared slice; an empty one, which most are, is everybody's.
fn shared<T>(items: Vec<T>) -> Arc<[T]> {
    if items.is_empty() {
        Arc::default()
    } else {
        items.into()
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Debug for JobCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobCore")
            .field("id", &self.profile.ids.job)
            .finish_non_exhaustive()
    }
}
