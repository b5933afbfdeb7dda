//! The one place where a job waits for resources.

pub(crate) mod account;

pub use account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment, Wake};
