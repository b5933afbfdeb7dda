//! The door: what every submission passes, in order (`DOOR`).
//!
//! A refusal is a handle born failed: its `get` answers the refusal, `JobFailed` is told, and
//! `WorkflowComplete` too for a root; `JobScheduled` never is.
//!
//! # Invariants
//!
//! 1. Everything of a user's is asked in [`judge`], on the submitter's thread, also for a submission
//!    that is made later. [`enter`] asks nothing.
//! 2. A submission has authors: whoever began it, whoever makes it. All of them are judged.

mod walls;

use std::sync::{Arc, Weak};

use super::body::Body;
use super::entry::Entry;
use super::inner::Inner;
use super::settle;
use super::submission::{Authors, Prepared, SubmissionTerms};
use crate::admission::refuse_reentry;
use crate::blank::is_blank;
use crate::error::JobError;
use crate::events::{Event, EventKind, JobScheduled, LifecycleEvent};
use crate::guard::{Protection, ScopeGuard};
use crate::job::behalf::{self, Behalf};
use crate::job::core::{JobCore, NewJob, Supervisor, Terms};
use crate::job::current::{self, Current};
use crate::job::description::Description;
use crate::job::identity::{JobIds, simple_name};
use crate::job::snapshot::JobProfile;
use crate::job::{JobContext, JobHandle, JobRequirements, JobType, Metadata, Workflow};
use crate::unwind::{discard, discard_each};
use walls::{Asks, compose_guard, judge_authority, refuse_cycle};

pub(super) use walls::judge_terms;

/// Under what a job is submitted: a workflow, which makes it a root job, or a running orchestrator.
#[derive(Clone)]
pub struct Parent {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Workflow(Workflow),
    Job(Arc<JobCore>),
}

impl Parent {
    fn is_workflow(&self) -> bool {
        matches!(self.kind, Kind::Workflow(_))
    }

    pub(super) fn job(job: &Arc<JobCore>) -> Self {
        Self {
            kind: Kind::Job(Arc::clone(job)),
        }
    }
}

impl std::fmt::Debug for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Workflow(workflow) => f.debug_tuple("Parent").field(&workflow.id()).finish(),
            Kind::Job(job) => f.debug_tuple("Parent").field(&job.id()).finish(),
        }
    }
}

impl From<&Workflow> for Parent {
    fn from(workflow: &Workflow) -> Self {
        Self {
            kind: Kind::Workflow(workflow.clone()),
        }
    }
}

impl From<&JobContext> for Parent {
    fn from(context: &JobContext) -> Self {
        Self::job(context.core())
    }
}

impl<T> From<&JobHandle<T>> for Parent {
    fn from(handle: &JobHandle<T>) -> Self {
        Self::job(handle.job())
    }
}

/// Why a submission was not taken at all. A job that was taken and refused is a handle instead.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The dispatcher has not been started.
    #[error("the dispatcher has not been started: call `start` before the first submission")]
    NotStarted,
    /// The dispatcher is shutting down or has shut down.
    #[error("the dispatcher is shutting down and takes no submissions")]
    ShutDown,
    /// The job would wait for a job that waits for it.
    #[error("Cycle detected: {}", path.join(" -> "))]
    Cycle {
        /// The ids on the cycle, from the job that was submitted.
        path: Vec<String>,
    },
    /// The calling thread runs no job, so there is no dispatcher to submit to.
    #[error("this thread runs no job of a dispatcher: submit through the dispatcher itself")]
    OutsideJob,
    /// Called from inside an account's answer.
    #[error("'submit' was called from inside an account; accounts must not call the runtime")]
    InsideAccount,
}

impl From<SubmitError> for JobError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Cycle { .. } => {
                JobError::invalid_input("dependencies", "", error.to_string())
            }
            SubmitError::InsideAccount => JobError::system("admission", error.to_string()),
            SubmitError::NotStarted | SubmitError::ShutDown | SubmitError::OutsideJob => {
                JobError::illegal_state(error.to_string())
            }
        }
    }
}

/// Takes a submission: judges it, announces it and routes it.
pub(super) fn submit(
    inner: &Arc<Inner>,
    terms: SubmissionTerms,
    prepare: impl FnOnce() -> Prepared,
) -> Result<Arc<JobCore>, SubmitError> {
    refuse_reentry("submit").map_err(|_| SubmitError::InsideAccount)?;
    inner.accepts(terms.parent.is_workflow())?;
    let caller = current::owner();
    let judged = judge(terms, prepare(), |terms, authors| {
        judge_user(terms, authors, caller.as_ref())
    });
    enter(inner, judged).map(|taken| taken.job)
}

