//! An observer that keeps what it hears.

use std::fmt;
use std::sync::Arc;

use crate::events::{Event, EventFamily, EventKind, Observer};
use crate::sync::Mutex;

/// Keeps every event that it hears, for a test to look at.
///
/// Events reach it on the thread of its subscription: call [`quiesce`](super::quiesce) before
/// looking.
///
/// ```
/// use nucleo_runtime::events::{EventFilter, EventKind};
/// use nucleo_runtime::testing::{EventRecorder, quiesce};
/// use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};
///
/// let dispatcher = JobDispatcher::builder().build()?;
/// dispatcher.start()?;
/// let recorder = EventRecorder::new();
/// let _subscription = dispatcher.subscribe(EventFilter::all(), recorder.clone())?;
///
/// let workflow = Workflow::new("alice", "sums")?;
/// let handle = dispatcher.submit(&workflow, job_fn(JobRequirements::none, |_, _| Ok(6 * 7)))?;
/// handle.get()?;
/// quiesce(&dispatcher);
/// assert_eq!(
///     recorder.kinds_of(handle.job_id()),
///     [
///         EventKind::JobScheduled,
///         EventKind::JobStarted,
///         EventKind::JobCompleted,
///         EventKind::WorkflowComplete,
///     ],
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct EventRecorder {
    events: Mutex<Vec<Arc<Event>>>,
}

impl EventRecorder {
    /// One that has heard nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Everything heard so far, in the order of its publication.
    #[must_use]
    pub fn events(&self) -> Vec<Arc<Event>> {
        self.events.lock().clone()
    }

    /// What was heard of one job.
    #[must_use]
    pub fn events_of(&self, job_id: &str) -> Vec<Arc<Event>> {
        let mut events = self.events();
        events.retain(|event| {
            event
                .snapshot()
                .is_some_and(|snapshot| snapshot.job_id() == job_id)
        });
        events
    }

    /// The kinds of what was heard of one job, limits' events aside: these come from whatever
    /// thread changes an account, so their order among the others says nothing.
    #[must_use]
    pub fn kinds_of(&self, job_id: &str) -> Vec<EventKind> {
        self.events_of(job_id)
            .iter()
            .filter(|event| event.family() != EventFamily::Limiter)
            .map(|event| event.kind())
            .collect()
    }
}

impl Observer for EventRecorder {
    fn observe(&self, event: &Arc<Event>) {
        self.events.lock().push(Arc::clone(event));
    }
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRecorder")
            .field("events", &self.events.lock().len())
            .finish()
    }
}
