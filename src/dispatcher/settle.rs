//! How a job ends (`ATT-9`, `ATT-10`, `ST-4`).
//!
//! # Invariants
//!
//! 1. A job is settled by whoever takes its settlement token; everybody else does nothing.
//! 2. The order on every path: state, spend gates, terminal event, the workflow's end for a root, teardown, and
//!    the handle last. What of the job is a user's is dropped after it, where the thread that settles may.
//! 3. A panic on the way, in the log or in what an error carries, keeps no handle from answering.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use scopeguard::ScopeGuard;

use super::body::Body;
use super::entry::Entry;
use super::guarding;
use super::inner::{Alarm, Inner};
use crate::error::{ErrorKind, JobError};
use crate::events::{
    DependencyFailure, Event, EventKind, JobCancelled, JobCompleted, JobFailed, JobTimedOut,
    LifecycleEvent, ModelCall, TerminalInfo, WorkflowComplete,
};
use crate::job::behalf;
use crate::job::core::{Decision, JobCore, Outcome};
use crate::job::{JobContext, JobState};
use crate::unwind::{catch, contain, discard};

/// What the hooks after the work may take together (ATT-9).
pub(super) const HOOK_BUDGET: Duration = Duration::from_secs(30);

/// The end of a job's own thread: the hooks, within their budget, then the settlement.
pub(super) fn finish(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    body: Box<dyn Body>,
    outcome: Outcome,
) {
    let job = entry.job();
    // Also on the way of a panic, on which its destructor must not panic as well.
    let mut body = scopeguard::guard(body, discard);
    let outcome = final_outcome(job, outcome);
    if entry.is_abandoned() {
        leave(entry, ScopeGuard::into_inner(body), outcome);
        return;
    }
    decided(entry, &outcome);
    let deadline = inner.clock().now().checked_add(HOOK_BUDGET);
    let alarm = deadline.map(|at| inner.timer().arm(at, Alarm::Hooks(Arc::clone(entry))));
    let outcome = guarding::judge_output(inner, entry, &**body, outcome, deadline);
    if guarding::judges_output(entry) {
        entry.set_pending(outcome.clone());
    }
    if entry.is_abandoned() {
        leave(entry, ScopeGuard::into_inner(body), outcome);
        return;
    }
    let context = JobContext::new(Arc::clone(job));
    if let Err(error) = contain("post_execute", || body.post_execute(&outcome, &context)) {
        crate::aside::error!("{}: {error}", job.id());
    }
    drop(body);
    if let Some(alarm) = alarm {
        inner.disarm(alarm);
    }
    settle(inner, entry, outcome);
    job.let_go();
}

/// The end of a job's own thread whose [`finish`] panicked, such as in the log: the handle answers all the same,
/// with what the job had decided where it had.
pub(super) fn finish_without_hooks(inner: &Arc<Inner>, entry: &Arc<Entry>, failure: JobError) {
    let job = entry.job();
    if !entry.is_abandoned() {
        let outcome = match (job.begin_finishing(), entry.pending()) {
            (_, Some(outcome)) => outcome,
            (Ok(()), None) => Err(failure),
            (Err(_), None) => Err(interrupted(job, Some(failure))),
        };
        settle(inner, entry, outcome);
    }
    job.let_go();
}

/// Notes what the job settles with should its end take too long; never an output that was not judged.
pub(super) fn decided(entry: &Entry, outcome: &Outcome) {
    if entry.is_abandoned() {
        // Too late (TO-4): a commit may return because its connection was severed, and whoever severed it settles.
        return;
    }
    entry.set_pending(match outcome {
        Ok(_) if guarding::judges_output(entry) => Err(guarding::not_in_time()),
        outcome => outcome.clone(),
    });
}

/// What a job settles with whose own work is over, and which was given up before it said with what: it failed,
/// whoever gave up on it and why.
pub(super) fn stuck(job: &JobCore) -> JobError {
    let told = job.cancellation().map_or_else(
        || match job.terms().timeout {
            Some(timeout) => format!("its timeout of {timeout:?} passed"),
            None => "its time passed".to_owned(),
        },
        |cancellation| format!("it was told to stop ({})", cancellation.reason),
    );
    JobError::system(
        "job",
        format!(
            "its work was over when {told}, but its end was stuck and it was left behind: whether a transaction \
             was committed is not known"
        ),
    )
}

/// Settled long ago, by the reaper: no hook of an abandoned job runs.
fn leave(entry: &Entry, body: Box<dyn Body>, outcome: Outcome) {
    discard(body);
    discard(outcome);
    entry.job().let_go();
}

