//! The dispatcher: takes jobs, admits them, runs them, ends them.
//!
//! A submission passes the [door](door), is [routed](routing) to a thread of its own, runs
//! [attempts](attempt) until one is [final](rerun), and is [settled](settle) once. What does not
//! end by itself is [ended](timeout).

mod asking;
mod attempt;
mod body;
mod books;
mod builder;
mod chores;
mod delayed;
mod door;
mod entry;
pub mod governor;
mod guarding;
mod inner;
mod limiters;
mod models;
mod orchestrator;
mod reaper;
mod rerun;
#[cfg(all(test, not(nucleo_model)))]
mod reserve_tests;
mod routing;
mod settle;
mod shutdown;
mod start;
mod starvation;
mod stoppable;
mod submission;
mod timeout;
mod timer;
mod unresponsive;

#[cfg(all(test, nucleo_model))]
pub(crate) use timer::model as model_timer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use inner::{Inner, Phase};
use submission::SubmissionTerms;

use crate::admission::{Admission, refuse_reentry};
use crate::clock::Clock;
use crate::db::DbResourceProviders;
use crate::error::JobError;
use crate::events::{EventFilter, MessageBus, Observer, SubscribeError, Subscription};
use crate::job::JobHandle;
use crate::job::core::Supervisor;
use crate::models::{Catalog, ComplianceEnvelope};

pub use builder::{BuildError, JobDispatcherBuilder};
pub use delayed::DelayedHandle;
pub use door::{Parent, SubmitError};
pub use limiters::LimiterRegistry;
pub use orchestrator::{Doer, FnDoer, OrchestratorContext, doer_fn};
pub use shutdown::{ShutdownError, ShutdownReport};
pub use stoppable::{StopOnce, Stoppable};
pub use submission::{Leaf, Orchestrator, Submission, Submit};
pub use unresponsive::{Unresponsive, UnresponsiveReason};

/// Runs jobs. A clone is the same dispatcher; several live side by side in one process.
///
/// Dropping the last clone begins a shutdown and does not wait for it; call
/// [`shutdown`](Self::shutdown) to have everything end in order.
///
/// ```
/// use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};
/// use std::time::Duration;
///
/// let dispatcher = JobDispatcher::builder().build()?;
/// dispatcher.start()?;
/// let workflow = Workflow::new("alice", "sums")?;
/// let handle = dispatcher.submit(&workflow, job_fn(JobRequirements::none, |_, _| Ok(6 * 7)))?;
/// assert_eq!(*handle.get()?, 42);
/// dispatcher.shutdown(Duration::from_secs(5))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct JobDispatcher {
    owner: Arc<Owner>,
}

/// Held by the clones of a dispatcher alone: its drop is the end.
struct Owner {
    inner: Arc<Inner>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        shutdown::begin(&self.inner);
    }
}

impl JobDispatcher {
    fn new(inner: Arc<Inner>) -> Self {
        let owner = Arc::new(Owner { inner });
        owner.inner.set_owner(&owner);
        Self { owner }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.owner.inner
    }

    /// Begins to put a dispatcher together.
    pub fn builder() -> JobDispatcherBuilder {
        JobDispatcherBuilder::new()
    }

    /// Starts the runtime's threads. A second start does nothing but warn.
    ///
    /// # Errors
    /// `IllegalState` after a shutdown; `System` when a thread could not be started, and from inside an
    /// account's answer. Then nothing has been started, and a later call may succeed.
    pub fn start(&self) -> Result<(), JobError> {
        refuse_reentry("start")?;
        start::start(self.inner())
    }

