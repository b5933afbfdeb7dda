//! Observers that ship: a run made readable.
//!
//! | observer | for |
//! |---|---|
//! | [`EventLogger`] | the log: a line an event, filtered by job type and kind |
//! | [`StreamingLogObserver`] | a person at a console: one workflow's streamed text and progress |
//! | [`CostLedger`] | the money: what each workflow spent, and caps on it |
//! | [`Trajectory`] | afterwards: the tree of jobs that a workflow ran |
//! | [`WorkflowObserver`] | your own observer of one workflow: what ends it, and when it is stale |
//!
//! Each runs on the thread of its subscription, like every [`Observer`](crate::events::Observer),
//! so none of them slows a job.

mod cost_ledger;
#[cfg(test)]
mod cost_ledger_tests;
mod event_logger;
#[cfg(test)]
mod event_logger_tests;
mod streaming;
#[cfg(test)]
mod streaming_tests;
mod text;
mod trajectory;
#[cfg(test)]
mod trajectory_tests;
mod workflow_observer;

pub use cost_ledger::{CallSpend, CostLedger, ModelSpend, WorkflowSpend};
pub use event_logger::EventLogger;
pub use streaming::StreamingLogObserver;
pub use trajectory::{Trajectory, TrajectoryNode};
pub use workflow_observer::WorkflowObserver;
