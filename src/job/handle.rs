//! The caller's end of a job (`WAIT`).
//!
//! # Invariants
//!
//! 1. A wait ends: at the settlement, at its own deadline, or when the job that waits is told to
//!    stop. Its thread is registered before it looks, so a settlement in between notifies it.
//! 2. Nobody waits while holding: the rule is about who asks, not about whether the result happens
//!    to be there.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{JobCore, Outcome};
use super::current::{self, Current};
use super::snapshot::JobSnapshot;
use crate::admission::refuse_reentry;
use crate::clock::WaitCell;
use crate::error::JobError;
use crate::events::{EventFilter, Observer, SubscribeError};

crate::sync::thread_local! {
    /// Where a thread outside any job sleeps.
    static OUTSIDE: Arc<WaitCell> = WaitCell::new();
}

/// A submitted job, seen from outside. A clone is the same job; dropping it lets the job run on.
#[must_use = "dropping a handle detaches its job; `get()` waits for it"]
pub struct JobHandle<T> {
    job: Arc<JobCore>,
    // A handle sends no `T` anywhere but as the shared result.
    output: PhantomData<fn() -> T>,
}

impl<T> Clone for JobHandle<T> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.job))
    }
}

impl<T> fmt::Debug for JobHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle")
            .field("job", &self.job.id())
            .field("state", &self.job.state())
            .finish()
    }
}

impl<T> JobHandle<T> {
    pub(crate) fn new(job: Arc<JobCore>) -> Self {
        Self {
            job,
            output: PhantomData,
        }
    }

    pub(crate) fn job(&self) -> &Arc<JobCore> {
        &self.job
    }

    /// The job's id.
    #[must_use]
    pub fn job_id(&self) -> &str {
        self.job.id()
    }

    /// The id of the workflow that the job belongs to.
    #[must_use]
    pub fn workflow_id(&self) -> &str {
        &self.job.profile().ids.workflow
    }

    /// What the job is now.
    #[must_use]
    pub fn snapshot(&self) -> JobSnapshot {
        self.job.snapshot()
    }

    /// Whether the job has settled: its events are out, its permits back, its result here.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.job.is_settled()
    }

    /// Tells the job to stop. Answers whether it was found queued or running.
    ///
    /// A queued job never runs. A running one finds out at its next look; its caller gets the
    /// cancellation whatever it returns. For a job whose work is over, and which is being judged or
    /// ends, it is too late: the answer is false, and the job ends as it would have.
    pub fn cancel(&self, reason: &str) -> bool {
        self.job
            .supervisor()
            .is_some_and(|supervisor| supervisor.cancel(&self.job, reason))
    }

    /// Subscribes an observer to this job's workflow alone, until the job settles. After that it
    /// does nothing.
    ///
    /// # Errors
    /// When the bus has stopped or no thread is left for the subscription.
    pub fn register_workflow_observer(
        &self,
        observer: Arc<dyn Observer>,
    ) -> Result<(), SubscribeError> {
        if self.job.is_settled() {
            return Ok(());
        }
        let filter = EventFilter::all().workflow(self.workflow_id());
        let subscription = self.job.bus().subscribe(filter, observer)?;
        self.job.keep_until_settled(subscription);
        Ok(())
    }
}

