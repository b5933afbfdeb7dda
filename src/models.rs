//! How much model a job needs, which model that is, and what it costs.
//!
//! A job says how much: a [`Grade`], a [`Depth`], an [`OutputSize`], under a [`ModelSlot`]. The
//! deployment says which: its [`Catalog`] has the models, a [`ModelPicker`] chooses among them, a
//! [`ComplianceEnvelope`] says which may be used at all, and a [`SpendGate`] what may be spent.

mod binding;
mod catalog;
mod cost;
mod envelope;
mod gate;
#[cfg(test)]
mod gate_tests;
mod grade;
mod picker;
mod spec;
mod spend;
mod tokens;

pub use binding::{ModelBinding, ModelSlot, Reservation};
pub use catalog::{Catalog, CatalogBuilder, CatalogError, CatalogFault};
pub use cost::{Cost, Currency, Prices, Usage};
pub use envelope::{ComplianceEnvelope, DefaultComplianceEnvelope};
pub use grade::{Depth, EmbeddingsPurpose, Floor, Grade, ModelKind, OutputSize};
pub use picker::{DefaultModelPicker, FailedAttempt, ModelPicker, Seat, Situation};
pub use spec::{InputKind, ModelBound, ModelSpec, ModelStatus, Thinking};
pub use spend::{PricedAttempt, PricedModel, SpendGate};
pub use tokens::{ByteEstimate, TokenCounter, estimate_tokens};

pub(crate) use binding::{InputSize, Wanted};
pub(crate) use gate::Gate;
pub(crate) use picker::Said;
