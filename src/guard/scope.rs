//! What a flow is bound to, and the judgment of what asks to run inside it (`SCP-1`, `SCP-2`).

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::JobError;
use crate::job::identity::simple_name;
use crate::unwind::discard_each;

/// One coordinate of a scope: what it is of, and which.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// What the value is of, such as `tenantId`. Scopes that share a name are related: they are
    /// judged against one another on it.
    pub name: Cow<'static, str>,
    /// Which one.
    pub value: String,
}

impl Axis {
    /// An axis.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

/// A value that a flow is bound to, or that an input names: a tenant, a case, a region.
///
/// A scope is its axes. A city that answers `[region, city]` refines a region that answers
/// `[region]`: the two are judged on the region, two cities on both.
///
/// ```
/// use nucleo_runtime::guard::{Axis, Scope};
///
/// #[derive(Debug)]
/// struct City(&'static str, &'static str);
///
/// impl Scope for City {
///     fn axes(&self) -> Vec<Axis> {
///         vec![Axis::new("region", self.0), Axis::new("city", self.1)]
///     }
/// }
///
/// let berlin = City("emea", "berlin");
/// assert!(berlin.judge(&City("emea", "berlin")).is_ok());
/// let refusal = berlin.judge(&City("emea", "munich")).unwrap_err();
/// assert_eq!(
///     refusal.llm_message(),
///     "Guardrail violation: Scope mismatch: this flow is bound to City[region=emea, city=berlin] \
///      but the input names City[region=emea, city=munich]",
/// );
/// ```
///
/// Answers must not change while the value lives: a flow is bound to what they say.
pub trait Scope: Any + fmt::Debug + Send + Sync {
    /// Its coordinates, from the widest to the narrowest.
    fn axes(&self) -> Vec<Axis>;

    /// Judges a claim as the value that a flow is bound to.
    ///
    /// Unless the scope says otherwise, every axis that both carry must be equal, and a claim that
    /// shares none passes. A claim that is several at once shares none with a single scope, and passes
    /// here: [`ScopeGuard::judge`] is what judges its parts one by one, and what the door asks. Code that
    /// compares two claims itself asks a guard, `ScopeGuard::new([scope]).judge(&claim)`.
    ///
    /// # Errors
    /// The refusal, a guardrail's.
    fn judge(&self, claim: &dyn Scope) -> Result<(), JobError> {
        let claimed = claim.axes();
        let differs = self.axes().iter().any(|own| {
            claimed
                .iter()
                .any(|axis| axis.name == own.name && axis.value != own.value)
        });
        if differs {
            return Err(mismatch(&self.describe(), &claim.describe()));
        }
        Ok(())
    }

    /// What it is made of, for a scope that is several. Its parts are bound and judged, each by
    /// itself, in its place.
    fn components(&self) -> Option<&[Arc<dyn Scope>]> {
        None
    }

    /// How a refusal names it: `<type>[<axis>=<value>, ...]` unless the scope says otherwise.
    fn describe(&self) -> String {
        let axes: Vec<_> = self
            .axes()
            .iter()
            .map(|axis| format!("{}={}", axis.name, axis.value))
            .collect();
        format!(
            "{}[{}]",
            simple_name(std::any::type_name::<Self>()),
            axes.join(", ")
        )
    }

    /// Whether another scope is the same value, so that a flow bound to both is bound to it once.
    ///
    /// Unless the scope says otherwise: one of the same type, with the same axes, at least one, and
    /// the same `Debug` text. A wrong yes would drop a binding; a wrong no costs one more judgment.
    fn same_as(&self, other: &dyn Scope) -> bool {
        let other_type = (other as &dyn Any).type_id();
        TypeId::of::<Self>() == other_type && {
            let axes = self.axes();
            !axes.is_empty() && axes == other.axes() && format!("{self:?}") == format!("{other:?}")
        }
    }
}

pub(super) fn mismatch(binding: &str, claim: &str) -> JobError {
    JobError::guardrail(format!(
        "Scope mismatch: this flow is bound to {binding} but the input names {claim}"
    ))
}

/// Calls `each` with every scope that a scope is made of, itself when it is one.
pub(super) fn flatten(scope: &Arc<dyn Scope>, mut each: impl FnMut(&Arc<dyn Scope>)) {
    // No recursion: how deep it nests is a user's affair.
    let mut next = vec![scope];
    while let Some(scope) = next.pop() {
        match scope.components() {
            Some(components) => next.extend(components.iter().rev()),
            None => each(scope),
        }
    }
}

/// What a flow is bound to: a set of scopes that never changes.
///
/// An orchestrator's is composed when it is submitted, of its caller's and its own, and there is no
/// way to change it afterwards. [`JobContext::scope_guard`](crate::JobContext::scope_guard) shows it.
#[derive(Clone, Default)]
pub struct ScopeGuard {
    members: Arc<Members>,
}

#[derive(Default)]
struct Members(Vec<Arc<dyn Scope>>);

impl Drop for Members {
    fn drop(&mut self) {
        // The last reference may be a runtime thread's, and the scopes are a user's.
        discard_each(std::mem::take(&mut self.0));
    }
}

impl ScopeGuard {
    /// Bound to these, each once. None of them is a guard that everything passes.
    pub fn new(scopes: impl IntoIterator<Item = Arc<dyn Scope>>) -> Self {
        Self::default().with(scopes)
    }

    /// A guard bound to this one's scopes and these.
    #[must_use]
    pub fn with(&self, scopes: impl IntoIterator<Item = Arc<dyn Scope>>) -> Self {
        let mut scopes = scopes.into_iter().peekable();
        if scopes.peek().is_none() {
            return self.clone();
        }
        let mut members = self.members.0.clone();
        for scope in scopes {
            flatten(&scope, |one| {
                let known = members
                    .iter()
                    .any(|member| Arc::ptr_eq(member, one) || member.same_as(&**one));
                if !known {
                    members.push(Arc::clone(one));
                }
            });
        }
        if members.len() == self.members.0.len() {
            return self.clone();
        }
        Self {
            members: Arc::new(Members(members)),
        }
    }

    /// A guard bound to the scopes of both.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        if self.is_empty() || Arc::ptr_eq(&self.members, &other.members) {
            return other.clone();
        }
        self.with(other.members.0.iter().cloned())
    }

    /// Judges a claim: every member must let it pass, a composite claim part by part.
    ///
    /// # Errors
    /// The first refusal.
    pub fn judge(&self, claim: &Arc<dyn Scope>) -> Result<(), JobError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut verdict = Ok(());
        flatten(claim, |part| {
            for member in &self.members.0 {
                if verdict.is_ok() {
                    verdict = member.judge(&**part);
                }
            }
        });
        verdict
    }

    /// The scopes, in the order in which they were bound.
    #[must_use]
    pub fn members(&self) -> &[Arc<dyn Scope>] {
        &self.members.0
    }

    /// Whether it binds to nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.0.is_empty()
    }

    /// Whether one of the scopes is of this type.
    #[must_use]
    pub fn binds<S: Scope>(&self) -> bool {
        self.members
            .0
            .iter()
            .any(|member| (&**member as &dyn Any).is::<S>())
    }
}

impl fmt::Debug for ScopeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By their number: describing them is a user's code, and this may stand in any log line.
        f.debug_struct("ScopeGuard")
            .field("members", &self.members.0.len())
            .finish()
    }
}
