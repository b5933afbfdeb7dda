//! Jobs and events to test with.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::event::Event;
use super::lifecycle::{
    DependencyFailure, JobCancelled, JobCompleted, JobFailed, JobScheduled, JobStarted,
    JobTimedOut, OrchestratorIdle, OrchestratorResumed, TerminalInfo,
};
use super::operation::{
    CancelHeartbeat, HeartbeatFireFailed, HeartbeatFired, HeartbeatRebound, HeartbeatRequested,
    HeartbeatScheduled, LimiterChange, LimiterEvent, SchedulerStarted, SchedulerStopped,
    SchedulerStopping,
};
use super::progress::{ContentStream, JobProgress, Notification, Severity, WorkflowComplete};
use super::retry::{
    OutputTruncationRetry, RateLimitRetry, ResponseCorrectionRetry, ThrottleKind, TransientRetry,
};
use super::{AppEvent, AppEventEnvelope};
use crate::admission::AccountCategory;
use crate::error::JobError;
use crate::job::identity::JobIds;
use crate::job::snapshot::{JobProfile, Moment};
use crate::job::{JobSnapshot, JobType, Metadata, Workflow};

/// The instant at which everything in these tests happens.
pub(crate) fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// A job of this type in this workflow that has just been submitted.
pub(crate) fn sample_snapshot(type_name: &'static str, workflow: &str) -> JobSnapshot {
    let root = Workflow::new("alice", "w").unwrap();
    let mut ids = JobIds::of_root(&root, type_name);
    ids.workflow = workflow.into();
    JobSnapshot {
        profile: Arc::new(JobProfile {
            ids,
            job_type: JobType::Job,
            type_path: type_name,
            type_name,
            name: None,
            display_name: None,
            action: "".into(),
            description: None,
            priority: 0,
            submitted_at: at(),
        }),
        moment: Arc::new(Moment::fresh(Metadata::new())),
    }
}

/// [`sample_snapshot`] of a job that started at this instant.
pub(crate) fn started_snapshot(started_at: SystemTime) -> JobSnapshot {
    let snapshot = sample_snapshot("Lookup", "w-1");
    let mut moment = Moment::clone(&snapshot.moment);
    moment.started_at = Some(started_at);
    moment.metadata = [("why", "nightly")].into_iter().collect();
    JobSnapshot {
        moment: Arc::new(moment),
        ..snapshot
    }
}

pub(crate) fn terminal(snapshot: &JobSnapshot, attempts: u32) -> TerminalInfo {
    TerminalInfo::new(snapshot, attempts, Arc::default(), at())
}

pub(crate) fn scheduled(snapshot: &JobSnapshot) -> Event {
    JobScheduled {
        snapshot: snapshot.clone(),
        at: at(),
        state: snapshot.state(),
        requirements: "".into(),
        priority: 5,
    }
    .into()
}

pub(crate) fn started(snapshot: &JobSnapshot, attempt: u32) -> Event {
    JobStarted {
        snapshot: snapshot.clone(),
        at: at(),
        attempt,
    }
    .into()
}

pub(crate) fn completed(
    snapshot: &JobSnapshot,
    result: Option<Arc<dyn Any + Send + Sync>>,
) -> Event {
    JobCompleted {
        snapshot: snapshot.clone(),
        at: at(),
        result,
        terminal: terminal(snapshot, 2),
    }
    .into()
}

pub(crate) fn failed(snapshot: &JobSnapshot, error: Option<JobError>) -> Event {
    JobFailed {
        snapshot: snapshot.clone(),
        at: at(),
        error,
        terminal: terminal(snapshot, 1),
    }
    .into()
}

pub(crate) fn timed_out(snapshot: &JobSnapshot, budget: Option<Duration>) -> Event {
    JobTimedOut {
        snapshot: snapshot.clone(),
        at: at(),
        budget,
        terminal: terminal(snapshot, 1),
    }
    .into()
}

pub(crate) fn cancelled(snapshot: &JobSnapshot, forced: bool) -> Event {
    JobCancelled {
        snapshot: snapshot.clone(),
        at: at(),
        forced,
        message: "operator".to_owned(),
        terminal: terminal(snapshot, 1),
    }
    .into()
}

pub(crate) fn dependency_failure(snapshot: &JobSnapshot, error: Option<JobError>) -> Event {
    DependencyFailure {
        snapshot: snapshot.clone(),
        at: at(),
        error,
    }
    .into()
}

pub(crate) fn idle(snapshot: &JobSnapshot) -> Event {
    OrchestratorIdle {
        snapshot: snapshot.clone(),
        at: at(),
    }
    .into()
}

pub(crate) fn progress(snapshot: &JobSnapshot, text: Option<&str>, percent: Option<u8>) -> Event {
    JobProgress {
        snapshot: snapshot.clone(),
        at: at(),
        text: text.map(Arc::from),
        percent,
    }
    .into()
}

pub(crate) fn content(snapshot: &JobSnapshot, chunk: &str, last: bool) -> Event {
    ContentStream::new(snapshot.clone(), at(), chunk, last, &Metadata::new()).into()
}

