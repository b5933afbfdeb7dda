//! The job runtime for agents.
#![deny(unsafe_code)]

pub mod admission;
mod clock;
mod error;
pub mod events;
mod job;
mod sync;
mod threads;
pub mod testing {
    //! What users test their own jobs with.
}

pub use clock::{Clock, ManualClock, SystemClock, WaitCell};
pub use error::{
    CorrectionSignal, ErrorKind, JobError, ResultExt, RetrySignal, TruncationSignal,
    UpstreamFailure, UpstreamSignal,
};
pub use job::{JobSnapshot, JobState, JobType, Metadata, MetadataValue, Workflow};
