//! Events of the application's own (`EVT-6`).

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use crate::job::JobSnapshot;
use crate::job::behalf::{self, Behalf};

/// An event that the application defines and publishes.
///
/// It reaches the subscriptions that ask for its type, for all applications' events, or for
/// everything. Its methods are called on observers' threads; where the runtime calls them, on behalf of whoever
/// published it.
pub trait AppEvent: Any + Debug + Send + Sync {
    /// What it is called in logs.
    fn name(&self) -> &str;

    /// The path of its type, which is where [`EventLogger`](crate::observe::EventLogger) writes it
    /// when no job published it. What the compiler calls the type unless it says otherwise.
    fn type_path(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// One line for a log. The event's name unless it says more.
    fn message(&self) -> String {
        self.name().to_owned()
    }

    /// A sentence for a person. None unless it has one.
    fn human_message(&self) -> Option<String> {
        None
    }
}

/// An application's event on the bus.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppEventEnvelope {
    /// The event.
    pub event: Arc<dyn AppEvent>,
    /// The job that published it; `None` when none did.
    pub snapshot: Option<JobSnapshot>,
    /// When.
    pub at: SystemTime,
    /// Whose event it is: what the runtime asks it, it asks for them.
    pub(crate) by: Option<Arc<Behalf>>,
}

impl AppEventEnvelope {
    /// The event, if it is a `T`.
    #[must_use]
    pub fn downcast<T: AppEvent>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.event;
        any.downcast_ref()
    }

    /// Asks the event, on behalf of whoever published it.
    pub(crate) fn ask<R>(&self, question: impl FnOnce(&dyn AppEvent) -> R) -> R {
        behalf::acting(self.by.as_ref(), || question(&*self.event))
    }
}