pub(crate) fn workflow_complete(snapshot: &JobSnapshot) -> Event {
    WorkflowComplete::succeeded(snapshot.clone(), at()).into()
}

pub(crate) fn notification(snapshot: &JobSnapshot, severity: Severity) -> Notification {
    Notification {
        snapshot: snapshot.clone(),
        at: at(),
        severity,
        title: "Disk".into(),
        text: "almost full".into(),
    }
}

pub(crate) fn limiter(change: LimiterChange, snapshot: Option<JobSnapshot>) -> LimiterEvent {
    LimiterEvent {
        account: "pubmed".into(),
        category: AccountCategory::Semaphore,
        capacity: 3,
        in_use: 1,
        waiters: 0,
        wait: Duration::ZERO,
        change,
        reason: None,
        indicator: None,
        amount: 1,
        snapshot,
        at: at(),
    }
}

pub(crate) fn rate_limit(snapshot: &JobSnapshot, limit: ThrottleKind) -> RateLimitRetry {
    RateLimitRetry {
        snapshot: snapshot.clone(),
        at: at(),
        provider: "openai".into(),
        model: "gpt-x".into(),
        details: "429".into(),
        attempt: 1,
        delay: None,
        limit,
        throttle: 0.0,
    }
}

pub(crate) fn transient(snapshot: &JobSnapshot) -> TransientRetry {
    TransientRetry {
        snapshot: snapshot.clone(),
        at: at(),
        provider: "openai".into(),
        details: "502 bad gateway".into(),
        attempt: 3,
        delay: Some(Duration::from_secs(20)),
        overload: false,
    }
}

pub(crate) fn truncation(snapshot: &JobSnapshot) -> OutputTruncationRetry {
    OutputTruncationRetry {
        snapshot: snapshot.clone(),
        at: at(),
        model: "gpt-x".into(),
        attempt: 1,
        previous: 4_096,
        next: 8_192,
    }
}

pub(crate) fn correction(snapshot: &JobSnapshot) -> ResponseCorrectionRetry {
    ResponseCorrectionRetry {
        snapshot: snapshot.clone(),
        at: at(),
        model: "gpt-x".into(),
        attempt: 2,
        failure: JobError::correctable("x").kind().name().into(),
        details: "no JSON".into(),
    }
}

/// An event of an application, in no family but its own.
#[derive(Debug)]
pub(crate) struct ChatMessage;

impl AppEvent for ChatMessage {
    fn name(&self) -> &str {
        "chat-message-complete"
    }
}

/// Another one.
#[derive(Debug)]
pub(crate) struct Payment;

impl AppEvent for Payment {
    fn name(&self) -> &str {
        "payment"
    }

    fn message(&self) -> String {
        "payment of 3 EUR".to_owned()
    }

    fn human_message(&self) -> Option<String> {
        Some("You paid 3 EUR".to_owned())
    }
}

pub(crate) fn app(event: impl AppEvent, snapshot: Option<JobSnapshot>) -> Event {
    AppEventEnvelope {
        by: None,
        event: Arc::new(event),
        snapshot,
        at: at(),
    }
    .into()
}

/// One event of every kind; those that can have a job have this one.
pub(crate) fn one_of_each(job: &JobSnapshot) -> Vec<Event> {
    let id: Arc<str> = "hourly".into();
    vec![
        scheduled(job),
        started(job, 1),
        completed(job, None),
        failed(job, None),
        timed_out(job, None),
        cancelled(job, false),
        dependency_failure(job, None),
        idle(job),
        OrchestratorResumed {
            snapshot: job.clone(),
            at: at(),
        }
        .into(),
        WorkflowComplete::succeeded(job.clone(), at()).into(),
        progress(job, None, None),
        ContentStream::new(job.clone(), at(), "chunk", false, &Metadata::new()).into(),
        notification(job, Severity::Info).into(),
        Event::Retry(super::RetryEvent::RateLimit(rate_limit(
            job,
            ThrottleKind::Unknown,
        ))),
        transient(job).into(),
        truncation(job).into(),
        correction(job).into(),
        limiter(LimiterChange::Released, Some(job.clone())).into(),
        SchedulerStarted { at: at() }.into(),
        SchedulerStopping { at: at() }.into(),
        SchedulerStopped { at: at() }.into(),
        Event::scheduler_error("x", at()),
        HeartbeatRequested {
            id: id.clone(),
            at: at(),
        }
        .into(),
        CancelHeartbeat {
            id: id.clone(),
            at: at(),
        }
        .into(),
        HeartbeatScheduled {
            id: id.clone(),
            at: at(),
        }
        .into(),
        HeartbeatRebound {
            id: id.clone(),
            at: at(),
        }
        .into(),
        HeartbeatFired {
            id: id.clone(),
            job_id: "heartbeat-hourly-1".into(),
            at: at(),
        }
        .into(),
        HeartbeatFireFailed {
            id,
            error: JobError::external("db", "down"),
            at: at(),
        }
        .into(),
        app(ChatMessage, Some(job.clone())),
    ]
}