impl<T: Send + Sync + 'static> JobHandle<T> {
    /// Waits for the job and answers its result. May be called any number of times, from several
    /// threads; all get the same result or the same error.
    ///
    /// Waits until the job settles, however long; inside a job also until that job is told to
    /// stop.
    ///
    /// # Errors
    /// The job's failure. `Deadlock` when the calling job holds resources, whether or not the
    /// result is there, or when the job waits for the calling one, directly or through others, as an
    /// ancestor does; the calling job's own `Cancelled` or `TimedOut` when it is told to stop
    /// while it waits.
    #[track_caller]
    pub fn get(&self) -> Result<Arc<T>, JobError> {
        match self.wait(None, Location::caller(), Heeds::Stop)? {
            Some(result) => Ok(result),
            None => Err(JobError::system(
                "handle",
                "a wait without a deadline ended",
            )),
        }
    }

    /// As [`get`](Self::get), for at most `timeout`; `None` when the job has not settled by then.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[track_caller]
    pub fn get_timeout(&self, timeout: Duration) -> Result<Option<Arc<T>>, JobError> {
        let deadline = self.job.clock().now().checked_add(timeout);
        self.wait(deadline, Location::caller(), Heeds::Stop)
    }

    /// As [`get`](Self::get), until `deadline` at the latest; `None` when the job has not settled
    /// by then.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[track_caller]
    pub fn get_deadline(&self, deadline: Instant) -> Result<Option<Arc<T>>, JobError> {
        self.wait(Some(deadline), Location::caller(), Heeds::Stop)
    }

    /// As [`get_deadline`](Self::get_deadline), but the wait does not end when the calling job is
    /// told to stop.
    #[track_caller]
    pub(crate) fn get_regardless(&self, deadline: Instant) -> Result<Option<Arc<T>>, JobError> {
        self.wait(Some(deadline), Location::caller(), Heeds::Nothing)
    }

    /// The result, if it is there; never waits.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[track_caller]
    pub fn try_get(&self) -> Result<Option<Arc<T>>, JobError> {
        let now = self.job.clock().now();
        self.wait(Some(now), Location::caller(), Heeds::Stop)
    }

    /// Waits for all of them and answers their results in order: the fan-in.
    ///
    /// All are waited for, also when one fails, so that none is left running unseen.
    ///
    /// # Errors
    /// That of the first in order that failed.
    #[track_caller]
    pub fn join_all(handles: &[Self]) -> Result<Vec<Arc<T>>, JobError> {
        let results: Vec<_> = handles.iter().map(Self::get).collect();
        results.into_iter().collect()
    }

    fn wait(
        &self,
        deadline: Option<Instant>,
        site: &Location<'_>,
        heeds: Heeds,
    ) -> Result<Option<Arc<T>>, JobError> {
        match self.wait_for_outcome(deadline, site, heeds)? {
            None => Ok(None),
            Some(Err(error)) => Err(error),
            Some(Ok(value)) => downcast(value).map(Some),
        }
    }

    fn wait_for_outcome(
        &self,
        deadline: Option<Instant>,
        site: &Location<'_>,
        heeds: Heeds,
    ) -> Result<Option<Outcome>, JobError> {
        refuse_reentry("get")?;
        let caller = current::owner();
        if let Some(holder) = caller.as_ref().and_then(Current::holder) {
            return Err(wait_while_holding(holder, &self.job, site));
        }
        if let Some(outcome) = self.job.outcome() {
            return Ok(Some(outcome));
        }
        match &caller {
            // In the cell of the job that waits, where its own signals reach it.
            Some(caller) => {
                // Where the thread is a job's own, that job waits, also when it runs what another
                // one bound.
                let own = caller.all().find(|current| current.own_thread);
                for other in caller.all().filter(|current| !current.own_thread) {
                    if let Some(way) = other.job.way_back_from(&self.job) {
                        return Err(wait_in_a_cycle(&other.job, &way, site));
                    }
                }
                let waiting = own.map(|own| {
                    let waiting = own.job.waits_for_job(&self.job);
                    waiting.map_err(|way| wait_in_a_cycle(&own.job, &way, site))
                });
                let _waiting = waiting.transpose()?;
                let stops = matches!(heeds, Heeds::Stop).then_some(&caller.job);
                self.sleep(deadline, caller.job.cell(), stops)
            }
            None => OUTSIDE.with(|cell| self.sleep(deadline, cell, None)),
        }
    }

    fn sleep(
        &self,
        deadline: Option<Instant>,
        cell: &Arc<WaitCell>,
        caller: Option<&Arc<JobCore>>,
    ) -> Result<Option<Outcome>, JobError> {
        let clock = self.job.clock();
        let registered = self.job.notify_when_settled(cell);
        let result = loop {
            let seen = cell.epoch();
            if let Some(outcome) = self.job.outcome() {
                break Ok(Some(outcome));
            }
            if let Some(interruption) = caller.and_then(|caller| caller.interruption()) {
                break Err(interruption);
            }
            if deadline.is_some_and(|deadline| clock.now() >= deadline) {
                break Ok(None);
            }
            clock.wait_until(cell, seen, deadline);
        };
        if registered {
            self.job.forget_waiter(cell);
        }
        result
    }
}

/// What ends a job's wait besides what it waits for.
#[derive(Clone, Copy, Debug)]
enum Heeds {
    /// That it is told to stop.
    Stop,
    Nothing,
}

/// A handle's type is the job's output type, so the value has it.
pub(super) fn downcast<T: Send + Sync + 'static>(
    value: Arc<dyn Any + Send + Sync>,
) -> Result<Arc<T>, JobError> {
    value.downcast::<T>().map_err(|_| {
        JobError::system(
            "handle",
            format!("the result is not a {}", std::any::type_name::<T>()),
        )
    })
}

fn wait_in_a_cycle(caller: &JobCore, way: &[Arc<JobCore>], site: &Location<'_>) -> JobError {
    let ids: Vec<_> = std::iter::once(caller.id())
        .chain(way.iter().map(|job| job.id()))
        .collect();
    JobError::deadlock(format!(
        "{} may not wait here (at {site}), for what it waits for waits for it: {}",
        caller.id(),
        ids.join(" -> ")
    ))
}

fn wait_while_holding(caller: &JobCore, called: &JobCore, site: &Location<'_>) -> JobError {
    let named = |job: &JobCore| format!("{} ({})", job.id(), job.profile().type_path);
    JobError::deadlock(format!(
        "{} of workflow {} holds resources and may not wait for {} (at {site}): wait before it is \
         admitted, by submitting it after that job, or coordinate from an orchestrator",
        named(caller),
        caller.profile().ids.workflow,
        named(called),
    ))
}
