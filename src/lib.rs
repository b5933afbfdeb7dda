//! The job runtime for agents.
#![deny(unsafe_code)]

pub mod admission;
mod clock;
pub mod db;
mod error;
mod job;
mod sync;
pub mod testing;
mod threads;

pub use clock::{Clock, ManualClock, SystemClock, WaitCell};
pub use error::{
    CorrectionSignal, ErrorKind, JobError, ResultExt, RetrySignal, TruncationSignal,
    UpstreamFailure, UpstreamSignal,
};
pub use job::{JobSnapshot, JobState, JobType, Metadata, MetadataValue, Workflow};
