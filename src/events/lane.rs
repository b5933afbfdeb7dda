//! The publishers' side of one subscription: what it wants, and the queue to its consumer.
//!
//! # Invariants
//!
//! 1. `sent_alone` and `sent_beside` count an event before it lies in the queue, `handled` when it
//!    has been taken out, so their sum less `handled` is never less than what waits, and comparing
//!    it with the limit lets no more than the limit wait (BUS-4).
//! 2. Only a publisher that no other is beside in the same way writes `sent_alone`: it spares that
//!    one the exchange which a counter of many costs. Either sort may miss what the other counts at
//!    the same time, so within `CLOSE` of the limit both count before a fence and compare after it.
//! 3. `handled_seen` is never ahead of `handled`: a publisher that trusts it errs towards looking
//!    again. It spares publishers the consumer's cache line.
//! 4. Each control is in `controls` before its mark is in the queue, both first in first out. So
//!    the consumer that meets the n-th mark finds the n-th control, and has met every event that
//!    was published before that control was sent.
//! 5. Nothing foreign runs here: what is not enqueued goes back to the publisher.

use std::collections::VecDeque;
use std::sync::Arc;

use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, SendError, Sender, unbounded};
use crossbeam::utils::CachePadded;

use super::event::Event;
use super::filter::EventFilter;
use super::gate::Token;
use super::roster::Identity;
use super::subscription::{SubscriptionId, SubscriptionStatus};
use crate::clock::Clock;
use crate::job::snapshot::JobProfile;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::thread::ThreadId;

/// How long a subscription stays silent about dropped events after it has spoken: often enough to
/// be seen, seldom enough not to be the next flood.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// How far below the limit publishers begin to look closely: more than there can be publishers who
/// have counted an event and are not yet seen to have.
const CLOSE: u64 = 100_000;

/// What lies in a subscription's queue: an event, or the mark of a control. No larger than a
/// pointer, because a million of them may wait.
pub(super) type Item = Option<Arc<Event>>;

/// What the bus asks of a consumer, in its turn among the events.
#[derive(Debug)]
pub(super) enum Control {
    /// Answer.
    Flush(Token),
    /// End if the observer is stale.
    Sweep(Option<Token>),
    /// End.
    Close,
}

/// What both sides of a subscription share besides the queue.
#[derive(Debug)]
pub(super) struct Shared {
    /// How many events have been taken out of the queue. Written by the consumer alone.
    handled: CachePadded<AtomicU64>,
    /// The controls whose marks lie in the queue; `None` once nobody reads marks any more.
    controls: Mutex<Option<VecDeque<Control>>>,
    /// What waits is to be dropped: the consumer did not drain in time.
    pub(super) cut: AtomicBool,
    /// The observer has heard all that it will hear.
    pub(super) ended: AtomicBool,
    /// A sweep that nobody waits for is asked for.
    pub(super) sweep_asked: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            handled: CachePadded::default(),
            controls: Mutex::new(Some(VecDeque::new())),
            cut: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            sweep_asked: AtomicBool::new(false),
        })
    }

    /// The consumer has taken `handled` events out of the queue.
    pub(super) fn count_handled(&self, handled: u64) {
        self.handled.store(handled, Ordering::Release);
    }

    /// The control that belongs to the mark which the consumer has met.
    pub(super) fn next_control(&self) -> Option<Control> {
        self.controls.lock().as_mut()?.pop_front()
    }

    /// Nobody reads marks any more: answers every control that is left, and all later ones.
    pub(super) fn close_controls(&self) {
        let left = self.controls.lock().take();
        drop(left);
    }
}

/// The publishers' side of one subscription.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: SubscriptionId,
    pub(super) identity: Identity,
    pub(super) thread: ThreadId,
    pub(super) shared: Arc<Shared>,
    filter: EventFilter,
    /// What every event touches.
    hot: CachePadded<Hot>,
    dropped: AtomicU64,
    reports: Mutex<Reports>,
}

#[derive(Debug)]
struct Hot {
    /// [`EventFilter::mask`] of the filter.
    mask: u64,
    /// Whether the filter asks for more than the mask does.
    narrow: bool,
    queue: Sender<Item>,
    limit: u64,
    /// As many may wait without a closer look.
    plenty: u64,
    /// How many events the publishers counted in that were alone, one after the other.
    sent_alone: AtomicU64,
    /// How many those counted in that went beside one who was alone.
    sent_beside: AtomicU64,
    handled_seen: AtomicU64,
}

