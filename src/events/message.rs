//! The one table of what events say (`EVT-5`).

use std::borrow::Cow;
use std::time::Duration;

use super::app::AppEvent;
use super::event::Event;
use super::lifecycle::LifecycleEvent;
use super::operation::{HeartbeatEvent, LimiterChange, LimiterEvent, SchedulerEvent};
use super::progress::ProgressEvent;
use super::retry::{RetryEvent, ThrottleKind};
use crate::error::{ErrorKind, JobError, chain};

/// How much of a streamed piece a log line keeps: enough to see which stream it is (EVT-15).
const CHUNK_CHARS: usize = 50;

/// The line for a log.
pub(super) fn line(event: &Event) -> String {
    match event {
        Event::Lifecycle(event) => lifecycle(event),
        Event::Workflow(event) => event.reason.to_string(),
        Event::Progress(event) => progress(event),
        Event::Notification(event) if event.title.is_empty() => event.text.to_string(),
        Event::Notification(event) => format!("{}: {}", event.title, event.text),
        Event::Retry(event) => retry(event),
        Event::Limiter(event) => limiter(event),
        Event::Scheduler(event) => match event {
            SchedulerEvent::Started(_) => "Scheduler started".to_owned(),
            SchedulerEvent::Stopping(_) => "Scheduler stopping".to_owned(),
            SchedulerEvent::Stopped(_) => "Scheduler stopped".to_owned(),
            SchedulerEvent::Error(error) => format!("Scheduler error: {}", error.message),
        },
        Event::Heartbeat(event) => heartbeat(event),
        Event::App(envelope) => envelope.ask(AppEvent::message),
    }
}

/// The sentence for a person, where the event is meant for people.
pub(super) fn human(event: &Event) -> Option<String> {
    match event {
        Event::Lifecycle(
            LifecycleEvent::OrchestratorIdle(_) | LifecycleEvent::OrchestratorResumed(_),
        )
        | Event::Workflow(_)
        | Event::Retry(_) => Some(line(event)),
        Event::Lifecycle(event) => event.cause()?.human_message().map(str::to_owned),
        Event::Progress(ProgressEvent::Job(event)) => event.text.as_deref().map(str::to_owned),
        Event::Progress(ProgressEvent::Content(event)) => Some(event.chunk.to_string()),
        Event::Notification(event) => Some(event.text.to_string()),
        Event::App(envelope) => envelope.ask(AppEvent::human_message),
        Event::Limiter(_) | Event::Scheduler(_) | Event::Heartbeat(_) => None,
    }
}

fn lifecycle(event: &LifecycleEvent) -> String {
    match event {
        LifecycleEvent::Scheduled(event) if event.requirements.is_empty() => {
            format!("Job scheduled (priority {})", event.priority)
        }
        LifecycleEvent::Scheduled(event) => format!(
            "Job scheduled (priority {}, needs {})",
            event.priority, event.requirements
        ),
        LifecycleEvent::Started(event) => format!("Job started (attempt {})", event.attempt),
        LifecycleEvent::Completed(event) => format!(
            "Job completed successfully (attempt {})",
            event.terminal.attempts
        ),
        LifecycleEvent::Failed(event) => match &event.error {
            Some(error) => format!("Job failed: {error}"),
            None => "Job failed: unknown error".to_owned(),
        },
        LifecycleEvent::TimedOut(event) => match event.budget {
            Some(budget) => format!("Job timed out after {} seconds", budget.as_secs_f64()),
            None => "Job timed out".to_owned(),
        },
        LifecycleEvent::Cancelled(event) if event.forced => "Job forcefully cancelled".to_owned(),
        LifecycleEvent::Cancelled(_) => "Job cancelled".to_owned(),
        LifecycleEvent::DependencyFailure(event) => match &event.error {
            Some(error) => {
                let first = first_failure(error);
                format!(
                    "Job failed due to dependency failure: {}: {first}",
                    first.kind().name()
                )
            }
            None => "Job failed due to dependency failure: Unknown".to_owned(),
        },
        LifecycleEvent::OrchestratorIdle(_) => "Ready".to_owned(),
        LifecycleEvent::OrchestratorResumed(_) => "Processing".to_owned(),
    }
}

