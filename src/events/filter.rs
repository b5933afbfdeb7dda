//! Which events a subscription wants, as data that the publisher evaluates (`BUS-8`).

use std::any::{Any, TypeId};
use std::sync::Arc;

use super::app::AppEvent;
use super::event::Event;
use super::kind::{EventFamily, EventKind};
use crate::job::snapshot::JobProfile;

/// Which events a subscription wants.
///
/// What is named of one sort adds up: two families mean either. Different sorts narrow: a family
/// and a workflow mean that family in that workflow. What is not named does not matter. An event
/// that is about no job reaches only filters that name neither a job type nor a workflow.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EventFilter {
    /// The kinds that are wanted whole, by bit.
    kinds: u64,
    /// The types of application events that are wanted, where not all of them are.
    apps: Vec<TypeId>,
    job_types: Vec<Arc<str>>,
    workflows: Vec<Arc<str>>,
}

impl EventFilter {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Events of this family, besides those named before. Default: of every family.
    pub fn family(mut self, family: EventFamily) -> Self {
        self.kinds |= family.mask();
        self
    }

    /// Events of this kind, besides those named before. Default: of every kind.
    pub fn kind(mut self, kind: EventKind) -> Self {
        self.kinds |= kind.bit();
        self
    }

    /// The application's events of type `T`, besides those named before. Default: every event.
    pub fn app<T: AppEvent>(mut self) -> Self {
        self.apps.push(TypeId::of::<T>());
        self
    }

    /// Events about jobs of this type, or of one named before. The name is the type's simple one,
    /// as [`JobSnapshot::type_name`](crate::JobSnapshot::type_name) gives it. Default: jobs of
    /// every type, and events about no job.
    pub fn job_type(mut self, type_name: impl Into<Arc<str>>) -> Self {
        self.job_types.push(type_name.into());
        self
    }

    /// Events about jobs of this workflow, or of one named before. Default: of every workflow,
    /// and events about no job.
    pub fn workflow(mut self, id: impl Into<Arc<str>>) -> Self {
        self.workflows.push(id.into());
        self
    }

    /// The bits of the kinds of which at least some events are wanted.
    pub(super) fn mask(&self) -> u64 {
        match (self.kinds, self.apps.is_empty()) {
            (0, true) => u64::MAX,
            (kinds, true) => kinds,
            (kinds, false) => kinds | EventKind::App.bit(),
        }
    }

    /// Whether it asks for more than the mask does.
    pub(super) fn is_narrow(&self) -> bool {
        !(self.apps.is_empty() && self.job_types.is_empty() && self.workflows.is_empty())
    }

    /// Whether an event about this job is of those wanted, as far as the job goes.
    pub(super) fn matches_subject(&self, subject: Option<&JobProfile>) -> bool {
        if self.job_types.is_empty() && self.workflows.is_empty() {
            return true;
        }
        let Some(profile) = subject else {
            return false;
        };
        let among = |names: &[Arc<str>], name: &str| {
            names.is_empty() || names.iter().any(|wanted| **wanted == *name)
        };
        among(&self.job_types, profile.type_name) && among(&self.workflows, &profile.ids.workflow)
    }

    /// Whether the application's event in `event` is of a type that is wanted; true of any other
    /// event, which the mask has judged already.
    pub(super) fn matches_app(&self, event: &Event) -> bool {
        if self.apps.is_empty() || self.kinds & EventKind::App.bit() != 0 {
            return true;
        }
        match event {
            Event::App(envelope) => {
                let any: &dyn Any = &*envelope.event;
                self.apps.contains(&any.type_id())
            }
            _ => true,
        }
    }

    /// Whether this event is wanted.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.mask() & event.kind().bit() != 0
            && self.matches_subject(event.subject())
            && self.matches_app(event)
    }
}
