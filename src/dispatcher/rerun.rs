//! Running an attempt again (`RR`): who decides, how long it waits, when it is over.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::body::Body;
use super::entry::Entry;
use super::inner::Inner;
use super::{attempt, guarding, settle};
use crate::error::{ErrorKind, JobError, RetrySignal, TruncationSignal};
use crate::events::{
    Event, EventKind, OutputTruncationRetry, RateLimitRetry, ResponseCorrectionRetry, RetryEvent,
    ThrottleKind, TransientRetry,
};
use crate::job::JobSnapshot;
use crate::job::core::{JobCore, Outcome, WaitingFor};
use crate::models::{FailedAttempt, ModelSlot, ModelSpec};

/// How often a reply may be corrected before the runtime gives up on a job that does not (RR-4).
const MAX_CORRECTIONS: u32 = 4;

/// Runs attempts until one of them is final.
pub(super) fn run(inner: &Arc<Inner>, entry: &Arc<Entry>, body: &mut dyn Body) -> Outcome {
    let job = entry.job();
    may_begin(inner, entry)?;

    // Counted from the first failure on: most jobs have none, and are not to keep the space.
    let mut counters = None;
    let mut execution = Execution::default();
    loop {
        execution.attempt += 1;
        let error = match attempt::attempt(inner, entry, body, &mut execution) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        again(inner, job, &mut counters, &mut execution, error)?;
    }
}

