//! The end of a dispatcher (`CS-4`, `CS-5`): every handle settles, within a bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::guarding;
use super::inner::{Alarm, Inner, Phase};
use super::settle;
use super::stoppable;
use super::timeout;
use crate::aside;
use crate::error::JobError;
use crate::events::{Event, SchedulerEvent, SchedulerStopped, SchedulerStopping};
use crate::job::behalf;
use crate::job::core::{Decision, JobCore, WaitingFor};
use crate::job::current;
use crate::threads;

/// What running jobs get when no timeout is given (CS-4).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest grace that a shutdown gives, and how long it then waits for the reapers. With 5 s
/// for what the application registered and 5 s for the bus it takes at most its timeout and 15 s.
const MAX_GRACE: Duration = Duration::from_secs(3);
const ABANDONMENT: Duration = Duration::from_secs(1);

/// How a shutdown went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The ids of jobs whose threads ignored everything and were left behind: by the shutdown, or before it and
    /// still running at its end.
    pub abandoned: Vec<String>,
    /// The names of registered [`Stoppable`](super::Stoppable)s that did not stop in time.
    pub stuck_stoppables: Vec<String>,
    /// Subscriptions that did not get through their events in time.
    pub abandoned_subscriptions: usize,
}

/// Why a shutdown did not wait.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Called from a job's thread or one of the runtime's, such as an observer's. The shutdown has
    /// begun.
    #[error(
        "a thread of a job or of the runtime cannot wait for its own end: the shutdown has begun, and another thread has to wait for it"
    )]
    FromInside,
    /// Shut down before.
    #[error("the dispatcher has been shut down before")]
    AlreadyShutDown,
    /// Another shutdown had begun and was not through within the timeout of this one, which waited for it.
    #[error(
        "another shutdown has begun and did not end within {0:?}: it goes on, and can be waited for again"
    )]
    StillRunning(Duration),
}

/// Ends everything, in order.
pub(super) fn shutdown(
    inner: &Arc<Inner>,
    timeout: Duration,
) -> Result<ShutdownReport, ShutdownError> {
    let running = [Phase::Started, Phase::Draining];
    if inner.advance(&[Phase::Built], Phase::Stopped) {
        end_unstarted(inner);
        return Ok(ShutdownReport::default());
    }
    if is_inside() {
        if inner.advance(&running, Phase::Stopping) {
            end_elsewhere(inner, timeout);
        }
        return Err(ShutdownError::FromInside);
    }
    if !inner.advance(&running, Phase::Stopping) {
        return join(inner, or_default(timeout));
    }
    Ok(end(inner, timeout))
}

/// Waits for the shutdown that somebody else began.
fn join(inner: &Inner, timeout: Duration) -> Result<ShutdownReport, ShutdownError> {
    if inner.phase() == Phase::Stopped {
        return Err(ShutdownError::AlreadyShutDown);
    }
    let deadline = inner.clock().now().checked_add(timeout);
    let ended = inner.ended();
    loop {
        let seen = ended.epoch();
        if let Some(report) = inner.report() {
            return Ok(report);
        }
        if deadline.is_some_and(|deadline| inner.clock().now() >= deadline) {
            return Err(ShutdownError::StillRunning(timeout));
        }
        inner.clock().wait_until(ended, seen, deadline);
    }
}

fn or_default(timeout: Duration) -> Duration {
    if timeout.is_zero() {
        DEFAULT_TIMEOUT
    } else {
        timeout
    }
}

/// Whether the calling thread is one of those that the end waits for: a job's, one that works for
/// a job, or the runtime's own, such as an observer's; or in code that a job handed over, such as its
/// destructor, on whatever thread.
fn is_inside() -> bool {
    current::owner().is_some() || behalf::here().is_some() || threads::is_runtime_thread()
}

/// The drop of the last owner: the shutdown begins, and another thread finishes it.
pub(super) fn begin(inner: &Arc<Inner>) {
    if inner.advance(&[Phase::Built], Phase::Stopped) {
        end_unstarted(inner);
    } else if inner.advance(&[Phase::Started, Phase::Draining], Phase::Stopping) {
        end_elsewhere(inner, Duration::from_millis(1));
    }
}

/// Ends everything on another thread, because jobs still have to settle meanwhile: the FIFO queue's, which is there
/// whatever the system says to more threads, and for which nothing else is left to do.
fn end_elsewhere(inner: &Arc<Inner>, timeout: Duration) {
    inner.router().run_end(timeout);
}

/// Refuses new roots and lets what runs submit and finish. Answers whether everything has ended.
pub(super) fn drain(inner: &Arc<Inner>, timeout: Duration) -> Result<bool, JobError> {
    if is_inside() {
        return Err(JobError::deadlock(
            "a thread of a job or of the runtime cannot wait for its own end",
        ));
    }
    if !inner.advance(&[Phase::Started, Phase::Draining], Phase::Draining) {
        return Err(JobError::illegal_state("only a started dispatcher drains"));
    }
    let deadline = inner.clock().now().checked_add(timeout);
    Ok(wait_for_jobs(inner, deadline))
}

