//! What a running job knows of itself, and says (`CTX`).

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::behalf::{self, Handed};
use super::core::{JobCore, NewJob, Supervisor, Terms};
use super::current;
use super::handle::{JobHandle, downcast};
use super::identity::{JobIds, JobType, Workflow};
use super::metadata::{Metadata, MetadataValue, refuse_reserved};
use super::snapshot::{JobProfile, JobSnapshot};
use crate::admission::refuse_reentry;
use crate::clock::Clock;
use crate::error::JobError;
use crate::events::{
    AppEvent, AppEventEnvelope, Event, EventKind, JobProgress, MessageBus, Notification,
    ProgressEvent, Severity,
};
use crate::guard::ScopeGuard;
use crate::unwind::discard;

/// A job, seen from inside. A clone is the same job.
#[derive(Clone)]
pub struct JobContext {
    job: Arc<JobCore>,
}

impl JobContext {
    pub(crate) fn new(job: Arc<JobCore>) -> Self {
        Self { job }
    }

    pub(crate) fn core(&self) -> &Arc<JobCore> {
        &self.job
    }

    /// A context that belongs to no dispatcher, for testing what works on one.
    pub(crate) fn standalone(
        workflow: &Workflow,
        name: &'static str,
        timeout: Option<Duration>,
        clock: Arc<dyn Clock>,
        bus: MessageBus,
    ) -> Self {
        let deadline = timeout.and_then(|timeout| clock.now().checked_add(timeout));
        let job = JobCore::new(NewJob {
            profile: JobProfile {
                ids: JobIds::of_root(workflow, name),
                job_type: JobType::Job,
                type_path: name,
                type_name: name,
                name: None,
                display_name: None,
                action: "".into(),
                description: None,
                priority: 0,
                submitted_at: clock.wall(),
            },
            terms: Terms {
                orchestrator: false,
                timeout,
                upstream_retries: 0,
                tolerates_dependency_failures: false,
                guard: ScopeGuard::default(),
            },
            metadata: Metadata::new(),
            parent: None,
            dependencies: Vec::new(),
            clock,
            bus,
            supervisor: Weak::<Alone>::new(),
        });
        job.set_deadline(deadline);
        Self { job }
    }

    /// The job that the calling thread works for; `None` outside any job.
    #[must_use]
    pub fn current() -> Option<Self> {
        current::current().map(|current| Self::new(current.job))
    }

    /// Whether the calling thread works for a job that holds resources now: from their acquisition
    /// to their release.
    #[must_use]
    pub fn is_executing_with_resources() -> bool {
        current::current().is_some_and(|current| current.holder().is_some())
    }

    /// The job's id.
    #[must_use]
    pub fn job_id(&self) -> &str {
        self.job.id()
    }

    /// The id of the job's workflow.
    #[must_use]
    pub fn workflow_id(&self) -> &str {
        &self.job.profile().ids.workflow
    }

