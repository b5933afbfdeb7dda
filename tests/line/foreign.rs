//! A gate of a user's own that promises nothing: its size changes without a sign, it may refuse, and
//! it may decline what it said that fits.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use nucleo_runtime::JobError;
use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment,
};

pub(crate) struct Foreign {
    key: AccountKey,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    capacity: usize,
    in_use: usize,
    refuses: bool,
    declines: bool,
}

impl Foreign {
    pub(crate) fn new(name: &str, capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new(name),
            state: Mutex::new(State {
                capacity,
                in_use: 0,
                refuses: false,
                declines: false,
            }),
        })
    }

    pub(crate) fn set(&self, capacity: usize, refuses: bool, declines: bool) {
        let mut state = self.state.lock().unwrap();
        state.capacity = capacity;
        state.refuses = refuses;
        state.declines = declines;
    }

    pub(crate) fn in_use(&self) -> usize {
        self.state.lock().unwrap().in_use
    }

    pub(crate) fn declines(&self) -> bool {
        self.state.lock().unwrap().declines
    }
}

impl State {
    fn check(&self, mine: &[()], ahead: &[()]) -> Result<bool, JobError> {
        if self.refuses {
            return Err(JobError::uncorrectable("not today"));
        }
        Ok(self.in_use + mine.len() + ahead.len() <= self.capacity)
    }
}

impl RateLimiter for Foreign {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let State {
            capacity, in_use, ..
        } = *self.state.lock().unwrap();
        AccountStatus::new(AccountCategory::Semaphore, capacity as u64, in_use as u64)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, mine: &[()], ahead: &[()], _: Instant) -> Result<bool, JobError> {
        self.state.lock().unwrap().check(mine, ahead)
    }

    fn try_take(&self, mine: &[()], ahead: &[()], _: Instant) -> Result<bool, JobError> {
        let mut state = self.state.lock().unwrap();
        if state.declines || !state.check(mine, ahead)? {
            return Ok(false);
        }
        state.in_use += mine.len();
        Ok(true)
    }

    fn give(&self, amounts: &[()], _: Instant) {
        self.state.lock().unwrap().in_use -= amounts.len();
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}
