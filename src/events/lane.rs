//! The publishers' side of one subscription: what it wants, and the queue to its consumer.
//!
//! # Invariants
//!
//! 1. `sent` counts an event before it lies in the queue, `handled` when it has been taken out, so
//!    `sent - handled` is never less than what waits, and comparing it with the limit lets no
//!    more than the limit wait (BUS-4).
//! 2. `handled_seen` is never ahead of `handled`: a publisher that trusts it errs towards looking
//!    again. It spares publishers the consumer's cache line.
//! 3. Nothing foreign runs here but destructors of payloads, contained.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use crossbeam::utils::CachePadded;

use super::contain::contain;
use super::event::Event;
use super::filter::EventFilter;
use super::gate::Token;
use super::roster::Identity;
use super::subscription::SubscriptionId;
use crate::clock::Clock;
use crate::job::snapshot::JobProfile;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long a subscription stays silent about dropped events after it has spoken: often enough to
/// be seen, seldom enough not to be the next flood.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// What lies in a subscription's queue.
pub(super) enum Item {
    Event(Arc<Event>),
    /// Boxed: an item is moved for every event, a control a few times in a subscription's life.
    Control(Box<Control>),
}

/// What the bus asks of a consumer, in its turn among the events.
pub(super) enum Control {
    /// Answer.
    Flush(Token),
    /// End if the observer is stale.
    Sweep(Option<Token>),
    /// End.
    Close,
}

/// What both sides of a subscription know.
#[derive(Debug, Default)]
pub(super) struct Tally {
    publishers: CachePadded<Publishers>,
    handled: CachePadded<AtomicU64>,
    /// What waits is to be dropped: the consumer did not drain in time.
    pub(super) cut: AtomicBool,
    /// The observer has heard all that it will hear.
    pub(super) ended: AtomicBool,
    /// A sweep that nobody waits for lies in the queue.
    pub(super) sweep_asked: AtomicBool,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Publishers {
    sent: AtomicU64,
    handled_seen: AtomicU64,
}

impl Tally {
    /// The consumer has taken one more event out of the queue. Only the consumer calls this.
    pub(super) fn take_one(&self) {
        let handled = self.handled.load(Ordering::Relaxed);
        self.handled.store(handled + 1, Ordering::Release);
    }

    /// How many events wait.
    pub(super) fn waiting(&self) -> u64 {
        let handled = self.handled.load(Ordering::Acquire);
        let sent = self.publishers.sent.load(Ordering::Relaxed);
        sent.saturating_sub(handled)
    }

    /// How many events were dropped because too many waited.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts one more event into the queue, unless `limit` wait already.
    fn admit(&self, limit: u64) -> bool {
        let Publishers { sent, handled_seen } = &*self.publishers;
        // Saturating: others may have sent, and the consumer handled, since this one counted.
        let before = sent.fetch_add(1, Ordering::Relaxed);
        if before.saturating_sub(handled_seen.load(Ordering::Relaxed)) < limit {
            return true;
        }
        let handled = self.handled.load(Ordering::Acquire);
        handled_seen.store(handled, Ordering::Relaxed);
        if before.saturating_sub(handled) < limit {
            return true;
        }
        sent.fetch_sub(1, Ordering::Relaxed);
        false
    }
}

/// The publishers' side of one subscription.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: SubscriptionId,
    pub(super) identity: Identity,
    pub(super) thread: ThreadId,
    pub(super) tally: Arc<Tally>,
    filter: EventFilter,
    /// [`EventFilter::mask`] of the filter.
    mask: u64,
    queue: Sender<Item>,
    limit: u64,
    reports: Mutex<Reports>,
}

/// What has been said about dropped events.
#[derive(Debug, Default)]
struct Reports {
    silent_until: Option<Instant>,
    reported: u64,
}

impl Reports {
    /// How many events were dropped since the last report, if one is due.
    fn due(&mut self, now: Instant, total: u64) -> Option<u64> {
        if self.silent_until.is_some_and(|until| now < until) {
            return None;
        }
        self.silent_until = Some(now + REPORT_EVERY);
        Some(total.saturating_sub(std::mem::replace(&mut self.reported, total)))
    }
}

/// A queue. It grows with what lies in it: the limit is counted, not allocated (BUS-4).
pub(super) fn queue() -> (Sender<Item>, Receiver<Item>) {
    unbounded()
}

impl Lane {
    pub(super) fn new(
        id: SubscriptionId,
        identity: Identity,
        thread: ThreadId,
        tally: Arc<Tally>,
        filter: EventFilter,
        queue: Sender<Item>,
        limit: u64,
    ) -> Self {
        Self {
            id,
            identity,
            thread,
            tally,
            mask: filter.mask(),
            filter,
            queue,
            limit,
            reports: Mutex::default(),
        }
    }

    pub(super) fn mask(&self) -> u64 {
        self.mask
    }

    /// Whether it wants events of the kind with this bit about this job, an application's event
    /// perhaps depending on its type.
    pub(super) fn may_want(&self, bit: u64, subject: Option<&JobProfile>) -> bool {
        self.mask & bit != 0 && self.filter.matches_subject(subject)
    }

    /// Whether it wants this event, whose kind has this bit.
    pub(super) fn wants(&self, bit: u64, event: &Event) -> bool {
        self.may_want(bit, event.subject()) && self.filter.matches_app(event)
    }

    /// Enqueues an event, or drops it when too many wait.
    pub(super) fn push(&self, event: Arc<Event>, clock: &dyn Clock) {
        if !self.tally.admit(self.limit) {
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
            let _ = contain(move || drop(event));
            self.report(clock);
        } else if let Err(returned) = self.queue.send(Item::Event(event)) {
            // The consumer has ended; this publisher still had it on an older list.
            let _ = contain(move || drop(returned));
        }
    }

    /// Enqueues a control. One that the consumer can no longer take counts as answered.
    pub(super) fn control(&self, control: Control) {
        let _ = self.queue.send(Item::Control(Box::new(control)));
    }

    /// Asks for a sweep that nobody waits for, unless one is asked for already.
    pub(super) fn ask_sweep(&self) {
        if !self.tally.sweep_asked.swap(true, Ordering::Relaxed) {
            self.control(Control::Sweep(None));
        }
    }

    fn report(&self, clock: &dyn Clock) {
        let now = clock.now();
        let total = self.tally.dropped();
        // Not free: another publisher is about to say it.
        let since = self
            .reports
            .try_lock()
            .and_then(|mut reports| reports.due(now, total));
        if let Some(since) = since {
            log::error!(
                "{} events wait for subscription {}, its limit: dropped {since} more, {total} in all",
                self.limit,
                self.id
            );
        }
    }
}
