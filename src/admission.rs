//! The one place where a job waits for resources.
//!
//! Its needs are one [`Demand`]; [`Admission`] grants all of it in one critical section or parks
//! the job holding nothing. Every limit is an account that answers and debits at once
//! ([`RateLimiter`]); the monitor does the waiting.

pub(crate) mod account;
mod accounts;
mod counting;
mod demand;
mod elastic_window;
mod grant;
mod ids;
mod line;
mod mcp;
mod memory;
mod memory_front;
pub mod memory_source;
mod monitor;
mod outbox;
mod parked;
mod patience;
mod question;
pub(crate) mod stepped;
mod token_bucket;

pub use account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment, Wake};
pub use counting::{CountingGate, DatabaseGate, GateStatus, HttpConnectionGate, ModelGate};
pub use demand::Demand;
pub use elastic_window::{CircuitState, ElasticWindow, ElasticWindowBuilder, ElasticWindowStatus};
pub use grant::Grant;
pub use mcp::{McpEndpoint, McpSlots};
pub use memory::{MemoryReading, MemoryStatus, MemoryZone};
pub use memory_source::MemorySource;
pub use monitor::Admission;
pub use token_bucket::{TokenBucket, TokenBucketStatus, TokenBudget};

pub(crate) use memory_front::MemorySettings;
pub(crate) use monitor::refuse_reentry;
