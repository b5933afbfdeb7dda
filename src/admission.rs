//! The one place where a job waits for resources.

pub(crate) mod account;
mod counting;
mod token_bucket;

pub use account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment, Wake};
pub use counting::{CountingGate, DatabaseGate, GateStatus, HttpConnectionGate, ModelGate};
pub use token_bucket::{TokenBucket, TokenBucketStatus, TokenBudget};