/// Ends everything, on a thread on which nothing of a user's runs meanwhile: what it lets go of may hang.
pub(super) fn end(inner: &Arc<Inner>, timeout: Duration) -> ShutdownReport {
    let _relieved = inner.relieved();
    let timeout = or_default(timeout);
    let clock = inner.clock();
    let at = clock.wall();
    inner
        .bus()
        .publish(Event::Scheduler(SchedulerEvent::Stopping(
            SchedulerStopping { at },
        )));

    // Nothing that waits is waited for: parked, queued, between attempts, delayed.
    inner.admission().stop();
    inner.router().stop();
    drop(
        inner
            .timer()
            .take_back(|alarm| matches!(alarm, Alarm::Delayed(_))),
    );
    for entry in inner.entries() {
        if !entry.is_started() {
            settle::cancelled_by_shutdown(inner, &entry);
        } else if matches!(entry.job().waiting_for(), Some(WaitingFor::Retry)) {
            stop_from_outside(inner, &entry);
        }
    }
    let deadline = clock.now().checked_add(timeout);
    wait_for_jobs(inner, deadline);
    // What was cancelled is dropped meanwhile, and has no longer than what runs.
    let dropped = inner.chores().wait(deadline);

    let mut abandoned = end_running(inner);
    let stuck_stoppables = stoppable::stop_all(inner, inner.take_stoppables());
    // A delayed submission that is dropped answers that it will not be.
    drop(inner.timer().stop());
    let at = clock.wall();
    inner
        .bus()
        .publish(Event::Scheduler(SchedulerEvent::Stopped(
            SchedulerStopped { at },
        )));
    let bus = inner.bus().stop();
    if !dropped && !inner.chores().wait(Some(clock.now())) {
        aside::warn!(
            "the destructor of a job that was cancelled before it ran does not return; the dispatcher \
             has ended without it"
        );
    }
    release_reserves(inner);
    for id in inner.left_behind() {
        if !abandoned.contains(&id) {
            abandoned.push(id);
        }
    }
    let report = ShutdownReport {
        abandoned,
        stuck_stoppables,
        abandoned_subscriptions: bus.map_or(0, |report| report.abandoned),
    };
    // Before the phase says that it is over: whoever sees that has nothing to wait for.
    inner.set_report(report.clone());
    inner.advance(&[Phase::Stopping], Phase::Stopped);
    report
}

/// Tells who still runs to stop, gives a grace, and settles who does not end without its thread.
/// Answers the ids of those.
fn end_running(inner: &Arc<Inner>) -> Vec<String> {
    let clock = inner.clock();
    let running = inner.entries();
    for entry in &running {
        stop_from_outside(inner, entry);
    }
    let grace = running
        .iter()
        .map(|entry| timeout::grace(entry.job().terms().timeout.unwrap_or_default()))
        .max()
        .unwrap_or_default()
        .min(MAX_GRACE);
    wait_for_jobs(inner, clock.now().checked_add(grace));
    let left = inner.entries();
    let abandoned = left
        .iter()
        .map(|entry| entry.job().id().to_owned())
        .collect();
    for entry in &left {
        timeout::abandon(inner, entry);
    }
    wait_for_jobs(inner, clock.now().checked_add(ABANDONMENT));
    // Whatever the reapers are stuck in, no handle is left without an answer.
    for entry in &left {
        timeout::settle_late(inner, entry);
    }
    abandoned
}

/// Tells a job to stop; its callbacks, which are a user's, run on a thread that may be stuck.
fn stop_from_outside(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let job = Arc::clone(entry.job());
    settle::signal_shutdown(&job);
    inner.closers().run(move || job.fire_cancellation());
}

/// Tells the jobs that `chosen` picks to stop, and answers for how many it came in time. All are told before
/// any callback runs.
pub(super) fn cancel_where(
    inner: &Arc<Inner>,
    reason: &str,
    message: &str,
    chosen: impl Fn(&Arc<JobCore>) -> bool,
) -> usize {
    let entries: Vec<_> = inner
        .entries()
        .into_iter()
        .filter(|entry| chosen(entry.job()) && !judges_one_of_them(entry.job(), &chosen))
        .collect();
    let mut told = 0;
    for entry in &entries {
        entry.job().signal_cancellation(reason, message);
        // Of one whose work is over it decides nothing any more.
        told += usize::from(entry.job().decision() != Decision::Finishing);
    }
    for entry in &entries {
        if !settle::cancel_queued(inner, entry, reason, message) {
            entry.job().fire_cancellation();
        }
    }
    told
}

/// Whether this is a guard of the output of a job that is chosen too, or works for one. That job's
/// work is over, so what tells it to stop comes too late, and the verdict is to come (ST-3).
fn judges_one_of_them(job: &Arc<JobCore>, chosen: &impl Fn(&Arc<JobCore>) -> bool) -> bool {
    let mut next = Some(Arc::clone(job));
    while let Some(at) = next {
        next = at.parent();
        if guarding::judges_an_output(&at) {
            return next.is_some_and(|gated| chosen(&gated));
        }
    }
    false
}

/// One that was never started has no jobs, but it has an admission that anybody may have asked.
fn end_unstarted(inner: &Inner) {
    inner.admission().stop();
    release_reserves(inner);
}

fn release_reserves(inner: &Inner) {
    inner.release_own_seats();
    inner.closers().stop();
    inner.aborters().stop();
    inner.settlers().stop();
    inner.models().stop();
}

/// Waits until every handle has answered; false when `deadline` came first.
fn wait_for_jobs(inner: &Inner, deadline: Option<Instant>) -> bool {
    loop {
        let seen = inner.job_settled().epoch();
        if inner.is_at_rest() {
            return true;
        }
        if deadline.is_some_and(|deadline| inner.clock().now() >= deadline) {
            return false;
        }
        inner
            .clock()
            .wait_until(inner.job_settled(), seen, deadline);
    }
}
