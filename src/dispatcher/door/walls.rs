//! The walls, each by itself: what is judged, and the refusal.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Kind, Parent, SubmitError};
use crate::dispatcher::submission::{Authors, SubmissionTerms};
use crate::error::JobError;
use crate::guard::{Protection, ScopeGuard};
use crate::job::JobRequirements;
use crate::job::core::JobCore;
use crate::job::current::Current;
use crate::unwind::contain_result;

/// DOOR-3: the child's scope and what its input names must lie within what its authors are bound to
/// (those who began the submission and those who make it) and the parent. Answers what the child is
/// bound to from here on.
pub(super) fn compose_guard(
    terms: &SubmissionTerms,
    authors: &Authors,
    protection: &Protection,
) -> Result<ScopeGuard, JobError> {
    // All of it asks the user's scopes.
    contain_result("scope", || {
        let mut under = ScopeGuard::default();
        for author in terms.begun_by.each().chain(authors.each()) {
            under = under.merge(&author.guard);
        }
        if let Kind::Job(parent) = &terms.parent.kind {
            under = under.merge(&parent.terms().guard);
        }
        let own = || protection.scope.iter().chain(&terms.bound_to);
        for scope in own() {
            under.judge(scope)?;
        }
        if let Some(claim) = protection.input.as_ref().and_then(|input| input.claim()) {
            under.judge(&claim)?;
        }
        Ok(under.with(own().cloned()))
    })
}

/// DOOR-1 and DOOR-2: who submits, and under whom.
pub(super) fn judge_authority(
    terms: &SubmissionTerms,
    authors: &Authors,
    caller: Option<&Current>,
) -> Result<(), JobError> {
    authors.judge()?;
    terms.begun_by.judge()?;
    let Kind::Job(parent) = &terms.parent.kind else {
        return Ok(());
    };
    let Some(caller) = caller else {
        return Err(JobError::system(
            "dispatcher",
            format!(
                "a thread outside any job may only create new roots; {} is a job: submit under a \
                 workflow",
                parent.id()
            ),
        ));
    };
    if !Arc::ptr_eq(&caller.job, parent) || !caller.own_thread {
        return Err(JobError::system(
            "dispatcher",
            format!(
                "only {} itself may submit children of its own; this submission runs on the thread \
                 of {}",
                parent.id(),
                caller.job.id()
            ),
        ));
    }
    if parent.is_settled() || parent.state().is_terminal() && !parent.is_cancelled() {
        return Err(JobError::system(
            "dispatcher",
            format!("{} has ended and has no more children", parent.id()),
        ));
    }
    Ok(())
}

/// DOOR-4, and what cannot work in the requirements themselves, of an attempt.
pub(in crate::dispatcher) fn judge_terms(
    job: &JobCore,
    requirements: &JobRequirements,
    summary: impl FnOnce() -> String,
) -> Result<(), JobError> {
    let asks = Asks {
        who: job.id(),
        orchestrator: job.terms().orchestrator,
        timeout: job.terms().timeout,
    };
    asks.judge(requirements, summary)
}

/// Who asks for something, and on what terms.
pub(super) struct Asks<'a> {
    pub(super) who: &'a str,
    pub(super) orchestrator: bool,
    pub(super) timeout: Option<Duration>,
}

impl Asks<'_> {
    pub(super) fn judge(
        &self,
        requirements: &JobRequirements,
        summary: impl FnOnce() -> String,
    ) -> Result<(), JobError> {
        if requirements.declares_resources() && self.orchestrator {
            return Err(JobError::system(
                "dispatcher",
                format!(
                    "{} may submit jobs and wait for them, so it holds nothing; it asks for {}",
                    self.who,
                    summary()
                ),
            ));
        }
        if requirements.declares_resources() && self.timeout.is_none() {
            return Err(JobError::system(
                "dispatcher",
                format!(
                    "{} declares resources ({}) and no timeout: every permit has to come back in \
                     finite time, so give it one",
                    self.who,
                    summary()
                ),
            ));
        }
        requirements.validate()
    }
}

/// DOOR-5: nobody may wait for a job that waits for it. An ancestor waits for its children.
///
/// Looks from the ancestors at who waits for them, which is hardly ever anybody, not from the
/// dependencies at everything that they wait for, which may be a long chain.
pub(super) fn refuse_cycle(job: &Arc<JobCore>, parent: &Parent) -> Result<(), SubmitError> {
    let dependencies = job.dependencies();
    if dependencies.is_empty() {
        return Ok(());
    }
    // Who waits for an ancestor, each with the place of the one that it waits for.
    let mut waiting: Vec<(Arc<JobCore>, Option<usize>)> = Vec::new();
    let mut next = match &parent.kind {
        Kind::Workflow(_) => None,
        Kind::Job(parent) => Some(Arc::clone(parent)),
    };
    while let Some(ancestor) = next {
        next = ancestor.parent();
        if !ancestor.is_settled() {
            waiting.push((ancestor, None));
        }
    }
    let mut seen: HashSet<_> = waiting.iter().map(|(job, _)| Arc::as_ptr(job)).collect();
    let mut at = 0;
    while let Some((here, _)) = waiting.get(at) {
        if dependencies
            .iter()
            .any(|dependency| Arc::ptr_eq(dependency, here))
        {
            let mut path = vec![job.id().to_owned()];
            let mut step = Some(at);
            while let Some((on_the_way, waits_for)) = step.and_then(|step| waiting.get(step)) {
                path.push(on_the_way.id().to_owned());
                step = *waits_for;
            }
            path.push(job.id().to_owned());
            return Err(SubmitError::Cycle { path });
        }
        for dependent in here.dependents() {
            if seen.insert(Arc::as_ptr(&dependent)) {
                waiting.push((dependent, Some(at)));
            }
        }
        at += 1;
    }
    Ok(())
}
