//! What a job was at one instant (`ID-5`).

use std::sync::Arc;
use std::time::SystemTime;

use super::identity::{JobIds, JobType};
use super::metadata::Metadata;
use super::state::JobState;

/// An immutable copy of what a job is at one instant. Cheap to clone and to send.
///
/// Two snapshots are equal when everything in them is.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSnapshot {
    pub(crate) profile: Arc<JobProfile>,
    pub(crate) moment: Arc<Moment>,
}

/// What was asked of the job once, at its submission, and never changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobProfile {
    pub(crate) ids: JobIds,
    pub(crate) job_type: JobType,
    /// The full path of the job's type.
    pub(crate) type_path: &'static str,
    /// Its last segment.
    pub(crate) type_name: &'static str,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) display_name: Option<Arc<str>>,
    pub(crate) action: Arc<str>,
    pub(crate) description: Option<Arc<str>>,
    pub(crate) priority: i32,
    pub(crate) submitted_at: SystemTime,
}

/// What changes while the job lives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) state: JobState,
    pub(crate) attempt: u32,
    pub(crate) progress: Option<u8>,
    pub(crate) progress_message: Option<Arc<str>>,
    pub(crate) description: Option<Arc<str>>,
    pub(crate) started_at: Option<SystemTime>,
    pub(crate) ended_at: Option<SystemTime>,
    pub(crate) metadata: Metadata,
}

impl Moment {
    /// A job that has just been submitted.
    pub(crate) fn fresh(metadata: Metadata) -> Self {
        Self {
            state: JobState::Queued,
            attempt: 0,
            progress: None,
            progress_message: None,
            description: None,
            started_at: None,
            ended_at: None,
            metadata,
        }
    }
}

impl JobSnapshot {
    /// The job's id, `<prefix>-<tail>`.
    #[must_use]
    pub fn job_id(&self) -> &str {
        &self.profile.ids.job
    }

    /// The id of the workflow that it belongs to.
    #[must_use]
    pub fn workflow_id(&self) -> &str {
        &self.profile.ids.workflow
    }

    /// The id of the orchestrator that submitted it; `None` for a root job.
    #[must_use]
    pub fn parent_id(&self) -> Option<&str> {
        self.profile.ids.parent()
    }

    /// Whether the job was submitted directly under its workflow.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.profile.ids.parent().is_none()
    }

    /// On whose behalf it runs.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.profile.ids.user
    }

    /// The role it plays.
    #[must_use]
    pub fn job_type(&self) -> JobType {
        self.profile.job_type
    }

    /// The simple name of the job's type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        self.profile.type_name
    }

    /// The full path of the job's type.
    #[must_use]
    pub fn type_path(&self) -> &str {
        self.profile.type_path
    }

    /// The job's name: its own, else `<type>-<id>`.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.profile.name {
            Some(name) => name.to_string(),
            None => format!("{}-{}", self.type_name(), self.job_id()),
        }
    }

    /// The name to show: the job's own display name, else the simple name of its type.
    #[must_use]
    pub fn display_name(&self) -> &str {
        self.profile
            .display_name
            .as_deref()
            .unwrap_or(self.profile.type_name)
    }

    /// What the job does, in a word or two; empty when it does not say.
    #[must_use]
    pub fn action(&self) -> &str {
        &self.profile.action
    }

    /// A sentence about the job: the one set while it ran, else the one that it was submitted with.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.moment
            .description
            .as_deref()
            .or(self.profile.description.as_deref())
    }

    /// Where the job was.
    #[must_use]
    pub fn state(&self) -> JobState {
        self.moment.state
    }

    /// Which attempt ran last, from 1; 0 when none has.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.moment.attempt
    }

    /// Percent done, where the job said so.
    #[must_use]
    pub fn progress(&self) -> Option<u8> {
        self.moment.progress
    }

    /// What the job last said about its progress.
    #[must_use]
    pub fn progress_message(&self) -> Option<&str> {
        self.moment.progress_message.as_deref()
    }

    /// The job's priority; higher goes first.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.profile.priority
    }

    /// When it was submitted.
    #[must_use]
    pub fn submitted_at(&self) -> SystemTime {
        self.profile.submitted_at
    }

    /// When its first attempt started.
    #[must_use]
    pub fn started_at(&self) -> Option<SystemTime> {
        self.moment.started_at
    }

    /// When it ended.
    #[must_use]
    pub fn ended_at(&self) -> Option<SystemTime> {
        self.moment.ended_at
    }

    /// The facts noted on it.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.moment.metadata
    }

    /// This snapshot with another state, attempt and runtime description; the original is as it
    /// was.
    #[must_use]
    pub fn derive(&self, state: JobState, attempt: u32, description: impl Into<Arc<str>>) -> Self {
        let mut moment = Moment::clone(&self.moment);
        moment.state = state;
        moment.attempt = attempt;
        moment.description = Some(description.into());
        Self {
            profile: Arc::clone(&self.profile),
            moment: Arc::new(moment),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for JobSnapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let mut out = serializer.serialize_struct("JobSnapshot", 19)?;
        out.serialize_field("job_id", self.job_id())?;
        out.serialize_field("workflow_id", self.workflow_id())?;
        out.serialize_field("parent_id", &self.parent_id())?;
        out.serialize_field("user", self.user())?;
        out.serialize_field("job_type", &self.job_type())?;
        out.serialize_field("type_name", self.type_name())?;
        out.serialize_field("type_path", self.type_path())?;
        out.serialize_field("name", &self.name())?;
        out.serialize_field("display_name", self.display_name())?;
        out.serialize_field("action", self.action())?;
        out.serialize_field("description", &self.description())?;
        out.serialize_field("state", &self.state())?;
        out.serialize_field("attempt", &self.attempt())?;
        out.serialize_field("progress", &self.progress())?;
        out.serialize_field("priority", &self.priority())?;
        out.serialize_field("submitted_at", &self.submitted_at())?;
        out.serialize_field("started_at", &self.started_at())?;
        out.serialize_field("ended_at", &self.ended_at())?;
        out.serialize_field("metadata", self.metadata())?;
        out.end()
    }
}
