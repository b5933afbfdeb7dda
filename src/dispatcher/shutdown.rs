//! The end of a dispatcher (`CS-4`, `CS-5`): every handle settles, within a bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inner::{Alarm, Inner, Phase};
use super::settle;
use super::timeout;
use crate::error::JobError;
use crate::events::{Event, SchedulerEvent, SchedulerStopped, SchedulerStopping};
use crate::job::core::{JobCore, WaitingFor};
use crate::job::current;

/// What running jobs get when no timeout is given (CS-4).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// How a shutdown went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The ids of jobs whose threads ignored everything and were left behind.
    pub abandoned: Vec<String>,
    /// Subscriptions that did not get through their events in time.
    pub abandoned_subscriptions: usize,
}

/// Why a shutdown did not wait.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Called from a job's own thread. The shutdown has begun.
    #[error(
        "a job cannot wait for its own end: the shutdown has begun, and another thread has to wait for it"
    )]
    FromInside,
    /// Shut down before.
    #[error("the dispatcher has been shut down before")]
    AlreadyShutDown,
}

/// Ends everything, in order.
pub(super) fn shutdown(
    inner: &Arc<Inner>,
    timeout: Duration,
) -> Result<ShutdownReport, ShutdownError> {
    let running = [Phase::Started, Phase::Draining];
    if inner.advance(&[Phase::Built], Phase::Stopped) {
        release_reserves(inner);
        return Ok(ShutdownReport::default());
    }
    if current::current().is_some() {
        if inner.advance(&running, Phase::Stopping) {
            let ending = Arc::clone(inner);
            inner.settlers().run(move || {
                end(&ending, timeout);
            });
        }
        return Err(ShutdownError::FromInside);
    }
    if !inner.advance(&running, Phase::Stopping) {
        return Err(ShutdownError::AlreadyShutDown);
    }
    Ok(end(inner, timeout))
}

/// The drop of the last owner: the shutdown begins, and a reserved thread finishes it.
pub(super) fn begin(inner: &Arc<Inner>) {
    if inner.advance(&[Phase::Built], Phase::Stopped) {
        release_reserves(inner);
    } else if inner.advance(&[Phase::Started, Phase::Draining], Phase::Stopping) {
        let ending = Arc::clone(inner);
        inner.settlers().run(move || {
            end(&ending, Duration::from_millis(1));
        });
    }
}

/// Refuses new roots and lets what runs submit and finish. Answers whether everything has ended.
pub(super) fn drain(inner: &Arc<Inner>, timeout: Duration) -> Result<bool, JobError> {
    if current::current().is_some() {
        return Err(JobError::deadlock("a job cannot wait for its own end"));
    }
    if !inner.advance(&[Phase::Started, Phase::Draining], Phase::Draining) {
        return Err(JobError::illegal_state("only a started dispatcher drains"));
    }
    let deadline = inner.clock().now().checked_add(timeout);
    Ok(wait_for_jobs(inner, deadline))
}

fn end(inner: &Arc<Inner>, timeout: Duration) -> ShutdownReport {
    let timeout = if timeout.is_zero() {
        DEFAULT_TIMEOUT
    } else {
        timeout
    };
    let clock = inner.clock();
    inner
        .bus()
        .publish(Event::Scheduler(SchedulerEvent::Stopping(
            SchedulerStopping { at: clock.wall() },
        )));

    // Nothing that waits is waited for: parked, queued, between attempts, delayed.
    inner.admission().stop();
    inner.router().stop();
    for entry in inner.entries() {
        if !entry.is_started() {
            settle::cancelled_by_shutdown(inner, &entry);
        } else if matches!(entry.job().waiting_for(), Some(WaitingFor::Retry)) {
            stop_running(entry.job());
        }
    }
    let deadline = clock.now().checked_add(timeout);
    wait_for_jobs(inner, deadline);

    // Who still runs is told to stop, gets a grace, and is left behind.
    let mut left = inner.entries();
    left.iter().for_each(|entry| stop_running(entry.job()));
    let longest = left
        .iter()
        .filter_map(|entry| entry.job().terms().timeout)
        .map(timeout::grace)
        .max()
        .unwrap_or_default()
        .min(Duration::from_secs(5));
    wait_for_jobs(
        inner,
        clock
            .now()
            .checked_add(longest.max(timeout::grace(Duration::ZERO))),
    );
    left = inner.entries();
    let abandoned = left
        .iter()
        .map(|entry| entry.job().id().to_owned())
        .collect();
    for entry in &left {
        timeout::abandon(inner, entry);
    }
    wait_for_jobs(inner, clock.now().checked_add(Duration::from_secs(1)));

    for alarm in inner.timer().stop() {
        if let Alarm::Delayed(submission) = alarm {
            submission.refuse();
        }
    }
    inner
        .bus()
        .publish(Event::Scheduler(SchedulerEvent::Stopped(
            SchedulerStopped { at: clock.wall() },
        )));
    let bus = inner.bus().stop();
    release_reserves(inner);
    inner.advance(&[Phase::Stopping], Phase::Stopped);
    ShutdownReport {
        abandoned,
        abandoned_subscriptions: bus.map_or(0, |report| report.abandoned),
    }
}

/// Tells the jobs that `chosen` picks to stop, and answers how many were found. All are told before
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
        .filter(|entry| chosen(entry.job()))
        .collect();
    for entry in &entries {
        entry.job().signal_cancellation(reason, message);
    }
    for entry in &entries {
        if !settle::cancel_queued(inner, entry, reason, message) {
            entry.job().fire_cancellation();
        }
    }
    entries.len()
}

/// Tells a running job to stop because of the shutdown.
pub(super) fn stop_running(job: &JobCore) {
    job.signal_cancellation("the dispatcher shut down", "Cancelled by shutdown");
    job.fire_cancellation();
}

fn release_reserves(inner: &Inner) {
    inner.closers().stop();
    inner.aborters().stop();
    inner.settlers().stop();
}

/// Waits until no job is left; false when `deadline` came first.
fn wait_for_jobs(inner: &Inner, deadline: Option<Instant>) -> bool {
    loop {
        let seen = inner.job_left().epoch();
        if inner.job_count() == 0 {
            return true;
        }
        if deadline.is_some_and(|deadline| inner.clock().now() >= deadline) {
            return false;
        }
        inner.clock().wait_until(inner.job_left(), seen, deadline);
    }
}
