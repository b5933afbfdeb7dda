//! Jobs: who they are, where they are, what they ask for and what they are given.

pub(crate) mod behalf;
mod calls;
mod cancellation;
mod context;
pub(crate) mod core;
pub(crate) mod current;
pub(crate) mod description;
mod handle;
pub(crate) mod identity;
mod leaf;
pub(crate) mod metadata;
pub(crate) mod requirements;
pub(crate) mod resources;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod telling;

pub use cancellation::CancellationToken;
pub use context::JobContext;
pub use description::{DEFAULT_TIMEOUT, DEFAULT_UPSTREAM_RETRIES};
pub use handle::JobHandle;
pub use identity::{JobType, Workflow};
pub use leaf::{FnJob, Job, job_fn};
pub use metadata::{Metadata, MetadataValue};
pub use requirements::JobRequirements;
pub use resources::{JobResources, ModelAccess};
pub use snapshot::JobSnapshot;
pub use state::JobState;