    /// Whether it takes submissions.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.inner().phase(), Phase::Started | Phase::Draining)
    }

    /// Submits a job under a workflow, which makes it a root job.
    ///
    /// # Errors
    /// When the dispatcher does not take submissions. A job that the door refuses is a handle whose
    /// `get` answers the refusal.
    pub fn submit<S: Submit<K>, K>(
        &self,
        parent: impl Into<Parent>,
        job: S,
    ) -> Result<JobHandle<S::Output>, SubmitError> {
        self.submit_with(parent, job).submit()
    }

    /// Begins a submission that depends on other jobs or carries facts.
    pub fn submit_with<S: Submit<K>, K>(
        &self,
        parent: impl Into<Parent>,
        job: S,
    ) -> Submission<S, K> {
        Submission::new(Arc::clone(self.inner()), parent.into(), job)
    }

    /// Submits a root job once `delay` has passed. It costs no thread until then. What the job says
    /// of itself is asked and judged now, on this thread; a refusal is told when its time has come.
    ///
    /// # Errors
    /// When the dispatcher does not take submissions.
    pub fn submit_delayed<S: Submit<K>, K>(
        &self,
        delay: Duration,
        parent: impl Into<Parent>,
        job: S,
    ) -> Result<DelayedHandle<S::Output>, SubmitError> {
        let inner = self.inner();
        refuse_reentry("submit").map_err(|_| SubmitError::InsideAccount)?;
        inner.accepts(true)?;
        let terms = SubmissionTerms::new(parent.into());
        let may_submit = terms.begun_by.judge();
        let judged = door::judge_for_later(terms, job.prepare());
        let (submission, handle) = delayed::delayed(Arc::clone(inner.clock()), judged);
        match may_submit {
            Ok(()) => inner.arm_delayed(delay, submission),
            Err(refusal) => submission.refuse(refusal),
        }
        Ok(handle)
    }

    /// Tells a job to stop. Answers whether it was found queued or running.
    ///
    /// A queued job never runs, is settled here and dropped after that. A running one finds out at its next look; its
    /// caller gets the cancellation whatever it returns, once it has ended.
    pub fn cancel(&self, job_id: &str, reason: &str) -> bool {
        self.inner()
            .entry(job_id)
            .is_some_and(|entry| self.inner().cancel(entry.job(), reason))
    }

    /// Tells every job of a workflow to stop, and answers how many were found. All are told before
    /// any callback runs.
    pub fn cancel_workflow(&self, workflow_id: &str, reason: &str) -> usize {
        shutdown::cancel_where(
            self.inner(),
            reason,
            &format!("Workflow cancelled: {reason}"),
            |job| &*job.profile().ids.workflow == workflow_id,
        )
    }

    /// Tells a job and everything that was submitted under it, at any depth, to stop, and answers
    /// how many were found.
    pub fn cancel_tree(&self, job_id: &str, reason: &str) -> usize {
        let message = format!("Cancelled with {job_id}: {reason}");
        shutdown::cancel_where(self.inner(), reason, &message, |job| {
            job.profile().ids.is_or_descends_from(job_id)
        })
    }

    /// Subscribes an observer to what happens. It runs on a thread of its own until the answer is
    /// dropped.
    ///
    /// # Errors
    /// When the bus has stopped or no thread is left for the subscription.
    pub fn subscribe(
        &self,
        filter: EventFilter,
        observer: Arc<dyn Observer>,
    ) -> Result<Subscription, SubscribeError> {
        self.inner().bus().subscribe(filter, observer)
    }

    /// The bus that carries this dispatcher's events.
    #[must_use]
    pub fn bus(&self) -> &MessageBus {
        self.inner().bus()
    }

    /// The place where this dispatcher's jobs wait for resources.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        self.inner().admission()
    }

    /// The limits that this dispatcher has one of each.
    #[must_use]
    pub fn limiters(&self) -> &LimiterRegistry {
        self.inner().limiters()
    }

    /// The database providers by name.
    #[must_use]
    pub fn databases(&self) -> &DbResourceProviders {
        self.inner().databases()
    }

    /// The models that it knows.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        self.inner().models().catalog()
    }

    /// Says which models may be used at all. Once, and before the start; until then a
    /// [`DefaultComplianceEnvelope`](crate::models::DefaultComplianceEnvelope) judges.
    ///
    /// # Errors
    /// `IllegalState` for a second time, and once it has been started.
    pub fn seal_compliance_envelope(
        &self,
        envelope: impl ComplianceEnvelope,
    ) -> Result<(), JobError> {
        if self.inner().phase() != Phase::Built {
            return Err(JobError::illegal_state(
                "the dispatcher has been started: seal the compliance envelope before",
            ));
        }
        if self.inner().models().seal(Arc::new(envelope)) {
            Ok(())
        } else {
            Err(JobError::illegal_state(
                "the compliance envelope is sealed: it is set once",
            ))
        }
    }

    /// Which models may be used at all. To look at it does not seal it.
    #[must_use]
    pub fn compliance_envelope(&self) -> Arc<dyn ComplianceEnvelope> {
        Arc::clone(self.inner().models().envelope())
    }

    /// The source of time.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.inner().clock()
    }

    /// How many jobs are queued or running.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.inner().job_count()
    }

    /// How many jobs wait for a thread.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.inner().router().len()
    }

    /// Has something of the application's stopped with the dispatcher: at the shutdown, after the
    /// jobs and before the bus, all of them side by side while there are threads, and for at most 5 seconds.
    pub fn register_stoppable(&self, stoppable: Arc<dyn Stoppable>) {
        self.inner().register_stoppable(stoppable);
    }

    /// The threads of the runtime: alive now, the most that ever were, and the cap.
    #[must_use]
    pub fn threads(&self) -> ThreadCounts {
        let threads = self.inner().threads();
        ThreadCounts {
            live: threads.live(),
            peak: threads.peak(),
            cap: threads.cap(),
        }
    }

    /// The jobs that were told to stop and have not: those that ignore a cancellation past its grace,
    /// and those whose threads were left behind, until these end.
    #[must_use]
    pub fn unresponsive(&self) -> Vec<Unresponsive> {
        self.inner().unresponsive()
    }

    /// Refuses new root jobs and waits until those that run have ended, submitting what they still
    /// submit; for at most `timeout`. Answers whether all have ended.
    ///
    /// # Errors
    /// `IllegalState` when the dispatcher is not running; `Deadlock` from inside a job.
    pub fn drain(&self, timeout: Duration) -> Result<bool, JobError> {
        refuse_reentry("drain")?;
        shutdown::drain(self.inner(), timeout)
    }

    /// Ends everything, in order: parked, queued and delayed jobs are cancelled; running ones get
    /// `timeout` (30 s when it is zero), then they are told to stop, get a grace and are left
    /// behind; the bus delivers what was published. Every handle settles.
    ///
    /// Takes at most `timeout` and 15 seconds, whatever of the application's is stuck: jobs, their hooks and
    /// callbacks, their destructors, which are waited for as long as running jobs are, providers, spend gates,
    /// stoppables, observers. The one exception is an account that blocks while it is asked, which
    /// [`RateLimiter`](crate::admission::RateLimiter) forbids: no end is possible while it holds the line.
    ///
    /// # Errors
    /// When it was shut down before, or is called from a job's thread or from something that a job handed over, such
    /// as its destructor, which cannot wait for itself; the shutdown begins all the same. While another one runs, whoever began it, this one waits for it,
    /// for at most `timeout`, and answers its report.
    pub fn shutdown(&self, timeout: Duration) -> Result<ShutdownReport, ShutdownError> {
        // An account that waits for the end holds the lock that the end needs.
        refuse_reentry("shutdown").map_err(|_| ShutdownError::FromInside)?;
        shutdown::shutdown(self.inner(), timeout)
    }

    /// Blocks until the runtime's own threads have handled everything up to the present instant.
    pub(crate) fn quiesce(&self) {
        let inner = self.inner();
        let clock = &**inner.clock();
        let cells = [
            inner.timer().cell(),
            inner.router().cells()[0],
            inner.router().cells()[1],
            inner.admission().evaluator_cell(),
        ];
        loop {
            for cell in cells {
                cell.wait_quiet(clock);
            }
            inner.bus().flush();
            // One of them may have given another something to do meanwhile.
            if cells.iter().all(|cell| cell.is_quiet(clock.now())) {
                return;
            }
        }
    }
}

/// How many threads the runtime has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadCounts {
    /// Alive now, with those kept in reserve.
    pub live: usize,
    /// The most that were alive at once.
    pub peak: usize,
    /// How many may be.
    pub cap: usize,
}

impl fmt::Debug for JobDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobDispatcher")
            .field("phase", &self.inner().phase())
            .field("jobs", &self.job_count())
            .finish_non_exhaustive()
    }
}