/// Whether it may run at all, as it was submitted. Not inlined, for the stack of whoever waits later.
#[inline(never)]
fn may_begin(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Result<(), JobError> {
    let job = entry.job();
    if let Some(interruption) = job.interruption() {
        return Err(interruption);
    }
    refuse_failed_dependencies(job)?;
    guarding::judge_input(inner, entry)
}

/// Waits for the next attempt, if there is to be one after this error. Not inlined: a job that runs
/// for the first time is not to keep the stack of what comes after a failure.
///
/// # Errors
/// How the job ends.
#[inline(never)]
fn again(
    inner: &Inner,
    job: &JobCore,
    counters: &mut Option<Box<Counters>>,
    execution: &mut Execution,
    error: JobError,
) -> Result<(), JobError> {
    let attempt = execution.attempt;
    let Some(signal) = error.retry_signal() else {
        return Err(error);
    };
    let signal = signal.clone().on_attempt(attempt);
    let error = error.with_kind(ErrorKind::Retry(signal.clone()));
    if let Some(interruption) = job.interruption() {
        return Err(interruption);
    }
    let counters = counters.get_or_insert_with(|| {
        Box::new(Counters::new(
            job.terms().upstream_retries,
            inner.models().max_retry_after(),
        ))
    });
    match counters.judge(&signal, &error, attempt) {
        Verdict::GiveUp(error) => Err(error),
        Verdict::Again(window) => {
            let delay = rand::random_range(window);
            // From here, not from when whoever listens has been told.
            let until = job.clock().now().checked_add(delay);
            tell(inner, job, &signal, attempt, delay);
            execution.failed(signal);
            wait(inner, job, until)
        }
    }
}

/// What one execution's attempts leave to the next.
#[derive(Default)]
pub(super) struct Execution {
    /// Which attempt it is, from 1.
    pub(super) attempt: u32,
    /// The models of the present attempt, as far as they are resolved.
    pub(super) models: Vec<(ModelSlot, Arc<ModelSpec>)>,
    /// What the attempts before it failed with.
    pub(super) history: Vec<FailedAttempt>,
}

impl Execution {
    fn failed(&mut self, signal: RetrySignal) {
        self.history.push(FailedAttempt {
            attempt: self.attempt,
            signal,
            models: std::mem::take(&mut self.models),
        });
    }

    /// The ceiling that a slot's answer needs at least: an earlier one was cut off (RR-3). Zero where
    /// none was.
    pub(super) fn raised(&self, slot: ModelSlot) -> u32 {
        let cut_off = self
            .history
            .iter()
            .filter_map(|failed| match &failed.signal {
                RetrySignal::OutputTruncation(cut) => failed
                    .models
                    .iter()
                    .any(|(other, spec)| *other == slot && spec.id == cut.model)
                    .then_some(cut.next)
                    .flatten(),
                _ => None,
            });
        cut_off.max().unwrap_or(0)
    }
}

/// ATT-1: a job whose dependency failed does not run, unless it tolerates that.
fn refuse_failed_dependencies(job: &JobCore) -> Result<(), JobError> {
    if job.terms().tolerates_dependency_failures {
        return Ok(());
    }
    for dependency in job.dependencies().iter() {
        if let Some(Err(cause)) = dependency.outcome() {
            return Err(JobError::dependency_failed(dependency.id(), cause));
        }
    }
    Ok(())
}

/// Sleeps between two attempts, holding nothing.
fn wait(inner: &Inner, job: &JobCore, deadline: Option<Instant>) -> Result<(), JobError> {
    let clock = job.clock();
    let _waiting = job.waits_for(WaitingFor::Retry);
    // A shutdown says so first and then looks who waits here; this wait is recorded first and then
    // looks whether there is a shutdown. One of them sees the other.
    if inner.is_stopping() {
        settle::stop_by_shutdown(job);
    }
    loop {
        let seen = job.cell().epoch();
        if let Some(interruption) = job.interruption() {
            return Err(interruption);
        }
        if deadline.is_some_and(|deadline| clock.now() >= deadline) {
            return Ok(());
        }
        clock.wait_until(job.cell(), seen, deadline);
    }
}

struct Counters {
    upstream_budget: u32,
    /// A `Retry-After` above this is not waited for (SIG-1).
    max_retry_after: Duration,
    upstream: u32,
    corrections: u32,
    truncated: Option<TruncationSignal>,
}

#[derive(Debug)]
enum Verdict {
    /// After a wait drawn from this window.
    Again(RangeInclusive<Duration>),
    GiveUp(JobError),
}

impl Counters {
    fn new(upstream_budget: u32, max_retry_after: Duration) -> Self {
        Self {
            upstream_budget,
            max_retry_after,
            upstream: 0,
            corrections: 0,
            truncated: None,
        }
    }

    fn judge(&mut self, signal: &RetrySignal, error: &JobError, attempt: u32) -> Verdict {
        let upstream_budget = self.upstream_budget;
        let give_up = |message: String| {
            Verdict::GiveUp(JobError::uncorrectable(message).with_source(error.clone()))
        };
        match signal {
            RetrySignal::OutputTruncation(cut) => match &self.truncated {
                Some(first) if first.model == cut.model => give_up(format!(
                    "the output was truncated a second time on {}, at {} tokens after {}: the job \
                     rebuilt its conversation, or asks for more than that",
                    cut.model, cut.previous, first.previous
                )),
                Some(first) => give_up(format!(
                    "the output was truncated a second time, on {} at {} tokens, after failover \
                     from {}, which has a larger budget",
                    cut.model, cut.previous, first.model
                )),
                None if cut.next.is_none() => give_up(format!(
                    "the output was truncated at {} tokens on {}, which has no larger budget",
                    cut.previous, cut.model
                )),
                None => {
                    self.truncated = Some(cut.clone());
                    Verdict::Again(signal.window(attempt))
                }
            },
            RetrySignal::ResponseCorrection(_) if self.corrections >= MAX_CORRECTIONS => give_up(
                format!("Exceeded max response correction retries ({MAX_CORRECTIONS}): {signal}"),
            ),
            RetrySignal::ResponseCorrection(_) => {
                self.corrections += 1;
                Verdict::Again(signal.window(attempt))
            }
            RetrySignal::RateLimit(_) | RetrySignal::Overload(_) | RetrySignal::Transient(_) => {
                if let Some(asked) = signal
                    .retry_after()
                    .filter(|asked| *asked > self.max_retry_after)
                {
                    return give_up(format!(
                        "the provider asked to be left alone for {}s, which is not waited for: \
                         {signal}",
                        asked.as_secs()
                    ));
                }
                if self.upstream >= upstream_budget {
                    return give_up(format!(
                        "the job's transparent retry budget ({upstream_budget}) is spent: {signal}"
                    ));
                }
                self.upstream += 1;
                Verdict::Again(signal.window(attempt))
            }
        }
    }
}

fn tell(inner: &Inner, job: &JobCore, signal: &RetrySignal, attempt: u32, delay: Duration) {
    let at = job.clock().wall();
    let throttle = signal
        .model()
        .and_then(|model| inner.limiters().bucket_of(model))
        .map_or(0.0, |bucket| bucket.throttle());
    let kind = match signal {
        RetrySignal::RateLimit(_) => EventKind::RateLimitRetry,
        RetrySignal::Overload(_) | RetrySignal::Transient(_) => EventKind::TransientRetry,
        RetrySignal::OutputTruncation(_) => EventKind::OutputTruncationRetry,
        RetrySignal::ResponseCorrection(_) => EventKind::ResponseCorrectionRetry,
    };
    job.tell(kind, |snapshot| {
        Event::Retry(retry_event(snapshot, at, signal, attempt, delay, throttle))
    });
}

fn retry_event(
    snapshot: JobSnapshot,
    at: std::time::SystemTime,
    signal: &RetrySignal,
    attempt: u32,
    delay: Duration,
    throttle: f64,
) -> RetryEvent {
    match signal {
        RetrySignal::RateLimit(limit) => RetryEvent::RateLimit(RateLimitRetry {
            snapshot,
            at,
            provider: limit.provider.as_str().into(),
            model: signal.model().unwrap_or(&limit.provider).into(),
            details: limit.details.as_str().into(),
            attempt,
            delay: Some(delay),
            limit: ThrottleKind::Unknown,
            throttle,
        }),
        RetrySignal::Overload(failure) | RetrySignal::Transient(failure) => {
            RetryEvent::Transient(TransientRetry {
                overload: matches!(signal, RetrySignal::Overload(_)),
                snapshot,
                at,
                provider: failure.provider.as_str().into(),
                details: failure.details.as_str().into(),
                attempt,
                delay: Some(delay),
            })
        }
        RetrySignal::OutputTruncation(cut) => RetryEvent::OutputTruncation(OutputTruncationRetry {
            snapshot,
            at,
            model: cut.model.as_str().into(),
            attempt,
            previous: cut.previous,
            next: cut.next.unwrap_or(cut.previous),
        }),
        RetrySignal::ResponseCorrection(correction) => {
            RetryEvent::ResponseCorrection(ResponseCorrectionRetry {
                snapshot,
                at,
                model: correction.model.as_str().into(),
                attempt,
                failure: correction.cause.kind().name().into(),
                details: correction.cause.to_string().into(),
            })
        }
    }
}
