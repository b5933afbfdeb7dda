//! A line of the log for every event (`OBS-1`).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use log::Level;

use super::text::one_line;
use crate::error::{ErrorKind, JobError, links, said};
use crate::events::{Event, EventFamily, Observer, ObserverKey, ProgressEvent, Severity};
use crate::job::JobSnapshot;
use crate::job::identity::without_generics;
use crate::sync::Mutex;

/// A workflow's id is shown whole up to this many characters, and with its beginning and end beyond.
const SHORT_ID: usize = 15;
const ID_BEGINNING: usize = 10;
const ID_END: usize = 4;
/// How many failures are remembered, so that one that jobs pass on is traced once: more levels of
/// orchestrators than anybody has.
const TRACED: usize = 64;

/// Writes a line of the [`log`] for every event, but those of limits.
///
/// The target of a line is the job's type and what kind of event it is, so a filter such as
/// `RUST_LOG` chooses by either:
///
/// | kind | level | events |
/// |---|---|---|
/// | `failure` | warn | a job failed, timed out, or was not run because another failed |
/// | `lifecycle` | info | every other step of a job |
/// | `workflow` | info | a root job ended |
/// | `retry` | debug | an attempt will run again |
/// | `progress` | debug | how far a job is |
/// | `stream` | debug | a piece of a model's text |
/// | `notification` | by severity: debug (info, success), warn, error | a message for a person |
/// | `system` | info | the dispatcher itself |
/// | `heartbeat` | info | work on a schedule |
/// | `event` | info | the application's own |
///
/// With a logger such as `env_logger`, `RUST_LOG=my_app=info` shows how the jobs that `my_app`
/// defines begin and end; `my_app::tools::Lookup=debug` everything about one type of job;
/// `my_app::tools::Lookup::progress=debug` its progress alone. An event about no job has the event's
/// own type for a target: `nucleo_runtime::events::SchedulerStarted::system`, and the application's
/// own events theirs. A job made by [`job_fn`](crate::job_fn) is a `nucleo_runtime::FnJob`.
///
/// A line about a job reads
///
/// ```text
/// analyze-do...c123 [Lookup/RUNNING] Job started (attempt 1)
/// ```
///
/// with the workflow (shortened past 15 characters), the job's display name and its state. The
/// whole ids are the key-values `workflow_id` and `job_id`. A failure that is a defect and not
/// addressed to anybody (`System`) adds its causes in a second line, at error, where it first
/// occurs.
///
/// All loggers are equal, so a bus holds one.
///
/// ```
/// use nucleo_runtime::JobDispatcher;
/// use nucleo_runtime::events::EventFilter;
/// use nucleo_runtime::observe::EventLogger;
/// use std::sync::Arc;
///
/// let dispatcher = JobDispatcher::builder().build()?;
/// dispatcher.start()?;
/// dispatcher.subscribe(EventFilter::all(), Arc::new(EventLogger::new()))?.detach();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct EventLogger {
    traced: Mutex<VecDeque<JobError>>,
}

impl EventLogger {
    /// One that has written nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the causes of this failure are to be written: not when they have been.
    fn traces(&self, error: &JobError) -> bool {
        if !matches!(error.kind(), ErrorKind::System { .. }) {
            return false;
        }
        let mut traced = self.traced.lock();
        if traced.iter().any(|known| known.is_same(error)) {
            return false;
        }
        traced.push_back(error.clone());
        let forgotten = (traced.len() > TRACED)
            .then(|| traced.pop_front())
            .flatten();
        drop(traced);
        // Its causes may be a user's types.
        drop(forgotten);
        true
    }
}