    /// On whose behalf the job runs.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.job.profile().ids.user
    }

    /// What the job is bound to: its caller's scopes and its own, sealed when it was submitted.
    #[must_use]
    pub fn scope_guard(&self) -> &ScopeGuard {
        &self.job.terms().guard
    }

    /// What the job is now.
    #[must_use]
    pub fn snapshot(&self) -> JobSnapshot {
        self.job.snapshot()
    }

    // Telling.

    /// Says how far the job is: a message, and where it is known a percentage (more than 100
    /// counts as 100). A job that has not started counts as running from here on. Nothing happens
    /// once the job's end has been told.
    pub fn publish(&self, message: &str, percent: Option<u8>) {
        let percent = percent.map(|percent| percent.min(100));
        let message: Arc<str> = message.into();
        self.job.note_progress(Arc::clone(&message), percent);
        let at = self.job.clock().wall();
        self.job.tell(EventKind::JobProgress, |snapshot| {
            Event::Progress(ProgressEvent::Job(JobProgress {
                snapshot,
                at,
                text: Some(message),
                percent,
            }))
        });
    }

    /// Says how far the job is, for a person: `title: message`.
    pub fn publish_user_progress(&self, title: &str, message: &str, percent: Option<u8>) {
        self.publish(&format!("{title}: {message}"), percent);
    }

    /// Tells a person something.
    pub fn publish_user_notification(&self, severity: Severity, title: &str, text: &str) {
        let at = self.job.clock().wall();
        self.job.tell(EventKind::Notification, |snapshot| {
            Event::Notification(Notification {
                snapshot,
                at,
                severity,
                title: title.into(),
                text: text.into(),
            })
        });
    }

    /// Publishes an event of the application's own. It reaches subscribers that ask for its type
    /// or for everything.
    pub fn publish_event(&self, event: Arc<dyn AppEvent>) {
        let at = self.job.clock().wall();
        // Telling holds a lock of the job's, under which the event must not be dropped: it is the
        // user's, and nobody may want it.
        let kept = Arc::clone(&event);
        let by = behalf::here();
        self.job.tell(EventKind::App, |snapshot| {
            Event::App(AppEventEnvelope {
                event,
                snapshot: Some(snapshot),
                at,
                by: by.or_else(|| Some(Arc::clone(self.job.behalf()))),
            })
        });
        discard(kept);
    }

    /// Notes a fact on the job, in place of an earlier one under the same key.
    ///
    /// # Errors
    /// `InvalidInput` for a key that begins with [`Metadata::RESERVED`], `IllegalState` when the
    /// job's end has been told; nothing is noted.
    pub fn note(&self, key: &str, value: impl Into<MetadataValue>) -> Result<(), JobError> {
        refuse_reserved(key)?;
        if self.job.note(key, value) {
            return Ok(());
        }
        Err(JobError::illegal_state(
            "the job has ended, and nothing is noted on it any more",
        ))
    }

    /// Adds to the milliseconds that the job waited for an account, under `wait_times`.
    pub fn record_resource_wait(&self, account: &str, wait: Duration) {
        self.job
            .note_waits(Duration::ZERO, std::iter::once((account, wait)));
    }

    /// Adds to the milliseconds that the job waited for admission, under `admission_wait_ms`.
    pub fn record_admission_wait(&self, wait: Duration) {
        self.job.note_waits(wait, std::iter::empty());
    }

    // Stopping.

    /// Whether the job has been told to stop, by a cancellation or its timeout.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.job.is_cancelled() || self.job.is_timed_out()
    }

    /// Whether the job's deadline has passed. False for a job without one.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        self.job.is_timed_out()
    }

    /// Stops the job here if it has been told to stop.
    ///
    /// # Errors
    /// `Cancelled` or `TimedOut`; let it out of `execute` as it is.
    pub fn check_cancellation(&self) -> Result<(), JobError> {
        self.job.is_timed_out();
        self.job.interruption().map_or(Ok(()), Err)
    }

    /// Sleeps, until the job is told to stop at the latest.
    ///
    /// # Errors
    /// As for [`check_cancellation`](Self::check_cancellation); `System` from inside a limit's
    /// answer.
    pub fn sleep(&self, duration: Duration) -> Result<(), JobError> {
        refuse_reentry("sleep")?;
        let clock = self.job.clock();
        let deadline = clock.now().checked_add(duration);
        loop {
            let seen = self.job.cell().epoch();
            if let Some(interruption) = self.job.interruption() {
                return Err(interruption);
            }
            if deadline.is_some_and(|deadline| clock.now() >= deadline) {
                return Ok(());
            }
            clock.wait_until(self.job.cell(), seen, deadline);
        }
    }

    /// How much of the attempt's time budget is left: `Ok` of it, or `Err` of how long ago it
    /// passed. `None` for a job without a deadline.
    #[must_use]
    pub fn remaining_time(&self) -> Option<Result<Duration, Duration>> {
        let now = self.job.clock().now();
        self.job
            .deadline()
            .map(|deadline| match deadline.checked_duration_since(now) {
                Some(left) => Ok(left),
                None => Err(now.saturating_duration_since(deadline)),
            })
    }

    /// Runs `callback` once, when the job is told to stop; at once if it has been. It runs on the
    /// thread of whoever tells, outside of any job; a panic in it is logged and goes no further. What
    /// it submits is that of the job that registers it (of this one, when that is none): refused for
    /// a leaf.
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) {
        self.job.on_cancel(callback);
    }

    /// Runs `callback` once, when the job's timeout passes; at once if it has. Dropped if the job
    /// ends before. It runs as one of [`on_cancel`](Self::on_cancel) does.
    pub fn on_timeout(&self, callback: impl FnOnce() + Send + 'static) {
        self.job.on_timeout(callback);
    }

    // What it depends on. Let go of when the job has ended.

    /// The result of a job that this one was submitted after.
    ///
    /// # Errors
    /// That job's failure, where this one tolerates it; `IllegalState` when this job was not
    /// submitted after it.
    pub fn dependency<T: Send + Sync + 'static>(
        &self,
        handle: &JobHandle<T>,
    ) -> Result<Arc<T>, JobError> {
        let declared = self
            .job
            .dependencies()
            .iter()
            .any(|dependency| Arc::ptr_eq(dependency, handle.job()));
        match declared.then(|| handle.job().outcome()).flatten() {
            Some(outcome) => downcast(outcome?),
            None => Err(JobError::illegal_state(format!(
                "job {} was not submitted after {}: name it with `after`",
                self.job_id(),
                handle.job_id()
            ))),
        }
    }

    /// The result of the one job that this one was submitted after.
    ///
    /// # Errors
    /// As for [`dependency`](Self::dependency), and `IllegalState` when it was submitted after none
    /// or several.
    pub fn single_dependency_result<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, JobError> {
        let dependencies = self.job.dependencies();
        let [dependency] = &*dependencies else {
            return Err(JobError::illegal_state(format!(
                "job {} was submitted after {} jobs, not one: ask for each by its handle",
                self.job_id(),
                dependencies.len()
            )));
        };
        downcast(self.outcome_of(dependency)?)
    }

    /// The results of the jobs that this one was submitted after, by their final snapshots, in the
    /// order in which they were named. One that failed is not among them.
    #[must_use]
    pub fn dependency_results(&self) -> Vec<(JobSnapshot, Arc<dyn Any + Send + Sync>)> {
        self.settled_dependencies()
            .into_iter()
            .filter_map(|(snapshot, outcome)| Some((snapshot, outcome.ok()?)))
            .collect()
    }

    /// The failures among the jobs that this one was submitted after, by their final snapshots.
    #[must_use]
    pub fn dependency_errors(&self) -> Vec<(JobSnapshot, JobError)> {
        self.settled_dependencies()
            .into_iter()
            .filter_map(|(snapshot, outcome)| Some((snapshot, outcome.err()?)))
            .collect()
    }

    fn settled_dependencies(&self) -> Vec<(JobSnapshot, super::core::Outcome)> {
        self.job
            .dependencies()
            .iter()
            .filter_map(|dependency| Some((dependency.snapshot(), dependency.outcome()?)))
            .collect()
    }

    fn outcome_of(&self, dependency: &JobCore) -> super::core::Outcome {
        dependency.outcome().unwrap_or_else(|| {
            Err(JobError::illegal_state(format!(
                "job {} has not settled",
                dependency.id()
            )))
        })
    }

    /// Wraps work for another thread so that it counts as this job's there: it cannot submit, and
    /// it cannot wait while the job holds resources, nor for the job itself. On the thread of another
    /// job it counts as that one's too. The job's own thread
    /// still counts as active while it waits for the other one by means of the standard library: a
    /// cap that such waits use up is not noticed (RT-5). A thread that user code starts counts as
    /// outside any job otherwise.
    pub fn bind<R, F>(&self, work: F) -> impl FnOnce() -> R + Send + use<R, F>
    where
        F: FnOnce() -> R + Send,
    {
        let job = Arc::clone(&self.job);
        let work = Handed::new(Some(Arc::clone(job.behalf())), work);
        move || {
            let _entered = current::enter(&job, false);
            work.into_value()()
        }
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("job", &self.job.id())
            .field("state", &self.job.state())
            .finish_non_exhaustive()
    }
}

/// Nobody supervises a job without a dispatcher.
struct Alone;

impl Supervisor for Alone {
    fn cancel(&self, _: &Arc<JobCore>, _: &str) -> bool {
        false
    }

    fn wait_begins(&self) {}

    fn wait_ends(&self) {}

    fn look(&self) {}

    fn dependencies_settled(&self, _: &JobCore) {}
}
