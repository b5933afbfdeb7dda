//! The scopes that come with the runtime.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::scope::{Axis, Scope, flatten};
use crate::error::JobError;

/// A tenant: what belongs to one does not touch another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TenantScope {
    tenant: Arc<str>,
}

impl TenantScope {
    /// The axis that it carries.
    pub const AXIS: &'static str = "tenantId";

    /// The tenant with this id.
    pub fn new(tenant: impl Into<Arc<str>>) -> Self {
        Self {
            tenant: tenant.into(),
        }
    }

    /// As what `scope` and `claim` answer.
    pub fn claim(tenant: impl Into<Arc<str>>) -> Option<Arc<dyn Scope>> {
        Some(Arc::new(Self::new(tenant)))
    }

    /// The tenant's id.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

impl Scope for TenantScope {
    fn axes(&self) -> Vec<Axis> {
        vec![Axis::new(Self::AXIS, &*self.tenant)]
    }
}

/// Binds a flow to tools that change nothing, and travels to whatever the flow delegates to
/// (`SCP-4`). It judges no claim: who hands tools out looks for it with
/// [`ScopeGuard::binds`](super::ScopeGuard::binds).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadOnlyScope;

impl Scope for ReadOnlyScope {
    fn axes(&self) -> Vec<Axis> {
        Vec::new()
    }

    fn describe(&self) -> String {
        "ReadOnlyScope".to_owned()
    }

    fn same_as(&self, other: &dyn Scope) -> bool {
        (other as &dyn Any).is::<Self>()
    }
}

/// Several scopes as one. Nested ones are taken apart, so its components are none.
#[derive(Clone)]
pub struct CompositeScope {
    components: Vec<Arc<dyn Scope>>,
}

impl CompositeScope {
    /// All of these, in order.
    pub fn new(scopes: impl IntoIterator<Item = Arc<dyn Scope>>) -> Self {
        let mut components = Vec::new();
        for scope in scopes {
            flatten(&scope, |one| components.push(Arc::clone(one)));
        }
        Self { components }
    }
}

impl Scope for CompositeScope {
    fn axes(&self) -> Vec<Axis> {
        Vec::new()
    }

    fn judge(&self, claim: &dyn Scope) -> Result<(), JobError> {
        self.components
            .iter()
            .try_for_each(|component| component.judge(claim))
    }

    fn components(&self) -> Option<&[Arc<dyn Scope>]> {
        Some(&self.components)
    }

    fn describe(&self) -> String {
        let parts: Vec<_> = self
            .components
            .iter()
            .map(|component| component.describe())
            .collect();
        format!("CompositeScope[{}]", parts.join(", "))
    }

    fn same_as(&self, other: &dyn Scope) -> bool {
        (other as &dyn Any)
            .downcast_ref::<Self>()
            .is_some_and(|other| self == other)
    }
}

/// The same components in the same order.
impl PartialEq for CompositeScope {
    fn eq(&self, other: &Self) -> bool {
        self.components.len() == other.components.len()
            && self
                .components
                .iter()
                .zip(&other.components)
                .all(|(own, other)| own.same_as(&**other))
    }
}

impl fmt::Debug for CompositeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompositeScope")
            .field(&self.components)
            .finish()
    }
}
