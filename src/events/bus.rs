//! The way from those who publish to those who observe (`BUS`).
//!
//! # Invariants
//!
//! 1. A publisher waits for nobody. It goes through the list in `kept` while it holds that lock,
//!    which everybody only tries; whoever does not get it takes the roster's, shared, for as long
//!    as it takes to clone one `Arc`, and whoever holds that exclusively only exchanges lists
//!    (`delivery.rs`).
//! 2. `edition` changes with the roster, under the roster's lock, before a change is answered.
//! 3. `union` is the union of the masks of the active lanes while the bus runs, else 0; it is
//!    written under the roster's lock only. So a publisher that reads no bit of its event there
//!    has nobody to tell, and neither locks nor allocates (BUS-8).
//! 4. A lane that drains has a `Close` in its queue, or gets it at once.
//! 5. Nothing foreign runs under the roster's lock, and no list is dropped there.
//! 6. A publication logs nothing itself. Whoever publishes under a lock of the runtime's logs
//!    [`Overflow`] after it: a logger is the program's, and may publish in its turn.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::utils::CachePadded;

use super::consumer::Consumer;
use super::delivery::{Kept, Overflow, drop_unheard};
use super::event::Event;
use super::filter::EventFilter;
use super::gate::Gate;
use super::kind::EventKind;
use super::lane::{self, Control, Lane, Shared};
use super::observer::Observer;
use super::roster::{BusPhase, Identity, Refusal, Roster};
use super::subscription::{SubscribeError, Subscription, SubscriptionId, SubscriptionStatus};
use crate::admission::refuse_reentry;
use crate::clock::Clock;
use crate::job::behalf;
use crate::job::snapshot::JobProfile;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, thread};
use crate::threads::{DEFAULT_STACK, Threads, derived_cap};
use crate::unwind::catch;

/// How many events may wait for one subscription (BUS-4).
const QUEUE_LIMIT: u64 = 1_000_000;
/// How long consumers may drain at stop, all of them side by side (BUS-2).
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a cleanup waits for observers to say whether they are stale: as long as a stop does,
/// because both wait for the same backlogs.
const SWEEP_LIMIT: Duration = DRAIN_LIMIT;

/// The bus: whoever publishes never waits, whoever observes does so on a thread of its own.
///
/// A clone is the same bus. What is published before [`start`](Self::start) or after
/// [`stop`](Self::stop) is dropped. Each subscription gets the events that it wants in the order
/// in which they were published. When nobody holds the bus any more its consumers deliver what
/// they have and end.
#[derive(Clone)]
pub struct MessageBus {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) clock: Arc<dyn Clock>,
    threads: Arc<Threads>,
    queue_limit: u64,
    pub(super) union: AtomicU64,
    /// How often the roster has changed.
    pub(super) edition: AtomicU64,
    last_id: AtomicU64,
    pub(super) roster: RwLock<Roster>,
    /// Beside the roster, for one publisher at a time.
    pub(super) kept: CachePadded<Mutex<Kept>>,
}

/// Why an operation on the bus was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The bus was never started.
    #[error("the bus was never started; start it first")]
    NotStarted,
    /// The bus has been told to stop already.
    #[error("the bus has been stopped already; build another")]
    AlreadyStopped,
    /// Called from inside an account's answer, which holds a lock that observers may wait for.
    /// Nothing was stopped.
    #[error("an account cannot stop the bus from inside an answer; stop it from another thread")]
    InsideAccount,
}

/// How a stop went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// How many consumers could not drain in time and were left to themselves.
    pub abandoned: usize,
    /// How many events waited for those and were dropped.
    pub undelivered: u64,
}

impl MessageBus {
    pub(crate) fn new(clock: Arc<dyn Clock>, threads: Arc<Threads>) -> Self {
        Self::with_queue_limit(clock, threads, QUEUE_LIMIT)
    }

