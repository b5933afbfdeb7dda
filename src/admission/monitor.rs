//! The monitor: it locks, lets the line decide, unlocks, and performs what was decided.
//!
//! # Invariants
//!
//! 1. All questions to accounts, all debits and all give-backs happen under the one lock; nobody
//!    waits while holding it.
//! 2. No wake-up is lost. A parked thread reads its cell's epoch before it looks for its verdict;
//!    the evaluator reads its cell's epoch before it walks the line. Every change notifies after
//!    it was made.
//! 3. A defect inside a step fails everyone who waits and everyone who asks later; it hangs nobody. So
//!    does the evaluator's end by anything but a stop.
//! 4. A call from inside an account's answer is refused; a settlement and a stop, which cannot be refused,
//!    are done by the same thread once its step has let go of the lock.
//! 5. What is debited has an owner before the lock is let go, and so has a place in the line: a
//!    [`Grant`], or a [`Parked`]. Past its decision a step calls nothing foreign uncontained.
//! 6. A clock that panics refuses who asks by it, and breaks admission when the evaluator asks. What goes
//!    back, goes back at the last instant that was read.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::account::Wake;
use super::demand::Demand;
use super::grant::{Grant, Settlement};
use super::line::{Arrival, Ask, Line, Ticket};
use super::memory::MemoryStatus;
use super::memory_front::MemorySettings;
use super::outbox::{Behind, Mail, Outbox};
use super::parked::Parked;
use super::patience::Patience;
use super::question::Defect;
use crate::clock::{Clock, WaitCell};
use crate::error::JobError;
use crate::events::{EventKind, MessageBus, RejectReason};
use crate::job::JobContext;
use crate::job::core::JobCore;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::threads::{Seat, Slot, Threads};
use crate::unwind::{contain, discard};

/// Tells admissions apart when an account is named in two; holds no state.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

crate::sync::thread_local! {
    static UNDER_MONITOR: Cell<bool> = const { Cell::new(false) };
}

crate::sync::thread_local! {
    /// What accounts settled or stopped from inside an answer, in their order.
    static LATE: Slot<Vec<Late>> = const { Slot::empty() };
}

crate::sync::thread_local! {
    /// The admission whose line this thread walks, and how often the walk itself has called its evaluator.
    static WALKING: Cell<(u64, u64)> = const { Cell::new((NOBODY, 0)) };
}

/// The id of no admission.
const NOBODY: u64 = 0;

type Late = Box<dyn FnOnce()>;

/// Has something done once the step that this thread is inside has let go of the lock.
#[cold]
fn later(late: Late) {
    let mut all = LATE.with(|all| all.replace(None)).unwrap_or_default();
    all.push(late);
    LATE.with(|slot| slot.replace(Some(all)));
}

