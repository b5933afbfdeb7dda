//! The connections of one file: a small pool that never waits.
//!
//! # Invariants
//!
//! 1. A connection exists only together with its [`Slot`], from before it is opened until after it
//!    is closed, and there are at most `max` slots. So `open` counts connections, whoever has them:
//!    the pool, a job, or a call that an abort could not wait for.
//! 2. Nobody waits here. Permits bound the jobs, and each permit has a slot.
//! 3. No connection is opened, used or closed under the lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{Conn, Opening};
use super::failure::Subject;
use crate::admission::DatabaseGate;
use crate::clock::Clock;
use crate::error::JobError;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a provider and its sessions share.
pub(super) struct Pool {
    pub(super) subject: Subject,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) gate: Arc<DatabaseGate>,
    pub(super) write_gate: Arc<DatabaseGate>,
    pub(super) meter: Meter,
    opening: Opening,
    slots: Arc<Slots>,
    idle: Mutex<Vec<Conn>>,
}

/// What a provider measured since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteStats {
    /// Connections that exist now: idle ones, those of jobs, and orphans.
    pub open: u32,
    /// The most that ever existed at once.
    pub peak_open: u32,
    /// Connections that wait in the pool for a job.
    pub idle: u32,
    /// For how long jobs had connections, from the acquisition to the give-back, added up over all
    /// that were given back.
    pub held: Duration,
    /// For how long calls ran on connections that jobs had: `with`, begin, commit and rollback.
    pub in_calls: Duration,
}

/// Nanoseconds, added up.
#[derive(Debug, Default)]
pub(super) struct Meter {
    held: AtomicU64,
    in_calls: AtomicU64,
}

impl Meter {
    pub(super) fn held(&self, time: Duration) {
        add(&self.held, time);
    }

    pub(super) fn in_call(&self, time: Duration) {
        add(&self.in_calls, time);
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(nanos, Ordering::Relaxed);
}

/// How many connections there may be, and are.
#[derive(Debug)]
struct Slots {
    max: u32,
    open: AtomicU32,
    peak: AtomicU32,
}

/// The right to one connection. Its drop gives it back.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
}

impl Slots {
    fn try_slot(self: &Arc<Self>) -> Option<Slot> {
        let taken = self
            .open
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| {
                (open < self.max).then_some(open + 1)
            })
            .ok()?;
        self.peak.fetch_max(taken + 1, Ordering::SeqCst);
        Some(Slot {
            slots: Arc::clone(self),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pool {
    pub(super) fn new(
        subject: Subject,
        opening: Opening,
        gate: Arc<DatabaseGate>,
        write_gate: Arc<DatabaseGate>,
    ) -> Self {
        let max = gate.capacity();
        Self {
            subject,
            clock: Arc::clone(&opening.clock),
            gate,
            write_gate,
            meter: Meter::default(),
            opening,
            slots: Arc::new(Slots {
                max,
                open: AtomicU32::new(0),
                peak: AtomicU32::new(0),
            }),
            idle: Mutex::default(),
        }
    }

    /// A connection that is ready for a session: an idle one, else a new one.
    pub(super) fn take(
        &self,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<Conn, JobError> {
        let idle = self.idle.lock().pop();
        let mut conn = match idle {
            Some(conn) => conn,
            None => {
                let slot = self.slots.try_slot().ok_or_else(|| self.no_slot())?;
                Conn::open(slot, &self.subject, &self.opening, deadline)?
            }
        };
        conn.enter(read_only, deadline)
            .map_err(|error| self.subject.driver_failure(error, read_only))?;
        Ok(conn)
    }

    pub(super) fn put(&self, conn: Conn) {
        self.idle.lock().push(conn);
    }

    pub(super) fn stats(&self) -> SqliteStats {
        let nanos = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        SqliteStats {
            open: self.slots.open.load(Ordering::SeqCst),
            peak_open: self.slots.peak.load(Ordering::SeqCst),
            idle: u32::try_from(self.idle.lock().len()).unwrap_or(u32::MAX),
            held: nanos(&self.meter.held),
            in_calls: nanos(&self.meter.in_calls),
        }
    }

    fn no_slot(&self) -> JobError {
        JobError::illegal_state(format!(
            "all {} connections of the database '{}' are out: acquire only with a permit of '{}'",
            self.slots.max,
            self.subject.name,
            self.gate.name()
        ))
    }
}
