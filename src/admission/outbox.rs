//! What a step under the monitor's lock leaves to be done after it.
//!
//! # Invariants
//!
//! 1. Notes are published in the order of the steps that made them: a step appends to the shared
//!    queue while it still holds the monitor's lock, and whoever empties the queue does so alone.
//! 2. A granted waiter is woken after its notes are published, so nothing that its thread says can
//!    overtake what admission said about it.
//! 3. Log lines are written with no lock held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::account::AccountStatus;
use crate::clock::WaitCell;
use crate::events::{Event, EventKind, LimiterChange, LimiterEvent, MessageBus, RejectReason};
use crate::job::JobSnapshot;
use crate::sync::Mutex;

/// A change on one account, to be told.
pub(super) struct Note {
    pub(super) account: Arc<str>,
    pub(super) status: AccountStatus,
    pub(super) amount: u64,
    pub(super) waiters: usize,
    pub(super) change: LimiterChange,
    pub(super) reason: Option<RejectReason>,
    pub(super) wait: Duration,
    pub(super) snapshot: JobSnapshot,
}

enum Item {
    Note(Box<Note>),
    Wake(Arc<WaitCell>),
}

/// What one step wants done, in order.
#[derive(Default)]
pub(super) struct Outbox {
    items: Vec<Item>,
    lines: Vec<(log::Level, String)>,
    evaluate: bool,
}

impl Outbox {
    pub(super) fn note(&mut self, note: Note) {
        self.items.push(Item::Note(Box::new(note)));
    }

    pub(super) fn wake(&mut self, cell: Arc<WaitCell>) {
        self.items.push(Item::Wake(cell));
    }

    /// The evaluator is to walk the line.
    pub(super) fn evaluate(&mut self) {
        self.evaluate = true;
    }

    pub(super) fn log(&mut self, level: log::Level, line: String) {
        self.lines.push((level, line));
    }
}

/// The outboxes of all steps, in their order.
#[derive(Default)]
pub(super) struct Mail {
    queue: Mutex<VecDeque<Item>>,
    emptying: Mutex<()>,
}

/// What is left of an outbox once its items are in the queue.
#[must_use = "what a step wants done has to be performed"]
pub(super) struct Posted {
    queued: bool,
    evaluate: bool,
    lines: Vec<(log::Level, String)>,
}

impl Mail {
    /// Appends a step's items. Called while the monitor's lock is still held.
    pub(super) fn post(&self, outbox: Outbox) -> Posted {
        let queued = !outbox.items.is_empty();
        if queued {
            self.queue.lock().extend(outbox.items);
        }
        Posted {
            queued,
            evaluate: outbox.evaluate,
            lines: outbox.lines,
        }
    }

    /// Publishes and wakes. Called after the monitor's lock was let go.
    pub(super) fn perform(
        &self,
        posted: Posted,
        bus: &MessageBus,
        wall: impl Fn() -> SystemTime,
        evaluator: &WaitCell,
    ) {
        if posted.queued {
            // The items of another step may go out with ours; ours are out when the lock is ours.
            let _alone = self.emptying.lock();
            let items = std::mem::take(&mut *self.queue.lock());
            for item in items {
                match item {
                    Item::Wake(cell) => cell.notify(),
                    Item::Note(note) => publish(*note, bus, wall()),
                }
            }
        }
        if posted.evaluate {
            evaluator.notify();
        }
        for (level, line) in posted.lines {
            log::log!(level, "{line}");
        }
    }
}

fn publish(note: Note, bus: &MessageBus, at: SystemTime) {
    let profile = Arc::clone(&note.snapshot.profile);
    bus.publish_with(EventKind::Limiter, Some(&profile), || {
        Event::Limiter(LimiterEvent {
            account: note.account,
            category: note.status.category,
            capacity: note.status.capacity,
            in_use: note.status.in_use,
            indicator: note.status.indicator,
            waiters: note.waiters,
            wait: note.wait,
            change: note.change,
            reason: note.reason,
            amount: note.amount,
            snapshot: Some(note.snapshot),
            at,
        })
    });
}
