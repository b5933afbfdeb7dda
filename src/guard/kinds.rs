//! The four kinds of guard (`GRD-1`), and what each is shown.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::input::Target;
use super::scope::Scope;
use crate::error::JobError;
use crate::job::identity::simple_name;
use crate::job::{JobContext, JobRequirements, JobResources, JobSnapshot};

/// The timeout of a guard that does not set one (GRD-3).
pub const DEFAULT_GUARD_TIMEOUT: Duration = Duration::from_secs(10);

/// What all guards have in common. Every judgment runs as a job of its own, a child of the job that
/// it gates.
///
/// Each answer is asked as a job's is: once per judgment, and `requirements` once per attempt too.
pub trait Guard: Send + Sync + 'static {
    /// The path of the guard's type, and so that of its job. The compiler's name for the type unless
    /// the guard says otherwise.
    fn type_path(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// The name of its job. The type's simple name unless the guard says otherwise.
    fn name(&self) -> Cow<'static, str> {
        simple_name(std::any::type_name::<Self>()).into()
    }

    /// How long a judgment may take from its grant; 10 seconds unless the guard says otherwise. One
    /// that takes longer fails the gated job.
    fn timeout(&self) -> Duration {
        DEFAULT_GUARD_TIMEOUT
    }

    /// What a judgment needs. Nothing unless the guard says otherwise.
    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
    }

    /// What the guard itself touches; none unless it says otherwise. A guard outside of what the
    /// gated job is bound to does not run, and the gated job fails.
    fn scope(&self) -> Option<Arc<dyn Scope>> {
        None
    }

    /// Whether it submits jobs of its own, such as a model that judges. It then runs as an
    /// orchestrator, bound to what the gated job is bound to, holds nothing, and submits through
    /// [`governor`](crate::governor). No unless the guard says otherwise.
    fn spawns_judges(&self) -> bool {
        false
    }
}

/// Judges a value alone: an input before the work, or an output before it is delivered, as it is
/// attached.
pub trait ContentGuard: Guard {
    /// What it judges: it runs only for a value of this type. `str` stands for the text of any
    /// value, `dyn Any` for any value.
    type Target: Target + ?Sized;

    /// Lets pass or refuses.
    ///
    /// # Errors
    /// [`JobError::guardrail`] with a message for the model refuses. Any other error fails the gated
    /// job as it is.
    fn judge(&self, target: &Self::Target, gate: &Gate<'_>) -> Result<(), JobError>;
}

/// Judges an input together with the principal on whose behalf the job runs.
pub trait AuthGuard: Guard {
    /// As [`ContentGuard::Target`].
    type Target: Target + ?Sized;

    /// Lets pass or refuses.
    ///
    /// # Errors
    /// As [`ContentGuard::judge`].
    fn judge(
        &self,
        target: &Self::Target,
        principal: &str,
        gate: &Gate<'_>,
    ) -> Result<(), JobError>;
}

/// Judges who may reach a job at all, whatever its input.
pub trait AdmissionGuard: Guard {
    /// Lets pass or refuses.
    ///
    /// # Errors
    /// As [`ContentGuard::judge`].
    fn judge(&self, request: &AdmissionRequest, gate: &Gate<'_>) -> Result<(), JobError>;
}

/// Judges an agent's answer while the agent still holds its conversation, so that a refusal can be
/// corrected. An orchestrator has it judged with
/// [`OrchestratorContext::validate`](crate::OrchestratorContext::validate).
pub trait ValidationGuard: Guard {
    /// As [`ContentGuard::Target`].
    type Target: Target + ?Sized;

    /// Lets pass or refuses.
    ///
    /// # Errors
    /// As [`ContentGuard::judge`].
    fn judge(&self, answer: &Self::Target, gate: &Gate<'_>) -> Result<(), JobError>;
}

/// Who asks to reach what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmissionRequest {
    /// On whose behalf the job runs.
    pub principal: Arc<str>,
    /// The path of the type of the job that submitted it; none for a call from outside any job.
    pub caller: Option<&'static str>,
    /// The path of the gated job's type.
    pub tool: &'static str,
}

impl AdmissionRequest {
    /// A request, such as a guard's own test makes.
    pub fn new(
        principal: impl Into<Arc<str>>,
        caller: Option<&'static str>,
        tool: &'static str,
    ) -> Self {
        Self {
            principal: principal.into(),
            caller,
            tool,
        }
    }

    /// The simple name of the gated job's type.
    #[must_use]
    pub fn tool_name(&self) -> &'static str {
        simple_name(self.tool)
    }
}

impl fmt::Display for AdmissionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caller = self.caller.unwrap_or("a direct call");
        write!(f, "{} via {caller} -> {}", self.principal, self.tool_name())
    }
}

/// Where a guard stands (GRD-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GuardPhase {
    /// Who may reach the job.
    Admission,
    /// What goes in.
    ContentInput,
    /// What goes in, on whose behalf.
    Auth,
    /// What comes out.
    ContentOutput,
    /// What an agent answers.
    Validation,
}

impl fmt::Display for GuardPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Admission => "ADMISSION",
            Self::ContentInput => "CONTENT_INPUT",
            Self::Auth => "AUTH",
            Self::ContentOutput => "CONTENT_OUTPUT",
            Self::Validation => "VALIDATION",
        })
    }
}

/// What a guard sees besides what it judges.
#[derive(Clone, Copy)]
pub struct Gate<'a> {
    seen: Option<Seen<'a>>,
}

#[derive(Clone, Copy)]
struct Seen<'a> {
    phase: GuardPhase,
    gated: &'a JobSnapshot,
    resources: &'a JobResources,
    context: &'a JobContext,
}

impl<'a> Gate<'a> {
    /// Outside of any dispatcher, for a guard's own test: there is no gated job and nothing is held.
    #[must_use]
    pub fn outside() -> Self {
        Self { seen: None }
    }

    pub(crate) fn new(
        phase: GuardPhase,
        gated: &'a JobSnapshot,
        resources: &'a JobResources,
        context: &'a JobContext,
    ) -> Self {
        let seen = Seen {
            phase,
            gated,
            resources,
            context,
        };
        Self { seen: Some(seen) }
    }

    /// Where the guard stands; none outside of a dispatcher.
    #[must_use]
    pub fn phase(&self) -> Option<GuardPhase> {
        Some(self.seen?.phase)
    }

    /// The gated job, as it was when the guard was submitted; none outside of a dispatcher.
    #[must_use]
    pub fn gated(&self) -> Option<&'a JobSnapshot> {
        Some(self.seen?.gated)
    }

    /// On whose behalf the gated job runs; none outside of a dispatcher.
    #[must_use]
    pub fn principal(&self) -> Option<&'a str> {
        Some(self.seen?.gated.user())
    }

    /// The context of the guard's own job.
    ///
    /// # Errors
    /// `IllegalState` outside of a dispatcher.
    pub fn context(&self) -> Result<&'a JobContext, JobError> {
        Ok(self.seen.ok_or_else(outside)?.context)
    }

    /// What the guard declared in its requirements.
    ///
    /// # Errors
    /// `IllegalState` outside of a dispatcher.
    pub fn resources(&self) -> Result<&'a JobResources, JobError> {
        Ok(self.seen.ok_or_else(outside)?.resources)
    }
}

fn outside() -> JobError {
    JobError::illegal_state("a guard has resources and a context only where a dispatcher runs it")
}

impl fmt::Debug for Gate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("phase", &self.phase())
            .field("gated", &self.gated().map(JobSnapshot::job_id))
            .finish()
    }
}
