//! Jobs: who they are, where they are, what they ask for and what they are given.

pub(crate) mod identity;
pub(crate) mod metadata;
pub(crate) mod snapshot;
pub(crate) mod state;

pub use identity::{JobType, Workflow};
pub use metadata::{Metadata, MetadataValue};
pub use snapshot::JobSnapshot;
pub use state::JobState;
