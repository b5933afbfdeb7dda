//! The two phases of a timeout (`TO`), and what an alarm means.
//!
//! # Invariants
//!
//! 1. The timer's thread decides and hands over; it calls nothing of a user's, drops nothing of a user's, settles
//!    nothing and writes no log.
//! 2. Phase two settles on time whatever phase one and the abort are doing: aborts run in a pool of
//!    their own, and a thread that calls nothing foreign settles after
//!    [`ABORT_PATIENCE`] at the latest.

use std::sync::Arc;
use std::time::Duration;

use super::entry::Entry;
use super::inner::{Alarm, Inner};
use super::{settle, starvation};
use crate::aside;
use crate::job::behalf;
use crate::job::core::Decision;

/// The shortest and the longest grace (TO-3).
const MIN_GRACE: Duration = Duration::from_millis(500);
const MAX_GRACE: Duration = Duration::from_secs(30);
/// How long a provider is given to sever a connection.
const ABORT_DEADLINE: Duration = Duration::from_millis(100);
/// How long an abort may take before the job is settled without it: one that keeps its deadline
/// comes first.
const ABORT_PATIENCE: Duration = Duration::from_millis(150);

/// The grace between the phases: a tenth of the timeout, within its bounds (TO-3).
pub(super) fn grace(timeout: Duration) -> Duration {
    (timeout / 10).clamp(MIN_GRACE, MAX_GRACE)
}

/// An alarm rings, on the timer's thread.
pub(super) fn ring(inner: &Arc<Inner>, alarm: Alarm) {
    match alarm {
        Alarm::Timeout(entry) => phase_one(inner, &entry),
        Alarm::Grace(entry) => {
            if let Some(entry) = entry.upgrade() {
                phase_two(inner, &entry);
            }
        }
        Alarm::Abort(entry) => {
            let ending = Arc::clone(inner);
            inner.settlers().run(move || settle_late(&ending, &entry));
        }
        Alarm::Hooks(entry) => {
            let ending = Arc::clone(inner);
            inner.settlers().run(move || {
                if let Some(outcome) = entry.pending() {
                    ending.leave_behind(&entry);
                    settle::settle(&ending, &entry, outcome);
                    aside::warn!(
                        "{}: the hooks after its work took longer than their budget; it settled \
                         without them",
                        entry.job().id()
                    );
                }
            });
        }
        Alarm::Delayed(submission) => inner.submit_due(submission),
        Alarm::StaleSweep => {
            inner.bus().request_stale_sweep();
            inner.arm_stale_sweep();
        }
    }
}

/// TO-2: the flags are raised here; callbacks and closing are somebody else's.
fn phase_one(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let job = entry.job();
    // The job may have found out before the timer did, and raised the flags itself.
    job.signal_timeout();
    let timed_out = job.decision() == Decision::TimedOut;
    let grace = grace(job.terms().timeout.unwrap_or_default());
    inner.arm_in(grace, Alarm::Grace(Arc::downgrade(entry)));
    if !timed_out {
        // Its own work is done, or it was told to stop already: what is stuck now is its end.
        return;
    }
    let closing = Arc::clone(entry);
    let taken = inner.closers().try_run(move || {
        closing.job().fire_timeout();
        if let Some(attempt) = closing.attempt()
            && let Err(error) =
                behalf::acting(Some(closing.job().behalf()), || attempt.close_handles())
        {
            aside::warn!("{}: {error}", closing.job().id());
        }
    });
    if !taken {
        // Its callbacks run once all the same, when one is.
        let told = Arc::clone(entry);
        inner.closers().run(move || told.job().fire_timeout());
        aside::warn!(
            "{}: no thread is free to close its resources; phase two will",
            job.id()
        );
    }
}

/// TO-4: what the job holds is severed, and it is settled without its thread.
fn phase_two(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    if entry.attempt().is_some() || entry.is_asking() {
        abandon(inner, entry);
    }
}

/// Settles a job whose thread does not end: what it holds is severed, within a bound.
pub(super) fn abandon(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    if entry.job().is_settled() {
        return;
    }
    if !inner.leave_behind(entry) {
        return;
    }
    let Some(attempt) = entry.attempt() else {
        let (ending, entry) = (Arc::clone(inner), Arc::clone(entry));
        inner
            .settlers()
            .run(move || settle_abandoned(&ending, &entry));
        return;
    };
    let now = inner.clock().now();
    let deadline = now.checked_add(ABORT_DEADLINE).unwrap_or(now);
    let patience = inner.arm_in(ABORT_PATIENCE, Alarm::Abort(Arc::clone(entry)));
    let (ending, entry) = (Arc::clone(inner), Arc::clone(entry));
    inner.aborters().run(move || {
        behalf::acting(Some(entry.job().behalf()), || attempt.force_close(deadline));
        if let Some(patience) = patience {
            ending.disarm(patience);
        }
        settle_abandoned(&ending, &entry);
    });
}

/// Settles a job whose severing takes too long, without it.
pub(super) fn settle_late(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    if entry.job().is_settled() {
        return;
    }
    if let Some(attempt) = entry.attempt() {
        attempt.release_all_but_connections();
    }
    settle_abandoned(inner, entry);
}

fn settle_abandoned(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let job = entry.job();
    let outcome = match (job.decision(), entry.pending()) {
        (Decision::Open | Decision::Finishing, Some(outcome)) => outcome,
        (Decision::Open | Decision::Finishing, None) => Err(settle::stuck(job)),
        _ => Err(settle::interrupted(job, None)),
    };
    settle::settle(inner, entry, outcome);
    // Until now its waiters had this to wait for; whoever is left may have nothing.
    starvation::relieve(inner);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_a_tenth_within_bounds() {
        let table = [
            (200, 500),
            (1_000, 500),
            (5_000, 500),
            (100_000, 10_000),
            (300_000, 30_000),
            (900_000, 30_000),
        ];
        for (timeout, expected) in table {
            assert_eq!(
                grace(Duration::from_millis(timeout)),
                Duration::from_millis(expected)
            );
        }
    }
}
