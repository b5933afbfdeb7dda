//! Who may reach a tool: by principal, and by the type of the agent that calls.

use std::any::Any;
use std::collections::BTreeSet;

use crate::error::JobError;
use crate::guard::{AdmissionGuard, AdmissionRequest, AuthGuard, Gate, Guard};
use crate::job::identity::simple_name;

/// Lets pass what runs on behalf of the listed principals.
///
/// Attached as an auth guard it judges wherever there is an input; attached as an admission guard it
/// judges always.
#[derive(Clone, Debug)]
pub struct PrincipalAllowList {
    allowed: BTreeSet<String>,
}

impl PrincipalAllowList {
    /// Lets pass these, spelt exactly so. None lets nobody pass.
    pub fn new<P: Into<String>>(principals: impl IntoIterator<Item = P>) -> Self {
        Self {
            allowed: principals.into_iter().map(Into::into).collect(),
        }
    }

    fn check(&self, principal: &str, tool: &str) -> Result<(), JobError> {
        if self.allowed.contains(principal) {
            return Ok(());
        }
        // Not the list: who else may is nothing to tell a stranger.
        Err(JobError::guardrail(format!(
            "'{principal}' may not use {tool}"
        )))
    }
}

impl Guard for PrincipalAllowList {}

impl AuthGuard for PrincipalAllowList {
    type Target = dyn Any;

    fn judge(&self, _: &dyn Any, principal: &str, gate: &Gate<'_>) -> Result<(), JobError> {
        let tool = gate.gated().map_or("this tool", |gated| gated.type_name());
        self.check(principal, tool)
    }
}

impl AdmissionGuard for PrincipalAllowList {
    fn judge(&self, request: &AdmissionRequest, _: &Gate<'_>) -> Result<(), JobError> {
        self.check(&request.principal, request.tool_name())
    }
}

/// Lets pass calls that come from jobs of the listed types.
#[derive(Clone, Debug)]
pub struct AgentTypeAllowList {
    allowed: BTreeSet<String>,
    direct: bool,
}

impl AgentTypeAllowList {
    /// Lets pass calls from these types, each by its path (`my_app::Support`) or its simple name,
    /// which any type of that name has.
    pub fn new<T: Into<String>>(types: impl IntoIterator<Item = T>) -> Self {
        Self {
            allowed: types.into_iter().map(Into::into).collect(),
            direct: false,
        }
    }

    /// Lets pass calls from this type too.
    #[must_use]
    pub fn and<T: ?Sized>(mut self) -> Self {
        self.allowed.insert(std::any::type_name::<T>().to_owned());
        self
    }

    /// Lets pass calls from outside any job too. Not allowed unless set.
    #[must_use]
    pub fn and_direct_calls(mut self) -> Self {
        self.direct = true;
        self
    }
}

impl Guard for AgentTypeAllowList {}

impl AdmissionGuard for AgentTypeAllowList {
    fn judge(&self, request: &AdmissionRequest, _: &Gate<'_>) -> Result<(), JobError> {
        let allowed = match request.caller {
            None => self.direct,
            Some(caller) => {
                self.allowed.contains(caller) || self.allowed.contains(simple_name(caller))
            }
        };
        if allowed {
            return Ok(());
        }
        let listed: Vec<_> = self.allowed.iter().map(String::as_str).collect();
        Err(JobError::guardrail(format!(
            "{} may not be reached by {}; allowed: {}",
            request.tool_name(),
            request.caller.unwrap_or("a direct call"),
            listed.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case GRD-29
    #[test]
    fn a_refused_caller_is_named_with_the_tool_and_the_list() {
        let list = AgentTypeAllowList::new(["app::Support", "Billing"]);
        let judge = |list: &AgentTypeAllowList, caller| {
            let request = AdmissionRequest::new("alice", caller, "app::Refund");
            AdmissionGuard::judge(list, &request, &Gate::outside())
        };
        assert!(judge(&list, Some("app::Support")).is_ok());
        assert!(judge(&list, Some("other::Billing")).is_ok());
        // A path is no simple name.
        assert!(judge(&list, Some("evil::Support")).is_err());
        let refusal = judge(&list, Some("app::Chat")).unwrap_err();
        assert!(refusal.is_correctable());
        assert_eq!(
            refusal.llm_message(),
            "Guardrail violation: Refund may not be reached by app::Chat; allowed: Billing, \
             app::Support"
        );
        let refusal = judge(&list, None).unwrap_err().llm_message();
        assert!(refusal.contains("a direct call"), "{refusal}");
        assert!(judge(&list.and_direct_calls(), None).is_ok());
    }

    #[test]
    fn a_principal_is_compared_whole() {
        let list = PrincipalAllowList::new(["alice"]);
        let judge = |principal| AuthGuard::judge(&list, &0_u8, principal, &Gate::outside());
        assert!(judge("alice").is_ok());
        for other in ["Alice", "alice ", "alic", "bob", ""] {
            assert!(judge(other).is_err(), "{other}");
        }
        let nobody = PrincipalAllowList::new(Vec::<String>::new());
        assert!(AuthGuard::judge(&nobody, &0_u8, "alice", &Gate::outside()).is_err());
    }
}
