//! Who may spend: judges of an attempt's price (`COST-3`).

use std::fmt;
use std::sync::Arc;

use super::binding::{ModelSlot, Reservation};
use super::cost::Cost;
use super::spec::ModelSpec;
use crate::error::JobError;
use crate::events::ModelCall;
use crate::job::JobSnapshot;

/// One model of an attempt, with what it takes and what that costs at most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PricedModel {
    /// The slot.
    pub slot: ModelSlot,
    /// The model.
    pub spec: Arc<ModelSpec>,
    /// The tokens.
    pub reservation: Reservation,
    /// Their price; `None` on a model without one.
    pub cost: Option<Cost>,
}

/// An attempt that has been priced and not been admitted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PricedAttempt<'a> {
    /// The job.
    pub job: &'a JobSnapshot,
    /// The models that it asks for; at least one.
    pub models: &'a [PricedModel],
    /// The calls that the job's earlier attempts made.
    pub calls: &'a [ModelCall],
}

impl<'a> PricedAttempt<'a> {
    pub(crate) fn new(
        job: &'a JobSnapshot,
        models: &'a [PricedModel],
        calls: &'a [ModelCall],
    ) -> Self {
        Self { job, models, calls }
    }
}

/// Judges what attempts are about to spend.
///
/// `judge` is called on jobs' threads and `settle` on threads kept for it, several at once, under none
/// of the runtime's locks. They should answer at once. The end of a job waits half a second for all
/// gates together, and then goes on; while all threads of a gate are taken by calls that took longer,
/// it does not wait for that gate at all.
pub trait SpendGate: fmt::Debug + Send + Sync + 'static {
    /// Whether the attempt may go on to its admission. What it allows counts as committed, in place
    /// of what it allowed to an earlier attempt of the job, until the job settles.
    ///
    /// # Errors
    /// `SpendCapExceeded`, or another refusal; it fails the job.
    fn judge(&self, attempt: &PricedAttempt<'_>) -> Result<(), JobError>;

    /// The job has ended, with these calls. Called once for every job, on every path, before its
    /// terminal event, also for a job that was never judged; later when the gate takes too long.
    fn settle(&self, job: &JobSnapshot, calls: &[ModelCall]);
}