/// A job that was told to stop before its own work was done ends with that, whatever it answered.
fn final_outcome(job: &JobCore, outcome: Outcome) -> Outcome {
    match (job.begin_finishing(), outcome) {
        (Ok(()), outcome) => outcome,
        (Err(_), Ok(value)) => {
            discard(value);
            Err(interrupted(job, None))
        }
        (Err(_), Err(error)) => Err(interrupted(job, Some(error))),
    }
}

/// What the caller of a job gets that was told to stop, and then failed on its own or did not.
pub(super) fn interrupted(job: &JobCore, own: Option<JobError>) -> JobError {
    let told = match job.decision() {
        Decision::TimedOut => JobError::timed_out(job.terms().timeout),
        _ => JobError::cancelled(
            job.cancellation()
                .map_or_else(|| "stopped".to_owned(), |cancellation| cancellation.reason),
        ),
    };
    match own {
        None => told,
        // It only passes on that it was told to stop; what went wrong meanwhile is kept.
        Some(own) if own.is_cancelled() || own.is_timed_out() => own
            .attached()
            .iter()
            .cloned()
            .fold(told, JobError::with_attached),
        // It says more than that something broke off, and the caller can do something about it.
        Some(own) if told.is_timed_out() && own.is_correctable() => own,
        Some(own) => told.with_source(own),
    }
}

/// Settles a job, unless somebody has.
pub(super) fn settle(inner: &Arc<Inner>, entry: &Arc<Entry>, outcome: Outcome) {
    let job = entry.job();
    if !job.take_settlement() {
        discard(outcome);
        return;
    }
    end(inner, job, outcome);
    entry.clear_pending();
}

/// A refusal at the door: the job never was, and its handle says why.
pub(super) fn born_failed(inner: &Arc<Inner>, job: &Arc<JobCore>, refusal: JobError) {
    if job.take_settlement() {
        end(inner, job, Err(refusal));
        job.let_go();
    }
}

/// Why the end of its dispatcher ends a job, and what the event says.
const SHUTDOWN: (&str, &str) = ("the dispatcher shut down", "Cancelled by shutdown");

/// A job that was still queued when the dispatcher shut down.
pub(super) fn cancelled_by_shutdown(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    cancel_queued(inner, entry, SHUTDOWN.0, SHUTDOWN.1);
}

/// Tells a job that has a thread that the dispatcher shuts down.
/// The callbacks, which are a user's, are the caller's to fire.
pub(super) fn signal_shutdown(job: &JobCore) {
    job.signal_cancellation(SHUTDOWN.0, SHUTDOWN.1);
}

/// Tells the job of the calling thread that the dispatcher shuts down, its callbacks included.
#[cold]
#[inline(never)]
pub(super) fn stop_by_shutdown(job: &JobCore) {
    signal_shutdown(job);
    job.fire_cancellation();
}

/// Settles a job that will never have a thread. Answers false when it has been started.
pub(super) fn refuse_queued(inner: &Arc<Inner>, entry: &Arc<Entry>, refusal: JobError) -> bool {
    let Some(body) = entry.take_body() else {
        return false;
    };
    inner.router().remove(entry);
    settle(inner, entry, Err(refusal));
    let_go(entry, body);
    true
}

/// Settles a job that has no thread yet. Answers false when it has been started.
pub(super) fn cancel_queued(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    reason: &str,
    message: &str,
) -> bool {
    let stopped = stop_queued(inner, entry, reason, message);
    let was_queued = stopped.is_some();
    if let Some((outcome, body)) = stopped {
        settle(inner, entry, outcome);
        let_go(entry, body);
    }
    was_queued
}

/// Drops a job that never ran and has settled, on whatever thread found that out: for itself. After the settlement,
/// because a destructor may take as long as it likes.
fn let_go(entry: &Entry, body: Box<dyn Body>) {
    behalf::acting(Some(entry.job().behalf()), || discard(body));
    entry.job().let_go();
}

/// Takes a job that has no thread out of the queues and tells it to stop; `None` when it has been
/// started. Its value is the caller's to drop, once it has settled.
fn stop_queued(
    inner: &Inner,
    entry: &Arc<Entry>,
    reason: &str,
    message: &str,
) -> Option<(Outcome, Box<dyn Body>)> {
    let body = entry.take_body()?;
    inner.router().remove(entry);
    entry.job().signal_cancellation(reason, message);
    entry.job().fire_cancellation();
    Some((Err(interrupted(entry.job(), None)), body))
}

