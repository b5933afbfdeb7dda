//! Who a job is: its ids, its parent, its kind (`ID`).

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::blank::is_blank;
use crate::error::JobError;

/// What role a job plays; for people and reports, never for scheduling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum JobType {
    /// An agent whose model picks the next step.
    Thinker,
    /// A composition in plain code.
    Doer,
    /// One operation that a model may call.
    Tool,
    /// A check on what goes in or out.
    Guardrail,
    /// One call of a model.
    LlmCall,
    /// Anything else. The default.
    #[default]
    Job,
    /// Housekeeping.
    Utility,
}

impl fmt::Display for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Thinker => "THINKER",
            Self::Doer => "DOER",
            Self::Tool => "TOOL",
            Self::Guardrail => "GUARDRAIL",
            Self::LlmCall => "LLM_CALL",
            Self::Job => "JOB",
            Self::Utility => "UTILITY",
        })
    }
}

/// `<prefix>-<tail>`, the tail random and from a generator seeded by the operating system: two
/// processes started at the same instant do not share it (ID-2).
fn new_id(prefix: &str) -> Arc<str> {
    let mut digits = Uuid::encode_buffer();
    let tail = Uuid::new_v4().simple().encode_lower(&mut digits);
    [prefix, "-", tail].concat().into()
}

/// The root under which jobs of one piece of work run.
///
/// A job submitted directly under a workflow is a *root job*; there may be several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workflow {
    id: Arc<str>,
    user: Arc<str>,
}

impl Workflow {
    /// A new workflow of `user`, its id `<prefix>-<random tail>`.
    ///
    /// # Errors
    /// `InvalidInput` for a user or prefix that is empty or blank.
    pub fn new(user: &str, prefix: &str) -> Result<Self, JobError> {
        for (parameter, value) in [("user", user), ("prefix", prefix)] {
            if is_blank(value) {
                return Err(JobError::invalid_input(
                    parameter,
                    value,
                    "must not be blank",
                ));
            }
        }
        Ok(Self {
            id: new_id(prefix),
            user: user.into(),
        })
    }

    /// The workflow's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// On whose behalf it runs.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn id_shared(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    pub(crate) fn user_shared(&self) -> Arc<str> {
        Arc::clone(&self.user)
    }
}

/// The ids of one job, fixed at its submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobIds {
    pub(crate) job: Arc<str>,
    pub(crate) workflow: Arc<str>,
    pub(crate) user: Arc<str>,
    /// The orchestrator that submitted it and those above; none for a root job. By their ids, so
    /// that a tree holds together when some of its jobs are gone.
    lineage: Option<Arc<Ancestor>>,
}

/// An orchestrator above a job, and the one above it.
struct Ancestor {
    id: Arc<str>,
    above: Option<Arc<Ancestor>>,
}

/// An id says who is above it.
impl PartialEq for Ancestor {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Ancestor {}

impl fmt::Debug for Ancestor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

impl Drop for Ancestor {
    /// One after the other: jobs that each submit the next make a lineage without end, and
    /// dropped one inside the other it would be deeper than the stack.
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(mut ancestor) = next.and_then(Arc::into_inner) {
            next = ancestor.above.take();
        }
    }
}

impl JobIds {
    pub(crate) fn of_root(workflow: &Workflow, prefix: &str) -> Self {
        Self {
            job: new_id(prefix),
            workflow: workflow.id_shared(),
            user: workflow.user_shared(),
            lineage: None,
        }
    }

    /// The id of the orchestrator that submitted it; none for a root job.
    pub(crate) fn parent(&self) -> Option<&str> {
        self.lineage.as_deref().map(|parent| &*parent.id)
    }

    /// Whether this is the job, or a descendant of it.
    pub(crate) fn is_or_descends_from(&self, job: &str) -> bool {
        let mut above = &self.lineage;
        if &*self.job == job {
            return true;
        }
        while let Some(ancestor) = above {
            if &*ancestor.id == job {
                return true;
            }
            above = &ancestor.above;
        }
        false
    }

