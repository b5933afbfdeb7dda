//! Choosing a model for a need (`PICK-2`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::binding::{ModelBinding, ModelSlot};
use super::catalog::{Catalog, pin_name};
use super::grade::{Depth, Grade, ModelKind};
use super::spec::{InputKind, ModelSpec, ModelStatus};
use crate::error::{JobError, RetrySignal};
use crate::job::JobSnapshot;
use crate::sync::Mutex;

/// What a model is picked for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Seat<'a> {
    /// The slot that the job asked under.
    pub slot: ModelSlot,
    /// What the model is for.
    pub kind: ModelKind,
    /// How capable it has to be. Means nothing but for an `Llm`.
    pub floor: Grade,
    /// How hard it is to work.
    pub depth: Depth,
    /// Whether the request carries pictures.
    pub images: bool,
    /// Whether the request carries documents.
    pub documents: bool,
    /// Whether the job insists on one model; then nothing is picked.
    pub pinned: bool,
    /// The job, where there is one.
    pub job: Option<&'a JobSnapshot>,
}

impl<'a> Seat<'a> {
    pub(crate) fn of(binding: &ModelBinding, floor: Grade, job: Option<&'a JobSnapshot>) -> Self {
        Self {
            slot: binding.slot(),
            kind: binding.kind(),
            floor,
            depth: binding.depth(),
            images: binding.declares(InputKind::Images),
            documents: binding.declares(InputKind::Documents),
            pinned: binding.pinned().is_some(),
            job,
        }
    }

    /// Why the model cannot take what the request carries.
    pub(crate) fn unfit(&self, spec: &ModelSpec) -> Option<String> {
        let carried = [
            (self.images, InputKind::Images, "images"),
            (self.documents, InputKind::Documents, "documents"),
        ];
        carried
            .into_iter()
            .find(|(carries, kind, _)| *carries && !spec.accepts(*kind))
            .map(|(_, _, name)| format!("{} takes no {name}", spec.id))
    }
}

/// An attempt of the same execution that a provider failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Which, from 1.
    pub attempt: u32,
    /// How.
    pub signal: RetrySignal,
    /// The models that it had.
    pub models: Vec<(ModelSlot, Arc<ModelSpec>)>,
}

impl FailedAttempt {
    /// The id of the entry that answered that it is overloaded, where one did.
    #[must_use]
    pub fn overloaded(&self) -> Option<&str> {
        match &self.signal {
            RetrySignal::Overload(signal) => signal.model.as_deref(),
            _ => None,
        }
    }
}

/// What a picker may look at.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) history: &'a [FailedAttempt],
    /// What a provider lacks to be called for this kind of model.
    pub(crate) missing: &'a dyn Fn(&ModelSpec) -> Option<String>,
    /// What the envelope has refused for this seat, and why.
    pub(crate) refused: &'a [(Arc<ModelSpec>, String)],
}

impl<'a> Situation<'a> {
    /// The models of the deployment.
    #[must_use]
    pub fn catalog(&self) -> &'a Catalog {
        self.catalog
    }

    /// The attempts of this execution that failed, oldest first.
    #[must_use]
    pub fn history(&self) -> &'a [FailedAttempt] {
        self.history
    }

    /// Why the model cannot be called now: it is closed, the envelope refuses it, or its provider
    /// lacks something. `None` when it can.
    #[must_use]
    pub fn obstacle(&self, spec: &ModelSpec) -> Option<String> {
        if spec.status != ModelStatus::Open {
            return Some(format!("{} is {:?}", spec.id, spec.status));
        }
        if let Some((_, why)) = self.refused.iter().find(|(other, _)| **other == *spec) {
            return Some(why.clone());
        }
        (self.missing)(spec)
    }
}

impl fmt::Debug for Situation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Situation")
            .field("catalog", self.catalog)
            .field("history", &self.history)
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

/// Chooses models. What it answers is checked afterwards: kind, envelope, inputs, status, grade.
///
/// It is called on jobs' threads, several at once, and holds none of the runtime's locks.
pub trait ModelPicker: fmt::Debug + Send + Sync + 'static {
    /// The model for a seat.
    ///
    /// # Errors
    /// `ModelResolution` when there is none; it fails the job.
    fn pick(&self, seat: &Seat<'_>, situation: &Situation<'_>) -> Result<Arc<ModelSpec>, JobError>;

    /// Whether a call may be moved from an overloaded or throttled entry to another of the same
    /// identity. Allowed unless it says otherwise, but for models that the job insists on.
    fn may_reroute(&self, seat: &Seat<'_>, from: &ModelSpec, to: &ModelSpec) -> bool {
        let _ = (from, to);
        !seat.pinned
    }
}

