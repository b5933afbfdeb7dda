//! What every observer of one workflow needs (`OBS-4`).
//!
//! # Invariants
//!
//! 1. It hears of its workflow alone, and of nothing after the end of the root that it was given.
//! 2. The end is noted whatever the observer inside does with the event, a panic included.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission::refuse_reentry;
use crate::clock::{Clock, SystemClock, WaitCell};
use crate::events::{Event, EventFilter, Observer, ObserverKey};
use crate::sync::Mutex;

/// Lets an observer hear of one workflow, until that ends.
///
/// It is stale, and its subscription ends with the next sweep (one a minute), once the root job
/// named by [`until`](Self::until) has told the end of its workflow, or once the workflow has been
/// silent for longer than [`stale_after`](Self::stale_after).
///
/// ```
/// use nucleo_runtime::events::Event;
/// use nucleo_runtime::observe::WorkflowObserver;
/// use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
///
/// let dispatcher = JobDispatcher::builder().build()?;
/// dispatcher.start()?;
/// let workflow = Workflow::new("alice", "sums")?;
/// let heard = Arc::new(AtomicUsize::new(0));
/// let count = Arc::clone(&heard);
/// let observer = WorkflowObserver::new(workflow.id(), move |_: &Arc<Event>| {
///     count.fetch_add(1, Ordering::Relaxed);
/// });
/// let observer = Arc::new(observer.stale_after(Duration::from_secs(600)));
/// let _subscription = dispatcher.subscribe(observer.filter(), observer.clone())?;
///
/// let handle = dispatcher.submit(&workflow, job_fn(JobRequirements::none, |_, _| Ok(6 * 7)))?;
/// handle.get()?;
/// dispatcher.shutdown(Duration::from_secs(5))?;
/// // Scheduled, started, completed, and the end of the workflow.
/// assert_eq!(heard.load(Ordering::Relaxed), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkflowObserver<O> {
    workflow: Arc<str>,
    root: Option<Arc<str>>,
    stale_after: Option<Duration>,
    clock: Arc<dyn Clock>,
    watch: Mutex<Watch>,
    ended: Arc<WaitCell>,
    observer: O,
}

#[derive(Clone, Copy, Debug)]
struct Watch {
    ended: bool,
    /// When the workflow was last heard of; at first, when this was made.
    heard: Instant,
}

impl<O: Observer> WorkflowObserver<O> {
    /// Lets `observer` hear of the workflow with this id, for ever unless told otherwise.
    pub fn new(workflow_id: impl Into<Arc<str>>, observer: O) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Self {
            workflow: workflow_id.into(),
            root: None,
            stale_after: None,
            watch: Mutex::new(Watch {
                ended: false,
                heard: clock.now(),
            }),
            clock,
            ended: WaitCell::new(),
            observer,
        }
    }

    /// Ends with the `WorkflowComplete` of the root job with this id. Default: with none, since a
    /// workflow may have several roots.
    #[must_use]
    pub fn until(mut self, root_job_id: impl Into<Arc<str>>) -> Self {
        self.root = Some(root_job_id.into());
        self
    }

    /// Counts as stale when nothing was heard of the workflow for longer than this. Default: never.
    #[must_use]
    pub fn stale_after(mut self, silence: Duration) -> Self {
        self.stale_after = Some(silence);
        self
    }

    /// Takes the time from `clock`. Default: the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.watch.lock().heard = clock.now();
        self.clock = clock;
        self
    }

    /// What to subscribe it to.
    pub fn filter(&self) -> EventFilter {
        EventFilter::all().workflow(Arc::clone(&self.workflow))
    }

    /// The id of the workflow.
    #[must_use]
    pub fn workflow_id(&self) -> &str {
        &self.workflow
    }

    /// The observer inside.
    #[must_use]
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Whether the end of its root has been heard of.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.watch.lock().ended
    }

    /// Waits until the end of its root has been heard of, for at most `timeout`; whether it has.
    /// For a program that reads what the observer gathered: a handle may answer before an observer
    /// has heard the last of its job. Without [`until`](Self::until) there is no end to wait for. From
    /// inside an account's answer it does not wait.
    #[must_use]
    pub fn wait_ended(&self, timeout: Duration) -> bool {
        if refuse_reentry("wait_ended").is_err() {
            return self.has_ended();
        }
        let deadline = self.clock.now().checked_add(timeout);
        loop {
            let seen = self.ended.epoch();
            if self.has_ended() {
                return true;
            }
            if deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                return false;
            }
            self.clock.wait_until(&self.ended, seen, deadline);
        }
    }

    pub(super) fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    pub(super) fn has_timeout(&self) -> bool {
        self.stale_after.is_some()
    }

    fn is_end(&self, event: &Event) -> bool {
        match (event, &self.root) {
            (Event::Workflow(end), Some(root)) => end.snapshot.job_id() == &**root,
            _ => false,
        }
    }
}

/// Notes what an event means for the watch, whatever becomes of the observer that hears of it.
struct Heard<'a, O: Observer> {
    by: &'a WorkflowObserver<O>,
    end: bool,
}

impl<O: Observer> Drop for Heard<'_, O> {
    fn drop(&mut self) {
        let heard = self.by.clock.now();
        {
            let mut watch = self.by.watch.lock();
            watch.heard = heard;
            watch.ended |= self.end;
        }
        if self.end {
            self.by.ended.notify();
        }
    }
}

impl<O: Observer> Observer for WorkflowObserver<O> {
    fn observe(&self, event: &Arc<Event>) {
        let _heard = Heard {
            by: self,
            end: self.is_end(event),
        };
        if self.observer.accepts(event) {
            self.observer.observe(event);
        }
    }

    fn accepts(&self, event: &Event) -> bool {
        let in_workflow = event
            .snapshot()
            .is_some_and(|job| job.workflow_id() == &*self.workflow);
        in_workflow && !self.has_ended()
    }

    fn is_stale(&self) -> bool {
        let watch = *self.watch.lock();
        let silence = self.clock.now().saturating_duration_since(watch.heard);
        watch.ended
            || self.stale_after.is_some_and(|limit| silence > limit)
            || self.observer.is_stale()
    }

    /// Equal to another of the same workflow and root whose observer has an equal key.
    fn key(&self) -> Option<ObserverKey> {
        let inside = self.observer.key()?;
        let root = self.root.as_deref().unwrap_or_default();
        Some(ObserverKey::new(format!(
            "{inside} of {} until {root}",
            self.workflow
        )))
    }
}

impl<O: fmt::Debug> fmt::Debug for WorkflowObserver<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowObserver")
            .field("workflow", &self.workflow)
            .field("root", &self.root)
            .field("ended", &self.watch.lock().ended)
            .field("observer", &self.observer)
            .finish_non_exhaustive()
    }
}
