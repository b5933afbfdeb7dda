//! From a need to a model: asks the picker and checks what it answers (`PICK-1`, `PICK-3`, `PICK-4`).
//!
//! Pure: what it may use is handed in, chance included.

use std::sync::Arc;

use super::binding::{ModelBinding, Wanted};
use super::catalog::Catalog;
use super::envelope::ComplianceEnvelope;
use super::grade::{Floor, Grade, ModelKind};
use super::picker::{FailedAttempt, ModelPicker, Seat, Situation};
use super::spec::{ModelSpec, ModelStatus};
use crate::error::{ErrorKind, JobError};
use crate::job::JobSnapshot;

/// Everything that a resolution depends on.
pub(crate) struct Gate<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) picker: &'a dyn ModelPicker,
    pub(crate) envelope: &'a dyn ComplianceEnvelope,
    /// What a provider lacks to be called.
    pub(crate) missing: &'a dyn Fn(&ModelSpec) -> Option<String>,
    /// By how much an entry's account is slowed down: 1 when it is not, 2 when it takes twice as
    /// long.
    pub(crate) slowdown: &'a dyn Fn(&ModelSpec) -> f64,
    pub(crate) history: &'a [FailedAttempt],
    /// From 0 to 1, drawn anew for each resolution.
    pub(crate) chance: f64,
    pub(crate) job: Option<&'a JobSnapshot>,
}

/// What a need became.
#[derive(Debug)]
pub(crate) struct Resolution {
    pub(crate) spec: Arc<ModelSpec>,
    /// From which grade to which the floor was lowered, because nothing reaches it.
    pub(crate) lowered: Option<(Grade, Grade)>,
}

/// Where the walk begins.
struct Start {
    floor: Grade,
    /// Whether the best was asked for, so that the walk goes down.
    is_ceiling: bool,
    /// From which grade to which the floor was lowered.
    lowered: Option<(Grade, Grade)>,
}

impl Start {
    fn at(floor: Grade) -> Self {
        Self {
            floor,
            is_ceiling: false,
            lowered: None,
        }
    }
}

/// With such a slowdown new work begins to move off (PICK-4).
const CROWDED: f64 = 2.0;

