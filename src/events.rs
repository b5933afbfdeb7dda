//! What happens, told to whoever wants to know.
//!
//! An [`Event`] is immutable, stamped when it is made and shared as `Arc<Event>`. Its families are
//! enums, so a `match` over one is checked; the structs in their variants may gain fields. The
//! [`MessageBus`] carries events to [`Observer`]s, each on a thread of its own, and never makes
//! the one that publishes wait.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use nucleo_runtime::SystemClock;
//! use nucleo_runtime::events::{Event, EventFamily, EventFilter, MessageBus};
//!
//! let bus = MessageBus::standalone(Arc::new(SystemClock));
//! bus.start();
//! let (seen, log) = mpsc::channel();
//! let subscription = bus.subscribe(
//!     EventFilter::all().family(EventFamily::Scheduler),
//!     Arc::new(move |event: &Arc<Event>| {
//!         let _ = seen.send(event.message());
//!     }),
//! )?;
//! bus.publish(Event::scheduler_error("the disk is full", std::time::SystemTime::now()));
//! assert_eq!(log.recv()?, "Scheduler error: the disk is full");
//! subscription.unsubscribe();
//! bus.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod app;
mod bus;
#[cfg(test)]
mod bus_tests;
mod consumer;
mod delivery;
mod event;
mod filter;
mod gate;
mod kind;
mod lane;
mod lifecycle;
mod message;
mod observer;
mod operation;
mod progress;
mod retry;
mod roster;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod shape_tests;
mod subscription;

pub use app::{AppEvent, AppEventEnvelope};
pub use bus::{BusError, MessageBus, StopReport};
pub(crate) use delivery::Overflow;
pub use event::Event;
pub use filter::EventFilter;
pub use kind::{EventFamily, EventKind};
pub use lifecycle::{
    DependencyFailure, JobCancelled, JobCompleted, JobFailed, JobScheduled, JobStarted,
    JobTimedOut, LifecycleEvent, ModelCall, OrchestratorIdle, OrchestratorResumed, TerminalInfo,
};
pub use observer::{Observer, ObserverKey};
pub use operation::{
    CancelHeartbeat, HeartbeatEvent, HeartbeatFireFailed, HeartbeatFired, HeartbeatRebound,
    HeartbeatRequested, HeartbeatScheduled, LimiterChange, LimiterEvent, RejectReason,
    SchedulerError, SchedulerEvent, SchedulerStarted, SchedulerStopped, SchedulerStopping,
};
pub use progress::{
    ContentStream, JobProgress, Notification, Phase, ProgressEvent, Severity, WorkflowComplete,
};
pub use retry::{
    OutputTruncationRetry, RateLimitRetry, ResponseCorrectionRetry, RetryEvent, ThrottleKind,
    TransientRetry,
};
pub use subscription::{SubscribeError, Subscription, SubscriptionId, SubscriptionStatus};
