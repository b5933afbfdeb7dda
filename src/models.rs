//! How much model a job needs, in words that name no model.

mod binding;
mod grade;
mod spec;

pub use binding::{ModelSlot, estimate_tokens};
pub use grade::{Depth, Grade, OutputSize};
pub use spec::{ModelBound, ModelSpec};

pub(crate) use binding::{ModelNeed, Reservation};
