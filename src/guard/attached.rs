//! Guards on a job, each with its seat.

use std::fmt;
use std::sync::Arc;

use super::input::JobInput;
use super::judge::{Judge, OfAdmission, OfAuth, OfContent, OfValidation};
use super::kinds::{AdmissionGuard, AuthGuard, ContentGuard, GuardPhase, ValidationGuard};
use super::scope::Scope;
use crate::unwind::{discard, discard_each};

/// The guards of a job.
///
/// They run in the order of their kinds (admission, content of the input, auth; content of the
/// output), within a kind as they were attached, and the first refusal ends it. A guard that several
/// jobs share is passed as an `Arc`.
///
/// ```
/// use nucleo_runtime::guard::{Guards, PayloadSizeCap, PiiDetection, PrincipalAllowList};
///
/// let guards = Guards::none()
///     .admission(PrincipalAllowList::new(["alice"]))
///     .input(PayloadSizeCap::new(4_000))
///     .output(PiiDetection);
/// ```
#[must_use]
#[derive(Clone, Default)]
pub struct Guards {
    attached: Vec<Attached>,
}

/// A guard in its seat.
#[derive(Clone)]
pub(crate) struct Attached {
    pub(crate) phase: GuardPhase,
    pub(crate) judge: Arc<dyn Judge>,
}

impl Guards {
    /// None.
    pub fn none() -> Self {
        Self::default()
    }

    /// Judges the input.
    pub fn input<G: ContentGuard>(self, guard: G) -> Self {
        self.attach(GuardPhase::ContentInput, OfContent(guard))
    }

    /// Judges the output.
    pub fn output<G: ContentGuard>(self, guard: G) -> Self {
        self.attach(GuardPhase::ContentOutput, OfContent(guard))
    }

    /// Judges the input together with the principal. A job without an input has nothing to judge
    /// here: use [`admission`](Self::admission) for that.
    pub fn auth<G: AuthGuard>(self, guard: G) -> Self {
        self.attach(GuardPhase::Auth, OfAuth(guard))
    }

    /// Judges who reaches the job, whatever its input.
    pub fn admission<G: AdmissionGuard>(self, guard: G) -> Self {
        self.attach(GuardPhase::Admission, OfAdmission(guard))
    }

    fn attach(mut self, phase: GuardPhase, judge: impl Judge + 'static) -> Self {
        self.attached.push(Attached {
            phase,
            judge: Arc::new(judge),
        });
        self
    }

    /// Those of these phases, in the order of the phases.
    pub(crate) fn of<'a>(
        &'a self,
        phases: &'a [GuardPhase],
    ) -> impl Iterator<Item = &'a Attached> + 'a {
        phases.iter().flat_map(move |phase| {
            self.attached
                .iter()
                .filter(move |attached| attached.phase == *phase)
        })
    }

    pub(crate) fn has(&self, phases: &[GuardPhase]) -> bool {
        self.of(phases).next().is_some()
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        // They are a user's, whoever drops them, and each goes on its own.
        discard_each(std::mem::take(&mut self.attached));
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.attached.iter().map(|attached| attached.phase))
            .finish()
    }
}

/// The guards that judge an orchestrator's answer before it is one, in the order in which they were
/// attached; the first refusal ends it. They run when the orchestrator asks, with
/// [`OrchestratorContext::validate`](crate::OrchestratorContext::validate), as often as it does.
///
/// ```
/// use nucleo_runtime::guard::{Gate, Guard, ValidationGuard, ValidationGuards};
/// use nucleo_runtime::JobError;
///
/// struct NamesItsSources;
///
/// impl Guard for NamesItsSources {}
///
/// impl ValidationGuard for NamesItsSources {
///     type Target = str;
///
///     fn judge(&self, answer: &str, _: &Gate<'_>) -> Result<(), JobError> {
///         if answer.contains("Source:") {
///             return Ok(());
///         }
///         Err(JobError::guardrail("name your sources"))
///     }
/// }
///
/// let guards = ValidationGuards::none().with(NamesItsSources);
/// ```
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct ValidationGuards {
    guards: Guards,
}

impl ValidationGuards {
    /// None.
    pub fn none() -> Self {
        Self::default()
    }

    /// Judges the answer.
    pub fn with<G: ValidationGuard>(self, guard: G) -> Self {
        let guards = self.guards;
        Self {
            guards: guards.attach(GuardPhase::Validation, OfValidation(guard)),
        }
    }

    pub(crate) fn all(&self) -> &Guards {
        &self.guards
    }
}

/// What a job says of its protection, asked once at its submission.
#[derive(Default)]
pub(crate) struct Protection {
    pub(crate) input: Option<Arc<dyn JobInput>>,
    pub(crate) scope: Option<Arc<dyn Scope>>,
    pub(crate) guards: Guards,
}

impl Protection {
    pub(crate) fn new(
        input: Option<Arc<dyn JobInput>>,
        scope: Option<Arc<dyn Scope>>,
        guards: Guards,
    ) -> Self {
        Self {
            input,
            scope,
            guards,
        }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // The last reference may be a runtime thread's, and all of it is a user's.
        discard(self.input.take());
        discard(self.scope.take());
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("guards", &self.guards)
            .finish_non_exhaustive()
    }
}