/// Judges a submission that is made later, by nobody in particular: all that there is to ask of a
/// user's is asked here.
pub(super) fn judge_for_later(terms: SubmissionTerms, prepared: Prepared) -> Judged {
    judge(terms, prepared, |terms, authors| {
        judge_user(terms, authors, None)
    })
}

/// What is asked of whoever is not the runtime: that they may submit, and that they note no facts in its name.
/// Such facts are on nothing that is told of the job either.
fn judge_user(
    terms: &mut SubmissionTerms,
    authors: &Authors,
    caller: Option<&Current>,
) -> Result<(), JobError> {
    let forged = terms.metadata.take_out_reserved();
    judge_authority(terms, authors, caller)?;
    forged
}

/// Makes a submission whose time has come.
pub(super) fn submit_judged(
    inner: &Arc<Inner>,
    judged: Judged,
) -> Result<Arc<JobCore>, SubmitError> {
    if let Err(refusal) = inner.accepts(judged.terms.parent.is_workflow()) {
        judged.discard();
        return Err(refusal);
    }
    enter(inner, judged).map(|taken| taken.job)
}

/// Takes the job of a guard: the runtime submits it for the job that it gates, which need not be an
/// orchestrator. Every other wall stands.
pub(super) fn submit_guard(
    inner: &Arc<Inner>,
    terms: SubmissionTerms,
    prepared: Prepared,
) -> Result<Taken, SubmitError> {
    inner.accepts(false)?;
    enter(inner, judge(terms, prepared, |_, _| Ok(())))
}

/// A job that was taken, and why it was born failed if it was.
pub(super) struct Taken {
    pub(super) job: Arc<JobCore>,
    pub(super) refusal: Option<JobError>,
}

/// A submission that has been judged. Nothing of a user's is asked any more.
pub(super) struct Judged {
    terms: SubmissionTerms,
    description: Description,
    type_name: &'static str,
    agreed: Terms,
    caller_type: Option<&'static str>,
    summary: String,
    run_at_once: bool,
    verdict: Result<Accepted, JobError>,
}

/// What of an accepted job its entry keeps.
struct Accepted {
    body: Box<dyn Body>,
    protection: Protection,
    behalf: Option<Arc<Behalf>>,
}

impl Accepted {
    /// Lets go of what is a user's, for whoever handed it over.
    fn discard(self) {
        let Self {
            body,
            protection,
            behalf,
        } = self;
        behalf::acting(behalf.as_ref(), || {
            discard(body);
            drop(protection);
        });
    }
}

impl Judged {
    /// Ends a submission that is not made.
    pub(super) fn discard(self) {
        if let Ok(accepted) = self.verdict {
            accepted.discard();
        }
    }
}

/// Asks whatever the walls ask, on the submitter's thread.
fn judge(
    mut terms: SubmissionTerms,
    prepared: Prepared,
    judge_submitter: impl FnOnce(&mut SubmissionTerms, &Authors) -> Result<(), JobError>,
) -> Judged {
    let Prepared {
        orchestrator,
        description,
        requirements,
        body,
    } = prepared;
    let authors = Authors::here();

    let (description_failed, mut description) = match description {
        Ok(description) => (None, description),
        Err(error) => (Some(error), unnamed()),
    };
    let (requirements_failed, (requirements, summary)) = match requirements {
        Ok(requirements) => (None, requirements),
        Err(error) => (Some(error), (JobRequirements::none(), String::new())),
    };
    let type_name = simple_name(description.type_path);
    let protection = std::mem::take(&mut description.protection);
    let caller_type = authors
        .each()
        .next_back()
        .or_else(|| terms.begun_by.each().next_back())
        .map(|author| author.profile.type_path);
    let (out_of_scope, guard) = match compose_guard(&terms, &authors, &protection) {
        Ok(guard) => (None, guard),
        Err(error) => (Some(error), ScopeGuard::default()),
    };
    discard_each(std::mem::take(&mut terms.bound_to));
    // In any case: it also takes out what may not be told.
    let not_theirs = judge_submitter(&mut terms, &authors).err();
    let refusal = description_failed
        .or(requirements_failed)
        .or(not_theirs)
        .or(out_of_scope)
        .or_else(|| {
            let asks = Asks {
                who: type_name,
                orchestrator,
                timeout: description.timeout,
            };
            asks.judge(&requirements, || summary.clone()).err()
        });
    let agreed = Terms {
        orchestrator,
        timeout: description.timeout,
        upstream_retries: description.upstream_retries,
        tolerates_dependency_failures: requirements.tolerates_dependency_failures,
        guard,
    };
    let run_at_once = requirements.run_at_once;
    requirements.discard();
    let accepted = Accepted {
        body,
        protection,
        behalf: terms.begun_by.each().chain(authors.each()).next().cloned(),
    };
    let verdict = match refusal {
        None => Ok(accepted),
        Some(refusal) => {
            accepted.discard();
            Err(refusal)
        }
    };
    Judged {
        terms,
        description,
        type_name,
        agreed,
        caller_type,
        summary,
        run_at_once,
        verdict,
    }
}