    pub(crate) fn with_queue_limit(
        clock: Arc<dyn Clock>,
        threads: Arc<Threads>,
        queue_limit: u64,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                clock,
                threads,
                queue_limit,
                union: AtomicU64::new(0),
                edition: AtomicU64::new(0),
                last_id: AtomicU64::new(0),
                roster: RwLock::new(Roster::new()),
                kept: CachePadded::default(),
            }),
        }
    }

    /// A bus without a dispatcher: for tests, and for programs that want the bus alone. Its
    /// threads are capped at what the system allows now.
    #[must_use]
    pub fn standalone(clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, Threads::new(derived_cap(), DEFAULT_STACK))
    }

    /// Delivers what is published from now on. On a bus that runs this changes nothing; a bus
    /// that was stopped stays so, with a warning.
    pub fn start(&self) {
        let phase = {
            let mut roster = self.inner.roster.write();
            let before = roster.start();
            self.inner.refresh(&roster);
            before
        };
        if matches!(phase, BusPhase::Stopping | BusPhase::Stopped) {
            crate::aside::warn!("the bus has been stopped and does not start again; build another");
        }
    }

    /// Whether the bus delivers what is published.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inner.roster.read().phase() == BusPhase::Running
    }

    /// Ends all subscriptions and returns when what was published before has been delivered, or
    /// after 5 s. A consumer that could not drain by then is abandoned: what waits for it is
    /// dropped, and its thread ends when its observer returns.
    ///
    /// From inside `observe` it does not wait for that observer, which still gets its backlog.
    ///
    /// # Errors
    /// [`BusError`] on a bus that does not run, and from inside an account's answer.
    pub fn stop(&self) -> Result<StopReport, BusError> {
        refuse_reentry("stop").map_err(|_| BusError::InsideAccount)?;
        let inner = &*self.inner;
        let (before, mut lanes) = {
            let mut roster = inner.roster.write();
            let before = roster.stop().map_err(|phase| match phase {
                BusPhase::New => BusError::NotStarted,
                _ => BusError::AlreadyStopped,
            })?;
            inner.refresh(&roster);
            (before, roster.draining())
        };
        drop(before);
        inner.forget_kept();

        let gate = Gate::new();
        for lane in &lanes {
            lane.control(Control::Close);
        }
        let this_thread = thread::current().id();
        lanes.retain(|lane| lane.thread != this_thread);
        for lane in &lanes {
            // Behind the `Close`, so it is answered when the consumer ends.
            lane.control(Control::Flush(gate.token()));
        }
        gate.wait(&*inner.clock, Some(inner.clock.now() + DRAIN_LIMIT));

        let mut report = StopReport::default();
        for lane in &lanes {
            if !lane.shared.ended.load(Ordering::Acquire) {
                lane.shared.cut.store(true, Ordering::Relaxed);
                report.abandoned += 1;
                report.undelivered += lane.waiting();
            }
        }
        inner.roster.write().stopped();
        if report.abandoned > 0 {
            crate::aside::warn!(
                "{} consumers of the bus could not drain in {DRAIN_LIMIT:?} and were abandoned; \
                 {} events were dropped",
                report.abandoned,
                report.undelivered
            );
        }
        Ok(report)
    }

    /// Has `observer` hear of every event that `filter` lets through, on a thread of its own,
    /// until the subscription ends. It runs there for the job that subscribes it: what it submits is
    /// bound to what that job is bound to, and that of a leaf is refused.
    ///
    /// An observer that is subscribed already (the same `Arc`, or one with an equal
    /// [`key`](Observer::key)) gets a [no-op](Subscription::is_noop) and a warning, whatever the
    /// filter: it goes on with the first.
    ///
    /// # Errors
    /// [`SubscribeError`] when the bus has been stopped, or there is no thread to be had.
    pub fn subscribe(
        &self,
        filter: EventFilter,
        observer: Arc<dyn Observer>,
    ) -> Result<Subscription, SubscribeError> {
        let inner = &self.inner;
        let key = catch(|| observer.key()).unwrap_or_else(|text| {
            crate::aside::error!("the key of an observer panicked, so it has none: {text}");
            None
        });
        let identity = Identity::new(&observer, key);
        let admitted = inner.roster.read().admits(&identity);
        if let Err(refusal) = admitted {
            return refused(refusal);
        }

        let seat = inner
            .threads
            .try_seat_aside()
            .ok_or(SubscribeError::NoThread {
                cap: inner.threads.cap(),
            })?;
        let id = SubscriptionId::nth(inner.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let (queue, receiver) = lane::queue();
        let shared = Shared::new();
        let consumer = Consumer {
            id,
            observer,
            behalf: behalf::here(),
            receiver,
            shared: Arc::clone(&shared),
            bus: Arc::downgrade(inner),
        };
        let thread = Threads::spawn(seat, &format!("bus-{id}"), move || consumer.run())
            .map_err(SubscribeError::Spawn)?;
        let lane = Arc::new(Lane::new(
            id,
            identity,
            thread.thread().id(),
            shared,
            filter,
            queue,
            inner.queue_limit,
        ));
        // The roster may say otherwise than before: its lock was free while the thread started.
        let joined = {
            let mut roster = inner.roster.write();
            let joined = roster.join(&lane);
            inner.refresh(&roster);
            joined
        };
        match joined {
            Ok(before) => {
                drop(before);
                Ok(Subscription::new(id, Arc::downgrade(inner)))
            }
            Err(refusal) => {
                lane.control(Control::Close);
                refused(refusal)
            }
        }
    }

    /// Tells everyone who wants to know. Never waits and never fails.
    // Inlined, so that an event is made where it is moved from to be shared: it is large.
    #[inline]
    pub fn publish(&self, event: Event) {
        match self.inner.wanted_of(&event) {
            Some(wanted) => self.inner.deliver(wanted, Arc::new(event)).log(),
            None => drop_unheard(event),
        }
    }

    /// Tells everyone who wants to know; makes the event only if somebody does. The event is of
    /// `kind` and about `subject`.
    pub(crate) fn publish_with(
        &self,
        kind: EventKind,
        subject: Option<&JobProfile>,
        make: impl FnOnce() -> Event,
    ) -> Overflow {
        let Some(wanted) = self.inner.wanted(kind, subject) else {
            return Overflow::default();
        };
        let event = Arc::new(make());
        debug_assert_eq!(event.kind(), kind);
        self.inner.deliver(wanted, event)
    }

    /// Whether somebody wants an event of this kind about this job. Of an application's event the
    /// type may still decide otherwise.
    pub(crate) fn wants(&self, kind: EventKind, subject: Option<&JobProfile>) -> bool {
        self.inner.wanted(kind, subject).is_some()
    }

    /// Asks every observer, after what was published before, whether it is stale; removes those
    /// that are and answers how many. Waits at most 5 s; who answers later is removed later.
    ///
    /// From inside `observe` it does not wait for that observer, which is asked afterwards; from inside an
    /// account's answer it waits for none.
    pub fn cleanup_stale_subscriptions(&self) -> usize {
        if refuse_reentry("cleanup").is_err() {
            self.request_stale_sweep();
            return 0;
        }
        let inner = &*self.inner;
        let gate = Gate::new();
        let this_thread = thread::current().id();
        let lanes = inner.roster.read().active();
        for lane in &*lanes {
            let token = (lane.thread != this_thread).then(|| gate.token());
            lane.control(Control::Sweep(token));
        }
        drop(lanes);
        gate.wait(&*inner.clock, Some(inner.clock.now() + SWEEP_LIMIT));
        gate.counted()
    }

    /// Has every observer asked whether it is stale, and waits for no answer.
    pub(crate) fn request_stale_sweep(&self) {
        let lanes = self.inner.roster.read().active();
        for lane in &*lanes {
            lane.ask_sweep();
        }
    }

    /// Returns when every live consumer has handled everything that was published before, except
    /// the one that calls this. Waits as long as it takes: two observers that flush from inside
    /// `observe` would wait for each other.
    pub(crate) fn flush(&self) {
        let gate = Gate::new();
        let this_thread = thread::current().id();
        let (active, draining) = {
            let roster = self.inner.roster.read();
            (roster.active(), roster.draining())
        };
        for lane in active.iter().chain(&draining) {
            if lane.thread != this_thread && !lane.shared.cut.load(Ordering::Relaxed) {
                lane.control(Control::Flush(gate.token()));
            }
        }
        gate.wait(&*self.inner.clock, None);
    }

    /// How full the queue of each subscription is.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<SubscriptionStatus> {
        let lanes = self.inner.roster.read().active();
        lanes.iter().map(|lane| lane.status()).collect()
    }
}

