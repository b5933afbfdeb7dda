//! A guard of any kind with its types erased, as a dispatcher runs it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::input::{Content, Target};
use super::kinds::{
    AdmissionGuard, AdmissionRequest, AuthGuard, ContentGuard, Gate, Guard, ValidationGuard,
};
use super::scope::Scope;
use crate::error::JobError;
use crate::job::JobRequirements;

/// What one judgment is about.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) request: AdmissionRequest,
    pub(crate) content: Option<Content>,
}

/// A guard of any kind, its types erased.
pub(crate) trait Judge: Send + Sync {
    fn guard(&self) -> &dyn Guard;

    /// Whether it has anything to judge. One that only finds out while it judges does.
    fn applies(&self, subject: &Subject) -> bool;

    fn judge(&self, subject: &Subject, gate: &Gate<'_>) -> Result<(), JobError>;
}

fn found<T: Target + ?Sized>(subject: &Subject) -> Result<Option<&T>, JobError> {
    subject.content.as_ref().map_or(Ok(None), T::find)
}

fn has<T: Target + ?Sized>(subject: &Subject) -> bool {
    !matches!(found::<T>(subject), Ok(None))
}

pub(super) struct OfContent<G>(pub(super) G);
pub(super) struct OfAuth<G>(pub(super) G);
pub(super) struct OfAdmission<G>(pub(super) G);
pub(super) struct OfValidation<G>(pub(super) G);

impl<G: ContentGuard> Judge for OfContent<G> {
    fn guard(&self) -> &dyn Guard {
        &self.0
    }

    fn applies(&self, subject: &Subject) -> bool {
        has::<G::Target>(subject)
    }

    fn judge(&self, subject: &Subject, gate: &Gate<'_>) -> Result<(), JobError> {
        match found(subject)? {
            Some(target) => self.0.judge(target, gate),
            None => Ok(()),
        }
    }
}

impl<G: AuthGuard> Judge for OfAuth<G> {
    fn guard(&self) -> &dyn Guard {
        &self.0
    }

    fn applies(&self, subject: &Subject) -> bool {
        has::<G::Target>(subject)
    }

    fn judge(&self, subject: &Subject, gate: &Gate<'_>) -> Result<(), JobError> {
        match found(subject)? {
            Some(target) => self.0.judge(target, &subject.request.principal, gate),
            None => Ok(()),
        }
    }
}

impl<G: AdmissionGuard> Judge for OfAdmission<G> {
    fn guard(&self) -> &dyn Guard {
        &self.0
    }

    fn applies(&self, _: &Subject) -> bool {
        true
    }

    fn judge(&self, subject: &Subject, gate: &Gate<'_>) -> Result<(), JobError> {
        self.0.judge(&subject.request, gate)
    }
}

impl<G: ValidationGuard> Judge for OfValidation<G> {
    fn guard(&self) -> &dyn Guard {
        &self.0
    }

    fn applies(&self, subject: &Subject) -> bool {
        has::<G::Target>(subject)
    }

    fn judge(&self, subject: &Subject, gate: &Gate<'_>) -> Result<(), JobError> {
        match found(subject)? {
            Some(target) => self.0.judge(target, gate),
            None => Ok(()),
        }
    }
}

// A guard that several tools share is an `Arc` of it.

impl<G: Guard + ?Sized> Guard for Arc<G> {
    fn type_path(&self) -> &'static str {
        (**self).type_path()
    }

    fn name(&self) -> Cow<'static, str> {
        (**self).name()
    }

    fn timeout(&self) -> Duration {
        (**self).timeout()
    }

    fn requirements(&self) -> JobRequirements {
        (**self).requirements()
    }

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        (**self).scope()
    }

    fn spawns_judges(&self) -> bool {
        (**self).spawns_judges()
    }
}

impl<G: ContentGuard + ?Sized> ContentGuard for Arc<G> {
    type Target = G::Target;

    fn judge(&self, target: &Self::Target, gate: &Gate<'_>) -> Result<(), JobError> {
        (**self).judge(target, gate)
    }
}

impl<G: AuthGuard + ?Sized> AuthGuard for Arc<G> {
    type Target = G::Target;

    fn judge(
        &self,
        target: &Self::Target,
        principal: &str,
        gate: &Gate<'_>,
    ) -> Result<(), JobError> {
        (**self).judge(target, principal, gate)
    }
}

impl<G: AdmissionGuard + ?Sized> AdmissionGuard for Arc<G> {
    fn judge(&self, request: &AdmissionRequest, gate: &Gate<'_>) -> Result<(), JobError> {
        (**self).judge(request, gate)
    }
}

impl<G: ValidationGuard + ?Sized> ValidationGuard for Arc<G> {
    type Target = G::Target;

    fn judge(&self, answer: &Self::Target, gate: &Gate<'_>) -> Result<(), JobError> {
        (**self).judge(answer, gate)
    }
}
