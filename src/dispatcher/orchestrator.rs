//! Orchestrators: jobs that hold nothing and may submit (`AG-2`, `ORD-1`).

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::door::{Parent, SubmitError};
use super::guarding;
use super::inner::Inner;
use super::submission::{Submission, Submit};
use crate::error::JobError;
use crate::guard::{ValidationGuards, built_in_text};
use crate::job::description::{descriptive_methods, forward_descriptive_methods};
use crate::job::{JobContext, JobHandle};

/// A composition in plain code: submits jobs, waits for them, and makes something of their results.
///
/// It holds nothing, so it may wait as long as it likes; it declares no requirements and has no
/// timeout, its children carry their own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no orchestrator",
    note = "implement `Job` for work that holds resources, `Doer` for work that submits jobs"
)]
pub trait Doer: Send + 'static {
    /// What it answers. Shared with everyone who asks for it.
    type Output: Send + Sync + 'static;

    descriptive_methods!(crate::job::JobType::Doer);

    /// Whether it runs although a job that it depends on failed. No unless it says otherwise.
    fn tolerates_dependency_failures(&self) -> bool {
        false
    }

    /// Does the work. The context submits, and cannot leave this thread.
    ///
    /// # Errors
    /// An error fails the orchestrator; its children run on.
    fn execute(&mut self, context: &OrchestratorContext) -> Result<Self::Output, JobError>;

    /// The text of an output, for guards that judge texts: they refuse an output without one. None
    /// unless the job says otherwise; the text itself for an output that is one.
    fn output_text(&self, output: &Self::Output) -> Option<String> {
        crate::guard::built_in_text(output)
    }

    /// Runs once, before the end is told, whatever the outcome. It has 30 seconds; then the job
    /// ends without it.
    fn post_execute(&mut self, outcome: Result<&Self::Output, &JobError>, context: &JobContext) {
        let _ = (outcome, context);
    }
}

impl<D: Doer + ?Sized> Doer for Box<D> {
    type Output = D::Output;

    forward_descriptive_methods!();

    fn tolerates_dependency_failures(&self) -> bool {
        (**self).tolerates_dependency_failures()
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<Self::Output, JobError> {
        (**self).execute(context)
    }

    fn output_text(&self, output: &Self::Output) -> Option<String> {
        (**self).output_text(output)
    }

    fn post_execute(&mut self, outcome: Result<&Self::Output, &JobError>, context: &JobContext) {
        (**self).post_execute(outcome, context);
    }
}

/// An orchestrator made of a closure; see [`doer_fn`].
pub struct FnDoer<F> {
    work: F,
    prefix: Option<String>,
}

/// An orchestrator made of a closure, for the small cases.
///
/// ```
/// use nucleo_runtime::{JobRequirements, doer_fn, job_fn};
///
/// let sum = doer_fn(|context| {
///     context.next_step();
///     let parts = (1..=3)
///         .map(|n| context.submit_in_current_step(job_fn(JobRequirements::none, move |_, _| Ok(n))))
///         .collect::<Result<Vec<_>, _>>()?;
///     Ok(nucleo_runtime::JobHandle::join_all(&parts)?.iter().map(|n| **n).sum::<i32>())
/// });
/// ```
pub fn doer_fn<F, T>(work: F) -> FnDoer<F>
where
    F: FnMut(&OrchestratorContext) -> Result<T, JobError> + Send + 'static,
    T: Send + Sync + 'static,
{
    FnDoer { work, prefix: None }
}

impl<F> FnDoer<F> {
    /// What the job's id starts with and what it is shown as.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.prefix = Some(name.into());
        self
    }
}