/// Ends a job, and after it those that depend on it and find the queues stopped, and so on: one
/// after the other, because such a chain may be longer than the stack is deep.
fn end(inner: &Arc<Inner>, job: &Arc<JobCore>, outcome: Outcome) {
    let mut refused = end_one(inner, job, outcome);
    // Dropped when all of them have their answers.
    let mut unrun = Vec::new();
    while let Some(entry) = refused.pop() {
        let stopped = stop_queued(inner, &entry, SHUTDOWN.0, SHUTDOWN.1);
        if let Some((outcome, body)) = stopped {
            if entry.job().take_settlement() {
                refused.extend(end_one(inner, entry.job(), outcome));
            }
            unrun.push((entry, body));
        }
    }
    for (entry, body) in unrun {
        let_go(&entry, body);
    }
}

/// Ends one job and routes those that depended on it alone; answers whom the queues refused.
fn end_one(inner: &Arc<Inner>, job: &Arc<JobCore>, outcome: Outcome) -> Vec<Arc<Entry>> {
    let at = job.clock().wall();
    let state = match (job.begin_finishing(), &outcome) {
        (Err(Decision::Cancelled), _) => JobState::Cancelled,
        (Err(Decision::TimedOut), _) => JobState::TimedOut,
        (_, Ok(_)) => JobState::Completed,
        // Also with a cancellation that is not its own, such as a child's that it passed on.
        (_, Err(_)) => JobState::Failed,
    };
    step(|| {
        if let Err(error) = job.end(state, at) {
            crate::aside::error!("{error}");
        }
    });
    guarding::note_verdict(job, state);
    let calls = job.take_model_calls(at);
    // Before anybody hears of the end: whoever does finds the books closed (COST-3).
    step(|| inner.models().settle(job, &calls));
    step(|| tell_end(job, state, &outcome, calls, at));
    let counted = inner.leave(job);
    let dependents = job.settle(outcome);
    if counted {
        inner.settled();
    }
    dependents
        .into_iter()
        .filter(|dependent| dependent.dependency_settled())
        .filter_map(|dependent| {
            let mut refused = None;
            step(|| refused = inner.route_dependent(&dependent));
            refused
        })
        .collect()
}

/// A step of an end in which something foreign may be called, such as the log. Whatever becomes of it, those who
/// wait are answered.
fn step(step: impl FnOnce()) {
    if let Err(text) = catch(step) {
        discard(catch(|| {
            log::error!("a step of a job's end panicked: {text}")
        }));
    }
}

fn tell_end(
    job: &JobCore,
    state: JobState,
    outcome: &Outcome,
    calls: Arc<[ModelCall]>,
    at: SystemTime,
) {
    let kind = match (state, outcome) {
        (JobState::Completed, _) => EventKind::JobCompleted,
        (JobState::Cancelled, _) => EventKind::JobCancelled,
        (JobState::TimedOut, _) => EventKind::JobTimedOut,
        (_, Err(error)) if matches!(error.kind(), ErrorKind::DependencyFailed { .. }) => {
            EventKind::DependencyFailure
        }
        _ => EventKind::JobFailed,
    };
    job.tell_terminal(kind, |snapshot| {
        let terminal = TerminalInfo::new(&snapshot, snapshot.attempt(), calls, at);
        Event::Lifecycle(match kind {
            EventKind::JobCompleted => LifecycleEvent::Completed(JobCompleted {
                snapshot,
                at,
                result: outcome.as_ref().ok().cloned(),
                terminal,
            }),
            EventKind::JobCancelled => LifecycleEvent::Cancelled(JobCancelled {
                snapshot,
                at,
                forced: false,
                message: job
                    .cancellation()
                    .map(|cancellation| cancellation.message)
                    .unwrap_or_default(),
                terminal,
            }),
            EventKind::JobTimedOut => LifecycleEvent::TimedOut(JobTimedOut {
                snapshot,
                at,
                budget: job.terms().timeout,
                terminal,
            }),
            EventKind::DependencyFailure => LifecycleEvent::DependencyFailure(DependencyFailure {
                snapshot,
                at,
                error: outcome.as_ref().err().cloned(),
            }),
            _ => LifecycleEvent::Failed(JobFailed {
                snapshot,
                at,
                error: outcome.as_ref().err().cloned(),
                terminal,
            }),
        })
    });
    if job.is_root() {
        job.tell_complete(|snapshot| {
            Event::Workflow(match outcome {
                Ok(_) => WorkflowComplete::succeeded(snapshot, at),
                Err(error) => WorkflowComplete::failed(snapshot, at, error.to_string()),
            })
        });
    }
}
