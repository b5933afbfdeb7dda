//! The dispatcher of the job that the calling thread runs.
//!
//! For code that is called from inside an orchestrator and was handed no context. There is no
//! dispatcher of the process: outside a job's own thread these answer that there is none.

use std::sync::Arc;

use super::door::{Parent, SubmitError};
use super::inner::Inner;
use super::submission::{Submission, Submit};
use super::{JobDispatcher, Phase};
use crate::job::{JobHandle, current};
use crate::threads::Slot;

crate::sync::thread_local! {
    static GOVERNED_BY: Slot<Arc<Inner>> = const { Slot::empty() };
}

/// Ends the thread's time as a job's own when it is dropped.
#[must_use]
pub(super) struct Governed;

impl Drop for Governed {
    fn drop(&mut self) {
        let inner = GOVERNED_BY.with(|governed| governed.replace(None));
        drop(inner);
    }
}

/// The calling thread runs a job of this dispatcher until the answer is dropped.
pub(super) fn enter(inner: &Arc<Inner>) -> Governed {
    GOVERNED_BY.with(|governed| governed.replace(Some(Arc::clone(inner))));
    Governed
}

fn inner() -> Option<Arc<Inner>> {
    GOVERNED_BY.with(Slot::get)
}

/// The dispatcher of the job that this thread runs; `None` outside one, or when its owner has let
/// go of it.
#[must_use]
pub fn dispatcher() -> Option<JobDispatcher> {
    let owner = inner()?.owner()?;
    Some(JobDispatcher { owner })
}

/// Whether this thread runs a job of a dispatcher that takes submissions.
#[must_use]
pub fn is_running() -> bool {
    inner().is_some_and(|inner| matches!(inner.phase(), Phase::Started | Phase::Draining))
}

/// Submits a child of the job that this thread runs.
///
/// # Errors
/// `OutsideJob` on any other thread; else as
/// [`OrchestratorContext::submit`](super::OrchestratorContext::submit). A leaf that tries gets a
/// handle born failed.
pub fn submit<S: Submit<K>, K>(job: S) -> Result<JobHandle<S::Output>, SubmitError> {
    submit_with(job)?.submit()
}

/// Begins the submission of a child of the job that this thread runs.
///
/// # Errors
/// `OutsideJob` on any other thread.
pub fn submit_with<S: Submit<K>, K>(job: S) -> Result<Submission<S, K>, SubmitError> {
    let (Some(inner), Some(current)) = (inner(), current::current()) else {
        return Err(SubmitError::OutsideJob);
    };
    Ok(Submission::new(inner, Parent::job(&current.job), job))
}
