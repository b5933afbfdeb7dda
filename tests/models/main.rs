//! Models, end to end: which one a job gets, what it costs, and what a provider's "no" means.

mod cost;
mod provider_quota;
mod reserved;
mod resolution;
mod retry_signals;
mod served;
mod stuck_gate;
mod support;