/// An event that a lane did not take.
#[derive(Debug)]
pub(super) enum Refused {
    /// As many wait as may.
    Full(Arc<Event>),
    /// The consumer has ended; this publisher still had the lane on an older list.
    Ended(Item),
}

impl Refused {
    pub(super) fn into_event(self) -> Item {
        match self {
            Self::Full(event) => Some(event),
            Self::Ended(event) => event,
        }
    }
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
        shared: Arc<Shared>,
        filter: EventFilter,
        queue: Sender<Item>,
        limit: u64,
    ) -> Self {
        Self {
            id,
            identity,
            thread,
            shared,
            hot: CachePadded::new(Hot {
                mask: filter.mask(),
                narrow: filter.is_narrow(),
                queue,
                limit,
                plenty: limit.saturating_sub(CLOSE),
                sent_alone: AtomicU64::new(0),
                sent_beside: AtomicU64::new(0),
                handled_seen: AtomicU64::new(0),
            }),
            filter,
            dropped: AtomicU64::new(0),
            reports: Mutex::default(),
        }
    }

    pub(super) fn mask(&self) -> u64 {
        self.hot.mask
    }

    /// Whether it wants events of the kind with this bit about this job, an application's event
    /// perhaps depending on its type.
    #[inline]
    pub(super) fn may_want(&self, bit: u64, subject: Option<&JobProfile>) -> bool {
        self.hot.mask & bit != 0 && (!self.hot.narrow || self.filter.matches_subject(subject))
    }

    /// Whether it wants this event, whose kind has this bit.
    #[inline]
    pub(super) fn wants(&self, bit: u64, event: &Event) -> bool {
        self.hot.mask & bit != 0 && (!self.hot.narrow || self.wants_of_its_kind(event))
    }

    #[inline(never)]
    fn wants_of_its_kind(&self, event: &Event) -> bool {
        self.filter.matches_subject(event.subject()) && self.filter.matches_app(event)
    }

    /// Enqueues an event, unless too many wait; then a [report](Self::report) may be due. What it
    /// does not take comes back. No two publishers at a time are `alone`.
    #[inline]
    pub(super) fn push(&self, event: Arc<Event>, alone: bool) -> Result<(), Refused> {
        if !self.admit(alone) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Err(Refused::Full(event));
        }
        match self.hot.queue.send(Some(event)) {
            Ok(()) => Ok(()),
            Err(SendError(event)) => Err(Refused::Ended(event)),
        }
    }

    /// Counts one more event into the queue, unless as many as may wait do.
    #[inline]
    fn admit(&self, alone: bool) -> bool {
        let hot = &*self.hot;
        let (own, others) = if alone {
            let own = hot.sent_alone.load(Ordering::Relaxed);
            hot.sent_alone.store(own + 1, Ordering::Relaxed);
            (own, &hot.sent_beside)
        } else {
            (
                hot.sent_beside.fetch_add(1, Ordering::Relaxed),
                &hot.sent_alone,
            )
        };
        let before = own + others.load(Ordering::Relaxed);
        // Saturating: others may have sent, and the consumer handled, since this one counted.
        before.saturating_sub(hot.handled_seen.load(Ordering::Relaxed)) < hot.plenty
            || self.admit_with_care(alone, own, others)
    }

    /// What [`admit`](Self::admit) does where the limit may be near.
    #[cold]
    fn admit_with_care(&self, alone: bool, own: u64, others: &AtomicU64) -> bool {
        let hot = &*self.hot;
        // Of two who count in different counters at once, one at least sees the other.
        fence(Ordering::SeqCst);
        let before = own + others.load(Ordering::Relaxed);
        let handled = self.shared.handled.load(Ordering::Acquire);
        hot.handled_seen.store(handled, Ordering::Relaxed);
        if before.saturating_sub(handled) < hot.limit {
            return true;
        }
        if alone {
            hot.sent_alone.store(own, Ordering::Relaxed);
        } else {
            hot.sent_beside.fetch_sub(1, Ordering::Relaxed);
        }
        false
    }

    /// Enqueues a control. One that the consumer can no longer take is answered at once.
    pub(super) fn control(&self, control: Control) {
        let refused = match &mut *self.shared.controls.lock() {
            Some(controls) => {
                controls.push_back(control);
                None
            }
            None => Some(control),
        };
        // An answer wakes somebody: not under the lock.
        if refused.is_none() {
            let _ = self.hot.queue.send(None);
        }
    }

    /// Asks for a sweep that nobody waits for, unless one is asked for already.
    pub(super) fn ask_sweep(&self) {
        if !self.shared.sweep_asked.swap(true, Ordering::Relaxed) {
            self.control(Control::Sweep(None));
        }
    }

    /// How many events wait.
    pub(super) fn waiting(&self) -> u64 {
        let handled = self.shared.handled.load(Ordering::Acquire);
        let alone = self.hot.sent_alone.load(Ordering::Relaxed);
        let beside = self.hot.sent_beside.load(Ordering::Relaxed);
        (alone + beside).saturating_sub(handled)
    }

    pub(super) fn status(&self) -> SubscriptionStatus {
        SubscriptionStatus {
            id: self.id,
            waiting: self.waiting(),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    /// The line to be logged about events that were dropped, if one is due.
    #[cold]
    pub(super) fn report(&self, clock: &dyn Clock) -> Option<String> {
        let now = clock.now();
        let total = self.dropped.load(Ordering::Relaxed);
        // Not free: another publisher is about to say it.
        let since = self
            .reports
            .try_lock()
            .and_then(|mut reports| reports.due(now, total))?;
        Some(format!(
            "{} events wait for subscription {}, its limit: dropped {since} more, {total} in all",
            self.hot.limit, self.id
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::observer::Observer;
    use super::*;
    use crate::sync::thread;

    #[test]
    fn drops_are_reported_at_once_and_then_every_ten_seconds_with_the_count_since() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut reports = Reports::default();
        assert_eq!(reports.due(start, 1), Some(1));
        assert_eq!(reports.due(after(9), 500), None);
        assert_eq!(reports.due(after(10), 700), Some(699));
        assert_eq!(reports.due(after(11), 701), None);
        assert_eq!(reports.due(after(60), 702), Some(2));
    }

    fn lane(limit: u64) -> (Lane, Receiver<Item>) {
        let (queue, receiver) = queue();
        let observer: Arc<dyn Observer> = Arc::new(|_: &Arc<Event>| {});
        let lane = Lane::new(
            SubscriptionId::nth(1),
            Identity::new(&observer, None),
            thread::current().id(),
            Shared::new(),
            EventFilter::all(),
            queue,
            limit,
        );
        (lane, receiver)
    }

    fn event() -> Arc<Event> {
        Arc::new(Event::scheduler_error("x", SystemTime::UNIX_EPOCH))
    }

    #[test]
    fn whoever_is_alone_and_whoever_is_beside_count_towards_one_limit() {
        let (lane, receiver) = lane(3);
        for alone in [true, false, true] {
            assert!(lane.push(event(), alone).is_ok());
        }
        for alone in [false, true] {
            assert!(matches!(lane.push(event(), alone), Err(Refused::Full(_))));
        }
        assert_eq!((lane.waiting(), lane.status().dropped), (3, 2));
        for (taken, alone) in [(1, false), (2, true)] {
            lane.shared.count_handled(taken);
            assert!(lane.push(event(), alone).is_ok());
            assert!(lane.push(event(), !alone).is_err());
        }
        assert_eq!((lane.waiting(), receiver.len()), (3, 5));
    }

    #[test]
    fn no_more_than_the_limit_wait_however_many_publish_at_once() {
        // So that the limit is neared with and without care.
        let limit = CLOSE + 5_000;
        let (lane, receiver) = lane(limit);
        let taken = std::thread::scope(|scope| {
            let publishers: Vec<_> = [true, false, false]
                .map(|alone| {
                    let lane = &lane;
                    scope.spawn(move || {
                        (0..limit)
                            .filter(|_| lane.push(event(), alone).is_ok())
                            .count()
                    })
                })
                .into_iter()
                .collect();
            publishers
                .into_iter()
                .map(|each| each.join().unwrap())
                .sum::<usize>()
        });
        assert!(taken as u64 <= limit, "{taken} wait");
        assert_eq!((taken, lane.waiting()), (receiver.len(), taken as u64));
        assert_eq!(lane.status().dropped, 3 * limit - taken as u64);
        // Two who see each other may both step back from the last place; nobody is beside this one.
        while lane.push(event(), true).is_ok() {}
        assert_eq!(lane.waiting(), limit);
    }
}