    pub(crate) fn of_child(&self, prefix: &str) -> Self {
        Self {
            job: new_id(prefix),
            workflow: Arc::clone(&self.workflow),
            user: Arc::clone(&self.user),
            lineage: Some(Arc::new(Ancestor {
                id: Arc::clone(&self.job),
                above: self.lineage.clone(),
            })),
        }
    }
}

/// The last path segment of a type's name, generics trimmed.
pub(crate) fn simple_name(type_name: &str) -> &str {
    let last = last_segment(type_name);
    let end = generics_of(type_name, last);
    type_name.get(last..end).unwrap_or(type_name)
}

/// A type's name without the generics of its last segment.
pub(crate) fn without_generics(type_name: &str) -> &str {
    let end = generics_of(type_name, last_segment(type_name));
    type_name.get(..end).unwrap_or(type_name)
}

/// Where the generics begin of the segment that begins at `last`; the end where it has none.
fn generics_of(type_name: &str, last: usize) -> usize {
    let segment = type_name.as_bytes().get(last..).unwrap_or_default();
    match segment.iter().position(|byte| *byte == b'<') {
        // A segment that begins with a bracket is a qualified path, not a name with generics.
        None | Some(0) => type_name.len(),
        Some(at) => last + at,
    }
}

/// Where the last segment begins: after the last `::` that stands in no brackets, as in
/// `<my::Tool as my::Make>::make::Local`. Bytes, not characters: those looked for are ASCII.
fn last_segment(type_name: &str) -> usize {
    let mut depth = 0_usize;
    let mut begins = 0;
    for (at, byte) in type_name.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => begins = at + 1,
            _ => {}
        }
    }
    begins
}

#[cfg(test)]
mod tests {
    use super::*;

    // case ID-01
    #[test]
    fn a_workflow_is_its_own_root() {
        let workflow = Workflow::new("user-1", "ingest").unwrap();
        assert!(workflow.id().starts_with("ingest-"));
        assert_eq!(workflow.user(), "user-1");
        let ids = JobIds::of_root(&workflow, "Load");
        assert_eq!(&*ids.workflow, workflow.id());
        assert_eq!(ids.parent(), None);
    }

    // case ID-02
    #[test]
    fn a_blank_user_or_prefix_is_refused_by_name() {
        for (user, prefix, named) in [
            ("", "p", "user"),
            (" ", "p", "user"),
            ("u", "", "prefix"),
            ("u", "\t", "prefix"),
        ] {
            let error = Workflow::new(user, prefix).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
            assert!(error.is_correctable());
        }
    }

    // case ID-05
    #[test]
    fn two_jobs_of_one_parent_and_prefix_have_different_ids() {
        let root = JobIds::of_root(&Workflow::new("u", "w").unwrap(), "Root");
        let (a, b) = (root.of_child("Same"), root.of_child("Same"));
        assert_ne!(a.job, b.job);
        assert_eq!(a.parent(), Some(&*root.job));
        assert_eq!(a.workflow, root.workflow);
        assert_eq!(a.user, root.user);
    }

    #[test]
    fn a_lineage_is_as_long_as_it_gets() {
        let root = JobIds::of_root(&Workflow::new("u", "w").unwrap(), "Root");
        let mut last = root.clone();
        for _ in 0..200_000 {
            last = last.of_child("Next");
        }
        assert!(last.is_or_descends_from(&root.job));
        assert!(last.is_or_descends_from(&last.job));
        assert!(!root.is_or_descends_from(&last.job));
        drop(last);
    }

    #[test]
    fn a_simple_name_drops_path_and_generics() {
        assert_eq!(simple_name("my::tools::Lookup"), "Lookup");
        assert_eq!(simple_name("my::Wrap<alloc::string::String>"), "Wrap");
        assert_eq!(simple_name("Plain"), "Plain");
        assert_eq!(simple_name("<my::A as my::Make>::make::Local"), "Local");
        assert_eq!(
            without_generics("<my::A as my::Make>::make::Local<u8>"),
            "<my::A as my::Make>::make::Local"
        );
    }
}