/// Makes the job of a submission, announces it and routes it.
fn enter(inner: &Arc<Inner>, judged: Judged) -> Result<Taken, SubmitError> {
    let Judged {
        terms,
        description,
        type_name,
        agreed,
        caller_type,
        summary,
        run_at_once,
        verdict,
    } = judged;
    let job = new_job(inner, &terms, caller_type, agreed, (description, type_name));
    let cycle = refuse_cycle(&job, &terms.parent);
    let accepted = match (cycle, verdict) {
        (Ok(()), Ok(accepted)) => accepted,
        (Ok(()), Err(refusal)) => {
            settle::born_failed(inner, &job, refusal.clone());
            return Ok(Taken {
                job,
                refusal: Some(refusal),
            });
        }
        (Err(cycle), verdict) => {
            if let Ok(accepted) = verdict {
                accepted.discard();
            }
            return Err(cycle);
        }
    };

    let Accepted {
        body, protection, ..
    } = accepted;
    let entry = Entry::new(Arc::clone(&job), body, run_at_once, protection, caller_type);
    job.schedule();
    let at = job.profile().submitted_at;
    job.tell_first(
        EventKind::JobScheduled,
        || inner.enter(&entry),
        |snapshot| {
            Event::Lifecycle(LifecycleEvent::Scheduled(JobScheduled {
                state: snapshot.state(),
                priority: snapshot.priority(),
                requirements: summary.into(),
                snapshot,
                at,
            }))
        },
    );
    await_dependencies(inner, &entry);
    Ok(Taken { job, refusal: None })
}

/// Routes the job now, or has the last of its dependencies do it.
fn await_dependencies(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let job = entry.job();
    if job.dependencies().is_empty() {
        inner.route(entry);
        return;
    }
    // Counted down for those that have settled; the rest count down as they settle. Whoever takes
    // the last one routes.
    let mut last = false;
    for dependency in job.dependencies().iter() {
        if !dependency.add_dependent(job) {
            last |= job.dependency_settled();
        }
    }
    if last {
        inner.route(entry);
    } else if inner.is_stopping() {
        // The end may have begun since the submission was taken, and looked for jobs before this one was there.
        settle::cancelled_by_shutdown(inner, entry);
    }
}

/// A job that could not even say what it is.
fn unnamed() -> Description {
    Description {
        type_path: "Job",
        id_prefix: None,
        name: None,
        display_name: None,
        action: String::new(),
        description: None,
        job_type: JobType::Job,
        priority: 0,
        upstream_retries: 0,
        timeout: None,
        protection: Protection::default(),
    }
}

/// Most jobs do not say what they do, and an empty text is shared.
fn shared_text(text: String) -> Arc<str> {
    if text.is_empty() {
        Arc::default()
    } else {
        text.into()
    }
}

fn new_job(
    inner: &Arc<Inner>,
    terms: &SubmissionTerms,
    caller_type: Option<&'static str>,
    agreed: Terms,
    (description, type_name): (Description, &'static str),
) -> Arc<JobCore> {
    let prefix = description.id_prefix.as_deref();
    let prefix = prefix
        .filter(|prefix| !is_blank(prefix))
        .unwrap_or(type_name);
    let ids = match &terms.parent.kind {
        Kind::Workflow(workflow) => JobIds::of_root(workflow, prefix),
        Kind::Job(parent) => parent.profile().ids.of_child(prefix),
    };
    let mut metadata: Metadata = terms.metadata.clone();
    if let Some(caller) = caller_type {
        metadata.insert_own(Metadata::CALLER_CLASS, caller);
    }
    if terms.in_step
        && let Kind::Job(parent) = &terms.parent.kind
    {
        metadata.insert_own(Metadata::ITERATION, parent.current_step());
    }
    let supervisor: Weak<dyn Supervisor> = inner.weak();
    JobCore::new(NewJob {
        profile: JobProfile {
            ids,
            job_type: description.job_type,
            type_path: description.type_path,
            type_name,
            name: description.name.map(Into::into),
            display_name: description.display_name.map(Into::into),
            action: shared_text(description.action),
            description: description.description.map(Into::into),
            priority: description.priority,
            submitted_at: inner.clock().wall(),
        },
        terms: agreed,
        metadata,
        parent: match &terms.parent.kind {
            Kind::Workflow(_) => None,
            Kind::Job(parent) => Some(Arc::downgrade(parent)),
        },
        dependencies: terms.dependencies.clone(),
        clock: Arc::clone(inner.clock()),
        bus: inner.bus().clone(),
        supervisor,
    })
}
