//! A dispatcher on a clock that the test owns, and everything that it told.

use std::sync::Arc;

use nucleo_runtime::events::{EventFilter, EventKind, Subscription};
use nucleo_runtime::testing::{self, EventRecorder};
use nucleo_runtime::{
    JobDispatcher, JobDispatcherBuilder, JobHandle, ManualClock, Submit, Workflow,
};

pub struct Host {
    pub dispatcher: JobDispatcher,
    pub clock: ManualClock,
    pub workflow: Workflow,
    pub events: Arc<EventRecorder>,
    _subscription: Subscription,
}

impl Host {
    pub fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub fn with(settings: impl FnOnce(JobDispatcherBuilder) -> JobDispatcherBuilder) -> Self {
        let clock = ManualClock::new();
        let builder = JobDispatcher::builder().clock(Arc::new(clock.clone()));
        let dispatcher = settings(builder).build().unwrap();
        dispatcher.start().unwrap();
        let events = EventRecorder::new();
        let subscription = dispatcher
            .subscribe(EventFilter::all(), events.clone())
            .unwrap();
        Self {
            dispatcher,
            clock,
            workflow: Workflow::new("alice", "test").unwrap(),
            events,
            _subscription: subscription,
        }
    }

    /// Submits a root job.
    pub fn submit<S: Submit<K>, K>(&self, job: S) -> JobHandle<S::Output> {
        self.dispatcher.submit(&self.workflow, job).unwrap()
    }

    /// What was told of a job up to now, limits' events aside.
    pub fn kinds<T>(&self, job: &JobHandle<T>) -> Vec<EventKind> {
        testing::quiesce(&self.dispatcher);
        self.events.kinds_of(job.job_id())
    }
}
