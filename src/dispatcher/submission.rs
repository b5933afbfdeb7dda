//! What may be submitted, and how it is put together.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::body::{Body, LeafBody, OrchestratorBody};
use super::door::{self, Parent, SubmitError};
use super::inner::Inner;
use super::orchestrator::Doer;
use crate::error::JobError;
use crate::guard::{Protection, Scope};
use crate::job::behalf::{self, Behalf, Handed};
use crate::job::core::JobCore;
use crate::job::current::{self, Current};
use crate::job::description::Description;
use crate::job::{Job, JobHandle, JobRequirements, Metadata, MetadataValue};
use crate::unwind::contain;

/// Marks a [`Job`].
#[derive(Debug)]
pub enum Leaf {}

/// Marks a [`Doer`].
#[derive(Debug)]
pub enum Orchestrator {}

/// What can be submitted: every [`Job`] and every [`Doer`]. The marker tells the two apart and is
/// always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be submitted",
    note = "implement `Job` for work that holds resources, or `Doer` for work that submits jobs"
)]
pub trait Submit<Kind>: Send + 'static {
    /// What it answers.
    type Output: Send + Sync + 'static;

    #[doc(hidden)]
    fn prepare(self) -> Prepared;
}

/// What the door needs to know of a job.
#[doc(hidden)]
pub struct Prepared {
    pub(super) orchestrator: bool,
    pub(super) description: Result<Description, JobError>,
    /// With their one line, which asks the limits for their names.
    pub(super) requirements: Result<(JobRequirements, String), JobError>,
    pub(super) body: Box<dyn Body>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

/// Asks a job for everything that it is asked once.
macro_rules! describe {
    ($job:expr, $timeout:expr, $retries:expr) => {
        contain("job", || Description {
            type_path: $job.type_path(),
            id_prefix: $job.id_prefix(),
            name: $job.name(),
            display_name: $job.display_name(),
            action: $job.action(),
            description: $job.description(),
            job_type: $job.job_type(),
            priority: $job.priority(),
            timeout: $timeout,
            upstream_retries: $retries,
            protection: Protection::new($job.input(), $job.scope(), $job.guards()),
        })
    };
}

impl<J: Job> Submit<Leaf> for J {
    type Output = J::Output;

    fn prepare(self) -> Prepared {
        Prepared {
            orchestrator: false,
            description: describe!(self, self.timeout(), self.upstream_retries()),
            requirements: contain("job", || summarized(self.requirements())),
            body: Box::new(LeafBody(self)),
        }
    }
}

impl<D: Doer> Submit<Orchestrator> for D {
    type Output = D::Output;

    fn prepare(self) -> Prepared {
        Prepared {
            orchestrator: true,
            description: describe!(self, None, crate::job::DEFAULT_UPSTREAM_RETRIES),
            requirements: contain("job", || {
                let none = JobRequirements::none();
                summarized(if self.tolerates_dependency_failures() {
                    none.tolerate_dependency_failures()
                } else {
                    none
                })
            }),
            body: Box::new(OrchestratorBody(self)),
        }
    }
}

pub(super) fn summarized(requirements: JobRequirements) -> (JobRequirements, String) {
    let summary = requirements.summary();
    (requirements, summary)
}

/// A submission in the making.
#[must_use = "nothing is submitted until `submit` is called"]
pub struct Submission<S, K> {
    inner: Arc<Inner>,
    /// Of whoever begins the submission, who answers for what it does when it is described or dropped.
    job: Handed<S>,
    terms: SubmissionTerms,
    kind: PhantomData<fn() -> K>,
}

/// Everything about a submission but the job itself.
pub(super) struct SubmissionTerms {
    pub(super) parent: Parent,
    pub(super) dependencies: Vec<Arc<JobCore>>,
    pub(super) metadata: Metadata,
    pub(super) in_step: bool,
    /// What the submission binds its job to, besides what the job says.
    pub(super) bound_to: Vec<Arc<dyn Scope>>,
    /// Whose submission it is: whoever makes it, now or later, it is that of who began it (SCP-3).
    pub(super) begun_by: Authors,
}

/// Who answers for a submission: whose code it is, and then the jobs that its thread works for.
/// Nobody outside of any job.
#[derive(Clone, Debug)]
pub(super) struct Authors(Vec<Arc<Behalf>>);

impl Authors {
    /// Those of the code that the calling thread is in.
    pub(super) fn here() -> Self {
        let mut authors: Vec<_> = behalf::here().into_iter().collect();
        for current in current::owner().iter().flat_map(Current::all) {
            let behalf = current.job.behalf();
            if !authors.iter().any(|known| Arc::ptr_eq(known, behalf)) {
                authors.push(Arc::clone(behalf));
            }
        }
        Self(authors)
    }