impl<F> fmt::Debug for FnDoer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnDoer")
            .field("name", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl<F, T> Doer for FnDoer<F>
where
    F: FnMut(&OrchestratorContext) -> Result<T, JobError> + Send + 'static,
    T: Send + Sync + 'static,
{
    type Output = T;

    fn type_path(&self) -> &'static str {
        "nucleo_runtime::FnDoer"
    }

    fn id_prefix(&self) -> Option<String> {
        self.prefix.clone()
    }

    fn display_name(&self) -> Option<String> {
        self.prefix.clone()
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<T, JobError> {
        (self.work)(context)
    }
}

/// An orchestrator, seen from inside: everything that a [`JobContext`] does, and submitting.
///
/// It is neither `Send` nor `Sync`: only the orchestrator's own thread submits for it.
pub struct OrchestratorContext {
    context: JobContext,
    inner: Arc<Inner>,
    own_thread_only: PhantomData<*const ()>,
}

impl OrchestratorContext {
    pub(super) fn new(context: JobContext, inner: Arc<Inner>) -> Self {
        Self {
            context,
            inner,
            own_thread_only: PhantomData,
        }
    }

    pub(super) fn job(&self) -> &JobContext {
        &self.context
    }

    /// Submits a child.
    ///
    /// # Errors
    /// When the dispatcher does not take submissions. A child that the door refuses is a handle
    /// whose `get` answers the refusal.
    pub fn submit<S: Submit<K>, K>(&self, job: S) -> Result<JobHandle<S::Output>, SubmitError> {
        self.submit_with(job).submit()
    }

    /// Begins the submission of a child that depends on others or carries facts.
    pub fn submit_with<S: Submit<K>, K>(&self, job: S) -> Submission<S, K> {
        Submission::new(
            Arc::clone(&self.inner),
            Parent::job(self.context.core()),
            job,
        )
    }

    /// Has an answer judged while it can still be corrected: each guard as a job of its own, a child
    /// of this one, in order, until the first that does not pass. How many judged is noted on this
    /// job under [`Metadata::GUARDS_VALIDATION`](crate::Metadata::GUARDS_VALIDATION), anew at each
    /// call.
    ///
    /// `text` is what guards that judge texts read; without one they read the answer itself where it
    /// is a text, and refuse it else.
    ///
    /// # Errors
    /// The refusal, of kind [`Guardrail`](crate::ErrorKind::Guardrail): give it to whoever answered and
    /// have the next answer judged. Whatever else a guard fails with (a panic, its timeout, being out
    /// of scope) is no refusal, and no answer was judged: let it out of `execute` as it is.
    ///
    /// ```
    /// # use nucleo_runtime::guard::ValidationGuards;
    /// # use nucleo_runtime::{ErrorKind, JobError, OrchestratorContext};
    /// # use std::sync::Arc;
    /// # fn ask(_: Option<JobError>) -> Result<String, JobError> { Ok(String::new()) }
    /// fn answer(context: &OrchestratorContext, guards: &ValidationGuards) -> Result<String, JobError> {
    ///     let mut correction = None;
    ///     for _ in 0..3 {
    ///         let answer = Arc::new(ask(correction.take())?);
    ///         match context.validate(guards, &answer, None) {
    ///             Ok(()) => return Ok((*answer).clone()),
    ///             Err(refusal) if matches!(refusal.kind(), ErrorKind::Guardrail { .. }) => {
    ///                 correction = Some(refusal);
    ///             }
    ///             Err(broken) => return Err(broken),
    ///         }
    ///     }
    ///     Err(JobError::uncorrectable("no answer passed"))
    /// }
    /// ```
    pub fn validate<T: Send + Sync + 'static>(
        &self,
        guards: &ValidationGuards,
        answer: &Arc<T>,
        text: Option<String>,
    ) -> Result<(), JobError> {
        let text = text.or_else(|| built_in_text(&**answer));
        let answer: Arc<dyn Any + Send + Sync> = Arc::clone(answer) as _;
        guarding::validate(&self.inner, self.context.core(), guards, answer, text)
    }

    /// Claims the next step: the ordinal that the children of this step carry under `iteration`.
    /// The first is 1.
    pub fn next_step(&self) -> i64 {
        self.context.core().next_step()
    }

    /// Submits a child in the present step: every child of one fan-out shares its ordinal. 0 before
    /// the first [`next_step`](Self::next_step).
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub fn submit_in_current_step<S: Submit<K>, K>(
        &self,
        job: S,
    ) -> Result<JobHandle<S::Output>, SubmitError> {
        self.submit_with(job).in_current_step().submit()
    }

    /// Claims the next step and submits a child in it.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub fn submit_in_step<S: Submit<K>, K>(
        &self,
        job: S,
    ) -> Result<JobHandle<S::Output>, SubmitError> {
        self.next_step();
        self.submit_in_current_step(job)
    }
}

impl Deref for OrchestratorContext {
    type Target = JobContext;

    fn deref(&self) -> &JobContext {
        &self.context
    }
}

impl fmt::Debug for OrchestratorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OrchestratorContext")
            .field(&self.context)
            .finish()
    }
}
