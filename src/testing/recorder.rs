//! An observer that keeps what it hears.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock, WaitCell};
use crate::events::{Event, EventFamily, EventKind, Observer};
use crate::sync::Mutex;

/// How long a test waits for an event before it counts as lost: longer than any machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps every event that it hears, for a test to look at.
///
/// Events reach it on the thread of its subscription. To see what has happened, call
/// [`quiesce`](super::quiesce) before looking; to wait for what is yet to happen, ask for it with
/// [`wait_for`](Self::wait_for) or [`wait_until`](Self::wait_until). These wait in the time of the
/// machine, whatever clock the dispatcher has.
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
    heard: Mutex<Heard>,
    more: Arc<WaitCell>,
}

#[derive(Default)]
struct Heard {
    events: Vec<Arc<Event>>,
    /// How many were taken out before those.
    taken: usize,
}

impl EventRecorder {
    /// One that has heard nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Everything heard so far and not taken, in the order of its publication.
    #[must_use]
    pub fn events(&self) -> Vec<Arc<Event>> {
        self.heard.lock().events.clone()
    }

    /// Takes everything heard so far, so that what comes next stands alone.
    #[must_use]
    pub fn take(&self) -> Vec<Arc<Event>> {
        let mut heard = self.heard.lock();
        let events = std::mem::take(&mut heard.events);
        heard.taken += events.len();
        events
    }

    /// Waits until at least `count` events have been heard and not taken, and answers them.
    ///
    /// # Panics
    /// When that has not come about in a minute, with what was heard instead.
    #[must_use]
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<Arc<Event>> {
        let come = self.wait(|| {
            let events = self.events();
            (events.len() >= count).then_some(events)
        });
        match come {
            Some(events) => events,
            None => self.give_up(&format!("{count} events")),
        }
    }

    /// Waits until an event has been heard and not taken that `is_wanted` says yes to, and answers
    /// the first. `is_wanted` sees each event once.
    ///
    /// # Panics
    /// When none has come in a minute, with what was heard instead.
    #[track_caller]
    pub fn wait_until(&self, mut is_wanted: impl FnMut(&Event) -> bool) -> Arc<Event> {
        let mut seen = 0;
        let come = self.wait(|| {
            // Asked without the lock: it is the test's, and may look at this recorder.
            let unseen: Vec<_> = {
                let heard = self.heard.lock();
                let skipped = seen.max(heard.taken) - heard.taken;
                seen = heard.taken + heard.events.len();
                heard.events.iter().skip(skipped).cloned().collect()
            };
            unseen.into_iter().find(|event| is_wanted(event))
        });
        match come {
            Some(event) => event,
            None => self.give_up("an event that is wanted"),
        }
    }

    fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let deadline = SystemClock.now() + PATIENCE;
        loop {
            let seen = self.more.epoch();
            if let Some(found) = look() {
                return Some(found);
            }
            if SystemClock.now() >= deadline {
                return None;
            }
            SystemClock.wait_until(&self.more, seen, Some(deadline));
        }
    }

    #[track_caller]
    fn give_up(&self, what: &str) -> ! {
        let heard: Vec<_> = self.events().iter().map(|event| event.message()).collect();
        panic!("{what} did not come in {PATIENCE:?}; heard {heard:#?}")
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
        self.heard.lock().events.push(Arc::clone(event));
        self.more.notify();
    }
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRecorder")
            .field("events", &self.heard.lock().events.len())
            .finish()
    }
}