impl fmt::Debug for MessageBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, active) = {
            let roster = self.inner.roster.read();
            (roster.phase(), roster.active().len())
        };
        f.debug_struct("MessageBus")
            .field("phase", &phase)
            .field("subscriptions", &active)
            .finish_non_exhaustive()
    }
}

fn refused(refusal: Refusal) -> Result<Subscription, SubscribeError> {
    match refusal {
        Refusal::Stopped => Err(SubscribeError::Stopped),
        Refusal::AlreadyIn(first) => {
            crate::aside::warn!("the observer is subscribed already, as {first}; nothing changes");
            Ok(Subscription::noop())
        }
    }
}

impl Inner {
    /// The roster has changed. Called under its lock.
    fn refresh(&self, roster: &Roster) {
        self.edition.fetch_add(1, Ordering::Release);
        self.union.store(roster.union(), Ordering::Release);
    }

    /// Ends a subscription, and says whether it was still on. Never waits: what is enqueued is
    /// delivered by its own thread, which then ends.
    pub(super) fn unsubscribe(&self, id: SubscriptionId) -> bool {
        let left = {
            let mut roster = self.roster.write();
            let left = roster.leave(id);
            self.refresh(&roster);
            left
        };
        let Some((lane, before)) = left else {
            return false;
        };
        drop(before);
        self.forget_kept();
        lane.control(Control::Close);
        true
    }

    /// The thread of a subscription has ended.
    pub(super) fn forget(&self, id: SubscriptionId) {
        let lane = self.roster.write().forget(id);
        drop(lane);
    }
}
