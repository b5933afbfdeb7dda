//! What is asked of a user's code on a job's own thread before anything is granted.
//!
//! A job's timeout begins at its grant, so it does not cover this: what the input says it is, what a
//! guard says of itself, what an attempt asks for. An answer that does not come must not keep the job
//! for ever, so each is given as long as the work itself.

use std::sync::Arc;

use super::entry::Entry;
use super::inner::{Alarm, Inner};
use super::settle::HOOK_BUDGET;
use super::timer::AlarmKey;
use crate::error::JobError;

/// Asks; whoever takes longer than the job's timeout (the hooks' budget for a job without one) times
/// the job out.
///
/// # Errors
/// Why the job is to stop, when it was told to meanwhile.
pub(super) fn asking<T>(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    ask: impl FnOnce() -> T,
) -> Result<T, JobError> {
    let answer = {
        let _asking = Asking::begin(inner, entry);
        ask()
    };
    match entry.job().interruption() {
        None => Ok(answer),
        Some(interruption) => Err(interruption),
    }
}

struct Asking<'a> {
    inner: &'a Inner,
    entry: &'a Entry,
    alarm: Option<AlarmKey>,
}

impl<'a> Asking<'a> {
    fn begin(inner: &'a Arc<Inner>, entry: &'a Arc<Entry>) -> Self {
        let budget = entry.job().terms().timeout.unwrap_or(HOOK_BUDGET);
        entry.set_asking(true);
        Self {
            inner,
            entry,
            alarm: inner.arm_in(budget, Alarm::Timeout(Arc::clone(entry))),
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm {
            self.inner.disarm(alarm);
        }
        self.entry.set_asking(false);
    }
}