/// The failure that a chain of failed dependencies began with: that one says what to do.
fn first_failure(error: &JobError) -> &JobError {
    let mut failures = chain(error);
    failures
        .find(|failure| !matches!(failure.kind(), ErrorKind::DependencyFailed { .. }))
        .unwrap_or(error)
}

fn progress(event: &ProgressEvent) -> String {
    match event {
        ProgressEvent::Job(event) => match (&event.text, event.percent) {
            (Some(text), _) => text.to_string(),
            (None, Some(percent)) => format!("Job progress {percent}%"),
            (None, None) => "Job progress".to_owned(),
        },
        ProgressEvent::Content(event) => beginning(&event.chunk).into_owned(),
    }
}

fn beginning(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(CHUNK_CHARS) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
    }
}

fn retry(event: &RetryEvent) -> String {
    match event {
        RetryEvent::RateLimit(event) => {
            let limit = match event.limit {
                ThrottleKind::Acceleration => format!(
                    "acceleration limit (system throttle: {:.1}x)",
                    1.0 + event.throttle
                ),
                ThrottleKind::Capacity | ThrottleKind::Unknown => "capacity limit".to_owned(),
            };
            format!(
                "Hit {limit} for {}. Retrying in ~{} seconds (attempt {})",
                event.model,
                whole_seconds(event.delay),
                event.attempt
            )
        }
        RetryEvent::Transient(event) => format!(
            "Server error from {}: {}. Retrying in ~{} seconds (attempt {})",
            event.provider,
            event.details,
            whole_seconds(event.delay),
            event.attempt
        ),
        RetryEvent::OutputTruncation(event) => format!(
            "Output truncated at {} tokens on {}. Retrying with budget {}.",
            event.previous, event.model, event.next
        ),
        RetryEvent::ResponseCorrection(event) => format!(
            "Reply of {} could not be used ({}: {}). Asking again (attempt {})",
            event.model, event.failure, event.details, event.attempt
        ),
    }
}

fn whole_seconds(delay: Option<Duration>) -> u64 {
    delay.map_or(0, |delay| {
        delay.as_secs() + u64::from(delay.subsec_millis() >= 500)
    })
}

fn limiter(event: &LimiterEvent) -> String {
    let account = &event.account;
    let level = format_args!("({}/{}", event.in_use, event.capacity);
    match event.change {
        LimiterChange::GrantedImmediate => format!("{account} GRANTED {level})"),
        LimiterChange::Held => format!("{account} HELD {level}, waiters={})", event.waiters),
        LimiterChange::GrantedFromHold => {
            format!("{account} GRANTED after {}ms", event.wait.as_millis())
        }
        LimiterChange::Rejected => match event.reason {
            Some(reason) => format!("{account} REJECTED ({reason})"),
            None => format!("{account} REJECTED"),
        },
        LimiterChange::Released => format!("{account} RELEASED {level})"),
    }
}

fn heartbeat(event: &HeartbeatEvent) -> String {
    let id = event.id();
    match event {
        HeartbeatEvent::Requested(_) => format!("Heartbeat {id} requested"),
        HeartbeatEvent::Cancel(_) => format!("Heartbeat {id} to be cancelled"),
        HeartbeatEvent::Scheduled(_) => format!("Heartbeat {id} scheduled"),
        HeartbeatEvent::Rebound(_) => format!("Heartbeat {id} rebound"),
        HeartbeatEvent::Fired(event) => format!("Heartbeat {id} fired as job {}", event.job_id),
        HeartbeatEvent::FireFailed(event) => {
            format!("Heartbeat {id} failed to fire: {}", event.error)
        }
    }
}
