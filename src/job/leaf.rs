//! A leaf: a job that may hold resources, and cannot submit.

use std::fmt;
use std::time::Duration;

use super::context::JobContext;
use super::description::{
    DEFAULT_TIMEOUT, DEFAULT_UPSTREAM_RETRIES, descriptive_methods, forward_descriptive_methods,
};
use super::requirements::JobRequirements;
use super::resources::JobResources;
use crate::error::JobError;

/// One piece of work that says what it needs and then does it.
///
/// A job never opens a connection itself and never waits while it holds one: it declares its needs
/// in [`requirements`](Self::requirements), is granted all of them at once, and gives them back the
/// moment it ends. It runs on an OS thread of its own.
///
/// The descriptive methods are asked once, at submission. `requirements` is asked once at
/// submission and once per attempt, there on the job's own thread.
pub trait Job: Send + 'static {
    /// What the job answers. Shared with everyone who asks for it.
    type Output: Send + Sync + 'static;

    descriptive_methods!(crate::job::JobType::Job);

    /// How long an attempt may take from its grant; `None` for as long as it likes, which a job
    /// that declares resources may not. 30 minutes unless the job says otherwise.
    fn timeout(&self) -> Option<Duration> {
        Some(DEFAULT_TIMEOUT)
    }

    /// How often the job is run again when its provider rate-limits it, is overloaded or fails.
    /// Three times unless the job says otherwise; zero for never.
    fn upstream_retries(&self) -> u32 {
        DEFAULT_UPSTREAM_RETRIES
    }

    /// What an attempt needs. Nothing unless the job says otherwise.
    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
    }

    /// Runs before each attempt's `execute`, with the resources held.
    ///
    /// # Errors
    /// An error fails the attempt as one from `execute` does.
    fn pre_execute(
        &mut self,
        resources: &JobResources,
        context: &JobContext,
    ) -> Result<(), JobError> {
        let _ = (resources, context);
        Ok(())
    }

    /// Does the work. What the job keeps in `self` is there at the next attempt.
    ///
    /// # Errors
    /// An error fails the job, unless it is a [`RetrySignal`](crate::RetrySignal), which has the
    /// attempt run again. Put side effects where a further attempt does no harm: into the
    /// transaction, or after the last call that can raise such a signal.
    fn execute(
        &mut self,
        resources: &JobResources,
        context: &JobContext,
    ) -> Result<Self::Output, JobError>;

    /// The text of an output, for guards that judge texts: they refuse an output without one. None
    /// unless the job says otherwise; the text itself for an output that is one.
    fn output_text(&self, output: &Self::Output) -> Option<String> {
        crate::guard::built_in_text(output)
    }

    /// Runs once, after the resources are back and before the end is told, whatever the outcome.
    /// It has 30 seconds; then the job ends without it.
    fn post_execute(&mut self, outcome: Result<&Self::Output, &JobError>, context: &JobContext) {
        let _ = (outcome, context);
    }
}

impl<J: Job + ?Sized> Job for Box<J> {
    type Output = J::Output;

    forward_descriptive_methods!();

    fn timeout(&self) -> Option<Duration> {
        (**self).timeout()
    }

    fn upstream_retries(&self) -> u32 {
        (**self).upstream_retries()
    }

    fn requirements(&self) -> JobRequirements {
        (**self).requirements()
    }

    fn pre_execute(
        &mut self,
        resources: &JobResources,
        context: &JobContext,
    ) -> Result<(), JobError> {
        (**self).pre_execute(resources, context)
    }

    fn execute(
        &mut self,
        resources: &JobResources,
        context: &JobContext,
    ) -> Result<Self::Output, JobError> {
        (**self).execute(resources, context)
    }

    fn output_text(&self, output: &Self::Output) -> Option<String> {
        (**self).output_text(output)
    }

    fn post_execute(&mut self, outcome: Result<&Self::Output, &JobError>, context: &JobContext) {
        (**self).post_execute(outcome, context);
    }
}

/// A job made of a closure; see [`job_fn`].
pub struct FnJob<R, F> {
    requirements: R,
    work: F,
    prefix: Option<String>,
    timeout: Option<Duration>,
}

/// A job made of what it needs and a closure that does it, for the small cases.
///
/// `requirements` is asked as [`Job::requirements`] is.
///
/// ```
/// use nucleo_runtime::{JobRequirements, job_fn};
///
/// let job = job_fn(JobRequirements::none, |_resources, _context| Ok(6 * 7)).named("answer");
/// ```
pub fn job_fn<R, F, T>(requirements: R, work: F) -> FnJob<R, F>
where
    R: Fn() -> JobRequirements + Send + 'static,
    F: FnMut(&JobResources, &JobContext) -> Result<T, JobError> + Send + 'static,
    T: Send + Sync + 'static,
{
    FnJob {
        requirements,
        work,
        prefix: None,
        timeout: Some(DEFAULT_TIMEOUT),
    }
}

impl<R, F> FnJob<R, F> {
    /// What the job's id starts with and what it is shown as.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.prefix = Some(name.into());
        self
    }

    /// How long an attempt may take. 30 minutes unless set; `None` for as long as it likes.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }
}

impl<R, F> fmt::Debug for FnJob<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnJob")
            .field("name", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl<R, F, T> Job for FnJob<R, F>
where
    R: Fn() -> JobRequirements + Send + 'static,
    F: FnMut(&JobResources, &JobContext) -> Result<T, JobError> + Send + 'static,
    T: Send + Sync + 'static,
{
    type Output = T;

    fn type_path(&self) -> &'static str {
        "nucleo_runtime::FnJob"
    }

    fn id_prefix(&self) -> Option<String> {
        self.prefix.clone()
    }

    fn display_name(&self) -> Option<String> {
        self.prefix.clone()
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn requirements(&self) -> JobRequirements {
        (self.requirements)()
    }

    fn execute(&mut self, resources: &JobResources, context: &JobContext) -> Result<T, JobError> {
        (self.work)(resources, context)
    }
}