impl Gate<'_> {
    pub(crate) fn resolve(&self, binding: &ModelBinding) -> Result<Resolution, JobError> {
        let wanted = match binding.wanted() {
            Wanted::Pinned(spec) => {
                let spec = &self.entry(spec)?;
                let seat = Seat::of(binding, spec.grade, self.job);
                self.check(&seat, spec, None)?;
                if let Some(why) = (self.missing)(spec) {
                    return Err(refused(&seat, spec, &why));
                }
                let spec = self.reroute(&seat, Arc::clone(spec), None);
                return Ok(Resolution {
                    spec,
                    lowered: None,
                });
            }
            Wanted::Any => None,
            Wanted::Floor(floor) => Some(*floor),
        };
        let start = self.start(binding, wanted);
        let (seat, spec) = self.walk(binding, start.floor, start.is_ceiling)?;
        let checked = (binding.kind() == ModelKind::Llm).then_some(seat.floor);
        let spec = self.reroute(&seat, spec, checked);
        Ok(Resolution {
            spec,
            lowered: start.lowered,
        })
    }

    /// The catalog's own entry: what a job or a picker holds may be old, or made up.
    fn entry(&self, spec: &ModelSpec) -> Result<Arc<ModelSpec>, JobError> {
        let entry = self.catalog.get(&spec.id).cloned();
        entry.ok_or_else(|| {
            JobError::from_kind(ErrorKind::ModelNotFound {
                model: spec.id.clone(),
            })
        })
    }

    /// The grade to ask for, lowered to the strongest that is served.
    fn start(&self, binding: &ModelBinding, wanted: Option<Floor>) -> Start {
        let Some(wanted) = wanted else {
            return Start::at(Grade::Micro);
        };
        let served = self
            .catalog
            .entries()
            .filter(|spec| spec.kind == binding.kind() && spec.status == ModelStatus::Open)
            .filter(|spec| (self.missing)(spec).is_none())
            .map(|spec| spec.grade)
            .max();
        match (wanted, served) {
            (Floor::AtLeast(grade), Some(ceiling)) if grade > ceiling => Start {
                lowered: Some((grade, ceiling)),
                ..Start::at(ceiling)
            },
            // With nothing served the picker says what is missing.
            (Floor::AtLeast(grade), _) => Start::at(grade),
            (Floor::Ceiling, ceiling) => Start {
                is_ceiling: true,
                ..Start::at(ceiling.unwrap_or(Grade::Micro))
            },
        }
    }

    /// Asks the picker, and again without what the envelope refuses: from a floor upward, from the
    /// ceiling downward.
    fn walk(
        &self,
        binding: &ModelBinding,
        floor: Grade,
        is_ceiling: bool,
    ) -> Result<(Seat<'_>, Arc<ModelSpec>), JobError> {
        let mut refusals: Vec<(Arc<ModelSpec>, String)> = Vec::new();
        let mut floor = floor;
        loop {
            let seat = Seat::of(binding, floor, self.job);
            let situation = Situation {
                catalog: self.catalog,
                history: self.history,
                missing: self.missing,
                refused: &refusals,
            };
            let next = if is_ceiling {
                floor.below()
            } else {
                floor.above()
            };
            let spec = match self.picker.pick(&seat, &situation) {
                Ok(spec) => self.entry(&spec)?,
                Err(error) => match next {
                    // A picker that passes over what was refused has nothing left at the top.
                    Some(next) if is_ceiling && !refusals.is_empty() => {
                        floor = next;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            let least = (binding.kind() == ModelKind::Llm).then_some(floor);
            self.check_kind(&seat, &spec)?;
            let Err(why) = self.envelope.judge(&spec) else {
                self.check(&seat, &spec, least)?;
                return Ok((seat, spec));
            };
            if refusals.iter().any(|(other, _)| *other == spec) {
                // It insists: elsewhere it may answer another.
                match next {
                    Some(next) if binding.kind() == ModelKind::Llm => floor = next,
                    _ => return Err(refused(&seat, &spec, &why)),
                }
            } else {
                refusals.push((spec, why));
            }
        }
    }

    fn check_kind(&self, seat: &Seat<'_>, spec: &ModelSpec) -> Result<(), JobError> {
        if spec.kind == seat.kind {
            return Ok(());
        }
        let why = format!("it is for {:?}, not for {:?}", spec.kind, seat.kind);
        Err(refused(seat, spec, &why))
    }

    /// PICK-1: kind, envelope, inputs, status, and the grade of what was picked.
    fn check(
        &self,
        seat: &Seat<'_>,
        spec: &ModelSpec,
        least: Option<Grade>,
    ) -> Result<(), JobError> {
        self.check_kind(seat, spec)?;
        let why = if let Err(why) = self.envelope.judge(spec) {
            why
        } else if let Some(why) = seat.unfit(spec) {
            why
        } else if spec.status != ModelStatus::Open {
            format!("it is {:?}", spec.status)
        } else if let Some(least) = least.filter(|least| spec.grade < *least) {
            format!(
                "it is of grade {:?}, and at least {least:?} is asked for",
                spec.grade
            )
        } else {
            return Ok(());
        };
        Err(refused(seat, spec, &why))
    }

    /// PICK-4: another route to the same model, when this one is overloaded or slowed down.
    fn reroute(
        &self,
        seat: &Seat<'_>,
        spec: Arc<ModelSpec>,
        least: Option<Grade>,
    ) -> Arc<ModelSpec> {
        // A vector of another endpoint is not promised to be the same.
        if seat.kind == ModelKind::Embeddings {
            return spec;
        }
        let overloaded = |spec: &ModelSpec| {
            self.history
                .iter()
                .any(|attempt| attempt.overloaded() == Some(&*spec.id))
        };
        let slowdown = (self.slowdown)(&spec);
        let must = overloaded(&spec);
        if !must && (slowdown < CROWDED || self.chance >= 1.0 - 1.0 / slowdown) {
            return spec;
        }
        let best = self
            .catalog
            .entries()
            .filter(|other| other.identity == spec.identity && other.id != spec.id)
            .filter(|other| !overloaded(other) && (self.missing)(other).is_none())
            .filter(|other| self.check(seat, other, least).is_ok())
            .map(|other| (other, (self.slowdown)(other)))
            .filter(|(_, theirs)| must || *theirs < slowdown)
            .filter(|(other, _)| self.picker.may_reroute(seat, &spec, other))
            .min_by(|(_, one), (_, two)| one.total_cmp(two));
        best.map_or(Arc::clone(&spec), |(other, _)| Arc::clone(other))
    }
}

fn refused(seat: &Seat<'_>, spec: &ModelSpec, why: &str) -> JobError {
    JobError::model_resolution(format!(
        "the model {} cannot serve the slot '{}': {why}",
        spec.id,
        seat.slot.name()
    ))
}
