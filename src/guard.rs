//! Guards and scopes: what untrusted input may reach, decided by code (`GRD`, `SCP`).
//!
//! A job says what it was asked to do ([`JobInput`]), what it is bound to ([`Scope`]), and who
//! judges it ([`Guards`]). The dispatcher asks once, at the submission, and enforces at the one
//! point that every route crosses.
//!
//! # Invariants
//!
//! 1. Nothing here runs a guard or admits a job: the dispatcher does, and this module knows none.
//! 2. A [`ScopeGuard`] never changes; a wider binding is a new one.
//! 3. What cannot be judged is refused: content without a text fails a guard that judges texts.

mod attached;
mod input;
mod judge;
mod kinds;
mod scope;
mod scopes;
mod shipped;

pub(crate) use attached::{Attached, Protection};
pub(crate) use input::{Content, built_in_text};
pub(crate) use judge::Subject;

pub use attached::{Guards, ValidationGuards};
#[cfg(feature = "serde")]
pub use input::json_text;
pub use input::{JobInput, Target};
pub use kinds::{
    AdmissionGuard, AdmissionRequest, AuthGuard, ContentGuard, DEFAULT_GUARD_TIMEOUT, Gate, Guard,
    GuardPhase, ValidationGuard,
};
pub use scope::{Axis, Scope, ScopeGuard};
pub use scopes::{CompositeScope, ReadOnlyScope, TenantScope};
pub use shipped::{AgentTypeAllowList, PayloadSizeCap, PiiDetection, PrincipalAllowList, UrlGuard};
