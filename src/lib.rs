//! The job runtime for agents.
#![deny(unsafe_code)]

pub mod admission;
#[cfg(target_os = "linux")]
mod cgroup;
mod clock;
pub mod db;
mod dispatcher;
mod error;
pub mod events;
mod job;
pub mod llm;
#[cfg(all(test, nucleo_model))]
mod model_check;
pub mod models;
mod sync;
pub mod testing;
mod threads;
mod unwind;

pub use clock::{Clock, ManualClock, SystemClock, WaitCell};
pub use dispatcher::{
    BuildError, DelayedHandle, Doer, FnDoer, JobDispatcher, JobDispatcherBuilder, Leaf,
    LimiterRegistry, Orchestrator, OrchestratorContext, Parent, ShutdownError, ShutdownReport,
    StopOnce, Stoppable, Submission, Submit, SubmitError, ThreadCounts, Unresponsive,
    UnresponsiveReason, doer_fn, governor,
};
pub use error::{
    CorrectionSignal, ErrorKind, JobError, ResultExt, RetrySignal, TruncationSignal,
    UpstreamFailure, UpstreamSignal,
};
pub use job::{
    CancellationToken, DEFAULT_TIMEOUT, DEFAULT_UPSTREAM_RETRIES, FnJob, Job, JobContext,
    JobHandle, JobRequirements, JobResources, JobSnapshot, JobState, JobType, Metadata,
    MetadataValue, ModelAccess, Workflow, job_fn,
};