/// Takes the first pinned model that can be called, then the cheapest other of the grade, then the
/// next grade up.
///
/// What it skips and what it takes without a pin it logs, each once.
#[derive(Debug, Default)]
pub struct DefaultModelPicker {
    said: Said,
}

impl DefaultModelPicker {
    /// One that has said nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The model of one grade, or of a kind that has none.
    fn pick_within(
        &self,
        seat: &Seat<'_>,
        grade: Grade,
        situation: &Situation<'_>,
    ) -> Option<Arc<ModelSpec>> {
        let catalog = situation.catalog;
        let pins = catalog.pins_for(seat.kind, grade);
        let obstacle = |spec: &ModelSpec| situation.obstacle(spec).or_else(|| seat.unfit(spec));
        for spec in pins {
            match obstacle(spec) {
                None => return Some(Arc::clone(spec)),
                Some(why) => self.said.warn(format!(
                    "the pinned model {} is passed over: {why}",
                    spec.id
                )),
            }
        }
        let spec = catalog
            .entries()
            .filter(|spec| spec.kind == seat.kind && !pins.contains(spec))
            .filter(|spec| seat.kind != ModelKind::Llm || spec.grade == grade)
            .filter(|spec| obstacle(spec).is_none())
            .min_by_key(|spec| cheapness(spec))?;
        self.said.warn(format!(
            "the model {} is taken as the cheapest that is left: put it into `{}` to make that \
             deliberate",
            spec.id,
            pin_name(seat.kind, grade)
        ));
        Some(Arc::clone(spec))
    }
}

/// Cheapest list price first; one without a price is not known to be cheap. Prices compare within a
/// currency alone, so that of several currencies one goes first.
fn cheapness(spec: &ModelSpec) -> impl Ord + use<> {
    let price = spec.prices.as_ref().map(|prices| prices.list_price());
    (Reverse(price.is_some()), price, spec.id.clone())
}

impl ModelPicker for DefaultModelPicker {
    fn pick(&self, seat: &Seat<'_>, situation: &Situation<'_>) -> Result<Arc<ModelSpec>, JobError> {
        let mut grades: Box<dyn Iterator<Item = Grade>> = match seat.kind {
            ModelKind::Llm => Box::new(seat.floor.and_above()),
            _ => Box::new(std::iter::once(seat.floor)),
        };
        grades
            .find_map(|grade| self.pick_within(seat, grade, situation))
            .ok_or_else(|| nothing_left(seat, situation))
    }
}

/// Names per provider what is missing.
fn nothing_left(seat: &Seat<'_>, situation: &Situation<'_>) -> JobError {
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let candidates = situation
        .catalog
        .entries()
        .filter(|spec| spec.kind == seat.kind)
        .filter(|spec| seat.kind != ModelKind::Llm || spec.grade >= seat.floor);
    for spec in candidates {
        let reasons = missing.entry(&spec.provider).or_default();
        let why = situation
            .obstacle(spec)
            .or_else(|| seat.unfit(spec))
            .unwrap_or_else(|| format!("{} was not taken", spec.id));
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }
    let asked = match seat.kind {
        ModelKind::Llm => format!("a model of grade {:?} or more", seat.floor),
        kind => format!("a model for {kind:?}"),
    };
    let reasons = if missing.is_empty() {
        "the catalog has none".to_owned()
    } else {
        missing
            .iter()
            .map(|(provider, reasons)| format!("{provider}: {}", reasons.join(", ")))
            .collect::<Vec<_>>()
            .join("; ")
    };
    JobError::model_resolution(format!(
        "the slot '{}' asks for {asked}, and none can be called ({reasons})",
        seat.slot.name()
    ))
}

/// Lines of the log that are worth saying once.
#[derive(Default)]
pub(crate) struct Said {
    lines: Mutex<HashSet<String>>,
}

impl Said {
    /// Logs the line as a warning unless it has been.
    pub(crate) fn warn(&self, line: String) {
        if !self.lines.lock().insert(line.clone()) {
            return;
        }
        crate::aside::warn!("{line}");
    }
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Said")
            .field("lines", &self.lines.lock().len())
            .finish()
    }
}
