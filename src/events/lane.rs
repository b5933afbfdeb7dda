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
use super::observer::ObserverKey;
use super::subscription::SubscriptionId;
use crate::clock::Clock;
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
    /// The consumer hears of no more events and has let go of its observer.
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
    pub(super) filter: EventFilter,
    /// [`EventFilter::mask`] of the filter.
    pub(super) mask: u64,
    /// Where the observer lies, to know it again. The consumer keeps it there.
    pub(super) address: usize,
    pub(super) key: Option<ObserverKey>,
    pub(super) thread: ThreadId,
    pub(super) tally: Arc<Tally>,
    queue: Queue,
    limit: u64,
    reports: Mutex<Reports>,
}

/// The sending end of a queue.
#[derive(Debug)]
pub(super) struct Queue(Sender<Item>);

#[derive(Debug, Default)]
struct Reports {
    next: Option<Instant>,
    reported: u64,
}

/// A queue. It grows with what lies in it; the limit is counted, not allocated.
pub(super) fn queue() -> (Queue, Receiver<Item>) {
    let (sender, receiver) = unbounded();
    (Queue(sender), receiver)
}

impl Lane {
    #[expect(clippy::too_many_arguments, reason = "one call, each of them a field")]
    pub(super) fn new(
        id: SubscriptionId,
        filter: EventFilter,
        address: usize,
        key: Option<ObserverKey>,
        thread: ThreadId,
        tally: Arc<Tally>,
        queue: Queue,
        limit: u64,
    ) -> Self {
        Self {
            id,
            mask: filter.mask(),
            filter,
            address,
            key,
            thread,
            tally,
            queue,
            limit,
            reports: Mutex::default(),
        }
    }

    /// Enqueues an event, or drops it when too many wait.
    pub(super) fn push(&self, event: Arc<Event>, clock: &dyn Clock) {
        if !self.tally.admit(self.limit) {
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
            let _ = contain(move || drop(event));
            self.report(clock);
        } else if let Err(returned) = self.queue.0.send(Item::Event(event)) {
            // The consumer has ended; this publisher still had it on an older list.
            let _ = contain(move || drop(returned));
        }
    }

    /// Enqueues a control. One that the consumer can no longer take counts as answered.
    pub(super) fn control(&self, control: Control) {
        let _ = self.queue.0.send(Item::Control(Box::new(control)));
    }

    /// Asks for a sweep that nobody waits for, unless one is asked for already.
    pub(super) fn ask_sweep(&self) {
        if !self.tally.sweep_asked.swap(true, Ordering::Relaxed) {
            self.control(Control::Sweep(None));
        }
    }

    fn report(&self, clock: &dyn Clock) {
        let now = clock.now();
        let (since, total) = {
            let Some(mut reports) = self.reports.try_lock() else {
                return; // Another publisher is about to say it.
            };
            if reports.next.is_some_and(|next| now < next) {
                return;
            }
            let total = self.tally.dropped();
            let since = total - reports.reported;
            reports.reported = total;
            reports.next = Some(now + REPORT_EVERY);
            (since, total)
        };
        log::error!(
            "subscription {} has {} events waiting, its limit: dropped {since} more ({total} in all)",
            self.id,
            self.limit
        );
    }
}
