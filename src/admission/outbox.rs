//! What a step under the monitor's lock leaves to be done after it.
//!
//! # Invariants
//!
//! 1. Notes are published in the order of the steps that made them: a step appends to the shared
//!    queue while it still holds the monitor's lock, and whoever empties the queue does so alone.
//! 2. A waiter gets its verdict after its notes are published, so nothing that its thread says can
//!    overtake what admission said about it.
//! 3. Log lines are written with no lock held, and last: a logger that panics, or never returns, keeps
//!    nobody from a verdict.
//! 4. A note takes its place among its job's events: under the lock that orders them, and without
//!    the job's name once its terminal event is out (EVT-7).
//! 5. Everything in the queue gets out, whatever panics on the way: a note that cannot be told is lost
//!    alone.
//!
//! Lock order: `emptying`, then a job's `telling`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::account::AccountStatus;
use super::line::{Ticket, Verdict};
use crate::clock::WaitCell;
use crate::error::JobError;
use crate::events::{
    Event, EventKind, LimiterChange, LimiterEvent, MessageBus, Overflow, RejectReason,
};
use crate::job::JobSnapshot;
use crate::job::telling::Telling;
use crate::sync::Mutex;
use crate::unwind::contain;

/// The job that a change on an account is told of.
#[derive(Clone, Debug)]
pub(super) struct Behind {
    pub(super) telling: Arc<Telling>,
    /// As it was when it asked.
    pub(super) snapshot: JobSnapshot,
}

/// A change on one account, to be told.
pub(super) struct Note {
    pub(super) account: Arc<str>,
    pub(super) status: AccountStatus,
    pub(super) amount: u64,
    pub(super) waiters: usize,
    pub(super) change: LimiterChange,
    pub(super) reason: Option<RejectReason>,
    pub(super) wait: Duration,
    pub(super) behind: Arc<Behind>,
}

enum Item {
    Note(Box<Note>),
    Verdict(Arc<Ticket>, Verdict),
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

    /// A waiter is to have its verdict.
    #[inline]
    pub(super) fn deliver(&mut self, ticket: Arc<Ticket>, verdict: Verdict) {
        self.items.push(Item::Verdict(ticket, verdict));
    }

    /// The evaluator is to walk the line.
    pub(super) fn evaluate(&mut self) {
        self.evaluate = true;
    }

    /// The verdicts in their order, by place, delivered to nobody.
    pub(super) fn take_verdicts(&mut self, mut each: impl FnMut(u64, &Verdict)) {
        self.lines.clear();
        self.evaluate = false;
        for item in &self.items {
            if let Item::Verdict(ticket, verdict) = item {
                each(ticket.place(), verdict);
            }
        }
        self.items.clear();
    }

    /// Delivers the verdicts, and answers everything that the step wants told as text that does not
    /// depend on where it ran.
    #[cfg(test)]
    pub(super) fn told(self) -> Vec<String> {
        let items = self.items.into_iter().map(|item| match item {
            Item::Verdict(ticket, verdict) => {
                let told = format!("{} {verdict:?}", ticket.place());
                ticket.deliver(verdict);
                told
            }
            Item::Note(note) => {
                // A withdrawal asks nobody, so the figures are as of whoever asked last.
                let figures =
                    (!matches!(note.reason, Some(RejectReason::Cancelled))).then_some(&note.status);
                format!(
                    "{} {:?} {:?} {} of {}, {} wait, since {:?}, {figures:?}",
                    note.account,
                    note.change,
                    note.reason,
                    note.amount,
                    note.behind.snapshot.profile.ids.job,
                    note.waiters,
                    note.wait,
                )
            }
        });
        items
            .chain(
                self.lines
                    .iter()
                    .map(|(level, line)| format!("{level} {line}")),
            )
            .chain(self.evaluate.then(|| "evaluate".to_owned()))
            .collect()
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
    /// Appends a step's items, and empties its outbox for the next. Called while the monitor's lock
    /// is still held.
    pub(super) fn post(&self, outbox: &mut Outbox) -> Posted {
        let queued = !outbox.items.is_empty();
        if queued {
            self.queue.lock().extend(outbox.items.drain(..));
        }
        Posted {
            queued,
            evaluate: std::mem::take(&mut outbox.evaluate),
            lines: std::mem::take(&mut outbox.lines),
        }
    }

    /// Publishes and wakes. Called after the monitor's lock was let go.
    #[inline(never)]
    pub(super) fn perform(
        &self,
        mut posted: Posted,
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
                    Item::Verdict(ticket, verdict) => ticket.deliver(verdict),
                    Item::Note(note) => {
                        // The calendar is a clock's, which may be the program's.
                        let lines = contain("admission", || publish(*note, bus, wall()))
                            .map_or_else(|lost| vec![untold(&lost)], Overflow::into_lines);
                        let lines = lines.into_iter().map(|line| (log::Level::Error, line));
                        posted.lines.extend(lines);
                    }
                }
            }
        }
        if posted.evaluate {
            evaluator.notify();
        }
        for (level, line) in posted.lines {
            crate::aside::line(level, module_path!(), format_args!("{line}"));
        }
    }

    /// Returns once everything that was posted before is out.
    #[cold]
    pub(super) fn flush(&self, bus: &MessageBus, wall: impl Fn() -> SystemTime, cell: &WaitCell) {
        let posted = Posted {
            queued: true,
            evaluate: false,
            lines: Vec::new(),
        };
        self.perform(posted, bus, wall, cell);
    }
}

#[cold]
fn untold(lost: &JobError) -> String {
    format!("an event of a limit could not be told: {lost}")
}

fn publish(note: Note, bus: &MessageBus, at: SystemTime) -> Overflow {
    let behind = Arc::clone(&note.behind);
    behind.telling.in_place(|ended| {
        let snapshot = (!ended).then(|| behind.snapshot.clone());
        publish_as(note, snapshot, bus, at)
    })
}

fn publish_as(
    note: Note,
    snapshot: Option<JobSnapshot>,
    bus: &MessageBus,
    at: SystemTime,
) -> Overflow {
    let subject = snapshot
        .as_ref()
        .map(|snapshot| Arc::clone(&snapshot.profile));
    bus.publish_with(EventKind::Limiter, subject.as_deref(), || {
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
            snapshot,
            at,
        })
    })
}