impl Observer for EventLogger {
    fn observe(&self, event: &Arc<Event>) {
        let Some((kind, level)) = category(event) else {
            return;
        };
        // Cheap, and for most events on most days the end of it.
        if level > log::max_level() {
            return;
        }
        let base = target_base(event);
        let base = without_generics(&base);
        let target = format!("{base}::{kind}");
        if log::log_enabled!(target: &target, level) {
            let text = event.message();
            let text = one_line(&text);
            match event.snapshot() {
                Some(job) => {
                    let line = job_line(job, &text);
                    write(&target, level, Some(job), &line);
                }
                None => write(&target, level, None, &format!("[SYSTEM] {text}")),
            }
        }
        if let Some(error) = event.cause()
            && log::log_enabled!(target: &target, Level::Error)
            && self.traces(error)
        {
            write(&target, Level::Error, event.snapshot(), &trace(error));
        }
    }

    fn accepts(&self, event: &Event) -> bool {
        event.family() != EventFamily::Limiter
    }

    fn key(&self) -> Option<ObserverKey> {
        Some(ObserverKey::new("nucleo_runtime::observe::EventLogger"))
    }
}

fn write(target: &str, level: Level, job: Option<&JobSnapshot>, line: &str) {
    match job {
        Some(job) => log::log!(
            target: target,
            level,
            workflow_id = job.workflow_id(),
            job_id = job.job_id();
            "{line}"
        ),
        None => log::log!(target: target, level, "{line}"),
    }
}

/// The last segment of an event's target, and its level; `None` for what is left out.
fn category(event: &Event) -> Option<(&'static str, Level)> {
    Some(match event {
        Event::Lifecycle(_) if event.is_failure() => ("failure", Level::Warn),
        Event::Lifecycle(_) => ("lifecycle", Level::Info),
        Event::Workflow(_) => ("workflow", Level::Info),
        Event::Retry(_) => ("retry", Level::Debug),
        Event::Progress(ProgressEvent::Job(_)) => ("progress", Level::Debug),
        Event::Progress(ProgressEvent::Content(_)) => ("stream", Level::Debug),
        Event::Notification(notification) => (
            "notification",
            match notification.severity {
                Severity::Info | Severity::Success => Level::Debug,
                Severity::Warning => Level::Warn,
                Severity::Error => Level::Error,
            },
        ),
        Event::Scheduler(_) => ("system", Level::Info),
        Event::Heartbeat(_) => ("heartbeat", Level::Info),
        Event::App(_) => ("event", Level::Info),
        Event::Limiter(_) => return None,
    })
}

fn target_base(event: &Event) -> Cow<'_, str> {
    match (event.snapshot(), event) {
        (Some(job), _) => job.type_path().into(),
        (None, Event::App(envelope)) => envelope.ask(|event| event.type_path().to_owned()).into(),
        (None, _) => format!("nucleo_runtime::events::{}", event.kind()).into(),
    }
}

fn job_line(job: &JobSnapshot, text: &str) -> String {
    format!(
        "{} [{}/{}] {text}",
        one_line(&shortened(job.workflow_id())),
        one_line(job.display_name()),
        job.state(),
    )
}

fn shortened(id: &str) -> String {
    let count = id.chars().count();
    if count <= SHORT_ID {
        return id.to_owned();
    }
    let beginning = id.chars().take(ID_BEGINNING);
    let end = id.chars().skip(count - ID_END);
    beginning.chain("...".chars()).chain(end).collect()
}

/// The failure, what caused it, and what failed besides.
fn trace(error: &JobError) -> String {
    let mut trace = one_line(&error.to_string()).into_owned();
    const DEEPEST: usize = 32;
    for error in links(error).skip(1).take(DEEPEST) {
        let _ = write!(trace, "; caused by: {}", one_line(&said(error)));
    }
    for other in error.attached() {
        let _ = write!(trace, "; besides: {}", one_line(&other.to_string()));
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    // case OBS-04
    #[test]
    fn a_long_workflow_id_shows_its_beginning_and_end() {
        assert_eq!(shortened("analyze-document-abc123"), "analyze-do...c123");
        assert_eq!(shortened("orders-12345678"), "orders-12345678");
        assert_eq!(shortened("orders-123456789"), "orders-123...6789");
        assert_eq!(shortened("ärgernisse-für-alle"), "ärgernisse...alle");
    }
}