    /// Each of them, the one whose code it is first.
    pub(super) fn each(&self) -> impl DoubleEndedIterator<Item = &Arc<Behalf>> {
        self.0.iter()
    }

    /// DOOR-1: what comes from inside a job is an orchestrator's.
    pub(super) fn judge(&self) -> Result<(), JobError> {
        match self.each().find(|author| !author.orchestrator) {
            None => Ok(()),
            Some(leaf) => Err(JobError::system(
                "dispatcher",
                format!(
                    "Only orchestrators may submit from inside a job; {} ({}) is a leaf: \
                     coordinate through a doer or a thinker",
                    leaf.profile.ids.job, leaf.profile.type_path
                ),
            )),
        }
    }
}

impl SubmissionTerms {
    pub(super) fn new(parent: Parent) -> Self {
        Self {
            parent,
            dependencies: Vec::new(),
            metadata: Metadata::new(),
            in_step: false,
            bound_to: Vec::new(),
            begun_by: Authors::here(),
        }
    }
}

impl<S: Submit<K>, K> Submission<S, K> {
    pub(super) fn new(inner: Arc<Inner>, parent: Parent, job: S) -> Self {
        let terms = SubmissionTerms::new(parent);
        let by = terms.begun_by.each().next().cloned();
        Self {
            inner,
            job: Handed::new(by, job),
            terms,
            kind: PhantomData,
        }
    }

    /// The job runs after this one has settled, and finds its result on its context. May be called
    /// several times; the order is kept. A second mention of one job changes nothing.
    pub fn after<T>(mut self, dependency: &JobHandle<T>) -> Self {
        let dependency = dependency.job();
        if !self
            .terms
            .dependencies
            .iter()
            .any(|known| Arc::ptr_eq(known, dependency))
        {
            self.terms.dependencies.push(Arc::clone(dependency));
        }
        self
    }

    /// Notes a fact on the job before it is announced. A key that begins with
    /// [`Metadata::RESERVED`] is the runtime's: the job is refused.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<MetadataValue>) -> Self {
        self.terms.metadata.insert(key, value);
        self
    }

    /// Gives the child the ordinal of its orchestrator's present step. Without an orchestrator it
    /// changes nothing.
    pub fn in_current_step(mut self) -> Self {
        self.terms.in_step = true;
        self
    }

    /// Binds the job to a scope, as if it had said so itself. May be called several times.
    pub fn bound_to(mut self, scope: Arc<dyn Scope>) -> Self {
        self.terms.bound_to.push(scope);
        self
    }

    /// Submits.
    ///
    /// # Errors
    /// When the dispatcher does not take submissions, or the dependencies would close a cycle. A
    /// job that the door refuses is a handle whose `get` answers the refusal.
    pub fn submit(self) -> Result<JobHandle<S::Output>, SubmitError> {
        let job = self.job;
        door::submit(&self.inner, self.terms, move || match job.by() {
            Some(_) => job.spend(Submit::prepare),
            // Whoever makes it answers for it.
            None => job.into_value().prepare(),
        })
        .map(JobHandle::new)
    }
}

impl<S, K> fmt::Debug for Submission<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("metadata", &self.terms.metadata)
            .field("dependencies", &self.terms.dependencies.len())
            .finish_non_exhaustive()
    }
}