/// Refuses a call of the runtime from inside an account's answer, where it would wait for a lock
/// that its own caller holds.
pub(crate) fn refuse_reentry(operation: &str) -> Result<(), JobError> {
    if is_inside() {
        return Err(reentered(operation));
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn reentered(operation: &str) -> JobError {
    JobError::system(
        "admission",
        format!(
            "'{operation}' was called from inside an account; accounts must not call the runtime"
        ),
    )
}

/// Whether this thread is inside a step.
pub(super) fn is_inside() -> bool {
    UNDER_MONITOR.with(Cell::get)
}

struct UnderMonitor;

impl UnderMonitor {
    fn enter() -> Self {
        UNDER_MONITOR.with(|mark| mark.set(true));
        Self
    }
}

impl Drop for UnderMonitor {
    fn drop(&mut self) {
        UNDER_MONITOR.with(|mark| mark.set(false));
    }
}

/// Grants whole demands, or lets their jobs wait holding nothing. A clone is the same admission.
#[derive(Clone)]
pub struct Admission {
    shared: Arc<Shared>,
}

struct Shared {
    id: u64,
    clock: Arc<dyn Clock>,
    bus: MessageBus,
    state: Mutex<State>,
    mail: Mail,
    evaluator: Arc<WaitCell>,
    wake: Wake,
}

struct State {
    phase: Phase,
    started: bool,
    line: Line,
    /// The last instant that a step was given.
    now: Instant,
    /// Of the last step, empty: kept for what it has allocated.
    out: Outbox,
}

enum Phase {
    Open,
    /// With the error that everybody hears from then on.
    Stopped(JobError),
    Broken(JobError),
}

impl Admission {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        bus: MessageBus,
        memory: Option<MemorySettings>,
    ) -> Self {
        let evaluator = WaitCell::new();
        evaluator.vacate();
        let now = clock.now();
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let line = Line::new(memory);
        let wake = {
            let (evaluator, growth) = (Arc::clone(&evaluator), line.growth.clone());
            Wake::new(move || {
                let (walking, calls) = WALKING.with(Cell::get);
                if walking == id {
                    WALKING.with(|it| it.set((id, calls + 1)));
                }
                // Whoever arrives before the walk is asked behind those who have waited for it.
                growth.note();
                evaluator.notify();
            })
        };
        Self {
            shared: Arc::new(Shared {
                id,
                clock,
                bus,
                state: Mutex::new(State {
                    phase: Phase::Open,
                    started: false,
                    line,
                    now,
                    out: Outbox::default(),
                }),
                mail: Mail::default(),
                evaluator,
                wake,
            }),
        }
    }

    /// Starts the evaluator.
    ///
    /// # Errors
    /// `IllegalState` when it was started before; `System` when its thread does not start.
    pub(crate) fn start(&self, seat: Seat) -> Result<(), JobError> {
        refuse_reentry("start")?;
        {
            let mut state = self.shared.state.lock();
            if state.started {
                return Err(JobError::illegal_state("admission was started before"));
            }
            state.started = true;
        }
        let (admission, here) = (self.clone(), self.shared.evaluator.occupy());
        let serve = move || {
            let _here = here;
            admission.evaluate();
        };
        Threads::spawn(seat, "nucleo-admit", serve)
            .map_err(|error| {
                self.shared.state.lock().started = false;
                JobError::system("admission", "the evaluator's thread did not start")
                    .with_source(error)
            })
            .map(drop)
    }

    /// Grants the whole demand, or parks the calling thread until it can be granted.
    ///
    /// The job named by `context` is the one that waits: its cancellation ends the wait, and events
    /// carry its snapshot. Woken by whatever may change the answer; there is no timeout.
    ///
    /// # Errors
    /// The account's own error when it refuses; `Uncorrectable` when an account fails; `Cancelled`
    /// when the job is cancelled or admission stops; `System` when an account serves another
    /// admission, shares its name with another, is asked for amounts of two types, or calls this from
    /// inside an answer; and when the clock panics.
    pub fn admit(&self, demand: Demand, context: &JobContext) -> Result<Grant, JobError> {
        self.admit_shared(Arc::new(demand), context)
    }

    /// As [`admit`](Self::admit).
    pub(crate) fn admit_shared(
        &self,
        demand: Arc<Demand>,
        context: &JobContext,
    ) -> Result<Grant, JobError> {
        refuse_reentry("admit")?;
        let job = context.core();
        if let Some(interruption) = job.interruption() {
            return Err(interruption);
        }
        let ask = Ask {
            demand,
            behind: self.behind(job),
            cell: Arc::clone(job.cell()),
        };
        let mut parked = match self.arrive(ask)? {
            Answer::Granted(grant) => return Ok(grant),
            Answer::Parked(parked) => parked,
            Answer::Refused(error) => return Err(error),
        };
        self.park(&mut parked, context)?;
        parked.conclude(context)
    }

    // Not inlined, as little below is: ten thousand may be parked, and each keeps the stack of
    // whatever is a part of the functions that it sleeps in.

    /// The job that changes are told of, if anybody listens.
    #[inline(never)]
    fn behind(&self, job: &JobCore) -> Option<Arc<Behind>> {
        let wanted = self
            .shared
            .bus
            .wants(EventKind::Limiter, Some(job.profile()));
        wanted.then(|| {
            Arc::new(Behind {
                telling: Arc::clone(job.telling()),
                snapshot: job.snapshot(),
            })
        })
    }

    #[inline(never)]
    fn arrive(&self, ask: Ask) -> Result<Answer, JobError> {
        let now = self.now()?;
        let (demand, behind) = (Arc::clone(&ask.demand), ask.behind.clone());
        // Left here and not handed through the step, which would keep a copy of it at each turn.
        let mut answer = None;
        self.step_at(Ok(now), |state, now, out| {
            answer = Some(match state.arrive(&self.shared, ask, now, out)? {
                Arrival::Granted => Answer::Granted(Grant::new(self.clone(), demand, behind, None)),
                Arrival::Parked(ticket) => {
                    Answer::Parked(Parked::new(self.clone(), ticket, demand, behind))
                }
                Arrival::Refused(error) => Answer::Refused(error),
            });
            Ok(())
        })?;
        answer.ok_or_else(|| JobError::system("admission", "a step came to no answer"))
    }

    /// Sleeps until there is a verdict, or the job was told to stop and has left the line.
    #[inline(never)]
    fn park(&self, parked: &mut Parked, context: &JobContext) -> Result<(), JobError> {
        let job = context.core();
        loop {
            let seen = job.cell().epoch();
            if parked.is_over(context)? {
                return Ok(());
            }
            contain("clock", || {
                self.shared.clock.wait_until(job.cell(), seen, None);
            })?;
        }
    }

    /// Takes a waiter out; false when its verdict was there first.
    #[cold]
    #[inline(never)]
    pub(super) fn withdraw(&self, ticket: &Arc<Ticket>) -> Result<bool, JobError> {
        self.step(|state, now, out| Ok(state.line.withdraw(ticket, now, out)))
    }

    /// Returns once every verdict that was decided before is out.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_verdicts(&self) {
        let wall = || self.shared.clock.wall();
        let (bus, evaluator) = (&self.shared.bus, &self.shared.evaluator);
        self.shared.mail.flush(bus, wall, evaluator);
    }

    fn now(&self) -> Result<Instant, JobError> {
        contain("clock", || self.shared.clock.now())
    }

    pub(super) fn give_back(
        &self,
        demand: &Arc<Demand>,
        open: &[usize],
        settlement: Settlement,
        finished: bool,
        behind: Option<&Arc<Behind>>,
    ) {
        if is_inside() {
            let (admission, demand, open) = (self.clone(), Arc::clone(demand), open.to_vec());
            let behind = behind.cloned();
            return later(Box::new(move || {
                admission.give_back(&demand, &open, settlement, finished, behind.as_ref());
            }));
        }
        let metered_too = settlement == Settlement::Rollback;
        // A defect has failed everyone by the time the step returns; there is nobody to tell here.
        let _told = self.step(|state, now, out| {
            if finished {
                state.line.finish(now, out);
            }
            state
                .line
                .give_back(demand, open.iter().copied(), metered_too, behind, now, out)
        });
    }

    /// Refuses every parked waiter as cancelled, frees the accounts, and refuses whoever asks
    /// later.
    pub(crate) fn stop(&self) {
        if is_inside() {
            // Of a dispatcher that an account drops.
            let admission = self.clone();
            return later(Box::new(move || admission.stop()));
        }
        let _told = self.step(|state, now, out| {
            let stopped = stopped();
            if matches!(state.phase, Phase::Open) {
                state.phase = Phase::Stopped(stopped.clone());
            }
            state
                .line
                .refuse_all(&stopped, RejectReason::Shutdown, now, out);
            state.line.memory.stop();
            state.line.accounts.release_all(self.shared.id);
            out.evaluate();
            Ok(())
        });
    }

    /// Whether `refusal` is that admission has stopped. An account's own may read the same.
    #[cold]
    #[inline(never)]
    pub(crate) fn has_stopped_with(&self, refusal: &JobError) -> bool {
        match &self.shared.state.lock().phase {
            Phase::Stopped(stopped) => stopped.is_same(refusal),
            Phase::Open | Phase::Broken(_) => false,
        }
    }

    /// How many demands are parked.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        if is_inside() {
            return 0;
        }
        self.shared.state.lock().line.len()
    }

    /// Lets go of every account that nobody waits for, so that another may have its name.
    pub(crate) fn forget_idle_accounts(&self) {
        // A defect has failed everyone by the time the step returns; nobody is to be told here.
        let _told = self.step(|state, _, _| {
            state.line.forget_idle(self.shared.id);
            Ok(())
        });
    }

    /// Memory as of the gate's last look; `None` when there is no gate.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryStatus> {
        if is_inside() {
            return None;
        }
        self.shared.state.lock().line.memory.status()
    }

    /// Where the evaluator sleeps, for tests that wait until it has nothing to do.
    pub(crate) fn evaluator_cell(&self) -> &Arc<WaitCell> {
        &self.shared.evaluator
    }

    /// One step: everything foreign in it is an account's answer; the rest is told and woken after
    /// the lock is let go.
    fn step<R>(
        &self,
        decide: impl FnOnce(&mut State, Instant, &mut Outbox) -> Result<R, Defect>,
    ) -> Result<R, JobError> {
        self.step_at(self.now(), decide)
    }

    /// A step at this instant; at that of the last step when there was none to be had.
    fn step_at<R>(
        &self,
        now: Result<Instant, JobError>,
        decide: impl FnOnce(&mut State, Instant, &mut Outbox) -> Result<R, Defect>,
    ) -> Result<R, JobError> {
        refuse_reentry("admission")?;
        let (result, posted, gone) = {
            let mark = UnderMonitor::enter();
            let mut state = self.shared.state.lock();
            let now = now.unwrap_or(state.now);
            state.now = now;
            let mut out = std::mem::take(&mut state.out);
            let result = contain("admission", || {
                let decided = decide(&mut state, now, &mut out)?;
                #[cfg(any(test, debug_assertions))]
                state.line.check_invariants();
                Ok(decided)
            })
            .unwrap_or_else(|panic| Err(Defect(panic)))
            .map_err(|Defect(error)| state.fail(&error, now, &mut out));
            let posted = self.shared.mail.post(&mut out);
            state.out = out;
            let gone = state.line.take_gone();
            drop(state);
            drop(mark);
            (result, posted, gone)
        };
        self.shared.mail.perform(
            posted,
            &self.shared.bus,
            || self.shared.clock.wall(),
            &self.shared.evaluator,
        );
        for demand in gone {
            discard(demand);
        }
        for late in LATE.with(|late| late.replace(None)).into_iter().flatten() {
            late();
        }
        result
    }

    /// The evaluator's thread.
    fn evaluate(&self) {
        // Nobody is granted anything without it, so it does not end in silence.
        if let Err(error) = contain("admission", || self.walk_until_stopped()) {
            let _told = self.step(|_, _, _| Err::<(), _>(Defect(error)));
        }
    }

    /// Walks the line at every change and at every computed instant.
    fn walk_until_stopped(&self) {
        let mut patience = Patience::default();
        loop {
            // Before the walk: a change that comes during it moves the epoch, and the wait below
            // returns at once.
            let seen = self.shared.evaluator.epoch();
            let now = self.shared.clock.now();
            let walked = self.step_at(Ok(now), |state, now, out| match state.phase {
                Phase::Open => {
                    WALKING.with(|it| it.set((self.shared.id, 0)));
                    let next = state.line.pass(now, out);
                    let (_, calls) = WALKING.with(|it| it.replace((NOBODY, 0)));
                    let next = next?;
                    let look = patience.next_look(now, next, calls > 0, state.line.len());
                    if look.has_run_out {
                        out.log(log::Level::Warn, IMPATIENT.to_owned());
                    }
                    // The walk's own calls are answered after the pause; anybody else's at once.
                    let answered = if look.pauses { calls } else { 0 };
                    Ok(Some((look.at, seen + answered)))
                }
                Phase::Stopped(_) | Phase::Broken(_) => Ok(None),
            });
            match walked {
                Ok(Some((next, seen))) => {
                    self.shared
                        .clock
                        .wait_until(&self.shared.evaluator, seen, next)
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// What became of a demand that was asked for, with its owner.
enum Answer {
    Granted(Grant),
    Parked(Parked),
    Refused(JobError),
}

const IMPATIENT: &str = "an account keeps asking for another look at once, by an instant that has come or by \
     `capacity_grew` from inside an answer, and is short all the same: the line is looked at every \
     millisecond until it stops";

impl State {
    fn arrive(
        &mut self,
        shared: &Shared,
        ask: Ask,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Arrival, Defect> {
        match &self.phase {
            Phase::Open => {}
            Phase::Stopped(stopped) => return Ok(Arrival::Refused(stopped.clone())),
            Phase::Broken(defect) => return Ok(Arrival::Refused(defect.clone())),
        }
        if ask.demand.is_empty() {
            return Ok(Arrival::Granted);
        }
        if let Err(error) = self
            .line
            .accounts
            .claim(shared.id, &shared.wake, &ask.demand)
        {
            return Ok(Arrival::Refused(error));
        }
        self.line.arrive(ask, now, out)
    }

    /// A defect: every parked waiter fails with it, and it is logged once.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, defect: &JobError, now: Instant, out: &mut Outbox) -> JobError {
        if !matches!(self.phase, Phase::Broken(_)) {
            out.log(
                log::Level::Error,
                format!("admission is broken and refuses everyone: {defect}"),
            );
            self.phase = Phase::Broken(defect.clone());
        }
        // The line itself may be what is broken. Whoever asks later is refused all the same.
        let _rest = contain("admission", || {
            self.line
                .refuse_all(defect, RejectReason::Aborted, now, out);
        });
        out.evaluate();
        defect.clone()
    }
}

#[cold]
#[inline(never)]
fn stopped() -> JobError {
    JobError::cancelled("admission has stopped")
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("id", &self.shared.id)
            .finish_non_exhaustive()
    }
}
