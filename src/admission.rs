//! The one place where a job waits for resources.
//!
//! Its needs are one [`Demand`]; [`Admission`] grants all of it in one critical section or parks
//! the job holding nothing. Every limit is an account that answers and debits at once
//! ([`RateLimiter`]); the monitor does the waiting.

pub(crate) mod account;
mod accounts;
mod demand;
mod grant;
mod line;
mod monitor;
mod outbox;

pub use account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment, Wake};
pub use demand::Demand;
pub use grant::Grant;
pub use monitor::Admission;

pub(crate) use monitor::refuse_reentry;
