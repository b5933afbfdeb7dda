//! A limit that lets everybody pass and notes what it is asked.

use std::sync::Arc;
use std::time::Instant;

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment,
};
use nucleo_runtime::{JobError, UpstreamFailure};

use super::log::Log;

pub struct Account {
    key: AccountKey,
    replenishment: Replenishment,
    log: Log,
}

impl Account {
    /// Notes `<name>.<what>`.
    pub fn new(name: &str, replenishment: Replenishment, log: &Log) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new(name),
            replenishment,
            log: log.clone(),
        })
    }

    fn note(&self, what: &str) {
        self.log.note(format!("{}.{what}", self.key.name()));
    }
}

impl RateLimiter for Account {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        self.replenishment
    }

    fn fits(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        self.note("take");
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {
        self.note("give");
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }

    fn on_success(&self, _: Instant) {
        self.note("success");
    }

    fn on_rate_limit_error(&self, failure: &UpstreamFailure, _: Instant) {
        self.note(format!("error of {}", failure.service).as_str());
    }
}
